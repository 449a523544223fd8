// Operations behind JSON lines: one request a line on stdin, one answer a line on stdout.
//
//   {"op": "name", ...}   ->   {"result": ...}   or   {"error": "Class: message"}
//
// A program is a map of operations; what it keeps between them is its own affair. It ends when stdin closes.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;

final class JsonLines {
    interface Operation {
        Object run(JsonNode request) throws Exception;
    }

    private static final ObjectMapper JSON = new ObjectMapper();

    private JsonLines() {
    }

    static void serve(Map<String, Operation> operations) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);  // What libraries print must not come between the answers.
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.println(answer(operations, JSON.readTree(line)));
            answers.flush();
        }
        System.exit(0);  // Netty's and ZooKeeper's threads would keep the process.
    }

    private static String answer(Map<String, Operation> operations, JsonNode request) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        try {
            Operation operation = operations.get(request.get("op").asText());
            if (operation == null) {
                throw new IllegalArgumentException("no such operation: " + request.get("op"));
            }
            answer.set("result", JSON.valueToTree(operation.run(request)));
        } catch (Throwable thrown) {
            answer.put("error", describe(thrown));
            thrown.printStackTrace();
        }
        return JSON.writeValueAsString(answer);
    }

    /** The innermost cause, since futures wrap what was thrown. */
    static String describe(Throwable thrown) {
        Throwable cause = thrown;
        while (cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause.getClass().getSimpleName() + ": " + cause.getMessage();
    }
}
