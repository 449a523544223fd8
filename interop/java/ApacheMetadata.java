// Apache BookKeeper's own metadata classes behind JSON lines: one request a line on stdin, one answer a line on stdout.
//
//   {"op": "parseLedger", "ledgerId": 7, "value": "base64"}   ->   {"result": {...}}   or   {"error": "Class: message"}
//
// Every answer is made from what Apache's getters return, field by field, so that the Python side compares fields and
// not printed text. `connect` opens Apache's drivers on a ZooKeeper; the operations below it need that first.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.bookie.Cookie;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.LedgerMetadataUtils;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.discover.RegistrationManager;
import org.apache.bookkeeper.discover.ZKRegistrationManager;
import org.apache.bookkeeper.meta.LedgerIdGenerator;
import org.apache.bookkeeper.meta.LedgerLayout;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.meta.LedgerManagerFactory;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.meta.MetadataBookieDriver;
import org.apache.bookkeeper.meta.MetadataClientDriver;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.bookkeeper.util.StringUtils;
import org.apache.bookkeeper.versioning.LongVersion;
import org.apache.bookkeeper.versioning.Version;
import org.apache.bookkeeper.versioning.Versioned;

public final class ApacheMetadata {
    private interface Operation {
        Object run(JsonNode request) throws Exception;
    }

    private static final long TIMEOUT_S = 30;
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final LedgerMetadataSerDe SERDE = new LedgerMetadataSerDe();

    private final Map<String, Operation> operations = new HashMap<>();
    private final ScheduledExecutorService scheduler = Executors.newSingleThreadScheduledExecutor();
    private String uri;
    private MetadataClientDriver client;
    private MetadataBookieDriver bookie;
    private LedgerManagerFactory factory;
    private LedgerManager manager;
    private LedgerIdGenerator generator;

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);  // What libraries print must not come between the answers.
        ApacheMetadata program = new ApacheMetadata();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.println(program.answer(line));
            answers.flush();
        }
        System.exit(0);  // Netty's and ZooKeeper's threads would keep the process.
    }

    private String answer(String line) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        try {
            JsonNode request = JSON.readTree(line);
            Operation operation = operations.get(request.get("op").asText());
            if (operation == null) {
                throw new IllegalArgumentException("no such operation: " + request.get("op"));
            }
            answer.set("result", JSON.valueToTree(operation.run(request)));
        } catch (Throwable thrown) {
            Throwable cause = thrown;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            answer.put("error", cause.getClass().getSimpleName() + ": " + cause.getMessage());
            thrown.printStackTrace();
        }
        return JSON.writeValueAsString(answer);
    }

    private ApacheMetadata() {
        operations.put("parseLedger", r -> ledgerFields(SERDE.parseConfig(
                bytes(r.get("value")), r.get("ledgerId").asLong(), Optional.of(r.get("nodeCtime").asLong()))));
        operations.put("serializeLedger", r -> base64(SERDE.serialize(ledger(r.get("metadata")))));
        operations.put("parseLayout", r -> layoutFields(LedgerLayout.parseLayout(bytes(r.get("value")))));
        operations.put("serializeLayout", r -> base64(
                new LedgerLayout(r.get("manager").asText(), r.get("version").asInt()).serialize()));
        operations.put("parseCookie", r -> cookieFields(Cookie.parseFromBytes(bytes(r.get("value")))));
        operations.put("serializeCookie", r -> base64(
                cookie(r.get("cookie")).toString().getBytes(StandardCharsets.UTF_8)));
        operations.put("verifyCookie", this::verifyCookie);
        operations.put("serializeServiceInfo", r -> base64(serialize(serviceInfo(r.get("info")))));
        operations.put("ledgerPath", r -> StringUtils.getHybridHierarchicalLedgerPath(r.get("ledgerId").asLong()));
        operations.put("ledgerIdOfPath", r -> StringUtils.stringToLongHierarchicalLedgerId(r.get("path").asText()));
        operations.put("connect", this::connect);
        operations.put("initNewCluster", r -> bookie.createRegistrationManager().initNewCluster());
        operations.put("nukeExistingCluster", r -> bookie.createRegistrationManager().nukeExistingCluster());
        operations.put("instanceId", r -> bookie.createRegistrationManager().getClusterInstanceId());
        operations.put("readLayout", r -> layoutFields(client.getLayoutManager().readLedgerLayout()));
        operations.put("openClient", this::openClient);
        operations.put("openLedgers", r -> openLedgers());
        operations.put("createLedger", r -> versioned(result(manager.createLedgerMetadata(
                r.get("metadata").get("ledgerId").asLong(), ledger(r.get("metadata"))))));
        operations.put("readLedger", r -> versioned(result(manager.readLedgerMetadata(r.get("ledgerId").asLong()))));
        operations.put("closeLedger", this::closeLedger);
        operations.put("addFragment", this::addFragment);
        operations.put("removeLedger", r -> result(manager.removeLedgerMetadata(
                r.get("ledgerId").asLong(), new LongVersion(r.get("version").asLong()))));
        operations.put("listLedgers", r -> listLedgers());
        operations.put("nextLedgerId", r -> nextLedgerId());
        operations.put("writeCookie", this::writeCookie);
        operations.put("readCookie", r -> cookieFields(Cookie.readFromRegistrationManager(
                bookie.createRegistrationManager(), BookieId.parse(r.get("bookie").asText())).getValue()));
        operations.put("register", this::register);
        operations.put("serviceInfo", r -> serviceInfoFields(result(client.getRegistrationClient()
                .getBookieServiceInfo(BookieId.parse(r.get("bookie").asText()))).getValue()));
        operations.put("bookies", r -> bookies());
    }

    // --- sessions ---------------------------------------------------------------------------------------------------

    private Object connect(JsonNode r) throws Exception {
        uri = "zk+" + r.get("layout").asText() + "://" + r.get("zookeeper").asText() + r.get("root").asText();
        ClientConfiguration clientConf = new ClientConfiguration();
        clientConf.setMetadataServiceUri(uri);
        client = MetadataDrivers.getClientDriver(URI.create(uri));
        client.initialize(clientConf, scheduler, NullStatsLogger.INSTANCE, Optional.empty());
        ServerConfiguration serverConf = new ServerConfiguration();
        serverConf.setMetadataServiceUri(uri);
        bookie = MetadataDrivers.getBookieDriver(URI.create(uri));
        bookie.initialize(serverConf, NullStatsLogger.INSTANCE);
        factory = null;
        return uri;
    }

    private Object openLedgers() throws Exception {
        factory = client.getLedgerManagerFactory();
        manager = factory.newLedgerManager();
        generator = factory.newLedgerIdGenerator();
        return Map.of("factory", factory.getClass().getName(), "manager", manager.getClass().getName(),
                "generator", generator.getClass().getName());
    }

    private Object openClient(JsonNode r) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(uri);
        try (BookKeeper bookKeeper = new BookKeeper(conf)) {
            return "open";
        }
    }

    // --- ledgers ----------------------------------------------------------------------------------------------------

    private static LedgerMetadata ledger(JsonNode m) {
        LedgerMetadataBuilder b = LedgerMetadataBuilder.create()
                .withId(m.get("ledgerId").asLong())
                .withMetadataFormatVersion(m.get("formatVersion").asInt())
                .withEnsembleSize(m.get("ensembleSize").asInt())
                .withWriteQuorumSize(m.get("writeQuorum").asInt())
                .withAckQuorumSize(m.get("ackQuorum").asInt())
                .withCreationTime(m.get("ctime").asLong())
                .storingCreationTime(m.get("storesCtime").asBoolean())
                .withCToken(m.get("cToken").asLong());
        for (JsonNode fragment : m.get("fragments")) {
            b.newEnsembleEntry(fragment.get(0).asLong(), bookieIds(fragment.get(1)));
        }
        if (m.get("state").asText().equals("IN_RECOVERY")) {
            b.withInRecoveryState();
        } else if (m.get("state").asText().equals("CLOSED")) {
            b.withClosedState().withLastEntryId(m.get("lastEntryId").asLong()).withLength(m.get("length").asLong());
        }
        if (!m.get("password").isNull()) {
            b.withPassword(bytes(m.get("password"))).withDigestType(DigestType.valueOf(m.get("digestType").asText()));
        }
        Map<String, byte[]> custom = new LinkedHashMap<>();
        m.get("customMetadata").fields().forEachRemaining(e -> custom.put(e.getKey(), bytes(e.getValue())));
        return b.withCustomMetadata(custom).build();
    }

    private static ObjectNode ledgerFields(LedgerMetadata m) {
        ObjectNode fields = JSON.createObjectNode();
        fields.put("ledgerId", m.getLedgerId());
        fields.put("formatVersion", m.getMetadataFormatVersion());
        fields.put("ensembleSize", m.getEnsembleSize());
        fields.put("writeQuorum", m.getWriteQuorumSize());
        fields.put("ackQuorum", m.getAckQuorumSize());
        fields.put("state", m.getState().name());
        fields.put("lastEntryId", m.getLastEntryId());
        fields.put("length", m.getLength());
        fields.put("digestType", m.hasPassword() ? m.getDigestType().name() : null);
        fields.put("password", m.hasPassword() ? base64(m.getPassword()) : null);
        fields.put("ctime", m.getCtime());
        fields.put("storesCtime", LedgerMetadataUtils.shouldStoreCtime(m));
        fields.put("cToken", m.getCToken());
        ObjectNode custom = fields.putObject("customMetadata");
        m.getCustomMetadata().forEach((key, value) -> custom.put(key, base64(value)));
        ArrayNode fragments = fields.putArray("fragments");
        m.getAllEnsembles().forEach((first, ensemble) -> {
            ArrayNode fragment = fragments.addArray();
            fragment.add((long) first);
            ArrayNode members = fragment.addArray();
            ensemble.forEach(member -> members.add(member.toString()));
        });
        return fields;
    }

    private static ObjectNode versioned(Versioned<LedgerMetadata> stored) {
        ObjectNode answer = JSON.createObjectNode();
        answer.set("metadata", ledgerFields(stored.getValue()));
        answer.put("version", ((LongVersion) stored.getVersion()).getLongVersion());
        return answer;
    }

    private Object closeLedger(JsonNode r) throws Exception {
        Versioned<LedgerMetadata> stored = result(manager.readLedgerMetadata(r.get("ledgerId").asLong()));
        LedgerMetadata closed = LedgerMetadataBuilder.from(stored.getValue()).withClosedState()
                .withLastEntryId(r.get("lastEntryId").asLong()).withLength(r.get("length").asLong()).build();
        return versioned(result(manager.writeLedgerMetadata(closed.getLedgerId(), closed, stored.getVersion())));
    }

    private Object addFragment(JsonNode r) throws Exception {
        Versioned<LedgerMetadata> stored = result(manager.readLedgerMetadata(r.get("ledgerId").asLong()));
        LedgerMetadata grown = LedgerMetadataBuilder.from(stored.getValue())
                .newEnsembleEntry(r.get("firstEntryId").asLong(), bookieIds(r.get("ensemble"))).build();
        return versioned(result(manager.writeLedgerMetadata(grown.getLedgerId(), grown, stored.getVersion())));
    }

    private Object listLedgers() throws Exception {
        List<Long> found = new ArrayList<>();
        LedgerManager.LedgerRangeIterator ranges = manager.getLedgerRanges(TimeUnit.SECONDS.toMillis(TIMEOUT_S));
        while (ranges.hasNext()) {
            found.addAll(ranges.next().getLedgers());
        }
        return found;
    }

    private Object nextLedgerId() throws Exception {
        CompletableFuture<Long> made = new CompletableFuture<>();
        generator.generateLedgerId((code, id) -> {
            if (code == 0) {
                made.complete(id);
            } else {
                made.completeExceptionally(new IllegalStateException("ledger id generation ended with code " + code));
            }
        });
        return result(made);
    }

    // --- layout, cookies, registrations -----------------------------------------------------------------------------

    private static Object layoutFields(LedgerLayout layout) {
        return layout == null ? null : Map.of("manager", layout.getManagerFactoryClass(),
                "version", layout.getManagerVersion(), "formatVersion", layout.getLayoutFormatVersion());
    }

    private static Cookie cookie(JsonNode c) {
        Cookie.Builder b = Cookie.newBuilder()
                .setLayoutVersion(c.get("layoutVersion").asInt())
                .setBookieId(c.get("bookieId").asText())
                .setJournalDirs(String.join(",", strings(c.get("journalDirs"))))
                .setLedgerDirs(Cookie.encodeDirPaths(strings(c.get("ledgerDirs")).toArray(new String[0])));
        if (!c.get("indexDirs").isNull()) {
            b.setIndexDirs(Cookie.encodeDirPaths(strings(c.get("indexDirs")).toArray(new String[0])));
        }
        if (!c.get("instanceId").isNull()) {
            b.setInstanceId(c.get("instanceId").asText());
        }
        return b.build();
    }

    private static Object cookieFields(Cookie cookie) throws Exception {
        Map<String, Object> fields = new HashMap<>();  // A cookie has no getters for these.
        for (String name : List.of("layoutVersion", "bookieId", "journalDirs", "ledgerDirs", "indexDirs", "instanceId")) {
            Field field = Cookie.class.getDeclaredField(name);
            field.setAccessible(true);
            fields.put(name, field.get(cookie));
        }
        return fields;
    }

    private Object verifyCookie(JsonNode r) throws Exception {
        Cookie ours = Cookie.parseFromBytes(bytes(r.get("ours")));
        Cookie stored = Cookie.parseFromBytes(bytes(r.get("stored")));
        if (r.get("moreDirsAllowed").asBoolean()) {
            ours.verifyIsSuperSet(stored);
        } else {
            ours.verify(stored);
        }
        return true;
    }

    private Object writeCookie(JsonNode r) throws Exception {
        Cookie cookie = cookie(r.get("cookie"));
        bookie.createRegistrationManager().writeCookie(BookieId.parse(r.get("cookie").get("bookieId").asText()),
                new Versioned<>(cookie.toString().getBytes(StandardCharsets.UTF_8), Version.NEW));
        return true;
    }

    private static BookieServiceInfo serviceInfo(JsonNode info) {
        List<BookieServiceInfo.Endpoint> endpoints = new ArrayList<>();
        for (JsonNode e : info.get("endpoints")) {
            endpoints.add(new BookieServiceInfo.Endpoint(e.get("id").asText(), e.get("port").asInt(),
                    e.get("host").asText(), e.get("protocol").asText(), strings(e.get("auth")),
                    strings(e.get("extensions"))));
        }
        Map<String, String> properties = new LinkedHashMap<>();
        info.get("properties").fields().forEachRemaining(e -> properties.put(e.getKey(), e.getValue().asText()));
        return new BookieServiceInfo(properties, endpoints);
    }

    private static byte[] serialize(BookieServiceInfo info) throws Exception {
        Method method = ZKRegistrationManager.class.getDeclaredMethod("serializeBookieServiceInfo", BookieServiceInfo.class);
        method.setAccessible(true);
        return (byte[]) method.invoke(null, info);
    }

    private static ObjectNode serviceInfoFields(BookieServiceInfo info) {
        ObjectNode fields = JSON.createObjectNode();
        ArrayNode endpoints = fields.putArray("endpoints");
        for (BookieServiceInfo.Endpoint e : info.getEndpoints()) {
            ObjectNode endpoint = endpoints.addObject();
            endpoint.put("id", e.getId());
            endpoint.put("port", e.getPort());
            endpoint.put("host", e.getHost());
            endpoint.put("protocol", e.getProtocol());
            endpoint.set("auth", JSON.valueToTree(e.getAuth()));
            endpoint.set("extensions", JSON.valueToTree(e.getExtensions()));
        }
        fields.set("properties", JSON.valueToTree(info.getProperties()));
        return fields;
    }

    private Object register(JsonNode r) throws Exception {
        RegistrationManager registration = bookie.createRegistrationManager();
        registration.registerBookie(BookieId.parse(r.get("bookie").asText()), r.get("readonly").asBoolean(),
                serviceInfo(r.get("info")));
        return true;
    }

    private Object bookies() throws Exception {
        List<String> writable = new ArrayList<>();
        List<String> readonly = new ArrayList<>();
        result(client.getRegistrationClient().getWritableBookies()).getValue().forEach(b -> writable.add(b.toString()));
        result(client.getRegistrationClient().getReadOnlyBookies()).getValue().forEach(b -> readonly.add(b.toString()));
        return Map.of("writable", writable, "readonly", readonly);
    }

    // --- small things -----------------------------------------------------------------------------------------------

    private static <T> T result(CompletableFuture<T> future) throws Exception {
        return future.get(TIMEOUT_S, TimeUnit.SECONDS);
    }

    private static byte[] bytes(JsonNode text) {
        return Base64.getDecoder().decode(text.asText());
    }

    private static String base64(byte[] value) {
        return Base64.getEncoder().encodeToString(value);
    }

    private static List<String> strings(JsonNode list) {
        List<String> found = new ArrayList<>();
        list.forEach(item -> found.add(item.asText()));
        return found;
    }

    private static List<BookieId> bookieIds(JsonNode list) {
        List<BookieId> found = new ArrayList<>();
        list.forEach(item -> found.add(BookieId.parse(item.asText())));
        return found;
    }
}
