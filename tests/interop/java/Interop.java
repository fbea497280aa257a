import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;

/**
 * What Kafka's Java client sees of a broker, a line of JSON for each thing: `java Interop BOOTSTRAP SCENARIO...`.
 *
 * Nothing is judged here; that is the tests' part. A scenario that throws ends in a line with "failed", one that needs a newer client in a line with
 * "not in this client", and the next one runs.
 */
public final class Interop {
    static final long BASE_TIME_MS = 1_700_000_000_000L;
    static final long DEADLINE_MS = 30_000;

    private static final ObjectMapper JSON = new ObjectMapper();
    private static String scenario;

    interface Scenario {
        void run(String bootstrap) throws Exception;
    }

    public static void main(String[] arguments) {
        Map<String, Scenario> scenarios = Map.ofEntries(
            Map.entry("records", Records::everyCodec),
            Map.entry("append-time", Records::appendTime),
            Map.entry("load", Records::load),
            Map.entry("offsets", Offsets::ofEveryKind),
            Map.entry("delete", Offsets::deleteRecords),
            Map.entry("cluster", Administration::cluster),
            Map.entry("topics", Administration::topics),
            Map.entry("configs", Administration::configs),
            Map.entry("directories", Administration::directories),
            Map.entry("producers", Administration::producers),
            Map.entry("groups", Groups::membersComeAndGo),
            Map.entry("member", Member::read),
            Map.entry("transform", Member::transform),
            Map.entry("sharer", Sharer::read),
            Map.entry("word-count", Streaming::countWords),
            Map.entry("join", Streaming::join),
            Map.entry("pass", Streaming::pass),
            Map.entry("work", Work::run),
            Map.entry("deletes-behind", Closest::deletesBehind),
            Map.entry("delete-ahead", Closest::deleteAhead),
            Map.entry("logins", Logins::attempt),
            Map.entry("gaps", Gaps::read),
            Map.entry("keep-on", Writing::keepOn),
            Map.entry("telemetry", Telemetry::push));
        for (String name : Arrays.asList(arguments).subList(1, arguments.length)) {
            scenario = name;
            try {
                scenarios.get(name).run(arguments[0]);
            } catch (Exception error) {
                error.printStackTrace();
                say("failed", "error", error);
            } catch (LinkageError error) {
                say("not in this client", "error", error);
            }
        }
    }

    /** Print what was seen: its name, then names and values in turn. */
    static void say(String what, Object... namesAndValues) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("scenario", scenario);
        line.put("what", what);
        for (int index = 0; index < namesAndValues.length; index += 2) {
            Object value = namesAndValues[index + 1];
            line.put((String) namesAndValues[index], value instanceof Throwable ? withCauses((Throwable) value) : value);
        }
        try {
            System.out.println(JSON.writeValueAsString(line));
        } catch (Exception error) {
            throw new IllegalArgumentException(line.toString(), error);
        }
    }

    /** An exception and what caused it, in one line: Streams says the broker's error only in the last cause. */
    private static String withCauses(Throwable error) {
        StringBuilder text = new StringBuilder(error.toString());
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
            text.append("; caused by ").append(cause);
        }
        return text.toString();
    }

    /** The simple name of the exception that a call to the broker ended with, "none" if it did not. */
    static String errorOf(Future<?> call) throws InterruptedException {
        try {
            call.get();
            return "none";
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        }
    }
}
