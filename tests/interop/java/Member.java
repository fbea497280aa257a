import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;

/**
 * Members of a group that live until standard input ends, or they are killed. What they are to do stands in system properties. They print
 * what they are given and lose, and each record once its offset is committed, as `go/groups.go` does.
 */
final class Member {
    private static final int PER_TRANSACTION = 20;
    private static final int ABORTED_EVERY = 4;
    private static final Duration POLL = Duration.ofMillis(50);

    private Member() {}

    /** Read in a group, and commit. */
    static void read(String bootstrap) throws Exception {
        AtomicBoolean ends = atEndOfInput();
        try (KafkaConsumer<String, String> consumer = joined(bootstrap, Map.of())) {
            while (!ends.get()) {
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                if (records.isEmpty()) {
                    continue;
                }
                try {
                    consumer.commitSync();
                } catch (KafkaException error) {
                    Interop.say("refused", "error", error);
                    continue;
                }
                for (ConsumerRecord<String, String> record : records) {
                    Interop.say("read", "at", record.topic() + "-" + record.partition(), "offset", record.offset());
                }
            }
        }
        Interop.say("left");
    }

    /** Copy a topic into another, a transaction for each few records. Each fourth one is aborted. */
    static void transform(String bootstrap) throws Exception {
        AtomicBoolean ends = atEndOfInput();
        Map<String, Object> writing = Map.of("transactional.id", given("id"), "transaction.timeout.ms", 6000, "linger.ms", 0);
        Map<String, Object> reading = Map.of("isolation.level", "read_committed", "max.poll.records", PER_TRANSACTION);
        try (KafkaConsumer<String, String> consumer = joined(bootstrap, reading);
                Producer<String, String> producer = Clients.producer(bootstrap, writing)) {
            producer.initTransactions();
            for (int turn = 1; !ends.get();) {
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                if (!records.isEmpty()) {
                    transform(consumer, producer, records, turn % ABORTED_EVERY != 0);
                    turn++;
                }
            }
        }
        Interop.say("left");
    }

    private static void transform(
            Consumer<String, String> consumer, Producer<String, String> producer, ConsumerRecords<String, String> records, boolean commits) {
        boolean committed = false;
        producer.beginTransaction();
        try {
            for (ConsumerRecord<String, String> record : records) {
                producer.send(new ProducerRecord<>(given("out"), record.key(), record.value()));
            }
            producer.sendOffsetsToTransaction(records.nextOffsets(), consumer.groupMetadata());
            if (commits) {
                producer.commitTransaction();
                committed = true;
            }
        } catch (RebalanceInProgressException error) {
            Interop.say("refused", "error", error);
        } catch (KafkaException error) {
            if (!(error instanceof org.apache.kafka.clients.consumer.CommitFailedException)) {
                throw error;
            }
            Interop.say("refused", "error", error);
        }
        if (!committed) {
            producer.abortTransaction();
            goBack(consumer, records);
        }
        List<String> values = records.partitions().stream().flatMap(each -> records.records(each).stream()).map(ConsumerRecord::value).toList();
        Interop.say("ended", "committed", committed, "values", values);
    }

    /** Read again what was aborted, as far as it is still this member's to read. */
    private static void goBack(Consumer<String, String> consumer, ConsumerRecords<String, String> records) {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (TopicPartition partition : records.partitions()) {
            if (consumer.assignment().contains(partition)) {
                OffsetAndMetadata place = committed.get(partition);
                consumer.seek(partition, place == null ? 0 : place.offset());
            }
        }
    }

    private static KafkaConsumer<String, String> joined(String bootstrap, Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.putAll(Map.of(
            "group.id", given("group"), "group.protocol", given("protocol"), "auto.offset.reset", "earliest", "enable.auto.commit", false,
            "metadata.max.age.ms", 1000));
        if (given("protocol").equals("classic")) {
            settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
            settings.put("session.timeout.ms", 6000);
            settings.put("heartbeat.interval.ms", 300);
        }
        if (given("instance") != null) {
            settings.put("group.instance.id", given("instance"));
        }
        KafkaConsumer<String, String> consumer = Clients.consumer(bootstrap, settings);
        ConsumerRebalanceListener listener = new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                tell("assigned", partitions);
            }

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                tell("revoked", partitions);
            }

            @Override
            public void onPartitionsLost(Collection<TopicPartition> partitions) {
                tell("lost", partitions);
            }
        };
        if (given("pattern") != null) {
            consumer.subscribe(new SubscriptionPattern(given("pattern")), listener);
        } else {
            consumer.subscribe(List.of(given("topic")), listener);
        }
        return consumer;
    }

    private static void tell(String what, Collection<TopicPartition> partitions) {
        TreeSet<String> words = new TreeSet<>();
        partitions.forEach(partition -> words.add(partition.toString()));
        Interop.say(what, "partitions", words);
    }

    static String given(String name) {
        return System.getProperty("interop." + name);
    }

    static AtomicBoolean atEndOfInput() {
        AtomicBoolean ended = new AtomicBoolean();
        Thread reader = new Thread(() -> {
            try {
                System.in.transferTo(java.io.OutputStream.nullOutputStream());
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            } finally {
                ended.set(true);
            }
        });
        reader.setDaemon(true);
        reader.start();
        return ended;
    }
}
