// Apache BookKeeper's auto-recovery behind JSON lines (JsonLines.java): the auditor, the worker, or both, and the locks.
//
// One process is one node of Apache's: it starts the parts that it is asked for, and they end with it.

import com.fasterxml.jackson.databind.JsonNode;
import java.net.URI;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Executors;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.meta.LedgerUnderreplicationManager;
import org.apache.bookkeeper.meta.MetadataClientDriver;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.meta.UnderreplicatedLedger;
import org.apache.bookkeeper.replication.AuditorElector;
import org.apache.bookkeeper.replication.AutoRecoveryMain;
import org.apache.bookkeeper.replication.ReplicationWorker;
import org.apache.bookkeeper.stats.NullStatsLogger;

public final class AutoRecovery {
    private final List<Object> parts = new ArrayList<>();  // So that none is collected.
    private LedgerUnderreplicationManager marks;

    public static void main(String[] args) throws Exception {
        AutoRecovery program = new AutoRecovery();
        Map<String, JsonLines.Operation> operations = new HashMap<>();
        operations.put("start", program::start);
        operations.put("lock", program::lock);
        operations.put("unlock", program::unlock);
        operations.put("marks", program::marks);
        JsonLines.serve(operations);
    }

    private static ServerConfiguration settings(JsonNode r) {
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://" + r.get("zookeeper").asText() + r.get("root").asText());
        conf.setZkTimeout(r.get("sessionMs").asInt());
        conf.setAllowLoopback(true);
        conf.setBookieId(r.get("id").asText());
        conf.setOpenLedgerRereplicationGracePeriod(r.get("graceMs").asText());
        conf.setLockReleaseOfFailedLedgerGracePeriod("1000");
        return conf;
    }

    private Object start(JsonNode r) throws Exception {
        ServerConfiguration conf = settings(r);
        switch (r.get("role").asText()) {
            case "auditor" -> {
                AuditorElector elector = new AuditorElector(conf.getBookieId(), conf);
                elector.start();
                parts.add(elector);
            }
            case "worker" -> {
                ReplicationWorker worker = new ReplicationWorker(conf);
                worker.start();
                parts.add(worker);
            }
            case "both" -> {
                AutoRecoveryMain all = new AutoRecoveryMain(conf);
                all.start();
                parts.add(all);
            }
            default -> throw new IllegalArgumentException("no such role: " + r.get("role"));
        }
        return null;
    }

    private LedgerUnderreplicationManager manager(JsonNode r) throws Exception {
        if (marks == null) {
            ServerConfiguration conf = settings(r);
            MetadataClientDriver driver = MetadataDrivers.getClientDriver(URI.create(conf.getMetadataServiceUri()));
            driver.initialize(new ClientConfiguration(conf),
                    Executors.newSingleThreadScheduledExecutor(), NullStatsLogger.INSTANCE, Optional.empty());
            parts.add(driver);
            marks = driver.getLedgerManagerFactory().newLedgerUnderreplicationManager();
        }
        return marks;
    }

    /** As a worker does it; the lock lasts until it is given back, or until this process ends. */
    private Object lock(JsonNode r) throws Exception {
        manager(r).acquireUnderreplicatedLedger(r.get("ledgerId").asLong());
        return null;
    }

    private Object unlock(JsonNode r) throws Exception {
        manager(r).releaseUnderreplicatedLedger(r.get("ledgerId").asLong());
        return null;
    }

    /** Ledger → the bookies that its mark names. */
    private Object marks(JsonNode r) throws Exception {
        Map<String, List<String>> found = new HashMap<>();
        var listed = manager(r).listLedgersToRereplicate(null);
        while (listed.hasNext()) {
            UnderreplicatedLedger ledger = listed.next();
            found.put(Long.toString(ledger.getLedgerId()),
                    manager(r).getLedgerUnreplicationInfo(ledger.getLedgerId()).getReplicaList());
        }
        return found;
    }
}
