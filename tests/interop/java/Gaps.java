import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Stream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/** Reads partition 0 of topics in both isolation levels until standard input ends; prints records and positions, as `readers/main.go`. */
final class Gaps {
    private static final Duration POLL = Duration.ofMillis(50);

    private Gaps() {}

    static void read(String bootstrap) throws Exception {
        AtomicBoolean ends = Member.atEndOfInput();
        List<TopicPartition> partitions = Stream.of(Member.given("topics").split(",")).map(topic -> new TopicPartition(topic, 0)).toList();
        Map<String, KafkaConsumer<String, String>> consumers = new HashMap<>();
        Map<String, Long> told = new HashMap<>();
        for (String isolation : List.of("read_uncommitted", "read_committed")) {
            KafkaConsumer<String, String> consumer = Clients.consumer(bootstrap, Map.of("isolation.level", isolation));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            consumers.put(isolation, consumer);
        }
        while (!ends.get()) {
            consumers.forEach((isolation, consumer) -> {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    Interop.say("got", "isolation", isolation, "topic", record.topic(), "offset", record.offset(), "key", record.key());
                }
                for (TopicPartition partition : partitions) {
                    Long position = consumer.position(partition);
                    if (!position.equals(told.put(isolation + partition, position))) {
                        Interop.say("position", "isolation", isolation, "topic", partition.topic(), "position", position);
                    }
                }
            });
        }
        consumers.values().forEach(KafkaConsumer::close);
        Interop.say("left");
    }
}
