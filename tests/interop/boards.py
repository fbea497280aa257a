"""The queries of dashboards and alerts for Kafka: the series, the labels that they filter by, and the functions.

Sources, read on 2026-11-23: strimzi/strimzi-kafka-operator@8541da1e (examples/metrics: the boards strimzi-kafka and
strimzi-kafka-exporter, their variables, the rules of Kafka and of kafka_exporter), danielqsj/kafka_exporter@953e2f1
(its board), confluentinc/jmx-monitoring-stacks@9707c1a (the boards of a Kafka cluster and of topics). Left out is what
asks for a JVM, for containers and volumes of Kubernetes, for Raft, for ZooKeeper and for tiered storage.
"""

from __future__ import annotations

from typing import Final, NamedTuple

CLUSTER: Final = ("namespace", "strimzi_io_cluster")
BROKER: Final = (*CLUSTER, "kubernetes_pod_name")
TOPIC: Final = (*BROKER, "topic")


class BoardQuery(NamedTuple):
    """A series, and the labels that a board filters or groups by. `form` has `{}` where the selector stands."""

    series: str
    labels: tuple[str, ...]
    form: str = "sum({})"

    def query(self) -> str:
        """Returns a PromQL selector that requires each label to be set."""
        filters = ",".join(f'{label}!=""' for label in self.labels)
        return self.form.format(f"{self.series}{{{filters}}}")


RATE: Final = "sum(irate({}[5m]))"
BY_POD: Final = "sum({}) by (kubernetes_pod_name)"

STRIMZI_KAFKA: Final = (
    BoardQuery("kafka_server_replicamanager_leadercount", BROKER, "count({})"),
    BoardQuery("kafka_controller_kafkacontroller_activecontrollercount", CLUSTER),
    BoardQuery("kafka_controller_controllerstats_uncleanleaderelections_total", CLUSTER, RATE),
    BoardQuery("kafka_server_replicamanager_partitioncount", CLUSTER),
    BoardQuery("kafka_server_replicamanager_underreplicatedpartitions", CLUSTER),
    BoardQuery("kafka_cluster_partition_atminisr", CLUSTER),
    BoardQuery("kafka_cluster_partition_underminisr", CLUSTER),
    BoardQuery("kafka_cluster_partition_replicascount", TOPIC, "{}"),
    BoardQuery("kafka_controller_kafkacontroller_offlinepartitionscount", CLUSTER),
    BoardQuery("process_open_fds", ("namespace", "kubernetes_pod_name", "container"), BY_POD),
    BoardQuery("kafka_server_brokertopicmetrics_bytesin_total", TOPIC, RATE),
    BoardQuery("kafka_server_brokertopicmetrics_bytesout_total", TOPIC, RATE),
    BoardQuery("kafka_server_brokertopicmetrics_messagesin_total", TOPIC, RATE),
    BoardQuery("kafka_server_brokertopicmetrics_totalproducerequests_total", TOPIC, RATE),
    BoardQuery("kafka_server_brokertopicmetrics_failedproducerequests_total", TOPIC, RATE),
    BoardQuery("kafka_server_brokertopicmetrics_totalfetchrequests_total", TOPIC, RATE),
    BoardQuery("kafka_server_brokertopicmetrics_failedfetchrequests_total", TOPIC, RATE),
    BoardQuery("kafka_network_socketserver_networkprocessoravgidle_percent", BROKER, BY_POD),
    BoardQuery("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", BROKER, BY_POD),
    BoardQuery("kafka_server_kafkaserver_linux_disk_write_bytes", BROKER, RATE),
    BoardQuery("kafka_server_kafkaserver_linux_disk_read_bytes", BROKER, RATE),
    BoardQuery("kafka_server_socket_server_metrics_connection_count", (*BROKER, "listener")),
    BoardQuery("kafka_log_log_size", (*TOPIC, "partition"), "{}"),
)

STRIMZI_EXPORTER: Final = (
    BoardQuery("kafka_broker_info", (*CLUSTER, "id", "address"), "{}"),
    BoardQuery("kafka_topic_partitions", ("namespace", "topic")),
    BoardQuery("kafka_topic_partition_replicas", ("namespace", "topic", "partition")),
    BoardQuery("kafka_topic_partition_in_sync_replica", ("namespace", "topic", "partition")),
    BoardQuery("kafka_topic_partition_under_replicated_partition", ("namespace", "topic", "partition")),
    BoardQuery("kafka_topic_partition_leader_is_preferred", ("namespace", "topic", "partition"), "sum({} < bool 1)"),
    BoardQuery(
        "kafka_topic_partition_current_offset", (*CLUSTER, "topic", "partition"), "sum(rate({}[5m])) by (topic)"
    ),
    BoardQuery(
        "kafka_topic_partition_oldest_offset", ("namespace", "topic", "partition"), "sum({}) by (partition,topic)"
    ),
    BoardQuery(
        "kafka_consumergroup_current_offset",
        (*CLUSTER, "consumergroup", "topic", "partition"),
        "sum(delta({}[5m])/300) by (topic)",
    ),
    BoardQuery(
        "kafka_consumergroup_lag",
        ("namespace", "consumergroup", "topic", "partition"),
        "sum({}) by (consumergroup,partition,topic)",
    ),
)

STRIMZI_RULES: Final = (
    BoardQuery("kafka_server_replicamanager_underreplicatedpartitions", ("kubernetes_pod_name",), "{} >= 0"),
    BoardQuery(
        "kafka_controller_kafkacontroller_activecontrollercount",
        ("strimzi_io_name", "namespace"),
        "sum({}) by (strimzi_io_name) == 1",
    ),
    BoardQuery(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        ("namespace", "pod"),
        "sum({}) by (namespace, pod) >= 0",
    ),
    BoardQuery("kafka_server_replicamanager_underminisrpartitioncount", ("kubernetes_pod_name",), "{} >= 0"),
    BoardQuery("kafka_log_logmanager_offlinelogdirectorycount", ("kubernetes_pod_name",), "{} >= 0"),
    BoardQuery("up", ("kubernetes_namespace", "kubernetes_pod_name"), "{} == 1"),
    BoardQuery("kafka_topic_partition_under_replicated_partition", ("topic", "partition"), "{} >= 0"),
    BoardQuery("kafka_consumergroup_lag", ("consumergroup", "topic", "partition"), "{} >= 0"),
    BoardQuery("kafka_topic_partition_current_offset", ("topic", "partition"), "changes({}[10m]) >= 0"),
)

KAFKA_EXPORTER: Final = (
    BoardQuery("kafka_topic_partition_current_offset", ("instance", "topic"), "sum(delta({}[5m])/5) by (topic)"),
    BoardQuery("kafka_consumergroup_lag", ("instance", "topic"), "sum({}) by (consumergroup, topic)"),
    BoardQuery(
        "kafka_consumergroup_current_offset", ("instance", "topic"), "sum(delta({}[5m])/5) by (consumergroup, topic)"
    ),
    BoardQuery("kafka_topic_partitions", ("instance", "topic"), "sum by(topic) ({})"),
)

_BROKERS: Final = ("job", "env", "instance")

CONFLUENT: Final = (
    *(
        BoardQuery(
            f"kafka_server_brokertopicmetrics_{name}persec", (*_BROKERS, "topic"), "sum(rate({}[5m])) by (topic)"
        )
        for name in ("messagesin", "bytesin", "bytesout", "totalproducerequests", "totalfetchrequests")
    ),
    BoardQuery("kafka_server_replicamanager_isrexpandspersec", _BROKERS, RATE),
    BoardQuery("kafka_server_replicamanager_isrshrinkspersec", _BROKERS, RATE),
    BoardQuery("kafka_server_replicamanager_leadercount", _BROKERS),
    BoardQuery("kafka_server_replicamanager_partitioncount", _BROKERS),
    BoardQuery("kafka_server_replicamanager_underreplicatedpartitions", _BROKERS),
    BoardQuery("kafka_cluster_partition_underminisr", _BROKERS),
    BoardQuery("kafka_log_log_size", (*_BROKERS, "topic")),
    BoardQuery("kafka_log_log_logstartoffset", (*_BROKERS, "topic")),
    BoardQuery("kafka_log_log_logendoffset", (*_BROKERS, "topic")),
    BoardQuery("process_cpu_seconds_total", _BROKERS, RATE),
    *(
        BoardQuery(f"kafka_controller_kafkacontroller_{name}", ("env",), "{}")
        for name in (
            "activecontrollercount",
            "offlinepartitionscount",
            "globaltopiccount",
            "globalpartitioncount",
            "activebrokercount",
        )
    ),
)

ALL: Final = {
    "strimzi-kafka": STRIMZI_KAFKA,
    "strimzi-kafka-exporter": STRIMZI_EXPORTER,
    "strimzi-rules": STRIMZI_RULES,
    "kafka_exporter": KAFKA_EXPORTER,
    "confluent": CONFLUENT,
}
