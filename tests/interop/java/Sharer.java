import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.ShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;

/**
 * A member of a share group (KIP-932) that lives until standard input ends, or it is killed. It prints each record that it gets, and again
 * once its acknowledgement is stored, as `go/share.go` does.
 */
final class Sharer {
    private static final Duration POLL = Duration.ofMillis(50);
    private static final Duration STORED = Duration.ofSeconds(30);

    private Sharer() {}

    /** What it does with records stands in `how`: accept, release, reject, renew (ask for more time, then accept), or hold. */
    static void read(String bootstrap) throws Exception {
        AtomicBoolean ends = Member.atEndOfInput();
        String how = Member.given("how");
        try (ShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings(bootstrap))) {
            consumer.subscribe(List.of(Member.given("topic").split(",")));
            while (!ends.get()) {
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                records.forEach(record -> tell("got", record));
                if (records.isEmpty()) {
                    continue;
                }
                if (how.equals("hold")) {
                    while (!ends.get()) {
                        Thread.sleep(POLL.toMillis());
                    }
                } else if (how.equals("renew")) {
                    acknowledge(consumer, records, AcknowledgeType.RENEW, "renewed");
                    acknowledge(consumer, consumer.poll(POLL), AcknowledgeType.ACCEPT, "read");
                } else {
                    acknowledge(consumer, records, AcknowledgeType.valueOf(how.toUpperCase(java.util.Locale.ROOT)), "read");
                }
            }
        }
        Interop.say("left");
    }

    private static void acknowledge(
            ShareConsumer<String, String> consumer, ConsumerRecords<String, String> records, AcknowledgeType type, String what) {
        records.forEach(record -> consumer.acknowledge(record, type));
        Map<TopicIdPartition, Optional<KafkaException>> outcome = consumer.commitSync(STORED);
        Map<Integer, KafkaException> failed = new HashMap<>();
        outcome.forEach((place, error) -> error.ifPresent(each -> failed.put(place.partition(), each)));
        for (ConsumerRecord<String, String> record : records) {
            KafkaException error = failed.get(record.partition());
            if (error == null) {
                tell(what, record);
            } else {
                Interop.say("refused", "at", place(record), "offset", record.offset(), "error", error);
            }
        }
    }

    private static void tell(String what, ConsumerRecord<String, String> record) {
        Interop.say(what, "at", place(record), "offset", record.offset(), "count", record.deliveryCount().orElse((short) 0));
    }

    private static String place(ConsumerRecord<String, String> record) {
        return record.topic() + "-" + record.partition();
    }

    private static Map<String, Object> settings(String bootstrap) {
        String strings = "org.apache.kafka.common.serialization.StringDeserializer";
        return Map.of(
            "bootstrap.servers", bootstrap, "group.id", Member.given("group"), "key.deserializer", strings, "value.deserializer", strings,
            "share.acknowledgement.mode", "explicit", "share.acquire.mode", "record_limit", "max.poll.records", 10, "metadata.max.age.ms", 1000);
    }
}
