"""One interface to the clients that can add partitions and describe the cluster.

Only kafka-python has DescribeCluster and DescribeTopicPartitions; confluent-kafka and aiokafka describe the cluster by
Metadata, as does kcat, which cannot add partitions.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple, Protocol

import aiokafka.errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AiokafkaPartitions
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions

from .driver import DEADLINE_S
from .driver_kafka_python import DEADLINE_MS
from .driver_kcat import run_kcat

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    import kafka.errors
    from kafka import KafkaAdminClient

Assignments = Sequence[Sequence[int]]
Place = tuple[str, int]


class Cluster(NamedTuple):
    """The cluster as returned by a client; a field is None if the client does not return it.

    `brokers`: id, host and port.
    """

    cluster_id: str | None
    controller_id: int
    brokers: tuple[tuple[int, str, int], ...]


class Grower(Protocol):
    """A client that adds partitions and describes the cluster."""

    name: str

    def grow(
        self, topic: str, count: int, assignments: Assignments | None = None, *, validate_only: bool = False
    ) -> int:
        """Request `count` partitions in total. Returns Kafka's error code, 0 for success."""

    def cluster(self) -> Cluster:
        """Describe the cluster."""


class ConfluentGrower:
    """confluent-kafka."""

    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        self._settings = {"bootstrap.servers": bootstrap, "broker.address.family": "v4"}

    def grow(
        self, topic: str, count: int, assignments: Assignments | None = None, *, validate_only: bool = False
    ) -> int:
        rows = {} if assignments is None else {"replica_assignment": [list(row) for row in assignments]}
        admin = AdminClient(self._settings)
        options = {"request_timeout": DEADLINE_S, "operation_timeout": DEADLINE_S, "validate_only": validate_only}
        future = admin.create_partitions([NewPartitions(topic, count, **rows)], **options)[topic]
        try:
            future.result(DEADLINE_S)
        except KafkaException as error:
            return int(error.args[0].code())
        return 0

    def cluster(self) -> Cluster:
        admin = AdminClient(self._settings)
        found = admin.describe_cluster(request_timeout=DEADLINE_S).result(DEADLINE_S)
        return Cluster(
            found.cluster_id, found.controller.id, tuple((node.id, node.host, node.port) for node in found.nodes)
        )


class KafkaPythonGrower:
    """kafka-python."""

    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def grow(
        self, topic: str, count: int, assignments: Assignments | None = None, *, validate_only: bool = False
    ) -> int:
        wanted = count if assignments is None else {"count": count, "assignments": assignments}
        with closing(KafkaAdminClient(bootstrap_servers=self._bootstrap)) as admin:
            try:
                admin.create_partitions({topic: wanted}, timeout_ms=DEADLINE_MS, validate_only=validate_only)
            except kafka.errors.BrokerResponseError as error:
                return int(error.errno)
        return 0

    def cluster(self) -> Cluster:
        with closing(KafkaAdminClient(bootstrap_servers=self._bootstrap)) as admin:
            found = admin.describe_cluster()
        brokers = tuple((broker["broker_id"], broker["host"], broker["port"]) for broker in found["brokers"])
        assert not any(broker["is_fenced"] for broker in found["brokers"])
        assert "ALTER_CONFIGS" in found["authorized_operations"]
        return Cluster(found["cluster_id"], found["controller_id"], brokers)

    def page(
        self, topics: Sequence[str], limit: int, cursor: Place | None = None
    ) -> tuple[dict[str, tuple[int, list[int]]], Place | None]:
        """One page of DescribeTopicPartitions, which no other Python client has.

        Returns each topic's error code and partitions, and the start of the next page.
        """
        begin = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
        with closing(KafkaAdminClient(bootstrap_servers=self._bootstrap)) as admin:
            found = admin.describe_topic_partitions(list(topics), limit, begin)
        rows = {
            row["name"]: (row["error_code"], [place["partition_index"] for place in row["partitions"]])
            for row in found["topics"]
        }
        following = found["next_cursor"]
        return rows, None if following is None else (following["topic_name"], following["partition_index"])


class AiokafkaGrower:
    """aiokafka."""

    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def grow(
        self, topic: str, count: int, assignments: Assignments | None = None, *, validate_only: bool = False
    ) -> int:
        async def grow() -> int:
            admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
            await admin.start()
            try:
                rows = None if assignments is None else [list(row) for row in assignments]
                wanted = {topic: AiokafkaPartitions(count, rows)}
                await admin.create_partitions(wanted, timeout_ms=DEADLINE_MS, validate_only=validate_only)
            except aiokafka.errors.BrokerResponseError as error:
                return int(error.errno)
            finally:
                await admin.close()
            return 0

        return asyncio.run(grow())

    def cluster(self) -> Cluster:
        async def cluster() -> Cluster:
            admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
            await admin.start()
            try:
                found = await admin.describe_cluster()
            finally:
                await admin.close()
            brokers = tuple((broker["node_id"], broker["host"], broker["port"]) for broker in found["brokers"])
            return Cluster(found.get("cluster_id"), found["controller_id"], brokers)

        return asyncio.run(cluster())


GROWERS: dict[str, type[ConfluentGrower | KafkaPythonGrower | AiokafkaGrower]] = {
    kind.name: kind for kind in (ConfluentGrower, KafkaPythonGrower, AiokafkaGrower)
}


def kcat_cluster(bootstrap: str) -> Cluster:
    """Returns the cluster by `kcat -L`, which does not print the cluster's id."""
    found = json.loads(run_kcat(bootstrap, "-L", "-J"))
    brokers = ((broker["id"], *broker["name"].rsplit(":", 1)) for broker in found["brokers"])
    return Cluster(None, found["controllerid"], tuple((number, host, int(port)) for number, host, port in brokers))
