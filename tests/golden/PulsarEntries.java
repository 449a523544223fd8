/*
 * Entries as Apache Pulsar 4.2.4 stores them, and what it notes in the metadata of their ledgers, all in hexadecimal:
 * the broker's header by its own interceptors, compacted entries by its own compaction, markers and transactional
 * messages by its own classes.
 *
 * Run with Pulsar's jars (interop/pulsar/server-pom.xml) on the class path:
 *   javac -cp "LIB/*" -d /tmp/classes tests/golden/PulsarEntries.java
 *   java -cp "/tmp/classes:LIB/*" PulsarEntries tests/golden/pulsar-entries.json
 */
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import org.apache.bookkeeper.mledger.impl.LedgerMetadataUtils;
import org.apache.pulsar.broker.service.persistent.PersistentTopic;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.RawMessage;
import org.apache.pulsar.client.impl.BatchMessageIdImpl;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.apache.pulsar.client.impl.RawBatchConverter;
import org.apache.pulsar.client.impl.RawMessageImpl;
import org.apache.pulsar.common.api.proto.*;
import org.apache.pulsar.common.intercept.*;
import org.apache.pulsar.common.protocol.Commands;
import org.apache.pulsar.common.protocol.Markers;
import org.apache.pulsar.common.util.Codec;
import org.apache.pulsar.compaction.Compactor;

public class PulsarEntries {
    static final ObjectMapper JSON = new ObjectMapper().enable(SerializationFeature.INDENT_OUTPUT);
    static final String CLOCK = "AppendBrokerTimestampMetadataInterceptor";
    static final String INDEX = "AppendIndexMetadataInterceptor";
    static final ObjectNode ENTRIES = JSON.createObjectNode();

    static void put(String name, ByteBuf data) {
        ENTRIES.put(name, ByteBufUtil.hexDump(data));
    }

    static MessageMetadata metadata() {
        return new MessageMetadata().setProducerName("producer").setSequenceId(5).setPublishTime(1_700_000_000_000L);
    }

    static ByteBuf entry(MessageMetadata metadata, ByteBuf payload) {
        return Commands.serializeMetadataAndPayload(Commands.ChecksumType.Crc32c, metadata, payload);
    }

    static ByteBuf text(String text) {
        return Unpooled.copiedBuffer(text, StandardCharsets.UTF_8);
    }

    static ByteBuf single() {
        return entry(metadata().setPartitionKey("key"), text("hello"));
    }

    static ByteBuf batch() {
        ByteBuf payload = Unpooled.buffer();
        for (String key : new String[] {"a", "b", "a"}) {
            Commands.serializeSingleMessageInBatchWithPayload(
                new SingleMessageMetadata().setPartitionKey(key), text("value of " + key), payload);
        }
        return entry(metadata().setNumMessagesInBatch(3).setUncompressedSize(payload.readableBytes()), payload);
    }

    /** The index begins so that the last message of the entry has the given one. */
    static ByteBuf withHeader(ByteBuf entry, int messages, long indexOfLast, String... interceptors) {
        Set<String> names = new LinkedHashSet<>();
        for (String name : interceptors) {
            names.add("org.apache.pulsar.common.intercept." + name);
        }
        Set<BrokerEntryMetadataInterceptor> made =
            BrokerEntryMetadataUtils.loadBrokerEntryMetadataInterceptors(names, PulsarEntries.class.getClassLoader());
        for (BrokerEntryMetadataInterceptor each : made) {
            if (each instanceof AppendIndexMetadataInterceptor index) {
                index.recoveryIndexGenerator(indexOfLast - messages);
            }
        }
        return Commands.addBrokerEntryMetadata(entry, made, messages);
    }

    static ByteBuf compacted(ByteBuf entry) {
        return new RawMessageImpl(new MessageIdData().setLedgerId(12).setEntryId(3), entry).serialize();
    }

    /** Of the batch, the last message of each key. */
    static ByteBuf compactedBatch() throws Exception {
        RawMessage whole = new RawMessageImpl(new MessageIdData().setLedgerId(12).setEntryId(3), batch());
        return RawBatchConverter.rebatchMessage(
            whole, (key, id) -> ((BatchMessageIdImpl) id).getBatchIndex() > 0).get().serialize();
    }

    @SuppressWarnings("unchecked")
    static void ledger(ObjectNode into, String name, String method, Object... arguments) throws Exception {
        ObjectNode fields = into.putObject(name);
        for (Method each : LedgerMetadataUtils.class.getDeclaredMethods()) {
            if (each.getName().equals(method)) {
                each.setAccessible(true);
                new TreeMap<>((Map<String, byte[]>) each.invoke(null, arguments))
                    .forEach((key, value) -> fields.put(key, HexFormat.of().formatHex(value)));
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        put("plain", single());
        put("plain batch", batch());
        for (long index : new long[] {0, 127, 128, 1_000_000, (1L << 40) + 5}) {
            put("index " + index, withHeader(single(), 1, index, INDEX));
            put("time and index " + index, withHeader(single(), 1, index, CLOCK, INDEX));
        }
        put("first batch of a topic", withHeader(batch(), 3, 2, CLOCK, INDEX));
        put("time alone", withHeader(single(), 1, 0, CLOCK));
        put("compacted message", compacted(single()));
        put("compacted batch", compactedBatch());
        put("marker of a commit", Markers.newTxnCommitMarker(1, 7, 8));
        put("marker of an abort", Markers.newTxnAbortMarker(1, 7, 8));
        put("marker of a snapshot", Markers.newReplicatedSubscriptionsSnapshotRequest("id", "cluster"));
        put("transactional message", entry(metadata().setTxnidLeastBits(7).setTxnidMostBits(8), text("pending")));

        ObjectNode document = JSON.createObjectNode();
        document.set("entries", ENTRIES);
        ObjectNode ledgers = document.putObject("custom metadata of ledgers");
        ledger(ledgers, "topic", "buildBaseManagedLedgerMetadata", "public/default/persistent/orders");
        ledger(ledgers, "cursor", "buildAdditionalMetadataForCursor", Codec.encode("a b"));
        ledger(ledgers, "compacted", "buildMetadataForCompactedLedger",
            "persistent://public/default/orders", new MessageIdImpl(12, 3, -1).toByteArray());
        ledger(ledgers, "schema", "buildMetadataForSchema", "public/default/t");
        ObjectNode names = document.putObject("names");
        names.put("deduplication", PersistentTopic.DEDUPLICATION_CURSOR_NAME);
        names.put("compaction", Compactor.COMPACTION_SUBSCRIPTION);
        names.put("compacted ledger", Compactor.COMPACTED_TOPIC_LEDGER_PROPERTY);
        // What magnetar writes there (topic/entry_format/messages.py), which lacks the size of a batch.
        MessageIdImpl read = (MessageIdImpl) MessageId.fromByteArray(HexFormat.of().parseHex("080c1003"));
        document.putObject("read").put("080c1003", read.getLedgerId() + ":" + read.getEntryId());
        Files.writeString(Path.of(arguments[0]), JSON.writeValueAsString(document) + "\n");
    }
}
