import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.RebalanceInProgressException;

/**
 * A producer, a consumer with its partitions given, one in a group, and somebody who deletes what both have read: at work from the line
 * "started" on, until standard input has a line or ends. The values of a partition are 0, 1, 2 and so on.
 */
final class Work {
    private static final String TOPIC = "java-work";
    private static final int PARTITIONS = 3;
    private static final int PER_TURN = 5;
    private static final long TURN_MS = 10;
    private static final int TURNS_PER_DELETE = 20;

    private final String bootstrap;
    private final List<TopicPartition> partitions = Clients.partitions(TOPIC, PARTITIONS);
    private final AtomicLongArray readByAssignment = new AtomicLongArray(PARTITIONS);
    private final AtomicLongArray readByGroup = new AtomicLongArray(PARTITIONS);
    private volatile boolean ends;
    private volatile long end = Long.MAX_VALUE;

    private Work(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    static void run(String bootstrap) throws Exception {
        new Work(bootstrap).run();
    }

    private void run() throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(4);
        try (Admin admin = Clients.admin(bootstrap)) {
            admin.createTopics(List.of(new NewTopic(TOPIC, PARTITIONS, (short) 3).configs(Map.of("segment.bytes", "1048576")))).all().get();
            List<Future<Void>> jobs = new ArrayList<>();
            jobs.add(threads.submit(this::produce));
            for (Callable<Void> job : List.<Callable<Void>>of(this::consumeByAssignment, this::consumeByGroup)) {
                jobs.add(threads.submit(job));
            }
            jobs.add(threads.submit(() -> delete(admin)));
            System.in.read();
            ends = true;
            for (Future<Void> job : jobs) {
                job.get();
            }
            admin.listConsumerGroupOffsets(TOPIC).partitionsToOffsetAndMetadata().get().forEach(
                (partition, place) -> Interop.say("committed", "partition", partition.partition(), "offset", place.offset()));
        } finally {
            threads.shutdownNow();
        }
    }

    private Void produce() throws Exception {
        List<List<Future<RecordMetadata>>> sent = new ArrayList<>();
        partitions.forEach(partition -> sent.add(new ArrayList<>()));
        Map<String, Object> settings = Map.of("acks", "all", "enable.idempotence", true, "batch.size", 2000, "linger.ms", 0);
        try (Producer<String, String> producer = Clients.producer(bootstrap, settings)) {
            int next = 0;
            while (!ends) {
                for (int turn = 0; turn < PER_TURN; turn++, next++) {
                    for (int partition = 0; partition < PARTITIONS; partition++) {
                        sent.get(partition).add(producer.send(new ProducerRecord<>(TOPIC, partition, null, String.valueOf(next))));
                    }
                }
                Thread.sleep(TURN_MS);
            }
            producer.flush();
            end = next;
        }
        for (int partition = 0; partition < PARTITIONS; partition++) {
            List<Long> offsets = new ArrayList<>();
            for (Future<RecordMetadata> each : sent.get(partition)) {
                offsets.add(each.get().offset());
            }
            Interop.say("written", "partition", partition, "offsets", offsets);
        }
        return null;
    }

    private Void consumeByAssignment() {
        try (Consumer<String, String> consumer = Clients.consumer(bootstrap, Map.of("auto.offset.reset", "none"))) {
            consumer.assign(partitions);
            partitions.forEach(partition -> consumer.seek(partition, 0));
            read(consumer, "assignment", readByAssignment, false);
        }
        return null;
    }

    private Void consumeByGroup() {
        Map<String, Object> settings = Map.of(
            "group.id", TOPIC, "auto.offset.reset", "earliest", "enable.auto.commit", false,
            "session.timeout.ms", 6000, "heartbeat.interval.ms", 300);
        try (Consumer<String, String> consumer = Clients.consumer(bootstrap, settings)) {
            consumer.subscribe(List.of(TOPIC));
            read(consumer, "group", readByGroup, true);
        }
        return null;
    }

    private void read(Consumer<String, String> consumer, String by, AtomicLongArray positions, boolean commits) {
        Map<Integer, List<Long>> offsets = new TreeMap<>();
        Map<Integer, List<Long>> values = new TreeMap<>();
        List<String> failed = new ArrayList<>();
        long told = 0;
        long deadline = Long.MAX_VALUE;
        while (!allReach(positions, end) && System.currentTimeMillis() < deadline) {
            deadline = ends && deadline == Long.MAX_VALUE ? System.currentTimeMillis() + Interop.DEADLINE_MS : deadline;
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(50));
            for (ConsumerRecord<String, String> record : records) {
                offsets.computeIfAbsent(record.partition(), number -> new ArrayList<>()).add(record.offset());
                values.computeIfAbsent(record.partition(), number -> new ArrayList<>()).add(Long.parseLong(record.value()));
            }
            if (commits && !commit(consumer, failed)) {
                continue;
            }
            records.partitions().forEach(partition -> positions.set(partition.partition(), consumer.position(partition)));
            if (told == 0 && allReach(positions, 1)) {
                Interop.say("started", "by", by);
                told = 1;
            }
        }
        for (int partition : offsets.keySet()) {
            Interop.say("read", "by", by, "partition", partition, "offsets", offsets.get(partition), "values", values.get(partition));
        }
        Interop.say("commits that failed", "by", by, "errors", failed);
    }

    private static boolean allReach(AtomicLongArray positions, long least) {
        for (int partition = 0; partition < PARTITIONS; partition++) {
            if (positions.get(partition) < least) {
                return false;
            }
        }
        return true;
    }

    /** Whether what was read is committed; if not, it is read again. */
    private static boolean commit(Consumer<String, String> consumer, List<String> failed) {
        try {
            consumer.commitSync();
            return true;
        } catch (CommitFailedException | RebalanceInProgressException error) {
            failed.add(error.getClass().getSimpleName());
            return false;
        }
    }

    /** Delete what everybody has read, now and then, to one record before it. */
    private Void delete(Admin admin) throws Exception {
        Map<Integer, List<Long>> told = new TreeMap<>();
        while (!ends) {
            Thread.sleep(TURN_MS * TURNS_PER_DELETE);
            Map<TopicPartition, RecordsToDelete> wanted = new HashMap<>();
            for (TopicPartition partition : partitions) {
                long before = Math.min(readByAssignment.get(partition.partition()), readByGroup.get(partition.partition())) - 1;
                if (before > 0) {
                    wanted.put(partition, RecordsToDelete.beforeOffset(before));
                }
            }
            for (var each : admin.deleteRecords(wanted).lowWatermarks().entrySet()) {
                long low;
                try {
                    low = each.getValue().get().lowWatermark();
                } catch (ExecutionException error) {
                    if (error.getCause() instanceof OffsetOutOfRangeException) {
                        continue; // As in Kafka, a new leader's high watermark may be below what was read at the last leader.
                    }
                    throw error;
                }
                long asked = wanted.get(each.getKey()).beforeOffset();
                told.computeIfAbsent(each.getKey().partition(), number -> new ArrayList<>()).add(low);
                if (low < asked) {
                    throw new IllegalStateException(each.getKey() + " has its low watermark at " + low + " after a delete to " + asked);
                }
            }
        }
        told.forEach((partition, lows) -> Interop.say("deleted", "partition", partition, "lows", lows));
        return null;
    }
}
