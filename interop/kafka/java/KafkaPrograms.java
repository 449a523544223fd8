// Apache Kafka's own Java client behind JSON lines (JsonLines.java). Bytes are base64, and null is null.
//
// A record is {"key", "value", "headers": [[name, bytes], ...], "timestamp"}; what was read has an "offset" as well.

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class KafkaPrograms {
    private static final int TIMEOUT_S = 60;

    public static void main(String[] args) throws Exception {
        KafkaPrograms program = new KafkaPrograms();
        Map<String, JsonLines.Operation> operations = new HashMap<>();
        operations.put("produce", program::produce);
        operations.put("read", program::read);
        operations.put("consume", program::consume);
        operations.put("admin", program::admin);
        JsonLines.serve(operations);
    }

    private static Map<String, Object> settings(JsonNode request) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", request.get("bootstrap").asText());
        request.path("settings").fields().forEachRemaining(each -> settings.put(each.getKey(), each.getValue().asText()));
        return settings;
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    /** Sends all, then waits for all; "single" waits for each. Answers the offsets. */
    private Object produce(JsonNode request) throws Exception {
        boolean single = request.path("single").asBoolean(false);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings(request), new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode each : request.get("records")) {
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(request.get("topic").asText(), 0,
                        each.get("timestamp").asLong(), bytes(each.get("key")), bytes(each.get("value")));
                for (JsonNode header : each.get("headers")) {
                    record.headers().add(header.get(0).asText(), bytes(header.get(1)));
                }
                sent.add(producer.send(record));
                if (single) {
                    sent.get(sent.size() - 1).get(TIMEOUT_S, TimeUnit.SECONDS);
                }
            }
            producer.flush();
        }
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> each : sent) {
            offsets.add(each.get(TIMEOUT_S, TimeUnit.SECONDS).offset());
        }
        return offsets;
    }

    /** The first partition from its beginning, with an assignment by hand. */
    private Object read(JsonNode request) {
        List<Map<String, Object>> found = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(request)) {
            List<TopicPartition> partitions = List.of(new TopicPartition(request.get("topic").asText(), 0));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            poll(consumer, request.get("count").asInt(), found);
        }
        return found;
    }

    /** In a group, until the count is reached; then commits, and answers what is committed. */
    private Object consume(JsonNode request) {
        List<Map<String, Object>> found = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(request)) {
            consumer.subscribe(List.of(request.get("topic").asText()));
            poll(consumer, request.get("count").asInt(), found);
            consumer.commitSync(Duration.ofSeconds(TIMEOUT_S));
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("values", found.stream().map(each -> each.get("value")).toList());
            Map<String, Long> committed = new TreeMap<>();
            consumer.committed(consumer.assignment()).forEach((partition, offset) ->
                    committed.put(String.valueOf(partition.partition()), offset == null ? -1 : offset.offset()));
            answer.put("committed", committed);
            return answer;
        }
    }

    private static KafkaConsumer<byte[], byte[]> consumer(JsonNode request) {
        return new KafkaConsumer<>(settings(request), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static void poll(KafkaConsumer<byte[], byte[]> consumer, int count, List<Map<String, Object>> found) {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(TIMEOUT_S);
        while (found.size() < count && System.nanoTime() < deadline) {
            for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(500))) {
                found.add(describe(each));
            }
        }
        if (found.size() < count) {
            throw new IllegalStateException("only " + found.size() + " of " + count + " records came");
        }
    }

    private static Map<String, Object> describe(ConsumerRecord<byte[], byte[]> record) {
        List<List<String>> headers = new ArrayList<>();
        for (Header each : record.headers()) {
            headers.add(Arrays.asList(each.key(), text(each.value())));
        }
        Map<String, Object> described = new LinkedHashMap<>();
        described.put("offset", record.offset());
        described.put("key", text(record.key()));
        described.put("value", text(record.value()));
        described.put("headers", headers);
        described.put("timestamp", record.timestamp());
        return described;
    }

    /** Makes a topic, adds partitions, and looks at the topic, its offsets and a group; answers what it saw. */
    private Object admin(JsonNode request) throws Exception {
        String topic = request.get("topic").asText();
        String group = request.get("group").asText();
        Map<String, Object> seen = new LinkedHashMap<>();
        try (Admin admin = Admin.create(settings(request))) {
            admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all().get(TIMEOUT_S, TimeUnit.SECONDS);
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get(TIMEOUT_S, TimeUnit.SECONDS);
            seen.put("listed", admin.listTopics().names().get(TIMEOUT_S, TimeUnit.SECONDS).contains(topic));
            seen.put("partitions", admin.describeTopics(List.of(topic)).allTopicNames()
                    .get(TIMEOUT_S, TimeUnit.SECONDS).get(topic).partitions().size());
            seen.put("end", admin.listOffsets(Map.of(new TopicPartition(topic, 2), OffsetSpec.latest())).all()
                    .get(TIMEOUT_S, TimeUnit.SECONDS).get(new TopicPartition(topic, 2)).offset());
            seen.put("nodes", admin.describeCluster().nodes().get(TIMEOUT_S, TimeUnit.SECONDS).size());
            ConsumerGroupDescription described = admin.describeConsumerGroups(Collections.singleton(group)).all()
                    .get(TIMEOUT_S, TimeUnit.SECONDS).get(group);
            seen.put("group", described.groupState().toString());
            Map<String, Long> offsets = new TreeMap<>();
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get(TIMEOUT_S, TimeUnit.SECONDS)
                    .forEach((partition, offset) -> offsets.put(partition.toString(), offset.offset()));
            seen.put("offsets", offsets);
            admin.deleteConsumerGroups(List.of(group)).all().get(TIMEOUT_S, TimeUnit.SECONDS);
            TreeSet<String> left = new TreeSet<>();
            admin.listGroups().all().get(TIMEOUT_S, TimeUnit.SECONDS).forEach(each -> left.add(each.groupId()));
            seen.put("deleted", !left.contains(group));
        }
        return seen;
    }
}
