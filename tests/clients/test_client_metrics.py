"""Clients' metrics (KIP-714) with librdkafka, which pushes them by itself where the cluster wants them."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Producer

from lowtide.admin import BlockingAdminClient, NewTopic
from lowtide.admin.configs import ConfigChange, ConfigResource
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.testing.cluster import LowtideCluster
from tests.inside import broker_of

ENDS_S = 60


def clients_of(cluster: LowtideCluster) -> Any:
    """Returns the client metrics that the broker holds; it runs in another thread."""
    return broker_of(cluster).serving.coordinators.groups.broker.clients


def test_librdkafka_pushes_what_is_wanted_of_it() -> None:
    with LowtideCluster(in_process=True) as cluster, BlockingAdminClient(cluster.bootstrap) as admin:
        resource = ConfigResource(ConfigResourceType.CLIENT_METRICS, "of-apps")
        changes = {
            "metrics": "org.apache.kafka.producer.",
            "interval.ms": "300",
            "match": "client_id=app,client_software_name=(librdkafka|confluent-kafka-python)",
        }
        assert admin.alter_configs({resource: [ConfigChange(key, value) for key, value in changes.items()]}) == {
            resource: None
        }
        told = admin.describe_configs([resource])[resource]
        assert {key: entry.value for key, entry in told.items()} == changes
        admin.create_topics([NewTopic(name="t")])
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "client.id": "app"})
        found: dict[str, Any] = {}
        ends = time.monotonic() + ENDS_S
        while not found and time.monotonic() < ends:
            producer.produce("t", b"v")
            producer.poll(0.1)
            found = {series.name: (facts, series) for facts, series in list(clients_of(cluster).series())}
        producer.flush(10)
        del producer
        assert found, "nothing was pushed"
        assert all(name.startswith("org.apache.kafka.producer.") for name in found), found
        facts, _ = next(iter(found.values()))
        assert facts["client_id"] == "app"
        assert facts["client_software_name"] == "confluent-kafka-python"
        assert clients_of(cluster).refused == 0
