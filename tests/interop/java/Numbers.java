import java.util.Collection;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.sink.SinkConnector;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/** Connectors for Kafka Connect: a source writes the numbers 0, 1, 2 and so on to `topic`, and a sink prints what it reads. */
public final class Numbers {
    private static final Map<String, String> PLACE = Map.of("source", "numbers");
    private static final long PAUSE_MS = 5;

    private Numbers() {}

    /** Has one task. */
    public static final class Source extends SourceConnector {
        private Map<String, String> settings;

        @Override
        public void start(Map<String, String> given) {
            settings = given;
        }

        @Override
        public Class<? extends Task> taskClass() {
            return Writing.class;
        }

        @Override
        public List<Map<String, String>> taskConfigs(int most) {
            return List.of(settings);
        }

        @Override
        public void stop() {}

        @Override
        public ConfigDef config() {
            return new ConfigDef().define("topic", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "Where to.");
        }

        @Override
        public String version() {
            return "1";
        }
    }

    /** Continues behind the last number whose offset is stored. */
    public static final class Writing extends SourceTask {
        private String topic;
        private long next;

        @Override
        public void start(Map<String, String> settings) {
            topic = settings.get("topic");
            Map<String, Object> stored = context.offsetStorageReader().offset(PLACE);
            next = stored == null ? 0 : (Long) stored.get("number") + 1;
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            Thread.sleep(PAUSE_MS);
            SourceRecord made = new SourceRecord(PLACE, Map.of("number", next), topic, Schema.INT64_SCHEMA, next);
            next++;
            return List.of(made);
        }

        @Override
        public void stop() {}

        @Override
        public String version() {
            return "1";
        }
    }

    /** Has one task. */
    public static final class Sink extends SinkConnector {
        @Override
        public void start(Map<String, String> given) {}

        @Override
        public Class<? extends Task> taskClass() {
            return Reading.class;
        }

        @Override
        public List<Map<String, String>> taskConfigs(int most) {
            return List.of(Map.of());
        }

        @Override
        public void stop() {}

        @Override
        public ConfigDef config() {
            return new ConfigDef();
        }

        @Override
        public String version() {
            return "1";
        }
    }

    /** Prints each number in a line. */
    public static final class Reading extends SinkTask {
        @Override
        public void start(Map<String, String> settings) {}

        @Override
        public void put(Collection<SinkRecord> records) {
            records.forEach(record -> System.out.println("number " + record.value()));
        }

        @Override
        public void flush(Map<TopicPartition, OffsetAndMetadata> offsets) {}

        @Override
        public void stop() {}

        @Override
        public String version() {
            return "1";
        }
    }
}
