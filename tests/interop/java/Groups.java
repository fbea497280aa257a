import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Consumers of one group share a topic, under each of Kafka's assignors. */
final class Groups {
    private static final int PARTITIONS = 4;
    private static final int PER_PARTITION = 10;

    private Groups() {}

    static void membersComeAndGo(String bootstrap) throws Exception {
        for (String assignor : List.of("RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor")) {
            try (Admin admin = Clients.admin(bootstrap)) {
                run(bootstrap, admin, assignor);
            }
        }
    }

    private static void run(String bootstrap, Admin admin, String assignor) throws Exception {
        String topic = "java-groups-" + assignor;
        Clients.createTopic(admin, topic, PARTITIONS, Map.of());
        try (KafkaConsumer<String, String> first = member(bootstrap, topic, assignor, "first")) {
            produce(bootstrap, topic);
            Map<String, List<Long>> read = new TreeMap<>();
            until(() -> poll(first, read) && count(read) >= PARTITIONS * PER_PARTITION);
            Interop.say("alone", "assignor", assignor, "read", read, "partitions", numbers(first));
            first.commitSync();
            try (KafkaConsumer<String, String> second = member(bootstrap, topic, assignor, "second")) {
                until(() -> poll(first, read) && poll(second, read) && numbers(first).size() == 2 && numbers(second).size() == 2);
                Interop.say("together", "assignor", assignor, "first", numbers(first), "second", numbers(second));
                tell(admin, topic, assignor);
                Map<String, List<Long>> more = new TreeMap<>();
                produce(bootstrap, topic);
                until(() -> poll(first, more) && poll(second, more) && count(more) >= PARTITIONS * PER_PARTITION);
                Interop.say("shared", "assignor", assignor, "read", more);
                first.commitSync();
                second.commitSync();
            }
            until(() -> poll(first, read) && numbers(first).size() == PARTITIONS);
            Interop.say("alone again", "assignor", assignor, "partitions", numbers(first));
            Interop.say("deleted", "assignor", assignor, "error", Interop.errorOf(admin.deleteConsumerGroups(List.of(topic)).all()));
        }
        changeOffsets(admin, topic, assignor);
    }

    private static void changeOffsets(Admin admin, String group, String assignor) throws Exception {
        TopicPartition place = new TopicPartition(group, 1);
        admin.alterConsumerGroupOffsets(group, Map.of(place, new OffsetAndMetadata(7, "by hand"))).all().get();
        admin.deleteConsumerGroupOffsets(group, Set.of(new TopicPartition(group, 0))).all().get();
        Map<String, String> offsets = new TreeMap<>();
        admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().forEach(
            (partition, offset) -> offsets.put(String.valueOf(partition.partition()), offset.offset() + offset.metadata()));
        Interop.say("offsets", "assignor", assignor, "offsets", offsets);
        Interop.say("deleted", "assignor", assignor, "error", Interop.errorOf(admin.deleteConsumerGroups(List.of(group)).all()));
        Interop.say("gone", "assignor", assignor, "error", Interop.errorOf(admin.describeConsumerGroups(List.of(group)).all()));
    }

    @SuppressWarnings("removal") // The present names of two methods are not in Kafka 3.9.
    private static void tell(Admin admin, String group, String assignor) throws Exception {
        ConsumerGroupDescription description = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        Map<String, List<Integer>> members = new TreeMap<>();
        for (MemberDescription member : description.members()) {
            members.put(member.clientId(), sorted(member.assignment().topicPartitions()));
        }
        Interop.say("described", "assignor", assignor, "state", description.state().toString(), "by", description.partitionAssignor(),
            "type", description.type().toString(), "members", members);
        boolean listed = admin.listConsumerGroups().all().get().toString().contains("'" + group + "'");
        Interop.say("listed", "assignor", assignor, "is", listed);
    }

    private static KafkaConsumer<String, String> member(String bootstrap, String topic, String assignor, String name) {
        Map<String, Object> settings = new HashMap<>(Map.of(
            "group.id", topic, "auto.offset.reset", "earliest", "enable.auto.commit", false, "client.id", name,
            "session.timeout.ms", 6000, "heartbeat.interval.ms", 100));
        settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer." + assignor);
        KafkaConsumer<String, String> consumer = Clients.consumer(bootstrap, settings);
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    private static void produce(String bootstrap, String topic) {
        try (Producer<String, String> producer = Clients.producer(bootstrap, Map.of())) {
            for (int number = 0; number < PARTITIONS * PER_PARTITION; number++) {
                producer.send(new ProducerRecord<>(topic, number % PARTITIONS, null, "value"));
            }
        }
    }

    private static boolean poll(Consumer<String, String> consumer, Map<String, List<Long>> read) {
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(20))) {
            read.computeIfAbsent(String.valueOf(record.partition()), number -> new ArrayList<>()).add(record.offset());
        }
        return true;
    }

    private static int count(Map<String, List<Long>> read) {
        return read.values().stream().mapToInt(List::size).sum();
    }

    private static List<Integer> numbers(Consumer<String, String> consumer) {
        return sorted(consumer.assignment());
    }

    private static List<Integer> sorted(Iterable<TopicPartition> partitions) {
        TreeSet<Integer> numbers = new TreeSet<>();
        partitions.forEach(partition -> numbers.add(partition.partition()));
        return List.copyOf(numbers);
    }

    private interface Condition {
        boolean holds();
    }

    private static void until(Condition condition) {
        long deadline = System.currentTimeMillis() + Interop.DEADLINE_MS;
        while (!condition.holds()) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("it doesn't come to that");
            }
        }
    }
}
