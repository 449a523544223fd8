// Ledgers left open by their writer, and their recovery by Apache's client: for BookieBench.java.

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.ReadHandle;

final class OpenLedgers {
    private OpenLedgers() {
    }

    /** So many entries in each; the handles are dropped as they are. */
    static Object leave(LedgerHandle[] ledgers, JsonNode r) throws Exception {
        byte[] payload = new byte[r.get("size").asInt()];
        List<Long> ids = new ArrayList<>();
        ArrayDeque<CompletableFuture<?>> waiting = new ArrayDeque<>();
        for (LedgerHandle ledger : ledgers) {
            ids.add(ledger.getId());
            for (int n = 0; n < r.get("entries").asInt(); n++) {
                waiting.add(ledger.appendAsync(payload));
            }
            while (waiting.size() >= 1_000) {
                waiting.poll().get(BookieBench.TIMEOUT_S, TimeUnit.SECONDS);
            }
        }
        while (!waiting.isEmpty()) {
            waiting.poll().get(BookieBench.TIMEOUT_S, TimeUnit.SECONDS);
        }
        return ids;
    }

    /** Each is fenced, recovered and closed; so many at a time. Counts ledgers where other samples count entries. */
    static Object recover(BookKeeper client, JsonNode r) throws Exception {
        long last = r.get("entries").asLong() - 1;
        double cpu = BookieBench.cpuSeconds();
        long began = System.nanoTime();
        ArrayDeque<CompletableFuture<ReadHandle>> waiting = new ArrayDeque<>();
        int recovered = 0;
        for (JsonNode id : r.get("ledgerIds")) {
            waiting.add(client.newOpenLedgerOp().withLedgerId(id.asLong()).withRecovery(true)
                    .withPassword(BookieBench.PASSWORD).withDigestType(DigestType.CRC32C).execute());
            if (waiting.size() >= r.get("inFlight").asInt()) {
                recovered += ended(waiting.poll(), last);
            }
        }
        while (!waiting.isEmpty()) {
            recovered += ended(waiting.poll(), last);
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        return Map.of("entries", recovered, "seconds", seconds, "cpuSeconds", BookieBench.cpuSeconds() - cpu);
    }

    private static int ended(CompletableFuture<ReadHandle> opening, long last) throws Exception {
        try (ReadHandle ledger = opening.get(BookieBench.TIMEOUT_S, TimeUnit.SECONDS)) {
            if (!ledger.isClosed() || ledger.getLastAddConfirmed() != last) {
                throw new IllegalStateException("ledger " + ledger.getId() + " ends with entry "
                        + ledger.getLastAddConfirmed() + ", not " + last);
            }
            return 1;
        }
    }
}
