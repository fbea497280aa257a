import static org.apache.kafka.common.config.ConfigResource.Type.BROKER;
import static org.apache.kafka.common.config.ConfigResource.Type.TOPIC;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreatePartitionsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;

/** What an administrator asks of a broker, besides offsets. */
final class Administration {
    private Administration() {}

    private static int brokerId(Admin admin) throws Exception {
        return admin.describeCluster().nodes().get().iterator().next().id();
    }

    static void cluster(String bootstrap) throws Exception {
        try (Admin admin = Clients.admin(bootstrap)) {
            var found = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
            List<String> nodes = found.nodes().get().stream().map(node -> node.id() + "@" + node.host() + ":" + node.port()).toList();
            List<String> operations = found.authorizedOperations().get().stream().map(Enum::name).sorted().toList();
            Interop.say("cluster", "id", found.clusterId().get(), "controller", found.controller().get().id(), "nodes", nodes,
                "operations", operations);
        }
    }

    static void topics(String bootstrap) throws Exception {
        String topic = "java-topics";
        NewTopic wanted = new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "86400000"));
        try (Admin admin = Clients.admin(bootstrap)) {
            CreateTopicsResult created = admin.createTopics(List.of(wanted));
            Uuid id = created.topicId(topic).get();
            Interop.say("created", "id", id.toString(), "partitions", created.numPartitions(topic).get(),
                "replicas", created.replicationFactor(topic).get(), "retention", created.config(topic).get().get("retention.ms").value());
            Interop.say("again", "error", Interop.errorOf(admin.createTopics(List.of(wanted)).all()));
            Interop.say("listed", "there", admin.listTopics().names().get().contains(topic));
            CreatePartitionsOptions onlyTry = new CreatePartitionsOptions().validateOnly(true);
            Interop.say("tried", "error", Interop.errorOf(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(9)), onlyTry).all()));
            for (int count : List.of(5, 5, 1)) {
                Interop.say("partitions", "error", Interop.errorOf(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(count))).all()));
            }
            DescribeTopicsOptions inParts = new DescribeTopicsOptions().partitionSizeLimitPerResponse(2);
            tell(admin.describeTopics(List.of(topic), inParts).allTopicNames().get().values());
            tell(admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get().values());
            Interop.say("unknown", "error", Interop.errorOf(admin.describeTopics(List.of("java-unknown")).allTopicNames()));
            Interop.say("deleted", "error", Interop.errorOf(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all()));
            Interop.say("gone", "there", admin.listTopics().names().get().contains(topic));
            Interop.say("deleted again", "error", Interop.errorOf(admin.deleteTopics(List.of(topic)).all()));
        }
    }

    private static void tell(Collection<TopicDescription> topics) {
        for (TopicDescription topic : topics) {
            List<List<Object>> partitions = new ArrayList<>();
            topic.partitions().forEach(each -> partitions.add(List.of(each.partition(), each.leader().id(), each.replicas().size(), each.isr().size())));
            Interop.say("described", "name", topic.name(), "id", topic.topicId().toString(), "partitions", partitions);
        }
    }

    static void configs(String bootstrap) throws Exception {
        String topic = "java-configs";
        ConfigResource resource = new ConfigResource(TOPIC, topic);
        try (Admin admin = Clients.admin(bootstrap)) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1).configs(Map.of("retention.ms", "1000")))).all().get();
            tell(admin, resource, "retention.ms", "cleanup.policy", "segment.bytes");
            AlterConfigsOptions onlyTry = new AlterConfigsOptions().validateOnly(true);
            AlterConfigOp set = operation(OpType.SET, "retention.ms", "2000");
            Interop.say("tried", "error", Interop.errorOf(admin.incrementalAlterConfigs(Map.of(resource, List.of(set)), onlyTry).all()));
            tell(admin, resource, "retention.ms");
            alter(admin, resource, set, operation(OpType.APPEND, "cleanup.policy", "compact"));
            tell(admin, resource, "retention.ms", "cleanup.policy");
            alter(admin, resource, operation(OpType.DELETE, "retention.ms", null), operation(OpType.SUBTRACT, "cleanup.policy", "delete"));
            tell(admin, resource, "retention.ms", "cleanup.policy");
            alter(admin, resource, operation(OpType.SET, "retention.ms", "soon"));
            alter(admin, resource, operation(OpType.SET, "no.such.key", "1"));
            alter(admin, new ConfigResource(TOPIC, "java-unknown"), set);
            Set<String> named = admin.listConfigResources(Set.of(TOPIC), new ListConfigResourcesOptions()).all().get().stream()
                .map(ConfigResource::name).collect(Collectors.toSet());
            Interop.say("resources", "there", named.contains(topic));
            tell(admin, new ConfigResource(BROKER, String.valueOf(brokerId(admin))), "log.retention.ms", "log.segment.bytes", "listeners");
        }
    }

    private static AlterConfigOp operation(OpType type, String name, String value) {
        return new AlterConfigOp(new ConfigEntry(name, value), type);
    }

    private static void alter(Admin admin, ConfigResource resource, AlterConfigOp... operations) throws Exception {
        Interop.say("altered", "error", Interop.errorOf(admin.incrementalAlterConfigs(Map.of(resource, List.of(operations))).all()));
    }

    private static void tell(Admin admin, ConfigResource resource, String... names) throws Exception {
        DescribeConfigsOptions options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        Config config = admin.describeConfigs(List.of(resource), options).all().get().get(resource);
        for (String name : names) {
            ConfigEntry entry = config.get(name);
            List<String> synonyms = entry.synonyms().stream().map(each -> each.name() + "=" + each.value() + " " + each.source()).toList();
            Interop.say("config", "name", name, "value", entry.value(), "source", entry.source().name(), "type", entry.type().name(),
                "read only", entry.isReadOnly(), "documented", entry.documentation() != null, "synonyms", synonyms);
        }
    }

    static void directories(String bootstrap) throws Exception {
        TopicPartition partition = new TopicPartition("java-directories", 1);
        try (Admin admin = Clients.admin(bootstrap); Producer<String, String> producer = Clients.producer(bootstrap, Map.of())) {
            Clients.createTopic(admin, partition.topic(), 2, Map.of());
            producer.send(new ProducerRecord<>(partition.topic(), partition.partition(), null, "value")).get();
            int broker = brokerId(admin);
            var directories = admin.describeLogDirs(List.of(broker)).allDescriptions().get().get(broker);
            for (Map.Entry<String, LogDirDescription> each : directories.entrySet()) {
                LogDirDescription found = each.getValue();
                Map<String, Long> sizes = new TreeMap<>();
                found.replicaInfos().forEach((where, replica) -> sizes.put(where.toString(), replica.size()));
                Interop.say("directory", "path", each.getKey(), "error", found.error(), "sizes", sizes,
                    "total", found.totalBytes().orElse(-1), "usable", found.usableBytes().orElse(-1));
            }
            var replica = new TopicPartitionReplica(partition.topic(), partition.partition(), broker);
            var where = admin.describeReplicaLogDirs(List.of(replica)).values().get(replica).get();
            Interop.say("replica", "path", where.getCurrentReplicaLogDir(), "lag", where.getCurrentReplicaOffsetLag());
        }
    }

    static void producers(String bootstrap) throws Exception {
        TopicPartition partition = new TopicPartition("java-producers", 0);
        try (Admin admin = Clients.admin(bootstrap); Producer<String, String> producer = Clients.producer(bootstrap, Map.of())) {
            Clients.createTopic(admin, partition.topic(), 1, Map.of());
            for (int number = 0; number < 3; number++) {
                producer.send(new ProducerRecord<>(partition.topic(), 0, Interop.BASE_TIME_MS + number, null, "value")).get();
            }
            for (ProducerState state : admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers()) {
                Interop.say("producer", "id", state.producerId(), "epoch", state.producerEpoch(), "sequence", state.lastSequence(),
                    "timestamp", state.lastTimestamp(), "transaction", state.currentTransactionStartOffset().isPresent());
            }
        }
    }
}
