/*
 * A topic and a cursor as Apache Pulsar 4.2.4 leaves them, written by its own managed ledger on a ZooKeeper and a bookie
 * in this process: the nodes of the topic, of its cursor and of their ledgers while they are open, the last entry of the
 * cursor's ledger, and the nodes after a clean close; values in hexadecimal.
 *
 * Run with Pulsar's jars (interop/pulsar/server-pom.xml) on the class path:
 *   javac -cp "LIB/*" -d /tmp/classes tests/golden/PulsarManagedLedger.java
 *   java -cp "/tmp/classes:LIB/*" PulsarManagedLedger tests/golden/pulsar-managed-ledger.json
 * The times and the tokens of ledgers are new in every run.
 */
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.mledger.*;
import org.apache.bookkeeper.mledger.impl.AckSetStateUtil;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerFactoryImpl;
import org.apache.bookkeeper.mledger.proto.ManagedCursorInfo;
import org.apache.pulsar.common.util.Codec;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.apache.pulsar.zookeeper.LocalBookkeeperEnsemble;
import org.apache.zookeeper.ZooKeeper;

public class PulsarManagedLedger {
    static final ObjectMapper JSON = new ObjectMapper().enable(SerializationFeature.INDENT_OUTPUT);
    static final String NAME = "public/default/persistent/golden";
    static final String TOPIC = "/managed-ledgers/" + NAME;
    static final String CURSOR = TOPIC + "/" + Codec.encode("a b");

    static String hex(byte[] data) {
        return HexFormat.of().formatHex(data);
    }

    static void dump(ZooKeeper client, String path, ObjectNode into) throws Exception {
        byte[] value = client.getData(path, false, null);
        if (value != null && value.length > 0) into.put(path, hex(value));
        for (String child : new TreeSet<>(client.getChildren(path, false))) dump(client, path + "/" + child, into);
    }

    static void nodes(ZooKeeper client, ObjectNode into) throws Exception {
        dump(client, TOPIC, into);
        dump(client, "/ledgers/00", into);
    }

    /** The last entry that was added: the writer has not confirmed it to the bookie, as nothing came after it. */
    static byte[] lastEntry(BookKeeper bookkeeper, long id) throws Exception {
        LedgerHandle ledger = bookkeeper.openLedgerNoRecovery(id, BookKeeper.DigestType.CRC32C, new byte[0]);
        byte[] last = null;
        for (long entry = 0;; entry++) {
            try {
                last = ledger.readUnconfirmedEntries(entry, entry).nextElement().getEntry();
            } catch (BKException.BKNoSuchEntryException e) {
                return last;
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        Path directory = Files.createTempDirectory("golden");
        LocalBookkeeperEnsemble servers = new LocalBookkeeperEnsemble(
            1, 0, 0, directory.resolve("zk").toString(), directory.resolve("bk").toString(), true, "127.0.0.1");
        servers.start(false);
        String zookeeper = "127.0.0.1:" + servers.getZookeeperPort();
        MetadataStoreExtended store = MetadataStoreExtended.create("zk:" + zookeeper, MetadataStoreConfig.builder().build());
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri("zk+null://" + zookeeper + "/ledgers");
        BookKeeper bookkeeper = new BookKeeper(conf);
        ManagedLedgerFactoryImpl factory = new ManagedLedgerFactoryImpl(store, bookkeeper);
        ManagedLedgerConfig config = new ManagedLedgerConfig().setMaxEntriesPerLedger(70)
            .setEnsembleSize(1).setWriteQuorumSize(1).setAckQuorumSize(1).setThrottleMarkDelete(0)
            .setMetadataEnsembleSize(1).setMetadataWriteQuorumSize(1).setMetadataAckQuorumSize(1)
            .setPersistIndividualAckAsLongArray(true);
        config.setMinimumRolloverTime(0, TimeUnit.SECONDS);
        config.setDeletionAtBatchIndexLevelEnabled(true);
        config.setProperties(Map.of("pulsar.topic.epoch", "3"));
        ManagedLedger topic = factory.open(NAME, config);
        List<Position> positions = new ArrayList<>();
        ManagedCursor cursor = topic.openCursor(Codec.encode("a b"));
        for (int i = 0; i < 100; i++) {
            positions.add(topic.addEntry(("entry " + i).getBytes(StandardCharsets.UTF_8)));
        }
        cursor.setCursorProperties(Map.of("team", "blue")).get();
        cursor.markDelete(positions.get(2), Map.of("producer", 1L << 40));
        Position batch = positions.get(8);
        cursor.delete(AckSetStateUtil.createPositionWithAckSet(
            batch.getLedgerId(), batch.getEntryId(), new long[] {-3L, (1L << 6) - 1})); // 70 messages without the second.
        for (int i : new int[] {5, 6, 69, 70, 71, 80}) cursor.delete(positions.get(i));

        ObjectNode document = JSON.createObjectNode();
        ZooKeeper client = servers.getZkClient();
        Thread.sleep(2_000); // Until the cursor's first ledger, which another replaces at once, is deleted.
        nodes(client, document.putObject("open"));
        ManagedCursorInfo info = new ManagedCursorInfo();
        info.parseFrom(client.getData(CURSOR, false, null));
        document.put("cursor ledger", info.getCursorsLedgerId());
        document.put("last entry", hex(lastEntry(bookkeeper, info.getCursorsLedgerId())));
        topic.close();
        nodes(client, document.putObject("closed"));
        Files.writeString(Path.of(arguments[0]), JSON.writeValueAsString(document) + "\n");
        System.exit(0); // Pulsar's classes leave threads.
    }
}
