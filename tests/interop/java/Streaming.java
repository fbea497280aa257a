import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Stream;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TaskMetadata;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Applications of Kafka Streams with exactly-once processing. They run until standard input ends, or they are killed, and print their states
 * and their tasks. Their stores are in memory and in changelogs. What they are to do stands in system properties.
 */
final class Streaming {
    private static final long LOOK_MS = 50;
    private static final Serde<String> TEXT = Serdes.String();
    private static final Serde<Long> NUMBER = Serdes.Long();

    private Streaming() {}

    /** Count words: `topic` has lines, `out` gets each new count of a word. Words pass a repartition topic. */
    static void countWords(String bootstrap) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> lines = builder.stream(Member.given("topic"), Consumed.with(TEXT, TEXT));
        lines.flatMapValues(text -> Arrays.asList(text.split(" ")))
            .groupBy((key, word) -> word, Grouped.with("words", TEXT, TEXT))
            .count(inMemory("counts"))
            .toStream()
            .mapValues(String::valueOf)
            .to(Member.given("out"), Produced.with(TEXT, TEXT));
        run(bootstrap, builder);
    }

    /**
     * Join orders with their customers, and sum them up by region. `topic` has orders ("customer amount"), `table` the customers' regions,
     * `out` gets each order ("order region amount") by its customer, `sums` each new sum of a region. Orders pass a repartition topic by
     * customer, joined orders one by region.
     */
    static void join(String bootstrap) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        KTable<String, String> regions = builder.table(
            Member.given("table"), Consumed.with(TEXT, TEXT), Materialized.as(Stores.inMemoryKeyValueStore("regions")));
        KStream<String, String> orders = builder.stream(Member.given("topic"), Consumed.with(TEXT, TEXT));
        KStream<String, String> joined = orders
            .map((order, text) -> new KeyValue<>(text.split(" ")[0], order + " " + text.split(" ")[1]))
            .repartition(Repartitioned.with(TEXT, TEXT).withName("by-customer"))
            .join(regions, (order, region) -> order.split(" ")[0] + " " + region + " " + order.split(" ")[1]);
        joined.to(Member.given("out"), Produced.with(TEXT, TEXT));
        joined.map((customer, text) -> new KeyValue<>(text.split(" ")[1], Long.valueOf(text.split(" ")[2])))
            .groupByKey(Grouped.with("by-region", TEXT, NUMBER))
            .reduce(Long::sum, inMemory("sums"))
            .toStream()
            .mapValues(String::valueOf)
            .to(Member.given("sums"), Produced.with(TEXT, TEXT));
        run(bootstrap, builder);
    }

    /** Pass each record through a repartition topic, which has it in the partition of its key; so has `out`. */
    static void pass(String bootstrap) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(Member.given("topic"), Consumed.with(TEXT, TEXT))
            .repartition(Repartitioned.with(TEXT, TEXT).withName("passed"))
            .to(Member.given("out"), Produced.with(TEXT, TEXT));
        run(bootstrap, builder);
    }

    private static Materialized<String, Long, KeyValueStore<Bytes, byte[]>> inMemory(String store) {
        return Materialized.<String, Long>as(Stores.inMemoryKeyValueStore(store)).withKeySerde(TEXT).withValueSerde(NUMBER);
    }

    private static void run(String bootstrap, StreamsBuilder builder) throws Exception {
        AtomicBoolean ends = Member.atEndOfInput();
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings(bootstrap))) {
            streams.setUncaughtExceptionHandler(error -> {
                error.printStackTrace();
                Interop.say("failed", "error", error);
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.setStateListener((state, before) -> Interop.say("state", "is", state.toString()));
            streams.start();
            for (List<TreeSet<String>> told = List.of(); !ends.get(); Thread.sleep(LOOK_MS)) {
                List<TreeSet<String>> tasks = tasks(streams);
                if (!tasks.equals(told)) {
                    Interop.say("tasks", "active", tasks.get(0), "standby", tasks.get(1));
                    told = tasks;
                }
            }
        }
        Interop.say("left");
    }

    /** The active tasks and the standby tasks of all threads. */
    private static List<TreeSet<String>> tasks(KafkaStreams streams) {
        TreeSet<String> active = new TreeSet<>();
        TreeSet<String> standby = new TreeSet<>();
        streams.metadataForLocalThreads().forEach(thread -> {
            names(thread.activeTasks().stream()).forEach(active::add);
            names(thread.standbyTasks().stream()).forEach(standby::add);
        });
        return List.of(active, standby);
    }

    private static Stream<String> names(Stream<TaskMetadata> tasks) {
        return tasks.map(task -> task.taskId().toString());
    }

    private static Properties settings(String bootstrap) {
        Properties settings = new Properties();
        settings.put("application.id", Member.given("group"));
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.protocol", Member.given("protocol"));
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("state.dir", Member.given("directory"));
        settings.put("statestore.cache.max.bytes", 0);
        settings.put("replication.factor", given("replicas", "1"));
        settings.put("commit.interval.ms", given("interval", "100"));
        settings.put("repartition.purge.interval.ms", given("purge", "100"));
        settings.put("num.stream.threads", given("threads", "1"));
        settings.put("producer.transaction.timeout.ms", given("timeout", "6000"));
        settings.put("consumer.auto.offset.reset", "earliest");
        settings.put("consumer.metadata.max.age.ms", 1000);
        if (Member.given("protocol").equals("classic")) {
            settings.put("consumer.session.timeout.ms", 6000);
            settings.put("consumer.heartbeat.interval.ms", 300);
            settings.put("num.standby.replicas", given("standbys", "0"));
        }
        return settings;
    }

    private static String given(String name, String otherwise) {
        String found = Member.given(name);
        return found == null ? otherwise : found;
    }
}
