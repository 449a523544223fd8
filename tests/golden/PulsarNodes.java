/*
 * Every node that Apache Pulsar 4.2.4's own classes write for clusters, tenants, namespaces, topics, cursors, racks and
 * names of producers, in Pulsar's metadata store in memory: {"nodes": {"path": "value in hexadecimal"}}; and beside them
 * the values of topics and cursors in each compression, and what names and hashes Pulsar gives to topics.
 *
 * Run with Pulsar's jars (interop/pulsar/server-pom.xml) on the class path:
 *   javac -cp "LIB/*" -d /tmp/classes tests/golden/PulsarNodes.java
 *   java -cp "/tmp/classes:LIB/*" PulsarNodes tests/golden/pulsar-nodes.json
 */
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.common.hash.Hashing;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import org.apache.bookkeeper.common.util.OrderedExecutor;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.MetadataCompressionConfig;
import org.apache.bookkeeper.mledger.impl.MetaStore;
import org.apache.bookkeeper.mledger.impl.MetaStoreImpl;
import org.apache.bookkeeper.mledger.proto.*;
import org.apache.pulsar.broker.resources.PulsarResources;
import org.apache.pulsar.broker.service.DistributedIdGenerator;
import org.apache.pulsar.broker.service.schema.BookkeeperSchemaStorage;
import org.apache.pulsar.common.naming.*;
import org.apache.pulsar.common.partition.PartitionedTopicMetadata;
import org.apache.pulsar.common.policies.data.*;
import org.apache.pulsar.common.util.Codec;
import org.apache.pulsar.metadata.api.*;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.apache.pulsar.metadata.coordination.impl.CoordinationServiceImpl;

public class PulsarNodes {
    static final ObjectMapper JSON = new ObjectMapper().enable(SerializationFeature.INDENT_OUTPUT);
    static final String[] TOPICS = {"plain", "two words & ünïcode %+~*'()", "a:b=c@d", "many-partition-7"};
    static final List<String> EPHEMERAL = new ArrayList<>();
    static final String SUBSCRIPTION = "a sub/of ü+%";

    static String hex(byte[] data) {
        return HexFormat.of().formatHex(data);
    }

    static <T> T result(java.util.function.Consumer<MetaStore.MetaStoreCallback<T>> call) throws Exception {
        CompletableFuture<T> done = new CompletableFuture<>();
        call.accept(new MetaStore.MetaStoreCallback<T>() {
            @Override
            public void operationComplete(T result, Stat stat) {
                done.complete(result);
            }

            @Override
            public void operationFailed(ManagedLedgerException.MetaStoreException error) {
                done.completeExceptionally(error);
            }
        });
        return done.get(30, TimeUnit.SECONDS);
    }

    /** Ledger 12 is closed, 13 offloaded and deleted from the bookies, 14 open. */
    static ManagedLedgerInfo ledgers() {
        ManagedLedgerInfo info = new ManagedLedgerInfo();
        info.addLedgerInfo().setLedgerId(12).setEntries(10).setSize(1_000).setTimestamp(1_700_000_000_000L);
        var offloaded = info.addLedgerInfo().setLedgerId(13).setEntries(20).setSize(2_000).setTimestamp(1_700_000_000_001L);
        offloaded.setOffloadContext().setUidMsb(7).setUidLsb(-8).setComplete(true).setBookkeeperDeleted(true).setTimestamp(9);
        info.addLedgerInfo().setLedgerId(14).setTimestamp(0);
        info.addProperty().setKey("index").setValue("29");
        info.addProperty().setKey("pulsar.topic.epoch").setValue("3");
        return info;
    }

    static ManagedLedgerInfo terminated() {
        ManagedLedgerInfo info = new ManagedLedgerInfo();
        info.addLedgerInfo().setLedgerId(12).setEntries(10).setSize(1_000).setTimestamp(1_700_000_000_000L);
        info.setTerminatedPosition().setLedgerId(12).setEntryId(9);
        return info;
    }

    static ManagedCursorInfo cursor() {
        ManagedCursorInfo info = new ManagedCursorInfo().setCursorsLedgerId(-1)
            .setMarkDeleteLedgerId(12).setMarkDeleteEntryId(3).setLastActive(1_700_000_000_000L);
        MessageRange run = info.addIndividualDeletedMessage();
        run.setLowerEndpoint().setLedgerId(12).setEntryId(5);
        run.setUpperEndpoint().setLedgerId(12).setEntryId(7);
        return info;
    }

    static void resources(MetadataStoreExtended store) throws Exception {
        PulsarResources resources = new PulsarResources(store, store);
        resources.getClusterResources().createCluster("standalone",
            ClusterData.builder().serviceUrl("http://h:8080").brokerServiceUrl("pulsar://h:6650").build());
        resources.getTenantResources().createTenantAsync("public", new TenantInfoImpl(Set.of(), Set.of("standalone"))).get();
        NamespaceName namespace = NamespaceName.get("public/default");
        Policies policies = new Policies();
        policies.bundles = PoliciesUtil.getBundles(4);
        policies.replication_clusters = Set.of("standalone");
        resources.getNamespaceResources().createPolicies(namespace, policies);
        resources.getLocalPolicies().createLocalPoliciesAsync(namespace,
            new LocalPolicies(PoliciesUtil.getBundles(2), null, null)).get();
        for (String topic : new String[] {TOPICS[0], TOPICS[1]}) {
            resources.getNamespaceResources().getPartitionedTopicResources().createPartitionedTopic(
                TopicName.get("persistent", namespace, topic), new PartitionedTopicMetadata(3));
        }
        resources.getBookieResources().update(found -> {
            BookiesRackConfiguration racks = found.orElseGet(BookiesRackConfiguration::new);
            racks.updateBookie("default", "10.0.0.1:3181", BookieInfo.builder().rack("/region-a/rack-1").hostname("one").build());
            racks.updateBookie("fast", "b-2", BookieInfo.builder().rack("rack-2").build());
            return racks;
        }).get();
        resources.getNamespaceResources().getIsolationPolicies().createIsolationData("standalone", Map.of("team-a",
            NamespaceIsolationDataImpl.builder().namespaces(List.of("public/.*")).primary(List.of("broker-[12]"))
                .secondary(List.of("broker-3")).autoFailoverPolicy(AutoFailoverPolicyData.builder()
                    .policyType(AutoFailoverPolicyType.min_available)
                    .parameters(new TreeMap<>(Map.of("min_limit", "2", "usage_threshold", "80"))).build()).build()));
    }

    static void topics(MetadataStoreExtended store, OrderedExecutor executor) throws Exception {
        MetaStoreImpl plain = new MetaStoreImpl(store, executor);
        for (String topic : TOPICS) {
            String name = TopicName.get("persistent", NamespaceName.get("public/default"), topic).getPersistenceNamingEncoding();
            PulsarNodes.<ManagedLedgerInfo>result(callback -> plain.getManagedLedgerInfo(name, true, callback));
        }
        String name = "public/default/persistent/plain";
        Stat stat = store.get("/managed-ledgers/" + name).get().get().getStat();
        PulsarNodes.<Void>result(callback -> plain.asyncUpdateLedgerIds(name, ledgers(), stat, callback));
        PulsarNodes.<Void>result(
            callback -> plain.asyncUpdateCursorInfo(name, Codec.encode(SUBSCRIPTION), cursor(), null, callback));
    }

    static ObjectNode compressed(MetadataStoreExtended store, OrderedExecutor executor) {
        ObjectNode all = JSON.createObjectNode();
        for (String kind : new String[] {"NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"}) {
            MetadataCompressionConfig config = new MetadataCompressionConfig(kind);
            MetaStoreImpl codec = new MetaStoreImpl(store, executor, config, config);
            all.put("topic " + kind, hex(codec.compressLedgerInfo(ledgers())));
            all.put("cursor " + kind, hex(codec.compressCursorInfo(cursor())));
        }
        all.put("topic terminated", hex(terminated().toByteArray()));
        return all;
    }

    static ObjectNode names() throws Exception {
        Method schemaPath = BookkeeperSchemaStorage.class.getDeclaredMethod("getSchemaPath", String.class);
        schemaPath.setAccessible(true);
        ObjectNode all = JSON.createObjectNode();
        for (String topic : TOPICS) {
            TopicName name = TopicName.get("persistent", NamespaceName.get("public/default"), topic);
            ObjectNode one = all.putObject(name.toString());
            one.put("encoded", name.getEncodedLocalName());
            one.put("managed ledger", name.getPersistenceNamingEncoding());
            one.put("schema", (String) schemaPath.invoke(null, name.getSchemaName()));
            // As NamespaceBundleFactory.getLongHashCode does, with the hash function of NamespaceService.
            one.put("hash", Hashing.crc32().hashString(name.toString(), StandardCharsets.UTF_8).padToLong());
        }
        return all;
    }

    static void dump(MetadataStore store, String path, ObjectNode into) throws Exception {
        for (String child : store.getChildren(path).get()) {
            String below = path.equals("/") ? "/" + child : path + "/" + child;
            Optional<GetResult> found = store.get(below).get();
            found.ifPresent(result -> into.put(below, hex(result.getValue())));
            if (found.isPresent() && found.get().getStat().isEphemeral()) EPHEMERAL.add(below);
            dump(store, below, into);
        }
    }

    public static void main(String[] arguments) throws Exception {
        MetadataStoreExtended store = MetadataStoreExtended.create("memory:golden", MetadataStoreConfig.builder().build());
        OrderedExecutor executor = OrderedExecutor.newBuilder().numThreads(1).build();
        ObjectNode document = JSON.createObjectNode();
        resources(store);
        topics(store, executor);
        DistributedIdGenerator ids = new DistributedIdGenerator(
            new CoordinationServiceImpl(store), "/counters/producer-name", "standalone");
        document.putArray("producer names").add(ids.getNextId()).add(ids.getNextId());
        document.put("subscription", SUBSCRIPTION);
        dump(store, "/", document.putObject("nodes"));
        EPHEMERAL.forEach(document.putArray("ephemeral")::add);
        document.set("values", compressed(store, executor));
        document.set("topics", names());
        Files.writeString(Path.of(arguments[0]), JSON.writeValueAsString(document) + "\n");
        System.exit(0); // Pulsar's classes leave threads.
    }
}
