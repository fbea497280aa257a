import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.DeleteRecordsResult;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Where a log begins and ends, and what lies where in between. */
final class Offsets {
    private static final int COUNT = 100;
    private static final int LATEST_IN_TIME = 40;

    private Offsets() {}

    /** A topic of one partition with a record for each second, of which one in the middle is from much later. */
    private static TopicPartition write(Admin admin, String bootstrap, String topic) throws Exception {
        Clients.createTopic(admin, topic, 1, Map.of());
        try (Producer<String, String> producer = Clients.producer(bootstrap, Map.of("batch.size", 500, "compression.type", "lz4"))) {
            for (int number = 0; number < COUNT; number++) {
                long time = time(number == LATEST_IN_TIME ? 10 * COUNT : number);
                producer.send(new ProducerRecord<>(topic, 0, time, null, "value-" + number));
            }
        }
        return new TopicPartition(topic, 0);
    }

    private static long time(int number) {
        return Interop.BASE_TIME_MS + number * 1000L;
    }

    static void ofEveryKind(String bootstrap) throws Exception {
        try (Admin admin = Clients.admin(bootstrap); Consumer<String, String> consumer = Clients.consumer(bootstrap, Map.of())) {
            TopicPartition partition = write(admin, bootstrap, "java-offsets");
            Map<String, OffsetSpec> specs = new LinkedHashMap<>();
            specs.put("earliest", OffsetSpec.earliest());
            specs.put("latest", OffsetSpec.latest());
            specs.put("max timestamp", OffsetSpec.maxTimestamp());
            specs.put("at 30", OffsetSpec.forTimestamp(time(30)));
            specs.put("after 30", OffsetSpec.forTimestamp(time(30) + 1));
            specs.put("after the end", OffsetSpec.forTimestamp(time(10 * COUNT) + 1));
            for (Map.Entry<String, OffsetSpec> each : specs.entrySet()) {
                ListOffsetsResultInfo found = admin.listOffsets(Map.of(partition, each.getValue())).partitionResult(partition).get();
                Interop.say(each.getKey(), "offset", found.offset(), "timestamp", found.timestamp(), "epoch", found.leaderEpoch().orElse(null));
            }
            Interop.say("beginning", "offset", consumer.beginningOffsets(List.of(partition)).get(partition));
            Interop.say("end", "offset", consumer.endOffsets(List.of(partition)).get(partition));
            seekByTime(consumer, partition);
        }
    }

    private static void seekByTime(Consumer<String, String> consumer, TopicPartition partition) {
        consumer.assign(List.of(partition));
        for (int number : List.of(0, 20, COUNT - 1)) {
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, time(number))).get(partition);
            consumer.seek(partition, found.offset());
            String value = Clients.read(consumer, 1).iterator().next().value();
            Interop.say("seek", "number", number, "offset", found.offset(), "timestamp", found.timestamp(), "value", value);
        }
    }

    static void deleteRecords(String bootstrap) throws Exception {
        try (Admin admin = Clients.admin(bootstrap); Consumer<String, String> consumer = Clients.consumer(bootstrap, Map.of())) {
            TopicPartition partition = write(admin, bootstrap, "java-delete");
            for (long before : List.of(30L, 10L, (long) COUNT + 1)) {
                DeleteRecordsResult result = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(before)));
                var call = result.lowWatermarks().get(partition);
                String error = Interop.errorOf(call);
                Interop.say("deleted", "before", before, "error", error, "low", error.equals("none") ? call.get().lowWatermark() : null);
            }
            Interop.say("beginning", "offset", consumer.beginningOffsets(List.of(partition)).get(partition));
            for (String reset : List.of("earliest", "latest", "none")) {
                readBelowTheStart(bootstrap, partition, reset);
            }
            admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(-1))).all().get();
            Interop.say("emptied", "offset", consumer.beginningOffsets(List.of(partition)).get(partition));
        }
    }

    /** Begin at offset 0, which is deleted: where does the consumer go on, and what is the first record, if there is one? */
    private static void readBelowTheStart(String bootstrap, TopicPartition partition, String reset) {
        try (Consumer<String, String> consumer = Clients.consumer(bootstrap, Map.of("auto.offset.reset", reset, "max.poll.records", 1))) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, 0);
            long deadline = System.currentTimeMillis() + Interop.DEADLINE_MS;
            while (consumer.position(partition) == 0 && System.currentTimeMillis() < deadline) {
                consumer.poll(Duration.ofMillis(100));
            }
            Interop.say("reset", "to", reset, "position", consumer.position(partition));
        } catch (OffsetOutOfRangeException error) {
            Map<String, Long> offsets = new TreeMap<>();
            error.offsetOutOfRangePartitions().forEach((where, offset) -> offsets.put(where.toString(), offset));
            Interop.say("out of range", "to", reset, "offsets", offsets);
        }
    }
}
