import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Producers that write a batch for each record until standard input ends: an idempotent one to `topic`, a transactional one to `out`. */
final class Writing {
    private static final int PER_TRANSACTION = 5;
    private static final long PAUSE_MS = 5;

    private Writing() {}

    /** Every other record has the key "gone". Values are numbers. */
    static void keepOn(String bootstrap) throws Exception {
        AtomicBoolean ends = Member.atEndOfInput();
        Map<String, Object> transactional = Map.of("transactional.id", Member.given("out"), "linger.ms", 0);
        int written = 0;
        try (Producer<String, String> plain = Clients.producer(bootstrap, Map.of("linger.ms", 0));
                Producer<String, String> inTransactions = Clients.producer(bootstrap, transactional)) {
            inTransactions.initTransactions();
            while (!ends.get()) {
                inTransactions.beginTransaction();
                for (int end = written + PER_TRANSACTION; written < end; written++) {
                    plain.send(record(Member.given("topic"), written)).get();
                    inTransactions.send(record(Member.given("out"), written)).get();
                }
                inTransactions.commitTransaction();
                Interop.say("written", "count", written);
                Thread.sleep(PAUSE_MS);
            }
        }
        Interop.say("left");
    }

    private static ProducerRecord<String, String> record(String topic, int number) {
        return new ProducerRecord<>(topic, 0, number % 2 == 0 ? "stays" : "gone", String.valueOf(number));
    }
}
