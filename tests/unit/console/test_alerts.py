"""The alerts that would fire, from what a cluster says of itself."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from lowtide.admin.cluster_description import ClusterDescription
from lowtide.admin.cluster_view import Broker, PartitionDescription, TopicDescription
from lowtide.admin.configs import ConfigEntry, ConfigResource
from lowtide.admin.errors import AdminError
from lowtide.admin.log_dirs import LogDir
from lowtide.admin.settings import Address
from lowtide.console.alerts import NAMED, AlertFacts, alerts
from lowtide.console.cluster import minima


def partition(number: int, leader: int | None = 1, isr: tuple[int, ...] = (1, 2)) -> PartitionDescription:
    return PartitionDescription(partition=number, leader=leader, leader_epoch=0, replicas=(1, 2), isr=isr)


def found(
    *partitions: PartitionDescription,
    controller: int | None = 1,
    fenced: bool = False,
    usable: int = 50,
    answers: bool = True,
    least: int = 1,
) -> AlertFacts:
    topic = TopicDescription(
        name="t", topic_id=None, is_internal=False, partitions={each.partition: each for each in partitions}
    )
    broker = Broker(broker_id=1, address=Address("a", 1), is_fenced=fenced)
    directory = LogDir(path="/d", error=None, replicas={}, total_bytes=100 << 20, usable_bytes=usable << 20)
    return AlertFacts(
        cluster=ClusterDescription(cluster_id="c", controller_id=controller, brokers=(broker,)),
        topics={"t": topic},
        directories={1: {"/d": directory} if answers else AdminError("away")},
        minima={"t": least},
    )


def names(seen: AlertFacts) -> list[str]:
    return [alert.name for alert in alerts(seen)]


def test_a_cluster_that_is_well_has_none():
    assert names(found(partition(0))) == []
    assert names(found(partition(0), answers=False)) == []


def test_each_trouble_has_its_alert_and_the_critical_ones_come_first():
    assert names(found(partition(0, isr=(1,)), partition(1, leader=None))) == [
        "Offline partitions",
        "Under-replicated partitions",
    ]
    assert names(found(partition(0, isr=(1,)), least=2)) == ["Under min.insync.replicas", "Under-replicated partitions"]
    assert names(found(partition(0), least=2)) == []
    assert names(found(controller=None)) == ["No controller"]
    assert names(found(fenced=True)) == ["Fenced brokers"]
    assert names(found(usable=0)) == ["Full log directory"]
    assert names(found(usable=5)) == ["Log directory fills"]


def test_many_partitions_are_counted():
    (alert,) = alerts(found(*(partition(number, isr=(1,)) for number in range(NAMED + 3))))
    assert alert.sentence.endswith("t-4 and 3 more.")


def test_the_minimum_is_asked_of_topics_that_lack_replicas_alone():
    asked: list[str] = []

    class Client:
        async def describe_configs(
            self, resources: list[ConfigResource], *, keys: list[str]
        ) -> dict[ConfigResource, Any]:
            asked.extend(resource.name for resource in resources)
            entry = ConfigEntry(key=keys[0], value="2", source=5, is_read_only=False, is_sensitive=False)
            return {
                resource: {keys[0]: entry} if resource.name == "a" else AdminError("not yours")
                for resource in resources
            }

    topics = {
        name: TopicDescription(name=name, topic_id=None, is_internal=False, partitions={0: partition(0, isr=isr)})
        for name, isr in {"a": (1,), "b": (2,), "well": (1, 2)}.items()
    }
    assert asyncio.run(minima(cast("Any", Client()), topics)) == {"a": 2}
    assert asked == ["a", "b"]
    assert asyncio.run(minima(cast("Any", None), {"well": topics["well"]})) == {}
