import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Clients with the settings that the scenarios share. None of the consumers has a group. */
final class Clients {
    private Clients() {}

    static Admin admin(String bootstrap) {
        return Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    static KafkaProducer<String, String> producer(String bootstrap, Map<String, Object> more) {
        return new KafkaProducer<>(with(bootstrap, more), new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String bootstrap, Map<String, Object> more) {
        return new KafkaConsumer<>(with(bootstrap, more), new StringDeserializer(), new StringDeserializer());
    }

    private static Map<String, Object> with(String bootstrap, Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.put("bootstrap.servers", bootstrap);
        return settings;
    }

    /** Make a topic whose records may be years old. */
    static void createTopic(Admin admin, String topic, int partitions, Map<String, String> configs) throws Exception {
        Map<String, String> all = new HashMap<>(configs);
        all.put("retention.ms", "-1");
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(all))).all().get();
    }

    static List<TopicPartition> partitions(String topic, int count) {
        List<TopicPartition> partitions = new ArrayList<>();
        for (int partition = 0; partition < count; partition++) {
            partitions.add(new TopicPartition(topic, partition));
        }
        return partitions;
    }

    /** Read this many records, or fewer when the deadline passes before. */
    static Collection<ConsumerRecord<String, String>> read(Consumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> read = new ArrayList<>();
        long deadline = System.currentTimeMillis() + Interop.DEADLINE_MS;
        while (read.size() < count && System.currentTimeMillis() < deadline) {
            consumer.poll(Duration.ofMillis(100)).forEach(read::add);
        }
        return read;
    }
}
