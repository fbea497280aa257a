import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Ways to reach a broker over TLS: with a mechanism and a password, or with a certificate. `-Dinterop.attempts` names a file of them. */
final class Logins {
    private static final String MODULES = "org.apache.kafka.common.security.";

    private Logins() {}

    static void attempt(String bootstrap) throws Exception {
        for (JsonNode each : new ObjectMapper().readTree(new File(System.getProperty("interop.attempts")))) {
            String error = "";
            try (Producer<String, String> producer = new KafkaProducer<>(settings(each), new StringSerializer(), new StringSerializer())) {
                producer.send(new ProducerRecord<>(text(each, "topic"), text(each, "name"))).get();
            } catch (ExecutionException refused) {
                error = refused.getCause().toString();
            }
            Interop.say("login", "name", text(each, "name"), "error", error);
        }
    }

    private static Map<String, Object> settings(JsonNode given) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", text(given, "bootstrap"));
        settings.put("security.protocol", "SSL");
        settings.put("ssl.truststore.type", "PEM");
        settings.put("ssl.truststore.location", text(given, "ca"));
        settings.put("max.block.ms", 20_000);
        if (!text(given, "certificate").isEmpty()) {
            settings.put("ssl.keystore.type", "PEM");
            settings.put("ssl.keystore.location", text(given, "certificate"));
        }
        String mechanism = text(given, "mechanism");
        if (!mechanism.isEmpty()) {
            String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
            String login = "%s%s required username=\"%s\" password=\"%s\";";
            settings.put("security.protocol", "SASL_SSL");
            settings.put("sasl.mechanism", mechanism);
            settings.put("sasl.jaas.config", login.formatted(MODULES, module, text(given, "user"), text(given, "password")));
        }
        return settings;
    }

    private static String text(JsonNode given, String name) {
        return given.path(name).asText();
    }
}
