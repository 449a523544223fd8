/*
 * The nodes by which brokers of a cluster know each other, as Apache Pulsar 4.2.4 writes them.
 *
 * Run with Pulsar's jars (interop/pulsar/server-pom.xml) on the class path:
 *   javac -cp "LIB/*" -d /tmp/classes tests/golden/PulsarCluster.java
 *   java -cp "/tmp/classes:LIB/*" PulsarCluster > tests/golden/pulsar-cluster.json
 */
import java.net.URI;
import java.util.*;
import org.apache.pulsar.broker.loadbalance.LeaderBroker;
import org.apache.pulsar.broker.loadbalance.extensions.data.BrokerLookupData;
import org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl;
import org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl;
import org.apache.pulsar.broker.namespace.NamespaceEphemeralData;
import org.apache.pulsar.common.policies.data.*;
import org.apache.pulsar.common.util.ObjectMapperFactory;
import org.apache.pulsar.policies.data.loadbalancer.*;

public class PulsarCluster {
    static final Map<String, String> OUT = new LinkedHashMap<>();

    static void json(String name, Object value) throws Exception {
        OUT.put(name, ObjectMapperFactory.getMapper().writer().writeValueAsString(value));
    }

    static NamespaceBundleStats stats() {
        NamespaceBundleStats s = new NamespaceBundleStats();
        s.msgRateIn = 10.5; s.msgThroughputIn = 1050; s.msgRateOut = 21; s.msgThroughputOut = 2100;
        s.consumerCount = 2; s.producerCount = 1; s.topics = 3; s.cacheSize = 7;
        return s;
    }

    static LocalBrokerData broker(Map<String, AdvertisedListener> listeners) {
        LocalBrokerData d = new LocalBrokerData("http://b1:8080", null, "pulsar://b1:6650", null, listeners);
        d.setLastUpdate(1700000000000L);
        d.setBrokerVersionString("4.2.4");
        d.setLoadManagerClassName(ModularLoadManagerImpl.class.getName());
        return d;
    }

    public static void main(String[] a) throws Exception {
        AdvertisedListener listener = AdvertisedListener.builder().brokerServiceUrl(new URI("pulsar://b1.internal:6650")).build();
        json("broker new", broker(Map.of()));
        LocalBrokerData full = broker(Map.of("internal", listener));
        SystemResourceUsage usage = new SystemResourceUsage();
        usage.setCpu(new ResourceUsage(50, 200)); usage.setMemory(new ResourceUsage(100, 1024));
        usage.setDirectMemory(new ResourceUsage(1, 64));
        usage.setBandwidthIn(new ResourceUsage(5, 1000)); usage.setBandwidthOut(new ResourceUsage(6, 1000));
        full.update(usage, Map.of("public/default/0x00000000_0x40000000", stats()));
        full.setProtocols(Map.of("kafka", "b1:9092"));
        json("broker full", full);
        json("leader", new LeaderBroker("b1:8080", "http://b1:8080"));
        json("extensible broker", new BrokerLookupData("http://b1:8080", null, "pulsar://b1:6650", null, Map.of(), Map.of(), true, true, ExtensibleLoadManagerImpl.class.getName(), 1700000000000L, "4.2.4", Map.of()));
        BundleData bundle = new BundleData(10, 1000, stats());
        json("bundle new", bundle);
        BundleData seen = new BundleData(10, 1000);
        seen.update(stats());
        NamespaceBundleStats more = stats(); more.msgRateIn = 30.5;
        seen.update(more);
        json("bundle after two", seen);
        for (int i = 0; i < 20; i++) seen.update(stats());
        json("bundle after many", seen);
        json("broker average", new TimeAverageBrokerData());
        json("ownership", new NamespaceEphemeralData("pulsar://b1:6650", null, "http://b1:8080", null, false, Map.of("internal", listener)));
        Map<String, NamespaceIsolationDataImpl> policies = new LinkedHashMap<>();
        policies.put("sales", NamespaceIsolationDataImpl.builder().namespaces(List.of("sales/.*")).primary(List.of("a-.*")).secondary(List.of("b-.*"))
            .autoFailoverPolicy(AutoFailoverPolicyData.builder().policyType(AutoFailoverPolicyType.min_available).parameters(new TreeMap<>(Map.of("min_limit", "1", "usage_threshold", "100"))).build()).build());
        json("isolation policies", policies);
        policies.get("sales").setUnloadScope(NamespaceIsolationPolicyUnloadScope.changed);
        json("isolation policies with scope", policies);
        json("failure domain", FailureDomain.builder().brokers(new TreeSet<>(Set.of("b1:8080", "b2:8080"))).build());
        json("isolation of broker", BrokerNamespaceIsolationData.builder().brokerName("a-1:8080").policyName("sales").primary(true).namespaceRegex(List.of("sales/.*")).build());
        System.out.println(ObjectMapperFactory.getMapper().writer().withDefaultPrettyPrinter().writeValueAsString(OUT));
    }
}
