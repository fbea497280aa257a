import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/** Kafka Streams counts words, each exactly once, until standard input ends, or it is killed. Its state is in memory and its changelog. */
final class WordCount {
    private WordCount() {}

    static void run(String bootstrap) throws Exception {
        AtomicBoolean ends = Member.atEndOfInput();
        Properties settings = new Properties();
        settings.put("application.id", Member.given("group"));
        settings.put("bootstrap.servers", bootstrap);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("state.dir", Member.given("directory"));
        settings.put("statestore.cache.max.bytes", 0);
        settings.put("replication.factor", 1);
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        settings.put("consumer.session.timeout.ms", 6000);
        settings.put("consumer.heartbeat.interval.ms", 300);
        settings.put("producer.transaction.timeout.ms", 6000);
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> lines = builder.stream(Member.given("topic"));
        lines.flatMapValues(text -> Arrays.asList(text.split(" ")))
            .groupBy((key, word) -> word)
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts")).withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .mapValues(String::valueOf)
            .to(Member.given("out"), Produced.with(Serdes.String(), Serdes.String()));
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.setUncaughtExceptionHandler(error -> {
                Interop.say("failed", "error", error);
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.setStateListener((state, before) -> Interop.say("state", "is", state.toString()));
            streams.start();
            while (!ends.get()) {
                Thread.sleep(50);
            }
        }
        Interop.say("left");
    }
}
