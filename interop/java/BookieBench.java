// Load on BookKeeper clusters through Apache's client, behind JSON lines (JsonLines.java).
//
// One process measures both contestants in turn, so both meet the same compiled code and the same heap. A fixed number
// of adds is kept in flight (closed loop). Latency is from the call to the callback, which comes in entry order after
// Qa bookies answered; every one is kept, so quantiles are exact. A sample is all that is counted: there is no part of
// it that a caller would have to subtract.

import com.fasterxml.jackson.databind.JsonNode;
import io.netty.buffer.Unpooled;
import java.lang.management.ManagementFactory;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

public final class BookieBench {
    static final byte[] PASSWORD = {};
    static final long TIMEOUT_S = 60;
    private static final int READ_BYTES = 1_000_000;  // Of one read call.
    private static final int READS_IN_FLIGHT = 4;

    private final Map<String, BookKeeper> clients = new HashMap<>();
    private final Map<String, LedgerHandle[]> kept = new HashMap<>();

    public static void main(String[] args) throws Exception {
        BookieBench program = new BookieBench();
        JsonLines.serve(Map.of("add", program::add, "read", program::read, "disconnect", program::disconnect,
                "leaveOpen", r -> OpenLedgers.leave(create(program.client(r), r), r),
                "recover", r -> OpenLedgers.recover(program.client(r), r)));
    }

    /** v2, as Pulsar's brokers talk to bookies. */
    private BookKeeper client(JsonNode r) throws Exception {
        String zookeeper = r.get("zookeeper").asText();
        if (!clients.containsKey(zookeeper)) {
            ClientConfiguration conf = new ClientConfiguration();
            conf.setMetadataServiceUri("zk+hierarchical://" + zookeeper + r.get("root").asText());
            conf.setUseV2WireProtocol(true);
            conf.setThrottleValue(0);  // The loop below bounds the adds in flight; the throttle would bound the rate.
            conf.setAddEntryTimeout((int) TIMEOUT_S);
            conf.setReadEntryTimeout((int) TIMEOUT_S);
            clients.put(zookeeper, new BookKeeper(conf));
        }
        return clients.get(zookeeper);
    }

    private Object disconnect(JsonNode r) throws Exception {
        kept.clear();
        BookKeeper client = clients.remove(r.get("zookeeper").asText());
        if (client != null) {
            client.close();
        }
        return null;
    }

    static double cpuSeconds() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    // --- adds ---------------------------------------------------------------------------------------------------------

    /** Ledgers of this sample only, or with `keep` open ones that later samples of that name go on with. */
    private Object add(JsonNode r) throws Exception {
        boolean keep = r.has("keep");
        LedgerHandle[] ledgers = keep ? kept.get(r.get("keep").asText()) : null;
        if (ledgers == null) {
            ledgers = create(client(r), r);
        }
        Load load = new Load(ledgers, r.get("inFlight").asInt(), r.get("size").asInt());
        double cpu = cpuSeconds();
        long began = System.nanoTime();
        load.run(began + (long) (r.get("seconds").asDouble() * 1e9), r.get("entriesMax").asLong());
        double seconds = (System.nanoTime() - began) / 1e9;
        cpu = cpuSeconds() - cpu;
        if (keep) {
            kept.put(r.get("keep").asText(), ledgers);
        } else {
            close(ledgers);
        }
        return load.result(seconds, cpu, ledgers[0].getId());
    }

    private static LedgerHandle[] create(BookKeeper client, JsonNode r) throws Exception {
        int count = r.get("ledgers").asInt();
        LedgerHandle[] ledgers = new LedgerHandle[count];
        ArrayDeque<CompletableFuture<?>> waiting = new ArrayDeque<>();
        for (int n = 0; n < count; n++) {
            int at = n;
            waiting.add(client.newCreateLedgerOp().withEnsembleSize(r.get("ensemble").asInt())
                    .withWriteQuorumSize(r.get("writeQuorum").asInt()).withAckQuorumSize(r.get("ackQuorum").asInt())
                    .withDigestType(DigestType.CRC32C).withPassword(PASSWORD)
                    .execute().thenAccept(handle -> ledgers[at] = (LedgerHandle) handle));
            if (waiting.size() >= 100) {
                waiting.poll().get(TIMEOUT_S, TimeUnit.SECONDS);
            }
        }
        while (!waiting.isEmpty()) {
            waiting.poll().get(TIMEOUT_S, TimeUnit.SECONDS);
        }
        return ledgers;
    }

    /** A replaced bookie would mean that one refused or failed, and the figure would be of something else. */
    private static void close(LedgerHandle[] ledgers) throws Exception {
        ArrayDeque<CompletableFuture<Void>> waiting = new ArrayDeque<>();
        for (LedgerHandle ledger : ledgers) {
            if (ledger.getLedgerMetadata().getAllEnsembles().size() != 1) {
                throw new IllegalStateException("a bookie of ledger " + ledger.getId() + " was replaced meanwhile");
            }
            waiting.add(ledger.closeAsync());
            if (waiting.size() >= 100) {
                waiting.poll().get(TIMEOUT_S, TimeUnit.SECONDS);
            }
        }
        while (!waiting.isEmpty()) {
            waiting.poll().get(TIMEOUT_S, TimeUnit.SECONDS);
        }
    }

    private static final class Load {
        private final LedgerHandle[] ledgers;
        private final int inFlight;
        private final byte[] payload;
        private final Semaphore slots;
        private final AtomicInteger error = new AtomicInteger(BKException.Code.OK);
        private int[] micros = new int[1 << 20];
        private int done;

        Load(LedgerHandle[] ledgers, int inFlight, int size) {
            this.ledgers = ledgers;
            this.inFlight = inFlight;
            slots = new Semaphore(inFlight);
            payload = new byte[size];
            new SplittableRandom(7).nextBytes(payload);  // Noise: nothing on the way can compress it.
        }

        void run(long until, long entriesMax) throws Exception {
            for (long turn = 0; turn < entriesMax && error.get() == BKException.Code.OK; turn++) {
                slots.acquire();
                long now = System.nanoTime();
                if (now >= until) {
                    slots.release();
                    break;
                }
                ledgers[(int) (turn % ledgers.length)].asyncAddEntry(Unpooled.wrappedBuffer(payload),
                        (code, ledger, entryId, context) -> added(code, now), null);
            }
            if (!slots.tryAcquire(inFlight, TIMEOUT_S, TimeUnit.SECONDS)) {  // The last answers belong to the sample.
                throw new IllegalStateException("adds were not answered within " + TIMEOUT_S + " s");
            }
            if (error.get() != BKException.Code.OK) {
                throw BKException.create(error.get());
            }
        }

        private void added(int code, long began) {
            if (code != BKException.Code.OK) {
                error.compareAndSet(BKException.Code.OK, code);
            } else {
                keep((int) Math.min(Integer.MAX_VALUE, (System.nanoTime() - began) / 1000));
            }
            slots.release();
        }

        private synchronized void keep(int latency) {  // One ledger has one callback thread; many ledgers have several.
            if (done == micros.length) {
                micros = Arrays.copyOf(micros, 2 * done);
            }
            micros[done++] = latency;
        }

        Map<String, Object> result(double seconds, double cpu, long ledgerId) {
            Arrays.sort(micros, 0, done);
            Map<String, Object> result = new HashMap<>();
            result.put("ledgerId", ledgerId);
            result.put("entries", done);
            result.put("seconds", seconds);
            result.put("cpuSeconds", cpu);
            result.put("p50Ms", quantile(0.5));
            result.put("p99Ms", quantile(0.99));
            return result;
        }

        private double quantile(double share) {
            return done == 0 ? 0 : micros[Math.max(0, (int) Math.ceil(share * done) - 1)] / 1e3;
        }
    }

    // --- reads --------------------------------------------------------------------------------------------------------

    /** Reads a closed ledger from its first entry on, and again from there when it ends before the time is over. */
    private Object read(JsonNode r) throws Exception {
        int size = r.get("size").asInt();
        try (ReadHandle ledger = client(r).newOpenLedgerOp().withLedgerId(r.get("ledgerId").asLong())
                .withPassword(PASSWORD).withDigestType(DigestType.CRC32C)
                .execute().get(TIMEOUT_S, TimeUnit.SECONDS)) {
            double cpu = cpuSeconds();
            long began = System.nanoTime();
            long until = began + (long) (r.get("seconds").asDouble() * 1e9);
            long entries = r.get("batch").asBoolean() ? batches(ledger, size, until) : singles(ledger, size, until);
            double seconds = (System.nanoTime() - began) / 1e9;
            return Map.of("entries", entries, "seconds", seconds, "cpuSeconds", cpuSeconds() - cpu);
        }
    }

    /** A request for each entry, as many in flight as make four megabytes. */
    private static long singles(ReadHandle ledger, int size, long until) throws Exception {
        int chunk = Math.max(1, READ_BYTES / size);
        long last = ledger.getLastAddConfirmed();
        long next = 0;
        long entries = 0;
        ArrayDeque<CompletableFuture<LedgerEntries>> waiting = new ArrayDeque<>();
        while (true) {
            while (System.nanoTime() < until && waiting.size() < READS_IN_FLIGHT) {
                long to = Math.min(last, next + chunk - 1);
                waiting.add(ledger.readAsync(next, to));
                next = to == last ? 0 : to + 1;
            }
            if (waiting.isEmpty()) {
                return entries;
            }
            entries += count(waiting.poll().get(TIMEOUT_S, TimeUnit.SECONDS), size);
        }
    }

    /** One request for up to a megabyte at a time: where the next begins is known when one has come. */
    private static long batches(ReadHandle ledger, int size, long until) throws Exception {
        int chunk = Math.max(1, READ_BYTES / size);
        long last = ledger.getLastAddConfirmed();
        long next = 0;
        long entries = 0;
        while (System.nanoTime() < until) {
            int asked = (int) Math.min(chunk, last - next + 1);
            int got = count(ledger.batchReadAsync(next, asked, 0).get(TIMEOUT_S, TimeUnit.SECONDS), size);
            if (got == 0) {
                throw new IllegalStateException("an empty batch at entry " + next);
            }
            entries += got;
            next = next + got > last ? 0 : next + got;
        }
        return entries;
    }

    private static int count(LedgerEntries read, int size) {
        int count = 0;
        try (read) {
            for (LedgerEntry entry : read) {
                if (entry.getEntryBuffer().readableBytes() != size) {
                    throw new IllegalStateException("entry " + entry.getEntryId() + " has a wrong length");
                }
                count++;
            }
        }
        return count;
    }
}
