import java.time.Duration;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** A producer that pushes its metrics (KIP-714), for as long as its standard input is open. */
final class Telemetry {
    private static final String TOPIC = "java-telemetry";
    private static final Duration LIMIT = Duration.ofMillis(Interop.DEADLINE_MS);

    private Telemetry() {}

    static void push(String bootstrap) throws Exception {
        try (Admin admin = Clients.admin(bootstrap)) {
            Clients.createTopic(admin, TOPIC, 1, Map.of());
        }
        try (KafkaProducer<String, String> producer = Clients.producer(bootstrap, Map.of("client.id", "pushes"))) {
            producer.send(new ProducerRecord<>(TOPIC, "one")).get();
            Interop.say("instance", "id", producer.clientInstanceId(LIMIT).toString());
            while (System.in.read() >= 0) {
                producer.send(new ProducerRecord<>(TOPIC, "one more")).get();
            }
        }
        Interop.say("closed");
    }
}
