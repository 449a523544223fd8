// pulsar-admin behind JSON lines (JsonLines.java): one JVM for many commands, where each would start one of its own.

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

public final class AdminProgram {
    private static final class Tool extends PulsarAdminTool {
        Tool(String adminUrl) throws Exception {
            super(settings(adminUrl));
            allowSystemExit = false;
        }

        boolean call(List<String> words) {
            return run(words.toArray(new String[0]));
        }

        private static Properties settings(String adminUrl) {
            Properties properties = new Properties();
            properties.setProperty("webServiceUrl", adminUrl);
            return properties;
        }
    }

    public static void main(String[] args) throws Exception {
        Map<String, JsonLines.Operation> operations = new HashMap<>();
        operations.put("admin", AdminProgram::admin);
        JsonLines.serve(operations);
    }

    /** What the command prints, and whether it succeeded. The tool keeps System.out when it is made: one for each call. */
    private static Object admin(JsonNode request) throws Exception {
        List<String> words = new ArrayList<>();
        request.get("words").forEach(word -> words.add(word.asText()));
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        PrintStream both = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(both);
        System.setErr(both);
        boolean succeeded;
        try {
            succeeded = new Tool(request.get("url").asText()).call(words);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return Map.of("succeeded", succeeded, "printed", printed.toString(StandardCharsets.UTF_8));
    }
}
