// What capture.py runs to see the Java client's frames: java -cp "libs/*" JavaClient.java BOOTSTRAP TOPIC [groups | transactions]
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class JavaClient {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        TopicPartition place = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            if (arguments.length > 2) {
                if (arguments[2].equals("groups")) {
                    groups(admin, bootstrap, topic);
                } else {
                    transactions(admin, bootstrap, topic);
                }
                return;
            }
            admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "3600000")))).all().get();
            for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
                produce(bootstrap, topic, codec);
            }
            consume(bootstrap, place);
            admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(3))).all().get();
            configure(admin, new ConfigResource(ConfigResource.Type.TOPIC, topic));
            int own = admin.describeCluster().controller().get().id();
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5, List.of(List.of(own), List.of(own))))).all().get();
            admin.describeTopics(List.of(topic)).allTopicNames().get();
            admin.deleteTopics(Set.of(topic)).all().get();
        }
    }

    private static void groups(Admin admin, String bootstrap, String topic) throws Exception {
        TopicPartition place = new TopicPartition(topic, 0);
        admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all().get();
        produce(bootstrap, topic, "none");
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", topic, "auto.offset.reset", "earliest",
            "heartbeat.interval.ms", 200, "session.timeout.ms", 6000, "enable.auto.commit", false);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (consumer.poll(Duration.ofMillis(100)).isEmpty()) { }
            consumer.commitSync();
            for (int times = 0; times < 5; times++) {
                consumer.poll(Duration.ofMillis(100));
            }
            admin.describeConsumerGroups(List.of(topic)).all().get();
        }
        admin.listGroups().all().get();
        admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get();
        admin.alterConsumerGroupOffsets(topic, Map.of(place, new OffsetAndMetadata(7))).all().get();
        admin.deleteConsumerGroupOffsets(topic, Set.of(place)).all().get();
        admin.deleteConsumerGroups(List.of(topic)).all().get();
    }

    private static void transactions(Admin admin, String bootstrap, String topic) throws Exception {
        TopicPartition place = new TopicPartition(topic, 0);
        admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "transactional.id", topic);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            for (boolean commits : new boolean[] {true, false}) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, "key".getBytes(), "value".getBytes())).get();
                producer.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(1)), new ConsumerGroupMetadata(topic));
                if (commits) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, "key".getBytes(), "value".getBytes())).get();
            admin.listTransactions(new ListTransactionsOptions().filterStates(List.of(TransactionState.ONGOING))).all().get();
            admin.describeTransactions(List.of(topic)).all().get();
            ProducerState open = admin.describeProducers(List.of(place)).partitionResult(place).get().activeProducers().get(0);
            admin.abortTransaction(new AbortTransactionSpec(
                place, open.producerId(), (short) open.producerEpoch(), open.coordinatorEpoch().orElse(-1))).all().get();
            producer.abortTransaction();
        }
    }

    private static void configure(Admin admin, ConfigResource topic) throws Exception {
        admin.incrementalAlterConfigs(Map.of(topic, List.of(
            new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND),
            new AlterConfigOp(new ConfigEntry("retention.ms", null), AlterConfigOp.OpType.DELETE)))).all().get();
        admin.describeConfigs(Set.of(topic), new DescribeConfigsOptions().includeSynonyms(true)).all().get();
        admin.listConfigResources(Set.of(ConfigResource.Type.TOPIC), new ListConfigResourcesOptions()).all().get();
    }

    private static void produce(String bootstrap, String topic, String codec) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "compression.type", codec, "enable.idempotence", true);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, 0, "key".getBytes(), codec.repeat(20).getBytes());
            record.headers().add("header", codec.getBytes());
            producer.send(record).get();
        }
    }

    private static void consume(String bootstrap, TopicPartition place) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "fetch.max.wait.ms", 50);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(place));
            consumer.beginningOffsets(List.of(place));
            consumer.endOffsets(List.of(place));
            consumer.offsetsForTimes(Map.of(place, 1L));
            // A position with a leader epoch makes the client ask OffsetForLeaderEpoch first (KIP-320).
            consumer.seek(place, new OffsetAndMetadata(1, Optional.of(0), ""));
            for (int seen = 0; seen < 4; ) {
                seen += consumer.poll(Duration.ofMillis(200)).count();
            }
        }
    }
}
