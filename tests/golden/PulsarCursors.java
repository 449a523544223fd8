/*
 * States of cursors as Apache Pulsar 4.2.4 writes them, in hexadecimal: made by its own range set and its own messages, in
 * the order in which ManagedCursorImpl fills them.
 *
 * Run with Pulsar's jars (interop/pulsar/server-pom.xml) on the class path:
 *   javac -cp "LIB/*" -d /tmp/classes tests/golden/PulsarCursors.java
 *   java -cp "/tmp/classes:LIB/*" PulsarCursors > tests/golden/pulsar-cursors.json
 * The last two entries are what Pulsar reads from an entry of its own, and from that of magnetar, whose bitmaps have no
 * words of zeros at their end.
 */
import java.util.*;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.bookkeeper.mledger.impl.RangeSetWrapper;
import org.apache.bookkeeper.mledger.proto.*;
import org.apache.pulsar.common.util.collections.LongPairRangeSet.LongPair;

public class PulsarCursors {
    static final Map<String, String> OUT = new LinkedHashMap<>();

    static void binary(String name, byte[] data) {
        OUT.put(name, HexFormat.of().formatHex(data));
    }

    static RangeSetWrapper<Position> empty() {
        return new RangeSetWrapper<>(
            PositionFactory::create, p -> new LongPair(p.getLedgerId(), p.getEntryId()), true, false);
    }

    /** Behind 1:2: entries 1:5, 1:6, 2:0, 2:63, 2:64, and everything of ledger 3 up to 129. */
    static RangeSetWrapper<Position> acknowledged() {
        RangeSetWrapper<Position> set = empty();
        for (long[] at : new long[][] {{1, 5}, {1, 6}, {2, 0}, {2, 63}, {2, 64}}) {
            set.addOpenClosed(at[0], at[1] - 1, at[0], at[1]);
        }
        set.addOpenClosed(3, -1, 3, 129);
        return set;
    }

    static List<MessageRange> runs(RangeSetWrapper<Position> set) {
        List<MessageRange> runs = new ArrayList<>();
        set.forEachRawRange((lowerKey, lowerValue, upperKey, upperValue) -> {
            MessageRange run = new MessageRange();
            run.setLowerEndpoint().setLedgerId(lowerKey).setEntryId(lowerValue);
            run.setUpperEndpoint().setLedgerId(upperKey).setEntryId(upperValue);
            return runs.add(run);
        });
        return runs;
    }

    static List<LongListMap> bitmaps(RangeSetWrapper<Position> set) {
        List<LongListMap> bitmaps = new ArrayList<>();
        set.toRanges(10_000).forEach((ledger, words) -> {
            LongListMap bitmap = new LongListMap().setKey(ledger);
            for (long word : words) bitmap.addValue(word);
            bitmaps.add(bitmap);
        });
        return bitmaps;
    }

    static List<BatchedEntryDeletionIndexInfo> batches() {
        BatchedEntryDeletionIndexInfo batch = new BatchedEntryDeletionIndexInfo();
        batch.setPosition().setLedgerId(1).setEntryId(8);
        BitSet left = new BitSet();
        left.set(0, 70);
        left.clear(1);
        for (long word : left.toLongArray()) batch.addDeleteSet(word);
        return List.of(batch);
    }

    static List<LongProperty> longProperties() {
        return List.of(new LongProperty().setName("producer").setValue(1L << 40));
    }

    static PositionInfo entry() {
        return new PositionInfo().setLedgerId(1).setEntryId(2)
            .addAllBatchedEntryDeletionIndexInfos(batches()).addAllProperties(longProperties());
    }

    static ManagedCursorInfo node(long ledger) {
        ManagedCursorInfo node = new ManagedCursorInfo().setCursorsLedgerId(ledger)
            .setMarkDeleteLedgerId(1).setMarkDeleteEntryId(2).setLastActive(1_700_000_000_000L);
        node.addAllProperties(longProperties());
        node.addAllCursorProperties(List.of(new StringProperty().setName("team").setValue("blue")));
        return node;
    }

    static final String OURS = "0801100222110a0870726f6475636572108080808080202a130a040801100810fdffffffffffffffff01103f"
        + "320408011060320f080210818080808080808080011001321a080310ffffffffffffffffff0110ffffffffffffffffff011003";

    static String read(byte[] data) {
        PositionInfo info = new PositionInfo();
        info.parseFrom(data);
        RangeSetWrapper<Position> set = empty();
        Map<Long, long[]> words = new TreeMap<>();
        for (int i = 0; i < info.getIndividualDeletedMessageRangesCount(); i++) {
            LongListMap bitmap = info.getIndividualDeletedMessageRangeAt(i);
            long[] values = new long[bitmap.getValuesCount()];
            for (int j = 0; j < values.length; j++) values[j] = bitmap.getValueAt(j);
            words.put(bitmap.getKey(), values);
        }
        set.build(words);
        return info.getLedgerId() + ":" + info.getEntryId() + " " + set + " batches "
            + info.getBatchedEntryDeletionIndexInfosCount() + " properties " + info.getPropertiesCount();
    }

    public static void main(String[] arguments) {
        RangeSetWrapper<Position> set = acknowledged();
        binary("entry with bitmaps", entry().addAllIndividualDeletedMessageRanges(bitmaps(set)).toByteArray());
        binary("entry with runs", entry().addAllIndividualDeletedMessages(runs(set)).toByteArray());
        binary("entry without gaps", new PositionInfo().setLedgerId(7).setEntryId(-1).toByteArray());
        binary("node with a ledger", node(55).toByteArray());
        binary("node with the state", node(-1).addAllIndividualDeletedMessages(runs(set))
            .addAllBatchedEntryDeletionIndexInfos(batches()).toByteArray());
        OUT.put("read from Pulsar's", read(HexFormat.of().parseHex(OUT.get("entry with bitmaps"))));
        OUT.put("read from " + OURS, read(HexFormat.of().parseHex(OURS)));
        StringJoiner json = new StringJoiner(",\n  ", "{\n  ", "\n}");
        OUT.forEach((name, value) -> json.add("\"" + name + "\": \"" + value + "\""));
        System.out.println(json);
    }
}
