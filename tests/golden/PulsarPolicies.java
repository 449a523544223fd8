/*
 * Policies, events and schemas as Apache Pulsar 4.2.4 writes them: JSON as text, binary forms in hexadecimal.
 *
 * Run with Pulsar's jars (interop/pulsar/server-pom.xml) on the class path:
 *   javac -cp "LIB/*" -d /tmp/classes tests/golden/PulsarPolicies.java
 *   java -cp "/tmp/classes:LIB/*" PulsarPolicies > tests/golden/pulsar-policies.json
 */
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.time.*;
import java.util.*;
import org.apache.pulsar.broker.service.schema.SchemaEntry;
import org.apache.pulsar.broker.service.schema.SchemaLocator;
import org.apache.pulsar.broker.service.schema.SchemaRegistryServiceImpl;
import org.apache.pulsar.broker.service.schema.proto.SchemaInfo;
import org.apache.pulsar.client.api.schema.SchemaDefinition;
import org.apache.pulsar.client.impl.schema.AvroSchema;
import org.apache.pulsar.common.api.proto.CommandSubscribe.SubType;
import org.apache.pulsar.common.events.*;
import org.apache.pulsar.common.partition.PartitionedTopicMetadata;
import org.apache.pulsar.common.policies.data.*;
import org.apache.pulsar.common.policies.data.impl.*;
import org.apache.pulsar.common.schema.SchemaType;
import org.apache.pulsar.common.util.ObjectMapperFactory;

public class PulsarPolicies {
    static final Map<String, String> OUT = new LinkedHashMap<>();

    static void text(String name, byte[] data) {
        OUT.put(name, new String(data, java.nio.charset.StandardCharsets.UTF_8));
    }

    static void binary(String name, byte[] data) {
        OUT.put(name, HexFormat.of().formatHex(data));
    }

    static void json(String name, Object value) throws Exception {
        text(name, ObjectMapperFactory.getMapper().writer().writeValueAsBytes(value));
    }

    static PulsarEvent event(TopicPolicies p, boolean local) {
        PulsarEvent.PulsarEventBuilder b = PulsarEvent.builder();
        if (local) b.replicateTo(new HashSet<>(Set.of("standalone")));
        return b.actionType(ActionType.UPDATE).eventType(EventType.TOPIC_POLICY)
            .topicPoliciesEvent(TopicPoliciesEvent.builder().domain("persistent").tenant("public").namespace("default").topic("t").policies(p).build()).build();
    }

    static TopicPolicies full() {
        TopicPolicies p = new TopicPolicies();
        p.getBackLogQuotaMap().put("destination_storage", BacklogQuotaImpl.builder().limitSize(1000).limitTime(20).retentionPolicy(BacklogQuota.RetentionPolicy.producer_exception).build());
        p.setSubscriptionTypesEnabled(new ArrayList<>(List.of(SubType.Shared, SubType.Key_Shared)));
        p.setReplicationClusters(new ArrayList<>(List.of("standalone")));
        p.setShadowTopics(new ArrayList<>(List.of("persistent://public/default/s")));
        p.setIsGlobal(true);
        p.setPersistence(new PersistencePolicies(3, 2, 2, 1.5));
        p.setRetentionPolicies(new RetentionPolicies(60, 1024));
        p.setDeduplicationEnabled(true);
        p.setMessageTTLInSeconds(3600);
        p.setSubscriptionExpirationTimeInMinutes(7);
        p.setMaxProducerPerTopic(1); p.setMaxConsumerPerTopic(2); p.setMaxConsumersPerSubscription(3);
        p.setMaxUnackedMessagesOnConsumer(4); p.setMaxUnackedMessagesOnSubscription(5);
        p.setDelayedDeliveryTickTimeMillis(6L); p.setDelayedDeliveryEnabled(false); p.setDelayedDeliveryMaxDelayInMillis(8L);
        p.setDispatcherPauseOnAckStatePersistentEnabled(true);
        OffloadPoliciesImpl off = new OffloadPoliciesImpl(); off.setManagedLedgerOffloadDriver("filesystem"); off.setFileSystemURI("file:///x"); off.setManagedLedgerOffloadThresholdInBytes(77L);
        off.setManagedLedgerOffloadedReadPriority(OffloadedReadPriority.BOOKKEEPER_FIRST);
        p.setOffloadPolicies(off);
        p.setInactiveTopicPolicies(new InactiveTopicPolicies(InactiveTopicDeleteMode.delete_when_subscriptions_caught_up, 99, true));
        DispatchRateImpl d = DispatchRateImpl.builder().dispatchThrottlingRateInMsg(10).dispatchThrottlingRateInByte(20).ratePeriodInSecond(2).relativeToPublishRate(true).build();
        p.setDispatchRate(d); p.setSubscriptionDispatchRate(d); p.setReplicatorDispatchRate(d);
        p.setCompactionThreshold(123456789012L);
        p.setPublishRate(new PublishRate(11, 22)); p.setSubscribeRate(new SubscribeRate(33, 44));
        p.setDeduplicationSnapshotIntervalSeconds(55); p.setMaxMessageSize(66); p.setMaxSubscriptionsPerTopic(77);
        p.setSchemaCompatibilityStrategy(SchemaCompatibilityStrategy.BACKWARD_TRANSITIVE);
        p.setEntryFilters(new EntryFilters("a,b"));
        p.setAutoSubscriptionCreationOverride(AutoSubscriptionCreationOverrideImpl.builder().allowAutoSubscriptionCreation(true).build());
        p.getSubscriptionPolicies().put("sub", new SubscriptionPolicies(d));
        p.setSchemaValidationEnforced(true);
        return p;
    }

    /** What the registry stores as the newest version when a schema is deleted. */
    static byte[] deleted(String id, String user) throws Exception {
        Field unsafe = sun.misc.Unsafe.class.getDeclaredField("theUnsafe");
        unsafe.setAccessible(true); // A registry as usual needs a whole broker; this one has a clock and nothing else.
        Object registry = ((sun.misc.Unsafe) unsafe.get(null)).allocateInstance(SchemaRegistryServiceImpl.class);
        Field clock = SchemaRegistryServiceImpl.class.getDeclaredField("clock");
        clock.setAccessible(true);
        clock.set(registry, Clock.fixed(Instant.ofEpochMilli(1234567890123L), ZoneOffset.UTC));
        Method method = SchemaRegistryServiceImpl.class.getDeclaredMethod("deleted", String.class, String.class);
        method.setAccessible(true);
        return ((SchemaInfo) method.invoke(registry, id, user)).toByteArray();
    }

    /** The number that the registry stores for a type, or null for a type that it does not store. */
    static Integer storedType(SchemaType type) throws Exception {
        Class<?> functions = Class.forName(SchemaRegistryServiceImpl.class.getName() + "$Functions");
        Method method = functions.getDeclaredMethod("convertFromDomainType", SchemaType.class);
        method.setAccessible(true);
        SchemaInfo.SchemaType stored = (SchemaInfo.SchemaType) method.invoke(null, type);
        return stored == null ? null : stored.getValue();
    }

    public static void main(String[] a) throws Exception {
        AvroSchema<PulsarEvent> s = AvroSchema.of(SchemaDefinition.<PulsarEvent>builder().withPojo(PulsarEvent.class).build());
        text("event schema", s.getSchemaInfo().getSchema());
        TopicPolicies none = new TopicPolicies();
        binary("event default", s.encode(event(none, true)));
        TopicPolicies ttl = new TopicPolicies(); ttl.setMessageTTLInSeconds(10);
        binary("event ttl", s.encode(event(ttl, true)));
        binary("event full global", s.encode(event(full(), false)));
        json("topic policies default", none);
        json("topic policies full", full());
        Policies p = new Policies(); p.bundles = PoliciesUtil.getBundles(4); p.replication_clusters = Set.of("standalone");
        json("policies default", p);
        Policies f = new Policies(); f.bundles = PoliciesUtil.getBundles(3); f.replication_clusters = Set.of("standalone");
        f.backlog_quota_map.put(BacklogQuota.BacklogQuotaType.destination_storage, BacklogQuotaImpl.builder().limitSize(1000).limitTime(20).retentionPolicy(BacklogQuota.RetentionPolicy.consumer_backlog_eviction).build());
        f.retention_policies = new RetentionPolicies(10, 20); f.persistence = new PersistencePolicies(3,2,2,0.5);
        f.topicDispatchRate.put("standalone", DispatchRateImpl.builder().dispatchThrottlingRateInMsg(5).build());
        f.clusterSubscribeRate.put("standalone", new SubscribeRate(3, 4));
        f.publishMaxMessageRate.put("standalone", new PublishRate(7, 8));
        f.message_ttl_in_seconds = 5; f.deduplicationEnabled = true;
        f.delayed_delivery_policies = DelayedDeliveryPolicies.builder().tickTime(100).active(true).maxDeliveryDelayInMillis(9).build();
        f.inactive_topic_policies = new InactiveTopicPolicies(InactiveTopicDeleteMode.delete_when_no_subscriptions, 60, true);
        f.autoTopicCreationOverride = AutoTopicCreationOverride.builder().allowAutoTopicCreation(true).topicType("partitioned").defaultNumPartitions(3).build();
        f.autoSubscriptionCreationOverride = AutoSubscriptionCreationOverride.builder().allowAutoSubscriptionCreation(false).build();
        f.schema_compatibility_strategy = SchemaCompatibilityStrategy.FORWARD;
        f.subscription_types_enabled = new TreeSet<>(Set.of("Shared")); f.properties.put("k", "v"); f.entryFilters = new EntryFilters("x");
        f.offload_policies = new OffloadPoliciesImpl();
        json("policies full", f);
        json("local policies", new LocalPolicies());
        json("local policies full", new LocalPolicies(PoliciesUtil.getBundles(2), BookieAffinityGroupData.builder().bookkeeperAffinityGroupPrimary("g").build(), "anti", false));
        json("tenant", new TenantInfoImpl(Set.of(), Set.of("standalone")));
        json("cluster", ClusterData.builder().serviceUrl("http://h:8080").brokerServiceUrl("pulsar://h:6650").build());
        json("partitioned", new PartitionedTopicMetadata(3));
        json("partitioned properties", new PartitionedTopicMetadata(3, Map.of("a","b")));
        // schemas
        SchemaInfo info = new SchemaInfo().setType(SchemaInfo.SchemaType.AVRO).setSchema("{\"type\":\"string\"}".getBytes()).setSchemaId("public/default/t").setUser("u").setDeleted(false).setTimestamp(1234567890123L);
        info.addProp().setKey("k").setValue("v");
        byte[] encoded = info.toByteArray(); // Once: a second call finds its buffers read.
        binary("schema info", encoded);
        byte[] hash = com.google.common.hash.Hashing.sha256().hashBytes("{\"type\":\"string\"}".getBytes()).asBytes();
        SchemaLocator loc = new SchemaLocator();
        loc.setInfo().setVersion(1).setHash(hash).setPosition().setLedgerId(12).setEntryId(0);
        loc.addIndex().setVersion(0).setHash(hash).setPosition().setLedgerId(11).setEntryId(0);
        loc.addIndex().setVersion(1).setHash(hash).setPosition().setLedgerId(12).setEntryId(0);
        binary("schema locator", loc.toByteArray());
        SchemaEntry e = new SchemaEntry();
        e.setSchemaData(encoded);
        e.addIndex().setVersion(0).setHash(hash).setPosition().setLedgerId(-1).setEntryId(-1);
        binary("schema entry", e.toByteArray());
        binary("deleted schema", deleted("public/default/t", "u"));
        Map<String, Integer> types = new LinkedHashMap<>();
        for (SchemaType type : SchemaType.values()) types.put(type.name(), storedType(type));
        json("stored schema types", types);
        System.out.println(ObjectMapperFactory.getMapper().writer().withDefaultPrettyPrinter().writeValueAsString(OUT));
    }
}
