package org.apache.bookkeeper.meta;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.bookie.Cookie;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.discover.ZKRegistrationManager;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.versioning.Version;
import org.apache.bookkeeper.versioning.Versioned;
import org.apache.zookeeper.AsyncCallback;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.OpResult;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.Stat;
import org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

/**
 * Writes, as JSON, every node that Apache BookKeeper's own classes make in a ZooKeeper, which runs in this process:
 * {"step": [["path", "mode" or "SET", "value in hexadecimal"], ...]}. The name of a sequential node lacks its number.
 *
 * <p>With BookKeeper's jars (interop/pom.xml) in LIB: {@code javac -cp 'LIB/*' -d /tmp/classes
 * tests/golden/BookkeeperNodes.java}, then {@code java -cp '/tmp/classes:LIB/*'
 * org.apache.bookkeeper.meta.BookkeeperNodes tests/golden/bookkeeper-nodes.json}. The instance id and the times of
 * the marks are new in every run. It lives in Apache's package because one manager of ledgers is visible only there.
 */
public class BookkeeperNodes {
    private static final String ROOT = "/ledgers";
    private static final ObjectMapper JSON = new ObjectMapper().enable(SerializationFeature.INDENT_OUTPUT);
    private static final ObjectNode STEPS = JSON.createObjectNode();
    private static ArrayNode step;

    private static void begin(String name) {
        step = STEPS.putArray(name);
    }

    private static synchronized void note(String path, String mode, byte[] value) {
        step.addArray().add(path).add(mode).add(HexFormat.of().formatHex(value));
    }

    /** A client that notes what is written through it. */
    private static class NotingClient extends ZooKeeper {
        NotingClient(String address) throws Exception {
            super(address, 30_000, event -> { });
        }

        @Override
        public String create(String path, byte[] data, List<ACL> acl, CreateMode mode)
                throws KeeperException, InterruptedException {
            String made = super.create(path, data, acl, mode);
            note(path, mode.name(), data);
            return made;
        }

        @Override
        public void create(String path, byte[] data, List<ACL> acl, CreateMode mode, AsyncCallback.StringCallback callback,
                Object context) {
            super.create(path, data, acl, mode, (rc, asked, ctx, name) -> {
                if (rc == KeeperException.Code.OK.intValue()) {
                    note(path, mode.name(), data);
                }
                callback.processResult(rc, asked, ctx, name);
            }, context);
        }

        @Override
        public List<OpResult> multi(Iterable<Op> ops) throws KeeperException, InterruptedException {
            List<OpResult> results = super.multi(ops);
            for (Op op : ops) {
                if (op instanceof Op.Create create) {
                    var request = (org.apache.zookeeper.proto.CreateRequest) create.toRequestRecord();
                    note(op.getPath(), CreateMode.fromFlag(request.getFlags()).name(), request.getData());
                }
            }
            return results;
        }

        @Override
        public Stat setData(String path, byte[] data, int version) throws KeeperException, InterruptedException {
            Stat stat = super.setData(path, data, version);
            note(path, "SET", data);
            return stat;
        }

        @Override
        public void setData(String path, byte[] data, int version, AsyncCallback.StatCallback callback, Object context) {
            super.setData(path, data, version, (rc, asked, ctx, stat) -> {
                if (rc == KeeperException.Code.OK.intValue()) {
                    note(path, "SET", data);
                }
                callback.processResult(rc, asked, ctx, stat);
            }, context);
        }
    }

    private static long next(LedgerIdGenerator generator) throws Exception {
        CompletableFuture<Long> id = new CompletableFuture<>();
        generator.generateLedgerId((rc, result) -> id.complete(result));
        return id.get(30, TimeUnit.SECONDS);
    }

    private static void write(ZooKeeper client) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://127.0.0.1" + ROOT);
        BookieId bookie = BookieId.parse("10.0.0.1:3181");

        begin("initialise");
        ZKRegistrationManager registrations = new ZKRegistrationManager(conf, client);
        registrations.initNewCluster();
        begin("cookie");
        Cookie cookie = Cookie.newBuilder().setBookieId(bookie.toString()).setJournalDirs("/j").setLedgerDirs("1\t/l")
                .setInstanceId("fixed").setLayoutVersion(5).build();
        byte[] text = cookie.toString().getBytes(StandardCharsets.UTF_8);
        registrations.writeCookie(bookie, new Versioned<>(text, Version.NEW));
        begin("register");
        BookieServiceInfo.Endpoint endpoint = new BookieServiceInfo.Endpoint(
                "bookie", 3181, "10.0.0.1", "bookie-rpc", List.of(), List.of());
        BookieServiceInfo info = new BookieServiceInfo(new java.util.HashMap<>(), List.of(endpoint));
        registrations.registerBookie(bookie, false, info);
        begin("register read-only");
        registrations.registerBookie(bookie, true, info);

        begin("short ledger id");
        ZkLedgerIdGenerator shorts = new ZkLedgerIdGenerator(client, ROOT, "idgen", ZooDefs.Ids.OPEN_ACL_UNSAFE);
        next(shorts);
        begin("long ledger id");
        client.create(ROOT + "/idgen-long", new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        next(new LongZkLedgerIdGenerator(client, ROOT, "idgen-long", shorts, ZooDefs.Ids.OPEN_ACL_UNSAFE));

        begin("marks prepared");
        ZkLedgerUnderreplicationManager marks = new ZkLedgerUnderreplicationManager(conf, client);
        long[] ids = {5, 0x7AFEBEEF0000FEEDL};
        for (long id : ids) {
            begin("mark of " + id);
            marks.markLedgerUnderreplicatedAsync(id, List.of("10.0.0.1:3181")).get(30, TimeUnit.SECONDS);
        }
        begin("second mark of 5");
        marks.markLedgerUnderreplicatedAsync(5, List.of("b-2")).get(30, TimeUnit.SECONDS);
    }

    public static void main(String[] arguments) throws Exception {
        Path directory = Files.createTempDirectory("bookkeeper-nodes");
        ZooKeeperServer server = new ZooKeeperServer(directory.toFile(), directory.toFile(), 2_000);
        NIOServerCnxnFactory factory = new NIOServerCnxnFactory();
        factory.configure(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 10);
        factory.startup(server);
        try (ZooKeeper client = new NotingClient("127.0.0.1:" + factory.getLocalPort())) {
            write(client);
        } finally {
            factory.shutdown();
        }
        Files.writeString(Path.of(arguments[0]), JSON.writeValueAsString(STEPS) + "\n");
        System.exit(0); // Apache's classes leave threads.
    }
}
