// Apache BookKeeper's own client behind JSON lines (JsonLines.java): ledgers are created, written, fenced and read with it.
//
// Clients have names, so that one process can be several writers and readers with connections of their own. A client
// holds one handle per ledger: what `create` or `open` gave it. The bytes of an entry follow from its ledger and entry
// id, so whoever reads can tell whether they are right. What has to go on while other requests are answered (a writer
// that runs until it fails, a long poll) is begun by one operation and collected by another.

import com.fasterxml.jackson.databind.JsonNode;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.buffer.UnpooledByteBufAllocator;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieProtocol;
import org.apache.bookkeeper.proto.LedgerMetadataFormat;
import org.apache.bookkeeper.proto.checksum.DigestManager;

public final class LedgerClient {
    private static final long TIMEOUT_S = 30;
    private static final int READ_ENTRIES = 1_000;  // Of one read call.

    private final Map<String, BookKeeper> clients = new HashMap<>();
    private final Map<String, LedgerHandle> handles = new HashMap<>();
    private final Map<String, Writer> writers = new HashMap<>();
    private final Map<String, CompletableFuture<Map<String, Object>>> results = new HashMap<>();
    private final Map<String, CompletableFuture<LastConfirmedAndEntry>> polls = new HashMap<>();

    public static void main(String[] args) throws Exception {
        LedgerClient program = new LedgerClient();
        Map<String, JsonLines.Operation> operations = new HashMap<>();
        operations.put("connect", program::connect);
        operations.put("disconnect", program::disconnect);
        operations.put("create", program::create);
        operations.put("open", program::open);
        operations.put("close", program::close);
        operations.put("delete", program::delete);
        operations.put("state", program::state);
        operations.put("write", program::write);
        operations.put("beginWriting", program::beginWriting);
        operations.put("acknowledged", program::acknowledged);
        operations.put("endWriting", program::endWriting);
        operations.put("verify", program::verify);
        operations.put("verifyBatches", program::verifyBatches);
        operations.put("readUnconfirmed", program::readUnconfirmed);
        operations.put("readLac", program::readLac);
        operations.put("readExplicitLac", program::readExplicitLac);
        operations.put("beginLongPoll", program::beginLongPoll);
        operations.put("endLongPoll", program::endLongPoll);
        operations.put("force", program::force);
        operations.put("bookieInfo", program::bookieInfo);
        operations.put("listEntries", program::listEntries);
        operations.put("addWithKey", program::addWithKey);
        operations.put("fenceWithKey", program::fenceWithKey);
        JsonLines.serve(operations);
    }

    // --- clients and handles ------------------------------------------------------------------------------------------

    private Object connect(JsonNode r) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://" + r.get("zookeeper").asText() + r.get("root").asText());
        conf.setUseV2WireProtocol(r.get("protocol").asText().equals("v2"));
        conf.setThrottleValue(0);  // It would block the caller beyond 5,000 adds a second.
        conf.setExplictLacInterval(r.get("explicitLacMs").asInt());
        conf.setNumIOThreads(1);
        conf.setNumWorkerThreads(1);
        clients.put(r.get("client").asText(), new BookKeeper(conf));
        return null;
    }

    /** Without closing ledgers: the way a writer that died leaves them. */
    private Object disconnect(JsonNode r) throws Exception {
        handles.keySet().removeIf(key -> key.startsWith(r.get("client").asText() + "/"));
        clients.remove(r.get("client").asText()).close();
        return null;
    }

    private BookKeeper client(JsonNode r) {
        BookKeeper client = clients.get(r.get("client").asText());
        if (client == null) {
            throw new IllegalArgumentException("no client " + r.get("client"));
        }
        return client;
    }

    private static String key(JsonNode r) {
        return r.get("client").asText() + "/" + r.get("ledgerId").asLong();
    }

    private LedgerHandle handle(JsonNode r) {
        LedgerHandle handle = handles.get(key(r));
        if (handle == null) {
            throw new IllegalArgumentException("client and ledger without a handle: " + key(r));
        }
        return handle;
    }

    private static byte[] password(JsonNode r) {
        return r.get("password").asText().getBytes(StandardCharsets.UTF_8);
    }

    private static DigestType digest(JsonNode r) {
        return DigestType.valueOf(r.get("digest").asText());
    }

    private Object create(JsonNode r) throws Exception {
        var flags = r.get("deferredSync").asBoolean() ? EnumSet.of(WriteFlag.DEFERRED_SYNC) : WriteFlag.NONE;
        LedgerHandle handle = (LedgerHandle) client(r).newCreateLedgerOp()
                .withEnsembleSize(r.get("ensemble").asInt())
                .withWriteQuorumSize(r.get("writeQuorum").asInt())
                .withAckQuorumSize(r.get("ackQuorum").asInt())
                .withDigestType(digest(r)).withPassword(password(r)).withWriteFlags(flags)
                .execute().get(TIMEOUT_S, TimeUnit.SECONDS);
        handles.put(r.get("client").asText() + "/" + handle.getId(), handle);
        return handle.getId();
    }

    private Object open(JsonNode r) throws Exception {
        handles.put(key(r), (LedgerHandle) client(r).newOpenLedgerOp()
                .withLedgerId(r.get("ledgerId").asLong()).withRecovery(r.get("recovery").asBoolean())
                .withDigestType(digest(r)).withPassword(password(r))
                .execute().get(TIMEOUT_S, TimeUnit.SECONDS));
        return state(r);
    }

    private Object close(JsonNode r) throws Exception {
        handles.remove(key(r)).closeAsync().get(TIMEOUT_S, TimeUnit.SECONDS);
        return null;
    }

    private Object delete(JsonNode r) throws Exception {
        client(r).newDeleteLedgerOp().withLedgerId(r.get("ledgerId").asLong())
                .execute().get(TIMEOUT_S, TimeUnit.SECONDS);
        return null;
    }

    private Object state(JsonNode r) {
        LedgerHandle handle = handle(r);
        Map<String, Object> state = new HashMap<>();
        state.put("lac", handle.getLastAddConfirmed());
        state.put("lastPushed", handle.getLastAddPushed());
        state.put("length", handle.getLength());
        state.put("closed", handle.getLedgerMetadata().isClosed());
        Map<Long, List<String>> ensembles = new TreeMap<>();
        handle.getLedgerMetadata().getAllEnsembles().forEach((first, bookies) ->
                ensembles.put(first, bookies.stream().map(BookieId::getId).toList()));
        state.put("ensembles", ensembles.values());
        return state;
    }

    // --- adds ---------------------------------------------------------------------------------------------------------

    /** Bytes that nobody gets right by accident. */
    static byte[] body(long ledgerId, long entryId, int size) {
        byte[] body = new byte[size];
        new SplittableRandom(ledgerId * 1_000_003 + entryId).nextBytes(body);
        return body;
    }

    /** Keeps adds in flight until so many were sent or one failed; counts what was acknowledged. */
    private static final class Writer {
        final AtomicLong acknowledged = new AtomicLong();
        final AtomicInteger error = new AtomicInteger(BKException.Code.OK);
        volatile boolean stopped;
        private final LedgerHandle handle;
        private final int inFlight;
        private final Semaphore slots;

        Writer(LedgerHandle handle, int inFlight) {
            this.handle = handle;
            this.inFlight = inFlight;
            slots = new Semaphore(inFlight);
        }

        Map<String, Object> run(long first, long count, int size) throws InterruptedException {
            for (long id = first; id < first + count && error.get() == BKException.Code.OK && !stopped; id++) {
                slots.acquire();
                handle.asyncAddEntry(body(handle.getId(), id, size), this::added, id);
            }
            if (!slots.tryAcquire(inFlight, TIMEOUT_S, TimeUnit.SECONDS)) {
                throw new IllegalStateException("adds were not answered within " + TIMEOUT_S + " s");
            }
            Map<String, Object> result = new HashMap<>();
            result.put("acknowledged", acknowledged.get());
            result.put("error", error.get() == BKException.Code.OK
                    ? "" : BKException.create(error.get()).getClass().getSimpleName());
            return result;
        }

        private void added(int code, LedgerHandle ledger, long entryId, Object expected) {
            if (code != BKException.Code.OK) {
                error.compareAndSet(BKException.Code.OK, code);
            } else if (entryId != (Long) expected) {
                error.compareAndSet(BKException.Code.OK, BKException.Code.UnexpectedConditionException);
            } else {
                acknowledged.incrementAndGet();  // In order: the client answers an add after all before it.
            }
            slots.release();
        }
    }

    private Object write(JsonNode r) throws Exception {
        LedgerHandle handle = handle(r);
        return new Writer(handle, r.get("inFlight").asInt())
                .run(handle.getLastAddPushed() + 1, r.get("count").asLong(), r.get("size").asInt());
    }

    private Object beginWriting(JsonNode r) {
        Writer writer = new Writer(handle(r), r.get("inFlight").asInt());
        CompletableFuture<Map<String, Object>> result = new CompletableFuture<>();
        int size = r.get("size").asInt();
        Thread thread = new Thread(() -> {
            try {
                result.complete(writer.run(0, Long.MAX_VALUE, size));
            } catch (Throwable thrown) {
                result.completeExceptionally(thrown);
            }
        });
        thread.setDaemon(true);
        thread.start();
        writers.put(key(r), writer);
        results.put(key(r), result);
        return null;
    }

    private Object acknowledged(JsonNode r) throws BKException {
        Writer writer = writers.get(key(r));
        if (writer.error.get() != BKException.Code.OK) {
            throw BKException.create(writer.error.get());
        }
        return writer.acknowledged.get();
    }

    private Object endWriting(JsonNode r) throws Exception {
        if (!r.get("untilItFails").asBoolean()) {
            writers.get(key(r)).stopped = true;
        }
        return results.remove(key(r)).get(TIMEOUT_S, TimeUnit.SECONDS);
    }

    // --- reads --------------------------------------------------------------------------------------------------------

    private static void check(LedgerEntry entry, long expectedId, int size) {
        if (entry.getEntryId() != expectedId) {
            throw new IllegalStateException("asked for entry " + expectedId + ", got " + entry.getEntryId());
        }
        ByteBuf expected = Unpooled.wrappedBuffer(body(entry.getLedgerId(), expectedId, size));
        if (!expected.equals(entry.getEntryBuffer())) {
            throw new IllegalStateException("entry " + expectedId + " came back with other bytes");
        }
    }

    private Object verify(JsonNode r) throws Exception {
        LedgerHandle handle = handle(r);
        long next = r.get("first").asLong();
        for (long last = r.get("last").asLong(); next <= last;) {
            long until = Math.min(last, next + READ_ENTRIES - 1);
            try (LedgerEntries entries = handle.readAsync(next, until).get(TIMEOUT_S, TimeUnit.SECONDS)) {
                for (LedgerEntry entry : entries) {
                    check(entry, next++, r.get("size").asInt());
                }
            }
            if (next != until + 1) {
                throw new IllegalStateException("entries before " + (until + 1) + " are missing from " + next + " on");
            }
        }
        return next - r.get("first").asLong();
    }

    private Object verifyBatches(JsonNode r) throws Exception {
        LedgerHandle handle = handle(r);
        long next = r.get("first").asLong();
        List<Integer> batches = new ArrayList<>();
        for (long last = r.get("last").asLong(); next <= last;) {
            int count = 0;
            try (LedgerEntries entries = handle.batchReadAsync(
                    next, r.get("batchEntries").asInt(), r.get("batchBytes").asLong())
                    .get(TIMEOUT_S, TimeUnit.SECONDS)) {
                for (LedgerEntry entry : entries) {
                    check(entry, next++, r.get("size").asInt());
                    count++;
                }
            }
            if (count == 0) {
                throw new IllegalStateException("an empty batch at entry " + next);
            }
            batches.add(count);
        }
        return batches;
    }

    private Object readUnconfirmed(JsonNode r) throws Exception {
        long entryId = r.get("entryId").asLong();
        try (LedgerEntries entries = handle(r).readUnconfirmedAsync(entryId, entryId)
                .get(TIMEOUT_S, TimeUnit.SECONDS)) {
            check(entries.iterator().next(), entryId, r.get("size").asInt());
        }
        return null;
    }

    private Object readLac(JsonNode r) throws Exception {
        return handle(r).readLastAddConfirmedAsync().get(TIMEOUT_S, TimeUnit.SECONDS);
    }

    private Object readExplicitLac(JsonNode r) throws Exception {
        return handle(r).readExplicitLastConfirmed();
    }

    private Object beginLongPoll(JsonNode r) {
        polls.put(key(r), handle(r).readLastAddConfirmedAndEntryAsync(
                r.get("entryId").asLong(), r.get("timeoutMs").asLong(), r.get("parallel").asBoolean()));
        return null;
    }

    private Object endLongPoll(JsonNode r) throws Exception {
        try (LastConfirmedAndEntry got = polls.remove(key(r)).get(TIMEOUT_S, TimeUnit.SECONDS)) {
            Map<String, Object> result = new HashMap<>();
            result.put("lac", got.getLastAddConfirmed());
            result.put("hasEntry", got.hasEntry());
            if (got.hasEntry()) {
                check(got.getEntry(), r.get("entryId").asLong(), r.get("size").asInt());
            }
            return result;
        }
    }

    // --- the rest -----------------------------------------------------------------------------------------------------

    private Object force(JsonNode r) throws Exception {
        handle(r).force().get(TIMEOUT_S, TimeUnit.SECONDS);
        return handle(r).getLastAddConfirmed();
    }

    private Object bookieInfo(JsonNode r) throws Exception {
        Map<String, Map<String, Long>> result = new TreeMap<>();
        client(r).getBookieInfo().forEach((bookie, info) -> result.put(bookie.getId(), Map.of(
                "free", info.getFreeDiskSpace(), "total", info.getTotalDiskSpace())));
        return result;
    }

    private Object listEntries(JsonNode r) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(client(r))) {
            var listed = admin.asyncGetListOfEntriesOfLedger(
                    BookieId.parse(r.get("bookie").asText()), r.get("ledgerId").asLong())
                    .get(TIMEOUT_S, TimeUnit.SECONDS);
            List<Long> ids = new ArrayList<>();
            for (long id = 0; id <= r.get("last").asLong(); id++) {
                if (listed.isEntryAvailable(id)) {
                    ids.add(id);
                }
            }
            if (ids.size() != listed.getTotalNumOfAvailableEntries()) {
                throw new IllegalStateException("entries beyond " + r.get("last") + " are listed");
            }
            return ids;
        }
    }

    /** One add sent to one bookie with any password's master key; the answer's name. */
    private Object addWithKey(JsonNode r) throws Exception {
        long ledgerId = r.get("ledgerId").asLong();
        long entryId = r.get("entryId").asLong();
        DigestManager digests = DigestManager.instantiate(ledgerId, password(r), LedgerMetadataFormat.DigestType.CRC32C,
                UnpooledByteBufAllocator.DEFAULT, r.get("protocol").asText().equals("v2"));
        byte[] key = DigestManager.generateMasterKey(password(r));
        ByteBuf body = Unpooled.wrappedBuffer(body(ledgerId, entryId, r.get("size").asInt()));
        var toSend = digests.computeDigestAndPackageForSending(
                entryId, entryId - 1, body.readableBytes(), body, key, BookieProtocol.FLAG_NONE);
        CompletableFuture<Integer> answer = new CompletableFuture<>();
        client(r).getClientCtx().getBookieClient().addEntry(BookieId.parse(r.get("bookie").asText()), ledgerId, key,
                entryId, toSend, (code, ledger, entry, bookie, context) -> answer.complete(code), null,
                BookieProtocol.FLAG_NONE, false, WriteFlag.NONE);
        return name(answer.get(TIMEOUT_S, TimeUnit.SECONDS));
    }

    /** One fencing read sent to one bookie with any password's master key; the answer's name. */
    private Object fenceWithKey(JsonNode r) throws Exception {
        byte[] key = DigestManager.generateMasterKey(password(r));
        CompletableFuture<Integer> answer = new CompletableFuture<>();
        client(r).getClientCtx().getBookieClient().readEntry(BookieId.parse(r.get("bookie").asText()),
                r.get("ledgerId").asLong(), r.get("entryId").asLong(),
                (code, ledger, entry, buffer, context) -> answer.complete(code), null,
                BookieProtocol.FLAG_DO_FENCING, key);
        return name(answer.get(TIMEOUT_S, TimeUnit.SECONDS));
    }

    private static String name(int code) {
        return code == BKException.Code.OK ? "ok" : BKException.create(code).getClass().getSimpleName();
    }
}
