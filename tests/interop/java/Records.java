import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

/** Records are written and read back. */
final class Records {
    private static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");
    private static final int PER_PRODUCER = 150;

    private Records() {}

    /** A partition for each codec; its first half is written by an idempotent producer, the other by one that is not. */
    static void everyCodec(String bootstrap) throws Exception {
        String topic = "java-records";
        try (Admin admin = Clients.admin(bootstrap)) {
            Clients.createTopic(admin, topic, CODECS.size(), Map.of());
        }
        for (int partition = 0; partition < CODECS.size(); partition++) {
            for (boolean idempotent : List.of(true, false)) {
                write(bootstrap, topic, partition, idempotent);
            }
        }
        try (Consumer<String, String> consumer = Clients.consumer(bootstrap, Map.of("isolation.level", "read_committed"))) {
            consumer.assign(Clients.partitions(topic, CODECS.size()));
            consumer.seekToBeginning(consumer.assignment());
            for (ConsumerRecord<String, String> record : Clients.read(consumer, 2 * PER_PRODUCER * CODECS.size())) {
                tell(record);
            }
        }
    }

    private static void write(String bootstrap, String topic, int partition, boolean idempotent) throws Exception {
        Map<String, Object> settings = Map.of(
            "compression.type", CODECS.get(partition), "enable.idempotence", idempotent, "acks", idempotent ? "all" : "1",
            "batch.size", 4096, "linger.ms", 5);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (Producer<String, String> producer = Clients.producer(bootstrap, settings)) {
            int first = idempotent ? 0 : PER_PRODUCER;
            for (int number = first; number < first + PER_PRODUCER; number++) {
                sent.add(producer.send(record(topic, partition, number)));
            }
        }
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> each : sent) {
            offsets.add(each.get().offset());
        }
        Interop.say("written", "partition", partition, "idempotent", idempotent, "offsets", offsets);
    }

    /** Every 7th record has no key, every 5th no value, and each two headers of one name, the second without a value. */
    private static ProducerRecord<String, String> record(String topic, int partition, int number) {
        String key = number % 7 == 0 ? null : "key-" + number;
        String value = number % 5 == 0 ? null : (CODECS.get(partition) + "-" + number + " ").repeat(20);
        ProducerRecord<String, String> record = new ProducerRecord<>(topic, partition, Interop.BASE_TIME_MS + number * 1000L, key, value);
        record.headers().add("number", String.valueOf(number).getBytes()).add("number", null).add("", new byte[0]);
        return record;
    }

    private static void tell(ConsumerRecord<String, String> record) {
        List<List<String>> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            List<String> pair = new ArrayList<>(List.of(header.key()));
            pair.add(header.value() == null ? null : new String(header.value()));
            headers.add(pair);
        }
        Interop.say("read", "partition", record.partition(), "offset", record.offset(), "timestamp", record.timestamp(),
            "type", record.timestampType().toString(), "key", record.key(), "value", record.value(), "headers", headers);
    }

    /** The broker's time takes the place of the producer's, in what it answers and in what is read. */
    static void appendTime(String bootstrap) throws Exception {
        String topic = "java-append-time";
        try (Admin admin = Clients.admin(bootstrap);
            Producer<String, String> producer = Clients.producer(bootstrap, Map.of("compression.type", "lz4"));
            Consumer<String, String> consumer = Clients.consumer(bootstrap, Map.of())) {
            Clients.createTopic(admin, topic, 1, Map.of("message.timestamp.type", "LogAppendTime"));
            long before = System.currentTimeMillis();
            RecordMetadata written = producer.send(new ProducerRecord<>(topic, 0, Interop.BASE_TIME_MS, "key", "value")).get();
            Interop.say("written", "before", before, "timestamp", written.timestamp(), "after", System.currentTimeMillis());
            consumer.assign(Clients.partitions(topic, 1));
            consumer.seekToBeginning(consumer.assignment());
            Clients.read(consumer, 1).forEach(Records::tell);
        }
    }

    /** Read the whole of a topic that others wrote, as fast as it comes. */
    static void load(String bootstrap) {
        try (Consumer<String, String> consumer = Clients.consumer(bootstrap, Map.of())) {
            List<TopicPartition> partitions = Clients.partitions("load", consumer.partitionsFor("load").size());
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long total = consumer.endOffsets(partitions).values().stream().mapToLong(Long::longValue).sum();
            long bytes = 0;
            var records = Clients.read(consumer, (int) total);
            for (ConsumerRecord<String, String> record : records) {
                bytes += record.serializedValueSize();
            }
            Interop.say("all", "records", records.size(), "bytes", bytes);
        }
    }
}
