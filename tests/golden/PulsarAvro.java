/*
 * Which Avro schemas Apache Pulsar 4.2.4 takes for well-formed, and which of them can read which, as its broker sees it.
 *
 * Run with Pulsar's jars (interop/pulsar/server-pom.xml) on the class path; it reads "pairs" and "texts" of the file,
 * and writes the file again with "reads" (reader: writers) and "valid":
 *   javac -cp "LIB/*" -d /tmp/classes tests/golden/PulsarAvro.java
 *   java -cp "/tmp/classes:LIB/*" PulsarAvro tests/golden/pulsar-avro.json
 */
import com.fasterxml.jackson.databind.*;
import com.fasterxml.jackson.databind.node.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import org.apache.pulsar.broker.service.schema.*;
import org.apache.pulsar.broker.service.schema.validator.*;
import org.apache.pulsar.common.policies.data.SchemaCompatibilityStrategy;
import org.apache.pulsar.common.protocol.schema.SchemaData;
import org.apache.pulsar.common.schema.SchemaType;

public class PulsarAvro {
    static SchemaData data(String text) {
        return SchemaData.builder().type(SchemaType.AVRO).data(text.getBytes(StandardCharsets.UTF_8))
            .isDeleted(false).timestamp(0).user("").props(new HashMap<>()).build();
    }

    static boolean isValid(String text) {
        try {
            SchemaDataValidator.validateSchemaData(data(text));
            return true;
        } catch (Exception e) {
            return false;
        }
    }

    static boolean reads(String reader, String writer) {
        try {
            new AvroSchemaCompatibilityCheck().checkCompatible(data(writer), data(reader), SchemaCompatibilityStrategy.BACKWARD);
            return true;
        } catch (Exception e) {
            return false;
        }
    }

    public static void main(String[] arguments) throws Exception {
        Path file = Paths.get(arguments[0]);
        ObjectMapper mapper = new ObjectMapper();
        ObjectNode document = (ObjectNode) mapper.readTree(Files.readAllBytes(file));
        JsonNode pairs = document.get("pairs");
        List<String> names = new ArrayList<>();
        pairs.fieldNames().forEachRemaining(names::add);
        ObjectNode reads = document.putObject("reads");
        ObjectNode valid = document.putObject("valid");
        for (String reader : names) {
            ArrayNode writers = reads.putArray(reader);
            names.stream().filter(writer -> reads(pairs.get(reader).asText(), pairs.get(writer).asText())).forEach(writers::add);
            valid.put(reader, isValid(pairs.get(reader).asText()));
        }
        document.get("texts").fields().forEachRemaining(each -> valid.put(each.getKey(), isValid(each.getValue().asText())));
        Files.write(file, (mapper.writerWithDefaultPrettyPrinter().writeValueAsString(document) + "\n").getBytes(StandardCharsets.UTF_8));
    }
}
