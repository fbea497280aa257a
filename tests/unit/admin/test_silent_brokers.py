"""A broker that accepts connections and does not answer (under SIGSTOP) delays only requests that need that broker."""

from __future__ import annotations

import asyncio

import pytest

from lowtide.admin import (
    AdminClient,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
    DeadlineExceededError,
    NewTopic,
    OffsetSpec,
    TopicPartition,
)
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from lowtide.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

from .scripted import HANG_UP, NO_ANSWER, ScriptedCluster, simulated

P0 = TopicPartition("t", 0)
SERVERS = "broker-1:9092,broker-2:9092,broker-3:9092"
EVERY_API = [key for key in ApiKey if key != ApiKey.API_VERSIONS]


async def warm(cluster: ScriptedCluster, admin: AdminClient) -> None:
    """Connects the client to each broker, because a client prefers a working connection."""
    for leader in cluster.nodes:
        cluster.add_topic(f"of-{leader}", leader)
        await admin.list_offsets({TopicPartition(f"of-{leader}", 0): OffsetSpec.LATEST})


def stop(cluster: ScriptedCluster, broker_id: int) -> None:
    """The effect of SIGSTOP: the kernel accepts connections and bytes, and nothing answers."""
    cluster.scripts[broker_id, ApiKey.API_VERSIONS] = lambda _broker, _request: NO_ANSWER
    for key in EVERY_API:
        cluster.scripts[broker_id, key] = lambda _broker, _request: NO_ANSWER


@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("connected", [True, False])
def test_a_delete_does_not_wait_for_a_broker_that_is_not_its_leader(seed: int, connected: bool):
    """With the default time limit of a minute, a delete at a live leader took 30 seconds."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 2)
        async with cluster.client(bootstrap_servers=SERVERS) as admin:
            if connected:
                await warm(cluster, admin)
            stop(cluster, 3)
            begun_ms = cluster.clock.monotonic_ms()
            for _ in range(10):
                result = (await admin.delete_records({P0: 30}, leader_only=True))[P0]
                assert not isinstance(result, Exception)
                assert result.leader_log_start_offset == 30
            assert cluster.clock.monotonic_ms() - begun_ms < 1500

    simulated(test, seed=seed)


def test_a_silent_broker_is_asked_last_for_a_while():
    """The client waits a second once, not in each call."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 2)
        async with cluster.client(bootstrap_servers=SERVERS) as admin:
            await warm(cluster, admin)
            stop(cluster, 1)
            stop(cluster, 3)
            begun_ms = cluster.clock.monotonic_ms()
            for _ in range(20):
                await admin.describe_topics(["t"])
            assert cluster.clock.monotonic_ms() - begun_ms < 3000

    simulated(test)


def test_a_slow_broker_is_still_waited_for():
    """The client still waits for the first broker after it asked another: if all are slow, the first answer counts."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 2)
        cluster.delays_ms = dict.fromkeys(cluster.nodes, 5000)
        async with cluster.client(bootstrap_servers=SERVERS) as admin:
            begun_ms = cluster.clock.monotonic_ms()
            assert set(await admin.describe_topics(["t"])) == {"t"}
            assert (
                cluster.clock.monotonic_ms() - begun_ms < 11_000
            )  # The connection's first answer, then the answer to the request.

    simulated(test)


def test_requests_that_any_broker_forwards_are_not_sent_to_a_silent_controller():
    """Broker 1 is the controller; another forwards the request."""

    async def test(cluster: ScriptedCluster) -> None:
        created = CreateTopicsResponse(
            topics=[CreatableTopicResult(name="new", error_code=0, num_partitions=1, replication_factor=1)]
        )
        cluster.scripts[None, ApiKey.CREATE_TOPICS] = lambda _broker, _request: created
        async with cluster.client(bootstrap_servers=SERVERS) as admin:
            await warm(cluster, admin)
            stop(cluster, 1)
            begun_ms = cluster.clock.monotonic_ms()
            result = (await admin.create_topics([NewTopic(name="new", partitions=1)]))["new"]
            assert not isinstance(result, Exception)
            assert cluster.clock.monotonic_ms() - begun_ms < 3500
        assert cluster.count(ApiKey.CREATE_TOPICS, 1) == 0

    simulated(test)


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_request_for_any_broker_is_not_sent_to_a_silent_one(seed: int):
    """A topic's configuration may be set by any broker."""
    resource = ConfigResource(ConfigResourceType.TOPIC, "t")

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 2)
        row = AlterConfigsResourceResponse(resource_type=2, resource_name="t", error_code=0, error_message=None)
        cluster.scripts[None, ApiKey.INCREMENTAL_ALTER_CONFIGS] = lambda _broker, _request: (
            IncrementalAlterConfigsResponse(responses=[row])
        )
        async with cluster.client(bootstrap_servers=SERVERS) as admin:
            await warm(cluster, admin)
            stop(cluster, 2)
            begun_ms = cluster.clock.monotonic_ms()
            result = await admin.alter_configs({resource: [ConfigChange("retention.ms", "5")]})
            assert result == {resource: None}
            assert cluster.clock.monotonic_ms() - begun_ms < 2500

    simulated(test, seed=seed)


def test_a_silent_connection_is_replaced_once_its_request_is_overdue():
    """Requests that were abandoned for another broker's answer once kept their slots as long as the client existed."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 2)
        async with cluster.client(bootstrap_servers=SERVERS, request_timeout_ms=3000) as admin:
            await warm(cluster, admin)
            cluster.scripts[3, ApiKey.METADATA] = lambda _broker, _request: NO_ANSWER
            for _ in range(50):
                await admin.describe_topics(["t"])
                await asyncio.sleep(1)
            del cluster.scripts[3, ApiKey.METADATA]
            cluster.nodes[1].kill(silently=True)
            cluster.nodes[2].kill(silently=True)
            assert set(await admin.describe_topics(["t"], timeout=30)) == {"t"}

    simulated(test)


def test_what_was_wrong_is_not_hidden_by_an_attempt_that_was_cut_short():
    """The last attempt has only what is left of the call's time: that it had 3 ms to connect explains nothing."""

    async def test(cluster: ScriptedCluster) -> None:
        answers = [HANG_UP]
        cluster.scripts[1, ApiKey.API_VERSIONS] = lambda _broker, _request: answers.pop() if answers else NO_ANSWER
        async with cluster.client(default_api_timeout_ms=900) as admin:
            with pytest.raises(DeadlineExceededError, match="closed the connection without an answer"):
                await admin.list_topics()
        assert not answers

    simulated(test)
