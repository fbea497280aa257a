import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** A consumer in the rack of a follower (KIP-392), which reads there while records are deleted. */
final class Closest {
    private static final int LEADER = 1;
    private static final int FOLLOWER = 2;
    private static final String RACK = "east";
    private static final int AHEAD = 5;
    private static final int TRIMS = 25;

    private final Admin admin;
    private final Producer<String, String> producer;
    private final TopicPartition partition;
    private final Consumer<String, String> consumer;
    private final List<Integer> preferred = new ArrayList<>();
    private final List<Long> found = new ArrayList<>();

    private Closest(Admin admin, Producer<String, String> producer, TopicPartition partition, Consumer<String, String> consumer) {
        this.admin = admin;
        this.producer = producer;
        this.partition = partition;
        this.consumer = consumer;
    }

    private interface Course {
        void run(Closest self) throws Exception;
    }

    private static void with(String bootstrap, String reset, Course course) throws Exception {
        TopicPartition partition = new TopicPartition("java-closest-" + UUID.randomUUID(), 0);
        Map<String, Object> settings = Map.of(
            "client.rack", RACK, "auto.offset.reset", reset, "fetch.max.wait.ms", 20, "max.poll.records", 1000);
        try (Admin admin = Clients.admin(bootstrap);
            Producer<String, String> producer = Clients.producer(bootstrap, Map.of("linger.ms", 0));
            Consumer<String, String> consumer = Clients.consumer(bootstrap, settings)) {
            admin.createTopics(List.of(new NewTopic(partition.topic(), Map.of(0, List.of(LEADER, FOLLOWER, 3))))).all().get();
            Closest self = new Closest(admin, producer, partition, consumer);
            self.produce(AHEAD);
            consumer.assign(List.of(partition));
            consumer.seek(partition, 0);
            self.readTo(AHEAD);
            self.untilAtTheFollower();
            self.preferred.clear();
            course.run(self);
        }
    }

    /** Deletes of what it has read leave it where it is: it reads every record once. */
    static void deletesBehind(String bootstrap) throws Exception {
        with(bootstrap, "latest", self -> {
            for (int turn = 0; turn < TRIMS; turn++) {
                self.produce(AHEAD);
                var deleted = self.admin.deleteRecords(Map.of(self.partition, RecordsToDelete.beforeOffset(self.found.size())));
                self.readTo(self.found.size() + AHEAD);
                deleted.all().get();
            }
            self.untilAtTheFollower();
            Interop.say("read", "offsets", self.found, "preferred", self.preferred, "deletes", TRIMS);
        });
    }

    /** What it would read next is deleted: it goes where it is told to go, once. */
    static void deleteAhead(String bootstrap) throws Exception {
        for (String reset : List.of("earliest", "latest")) {
            with(bootstrap, reset, self -> {
                self.consumer.pause(List.of(self.partition));
                for (int turn = 0; turn < 5; turn++) {
                    self.poll(); // what was asked for before the pause is answered
                }
                self.produce(30);
                self.admin.deleteRecords(Map.of(self.partition, RecordsToDelete.beforeOffset(25L))).all().get();
                self.consumer.resume(List.of(self.partition));
                long deadline = System.currentTimeMillis() + Interop.DEADLINE_MS;
                while (self.consumer.position(self.partition) < 25 && System.currentTimeMillis() < deadline) {
                    self.poll();
                }
                self.produce(1);
                while (self.found.size() <= AHEAD && System.currentTimeMillis() < deadline) {
                    self.poll();
                }
                self.untilAtTheFollower();
                Interop.say("read", "reset", reset, "offset", self.found.get(AHEAD), "preferred", self.preferred);
            });
        }
    }

    private void produce(int count) throws Exception {
        List<Future<?>> sent = new ArrayList<>();
        for (int each = 0; each < count; each++) {
            sent.add(producer.send(new ProducerRecord<>(partition.topic(), 0, null, "record")));
        }
        for (Future<?> each : sent) {
            each.get();
        }
    }

    private void poll() {
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(20))) {
            found.add(record.offset());
        }
        notePreferred();
    }

    /** It changes beside polls too, by answers that the consumer's own thread gets. */
    private int notePreferred() {
        int now = preferredNow();
        if (preferred.isEmpty() || preferred.get(preferred.size() - 1) != now) {
            preferred.add(now);
        }
        return now;
    }

    private void readTo(int count) {
        long deadline = System.currentTimeMillis() + Interop.DEADLINE_MS;
        while (found.size() < count && System.currentTimeMillis() < deadline) {
            poll();
        }
    }

    private void untilAtTheFollower() {
        long deadline = System.currentTimeMillis() + Interop.DEADLINE_MS;
        while (notePreferred() != FOLLOWER && System.currentTimeMillis() < deadline) {
            poll();
        }
    }

    /** Whom the consumer was told to read from: a replica that it prefers to the leader, or -1. */
    private int preferredNow() {
        for (var metric : consumer.metrics().entrySet()) {
            var name = metric.getKey();
            if (name.name().equals("preferred-read-replica") && partition.topic().equals(name.tags().get("topic"))) {
                return ((Number) metric.getValue().metricValue()).intValue();
            }
        }
        return -1;
    }
}
