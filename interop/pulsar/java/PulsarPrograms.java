// Apache Pulsar's own client behind JSON lines (JsonLines.java): producers, consumers and readers have names, and stay
// between the requests. Payloads are text. What a check wants to know of a message comes back as a map.

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

public final class PulsarPrograms {
    private static final int TIMEOUT_S = 30;

    private final Map<String, PulsarClient> clients = new HashMap<>();
    private final Map<String, Producer<byte[]>> producers = new HashMap<>();
    private final Map<String, Consumer<byte[]>> consumers = new HashMap<>();
    private final Map<String, List<Message<byte[]>>> held = new HashMap<>();

    /** A record for the checks of schemas. */
    public static final class Person {
        public String name;
        public int age;
    }

    public static void main(String[] args) throws Exception {
        PulsarPrograms program = new PulsarPrograms();
        Map<String, JsonLines.Operation> operations = new HashMap<>();
        operations.put("connect", program::connect);
        operations.put("disconnect", program::disconnect);
        operations.put("produce", program::produce);
        operations.put("openProducer", program::openProducer);
        operations.put("send", program::send);
        operations.put("closeProducer", program::closeProducer);
        operations.put("subscribe", program::subscribe);
        operations.put("receive", program::receive);
        operations.put("acknowledge", program::acknowledge);
        operations.put("negativeAcknowledge", program::negativeAcknowledge);
        operations.put("reconsumeLater", program::reconsumeLater);
        operations.put("seek", program::seek);
        operations.put("lastMessageId", program::lastMessageId);
        operations.put("closeConsumer", program::closeConsumer);
        operations.put("read", program::read);
        operations.put("tableView", program::tableView);
        operations.put("schemaRoundTrip", program::schemaRoundTrip);
        JsonLines.serve(operations);
    }

    private PulsarClient client(JsonNode request) {
        return clients.get(request.path("client").asText("default"));
    }

    private Object connect(JsonNode request) throws Exception {
        PulsarClient client = PulsarClient.builder()
                .serviceUrl(request.get("url").asText())
                .operationTimeout(TIMEOUT_S, TimeUnit.SECONDS)
                .enableTransaction(request.path("transactions").asBoolean(false))
                .build();
        clients.put(request.path("client").asText("default"), client);
        return true;
    }

    private Object disconnect(JsonNode request) throws Exception {
        clients.remove(request.path("client").asText("default")).close();
        return true;
    }

    // --- producers ----------------------------------------------------------------------------------------------------

    private ProducerBuilder<byte[]> producerBuilder(JsonNode request) {
        ProducerBuilder<byte[]> builder = client(request).newProducer()
                .topic(request.get("topic").asText())
                .enableBatching(request.path("batching").asBoolean(false))
                .enableChunking(request.path("chunking").asBoolean(false))
                .accessMode(ProducerAccessMode.valueOf(request.path("accessMode").asText("Shared")))
                .sendTimeout(TIMEOUT_S, TimeUnit.SECONDS);
        if (request.has("name")) {
            builder.producerName(request.get("name").asText());
        }
        return builder;
    }

    /** Sends `count` messages "m-0", …, with key "k-{i mod keys}" if there are keys. */
    private Object produce(JsonNode request) throws Exception {
        try (Producer<byte[]> producer = producerBuilder(request).create()) {
            int keys = request.path("keys").asInt(0);
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int number = 0; number < request.get("count").asInt(); number++) {
                var message = producer.newMessage().value(bytes("m-" + number)).property("number", "" + number);
                if (keys > 0) {
                    message.key("k-" + number % keys);
                }
                sent.add(message.sendAsync());
            }
            producer.flush();
            for (CompletableFuture<MessageId> one : sent) {
                one.get(TIMEOUT_S, TimeUnit.SECONDS);
            }
            return sent.size();
        }
    }

    private Object openProducer(JsonNode request) throws Exception {
        Producer<byte[]> producer =
                producerBuilder(request).createAsync().get(request.path("patience").asInt(TIMEOUT_S), TimeUnit.SECONDS);
        producers.put(request.get("producer").asText(), producer);
        return producer.getProducerName();
    }

    private Object send(JsonNode request) throws Exception {
        Producer<byte[]> producer = producers.get(request.get("producer").asText());
        var message = producer.newMessage().value(bytes(request.get("text").asText()));
        if (request.has("key")) {
            message.key(request.get("key").asText());
        }
        if (request.has("sequence")) {
            message.sequenceId(request.get("sequence").asLong());
        }
        if (request.has("delayMs")) {
            message.deliverAfter(request.get("delayMs").asLong(), TimeUnit.MILLISECONDS);
        }
        return message.send().toString();
    }

    private Object closeProducer(JsonNode request) throws Exception {
        producers.remove(request.get("producer").asText()).close();
        return true;
    }

    // --- consumers ----------------------------------------------------------------------------------------------------

    private Object subscribe(JsonNode request) throws Exception {
        ConsumerBuilder<byte[]> builder = client(request).newConsumer()
                .subscriptionName(request.path("subscription").asText("s"))
                .subscriptionType(SubscriptionType.valueOf(request.path("type").asText("Exclusive")))
                .subscriptionInitialPosition(
                        SubscriptionInitialPosition.valueOf(request.path("initial").asText("Latest")))
                .enableBatchIndexAcknowledgment(true)
                .isAckReceiptEnabled(request.path("receipts").asBoolean(false))
                .enableRetry(request.path("retry").asBoolean(false))
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                .receiverQueueSize(request.path("queue").asInt(1000))
                .patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS);
        if (request.has("pattern")) {
            builder.topicsPattern(Pattern.compile(request.get("pattern").asText()));
        } else {
            builder.topic(request.get("topic").asText());
        }
        if (request.has("name")) {
            builder.consumerName(request.get("name").asText());
        }
        if (request.has("sticky")) {
            JsonNode range = request.get("sticky");
            builder.keySharedPolicy(
                    KeySharedPolicy.stickyHashRange().ranges(Range.of(range.get(0).asInt(), range.get(1).asInt())));
        }
        if (request.has("redeliveriesMax")) {
            builder.deadLetterPolicy(
                    DeadLetterPolicy.builder().maxRedeliverCount(request.get("redeliveriesMax").asInt()).build());
        }
        consumers.put(request.get("consumer").asText(), builder.subscribe());
        return true;
    }

    /** Up to `count` messages; fewer when none comes for `quietMs`. They are acknowledged at once, unless told not to. */
    private Object receive(JsonNode request) throws Exception {
        String name = request.get("consumer").asText();
        Consumer<byte[]> consumer = consumers.get(name);
        String acknowledge = request.path("acknowledge").asText("each");
        List<Map<String, Object>> found = new ArrayList<>();
        List<Message<byte[]>> messages = new ArrayList<>();
        while (found.size() < request.get("count").asInt()) {
            Message<byte[]> message = consumer.receive(request.path("quietMs").asInt(10_000), TimeUnit.MILLISECONDS);
            if (message == null) {
                break;
            }
            messages.add(message);
            found.add(describe(message));
            if (acknowledge.equals("each")) {
                consumer.acknowledge(message);
            }
        }
        if (acknowledge.equals("cumulative") && !messages.isEmpty()) {
            consumer.acknowledgeCumulative(messages.get(messages.size() - 1));
        }
        held.put(name, messages);
        return found;
    }

    /** All that are held, or those with one of the `texts`; the others stay held. Returns after all were answered. */
    private Object acknowledge(JsonNode request) throws Exception {
        String name = request.get("consumer").asText();
        Set<String> texts = new HashSet<>();
        request.path("texts").forEach(text -> texts.add(text.asText()));
        List<Message<byte[]>> rest = new ArrayList<>();
        List<CompletableFuture<Void>> answers = new ArrayList<>();
        for (Message<byte[]> message : held.remove(name)) {
            if (texts.isEmpty() || texts.contains(new String(message.getData(), StandardCharsets.UTF_8))) {
                answers.add(consumers.get(name).acknowledgeAsync(message));
            } else {
                rest.add(message);
            }
        }
        for (CompletableFuture<Void> answer : answers) {
            answer.get(TIMEOUT_S, TimeUnit.SECONDS);
        }
        held.put(name, rest);
        return answers.size();
    }

    private Object negativeAcknowledge(JsonNode request) {
        String name = request.get("consumer").asText();
        held.remove(name).forEach(consumers.get(name)::negativeAcknowledge);
        return true;
    }

    private Object reconsumeLater(JsonNode request) throws Exception {
        String name = request.get("consumer").asText();
        for (Message<byte[]> message : held.remove(name)) {
            consumers.get(name).reconsumeLater(message, 100, TimeUnit.MILLISECONDS);
        }
        return true;
    }

    private Object seek(JsonNode request) throws Exception {
        Consumer<byte[]> consumer = consumers.get(request.get("consumer").asText());
        if (request.has("time")) {
            consumer.seek(request.get("time").asLong());
        } else {
            consumer.seek(request.get("to").asText().equals("earliest") ? MessageId.earliest : MessageId.latest);
        }
        return true;
    }

    private Object lastMessageId(JsonNode request) throws Exception {
        return consumers.get(request.get("consumer").asText()).getLastMessageIds().get(0).toString();
    }

    private Object closeConsumer(JsonNode request) throws Exception {
        consumers.remove(request.get("consumer").asText()).close();
        return true;
    }

    private static Map<String, Object> describe(Message<byte[]> message) {
        Map<String, Object> found = new TreeMap<>();
        found.put("text", new String(message.getData(), StandardCharsets.UTF_8));
        found.put("key", message.getKey());
        found.put("topic", message.getTopicName());
        found.put("id", message.getMessageId().toString());
        found.put("redeliveries", message.getRedeliveryCount());
        found.put("properties", message.getProperties());
        found.put("producer", message.getProducerName());
        found.put("index", message.getIndex().orElse(null));
        return found;
    }

    // --- readers ------------------------------------------------------------------------------------------------------

    private Object read(JsonNode request) throws Exception {
        List<Map<String, Object>> found = new ArrayList<>();
        try (Reader<byte[]> reader = client(request).newReader()
                .topic(request.get("topic").asText())
                .startMessageId(MessageId.earliest)
                .readCompacted(request.path("compacted").asBoolean(false))
                .create()) {
            while (reader.hasMessageAvailable()) {
                found.add(describe(reader.readNext(TIMEOUT_S, TimeUnit.SECONDS)));
            }
        }
        return found;
    }

    private Object tableView(JsonNode request) throws Exception {
        Map<String, String> found = new TreeMap<>();
        try (TableView<byte[]> view = client(request).newTableView(Schema.BYTES)
                .topic(request.get("topic").asText())
                .create()) {
            view.forEach((key, value) -> found.put(key, new String(value, StandardCharsets.UTF_8)));
        }
        return found;
    }

    // --- schemas ------------------------------------------------------------------------------------------------------

    private Object schemaRoundTrip(JsonNode request) throws Exception {
        String topic = request.get("topic").asText();
        switch (request.get("kind").asText()) {
            case "AVRO":
                return roundTrip(request, topic, Schema.AVRO(Person.class), person()).name;
            case "JSON":
                return roundTrip(request, topic, Schema.JSON(Person.class), person()).name;
            case "INT32":
                return roundTrip(request, topic, Schema.INT32, 42);
            case "INT64":
                return roundTrip(request, topic, Schema.INT64, 1L << 40);
            case "DOUBLE":
                return roundTrip(request, topic, Schema.DOUBLE, 2.5);
            case "BOOLEAN":
                return roundTrip(request, topic, Schema.BOOL, true);
            case "STRING":
                return roundTrip(request, topic, Schema.STRING, "text");
            case "KEY_VALUE":
                Schema<KeyValue<String, Person>> schema = Schema.KeyValue(
                        Schema.STRING, Schema.AVRO(Person.class), KeyValueEncodingType.SEPARATED);
                KeyValue<String, Person> pair = roundTrip(request, topic, schema, new KeyValue<>("key", person()));
                return pair.getKey() + "=" + pair.getValue().name;
            case "AUTO_CONSUME":
                try (Consumer<GenericRecord> consumer = client(request).newConsumer(Schema.AUTO_CONSUME()).topic(topic)
                        .subscriptionName("auto").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe()) {
                    return consumer.receive(TIMEOUT_S, TimeUnit.SECONDS).getValue().getField("name");
                }
            default:
                throw new IllegalArgumentException("no such kind of schema");
        }
    }

    private static Person person() {
        Person person = new Person();
        person.name = "Ada";
        person.age = 36;
        return person;
    }

    private <T> T roundTrip(JsonNode request, String topic, Schema<T> schema, T value) throws Exception {
        try (Consumer<T> consumer = client(request).newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
                Producer<T> producer = client(request).newProducer(schema).topic(topic).create()) {
            producer.send(value);
            return consumer.receive(TIMEOUT_S, TimeUnit.SECONDS).getValue();
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
