// Apache's client in a process that writes until it is killed, to one ledger for each quorum asked for.
//
//   DoomedWriter ZOOKEEPER ROOT PASSWORD ENTRY_BYTES IN_FLIGHT E/QW/QA...
//
// Prints `LEDGER ENTRY` for each acknowledged entry as it goes, and `LEDGER -1` when a ledger was created. The bytes of
// an entry are those of LedgerClient.java. It never closes anything.

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.conf.ClientConfiguration;

public final class DoomedWriter {
    private static final long TIMEOUT_S = 30;
    private static final int QUORUMS_AT = 5;

    private final PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true);

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);  // What libraries print must not come between our lines.
        DoomedWriter program = new DoomedWriter();
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://" + args[0] + args[1]);
        conf.setUseV2WireProtocol(true);
        conf.setThrottleValue(0);
        BookKeeper client = new BookKeeper(conf);
        for (int at = QUORUMS_AT; at < args.length; at++) {
            String[] sizes = args[at].split("/");
            LedgerHandle ledger = (LedgerHandle) client.newCreateLedgerOp()
                    .withEnsembleSize(Integer.parseInt(sizes[0])).withWriteQuorumSize(Integer.parseInt(sizes[1]))
                    .withAckQuorumSize(Integer.parseInt(sizes[2])).withDigestType(DigestType.CRC32C)
                    .withPassword(args[2].getBytes(StandardCharsets.UTF_8))
                    .execute().get(TIMEOUT_S, TimeUnit.SECONDS);
            program.say(ledger.getId(), -1);
            new Thread(() -> program.write(ledger, Integer.parseInt(args[3]), Integer.parseInt(args[4]))).start();
        }
    }

    private synchronized void say(long ledgerId, long entryId) {
        out.println(ledgerId + " " + entryId);
    }

    private void write(LedgerHandle ledger, int size, int inFlight) {
        Semaphore slots = new Semaphore(inFlight);
        for (long id = 0;; id++) {
            slots.acquireUninterruptibly();
            ledger.asyncAddEntry(LedgerClient.body(ledger.getId(), id, size), (code, handle, entryId, context) -> {
                if (code != BKException.Code.OK) {
                    BKException.create(code).printStackTrace();
                    System.exit(1);
                }
                say(handle.getId(), entryId);
                slots.release();
            }, null);
        }
    }
}
