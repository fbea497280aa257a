"""The client itself: it finds a cluster, waits and tries again within one deadline, and reports what went wrong."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import pytest

from lowtide.admin import (
    AdminClient,
    AuthenticationFailedError,
    BrokerAnsweredError,
    ClientClosedError,
    CommittedOffset,
    ConfigResource,
    ConfigResourceType,
    DeadlineExceededError,
    DeletedRecords,
    ListedOffset,
    NewTopic,
    OffsetSpec,
    TopicPartition,
    UnsupportedVersionError,
)
from lowtide.admin.arguments import named
from lowtide.admin.errors import code_name
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.client.retries import is_retriable
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.api_versions import ApiVersionsResponse
from lowtide.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from lowtide.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeResponse

from .scripted import HANG_UP, NO_ANSWER, ScriptedBroker, ScriptedCluster, simulated

P0 = TopicPartition("t", 0)
P1 = TopicPartition("t", 1)
LATEST = {P0: OffsetSpec.LATEST}


def end_at(offset: int) -> dict[TopicPartition, ListedOffset]:
    return {P0: ListedOffset(offset=offset, timestamp_ms=-1, leader_epoch=-1)}


def test_any_bootstrap_server_is_enough():
    """Two of three cannot be reached, one of them is silent."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 3)
        cluster.nodes[1].kill()
        cluster.nodes[2].kill(silently=True)
        servers = "broker-1:9092,broker-2:9092,nowhere:1,broker-3:9092"
        async with cluster.client(bootstrap_servers=servers, socket_connection_setup_timeout_ms=1000) as admin:
            assert await admin.list_offsets(LATEST) == end_at(100)

    simulated(test)


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_silent_broker_leaves_time_for_the_others(seed: int):
    """The order does not matter. A silent broker once took all of a short call's time."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 2)
        cluster.nodes[1].kill(silently=True)
        async with cluster.client(bootstrap_servers="broker-1:9092,broker-2:9092") as admin:
            assert set(await admin.describe_topics(["t"], timeout=3)) == {"t"}

    simulated(test, 1, 2, seed=seed)


def test_a_leader_that_is_silent_is_named():
    """The error once said that no broker had been asked."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 2)
        async with cluster.client(bootstrap_servers="broker-1:9092") as admin:
            await admin.describe_topics(["t"])
            cluster.nodes[2].kill(silently=True)
            result = (await admin.delete_records({P0: 5}, timeout=3))[P0]
        assert "broker 2 has not answered" in str(result)

    simulated(test, 1, 2)


def test_another_loop_is_refused_at_once():
    """A call from the first loop would wait half a minute for nothing. Closing the client there is no error."""
    kept: list[AdminClient] = []

    async def first(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        kept.append(cluster.client())
        assert await kept[0].list_offsets(LATEST) == end_at(100)

    async def second(_: ScriptedCluster) -> None:
        with pytest.raises(RuntimeError, match="first used on another event loop"):
            await kept[0].list_offsets(LATEST)
        await kept[0].close()
        with pytest.raises(ClientClosedError):
            await kept[0].list_offsets(LATEST)

    simulated(first)
    simulated(second)


def test_a_long_wait_is_logged_once(caplog: pytest.LogCaptureFixture):
    """A minute without output looks like a program that hangs: the reason is logged after seconds.

    Short calls log nothing.
    """

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        async with cluster.client(bootstrap_servers="nowhere:1") as admin:
            with pytest.raises(DeadlineExceededError):
                await admin.list_offsets(LATEST, timeout=2.5)
            assert not caplog.records
            with pytest.raises(DeadlineExceededError):
                await admin.list_offsets(LATEST, timeout=30)
        async with cluster.client() as admin:
            await admin.describe_log_dirs([77], timeout=30)

    with caplog.at_level(logging.INFO, "lowtide.admin"):
        simulated(test)
    assert [record.message.partition(" for up to ")[0] for record in caplog.records] == ["retrying", "retrying"]
    assert "no broker answers: nowhere:1: " in caplog.records[0].message
    assert "clients can't reach broker 77" in caplog.records[1].message


def test_a_string_is_no_list_of_names():
    """Its letters would be topics: `delete_topics("logs")` once deleted topics named l, o, g and s."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("tt", 1)
        async with cluster.client() as admin:
            assert list(await admin.describe_topics("tt")) == ["tt"]

    simulated(test)
    assert named("logs") == ["logs"]
    assert named(["a", "b"]) == ["a", "b"]
    with pytest.raises(ValueError, match="5 is not a name"):
        named([5])


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ([P0], "a list is not a mapping"),
        ({"t": OffsetSpec.LATEST}, "'t' is not a partition"),
        ({"t0": OffsetSpec.LATEST}, "'t0' is not a partition"),
        ({("t", "0"): OffsetSpec.LATEST}, r"\('t', '0'\) is not a partition"),
        ({P0: "latest"}, "t-0: 'latest' is not a place"),
    ],
)
def test_impossible_places_are_refused(places: Any, words: str):
    """The message has the allowed values, and nothing is sent."""

    async def test(cluster: ScriptedCluster) -> None:
        with pytest.raises(ValueError, match=words):
            await cluster.client().list_offsets(places)

    simulated(test)


def test_impossible_configurations_are_refused():
    resource = ConfigResource(ConfigResourceType.TOPIC, "t")

    async def test(cluster: ScriptedCluster) -> None:
        with pytest.raises(ValueError, match="'t' is not a ConfigResource"):
            await cluster.client().describe_configs(["t"])
        with pytest.raises(ValueError, match=r"'retention\.ms' is not a ConfigChange"):
            await cluster.client().alter_configs({resource: {"retention.ms": "5"}})
        with pytest.raises(ValueError, match="'t' is not a NewTopic"):
            await cluster.client().create_topics(["t"])

    simulated(test)


def test_a_time_without_end_is_a_very_long_one():
    """`math.inf` is a time without end."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        async with cluster.client() as admin:
            assert await admin.list_offsets(LATEST, timeout=math.inf) == end_at(100)

    simulated(test)


def test_a_cluster_that_cannot_be_reached_is_reported_address_by_address():
    async def test(cluster: ScriptedCluster) -> None:
        cluster.nodes[1].kill()
        async with cluster.client(bootstrap_servers="broker-1:9092,nowhere:1") as admin:
            with pytest.raises(DeadlineExceededError) as caught:
                await admin.list_offsets(LATEST, timeout=3)
        said = str(caught.value)
        assert "within 3000 ms" in said
        assert "broker-1:9092: connection refused" in said
        assert "nowhere:1: " in said
        assert 2900 <= cluster.clock.monotonic_ms() <= 3100

    simulated(test)


def test_moved_brokers_are_found_by_the_bootstrap_servers():
    """All known brokers are gone; another cluster is at the address of the first one."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 2)
        async with cluster.client() as admin:
            assert await admin.list_offsets(LATEST) == end_at(100)
            cluster.nodes.pop(2).kill()
            cluster.nodes[1].kill()
            cluster.partition("t").leader = 3
            await cluster.start(1)
            assert await admin.list_offsets(LATEST) == end_at(100)

    simulated(test)


def test_a_broker_of_another_cluster_is_left_for_the_bootstrap_servers():
    """KIP-1242: its address now belongs to another broker, which says so when the client connects."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        expected: list[tuple[str | None, int]] = []

        def another_broker(_broker: ScriptedBroker, request: Any) -> Any:
            expected.append((request.cluster_id, request.node_id))
            if request.cluster_id is None:
                return cluster.api_versions()
            cluster.partition("t").leader = 2
            return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED, api_keys=[])

        async with cluster.client() as admin:
            assert await admin.list_offsets(LATEST) == end_at(100)
            cluster.nodes[1].kill()
            await cluster.start(1)
            cluster.scripts[1, ApiKey.API_VERSIONS] = another_broker
            assert await admin.list_offsets(LATEST) == end_at(100)
        assert ("scripted", 1) in expected

    simulated(test)


def test_a_lost_connection_is_replaced():
    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)

        def hangs_up_once(broker: ScriptedBroker, request: Any) -> Any:
            del cluster.scripts[1, ApiKey.LIST_OFFSETS]
            return HANG_UP

        cluster.scripts[1, ApiKey.LIST_OFFSETS] = hangs_up_once
        async with cluster.client() as admin:
            assert await admin.list_offsets(LATEST) == end_at(100)
            assert await admin.list_offsets(LATEST) == end_at(100)
        assert cluster.count(ApiKey.API_VERSIONS, 1) == 2

    simulated(test)


@pytest.mark.parametrize(
    "answer",
    [
        b"\x7f\xff\xff\xff",
        b"\0\0\0\4\0\0\0\0",
        b"\0\0\0\2\0\0",
        b"\0\0\0\5\0\0\0\1\x99",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_a_protocol_violation_ends_the_connection(answer: bytes):
    """A frame of two gigabytes, the answer to another request, a truncated answer, garbage.

    The client uses none of them.
    """

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        cluster.scripts[1, ApiKey.LIST_OFFSETS] = lambda *_: answer
        async with cluster.client() as admin:
            error = (await admin.list_offsets(LATEST, timeout=2))[P0]
        assert isinstance(error, DeadlineExceededError)
        assert "its response is invalid" in str(error)

    simulated(test)


def test_a_broker_that_is_silent_times_out_after_the_request_timeout():
    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 2)
        cluster.scripts[2, ApiKey.LIST_OFFSETS] = lambda *_: NO_ANSWER
        async with cluster.client(request_timeout_ms=1000) as admin:
            error = (await admin.list_offsets(LATEST, timeout=4))[P0]
        assert "broker-2:9092: it did not answer within" in str(error)
        assert 2 <= cluster.count(ApiKey.LIST_OFFSETS, 2) <= 4
        assert cluster.clock.monotonic_ms() <= 4100

    simulated(test)


def test_attempts_back_off_longer_each_time():
    """So a cluster in trouble does not receive a thousand requests a second."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", -1)
        async with cluster.client() as admin:
            error = (await admin.list_offsets(LATEST, timeout=30))[P0]
        assert "it has no leader" in str(error)
        asked = [asked.at_ms for asked in cluster.asked if asked.key == ApiKey.METADATA]
        assert len(asked) < 45
        assert asked[1] - asked[0] < 200
        assert 700 <= asked[-1] - asked[-2] <= 1300

    simulated(test)


def test_a_silent_broker_does_not_keep_others_from_answering():
    """A request that waits has its own connection."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        cluster.scripts[1, ApiKey.DELETE_RECORDS] = lambda *_: NO_ANSWER
        async with cluster.client() as admin:
            waiting = asyncio.ensure_future(admin.delete_records({P0: 5}))
            await asyncio.sleep(1)
            assert await admin.list_offsets(LATEST, timeout=1) == end_at(100)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            del cluster.scripts[1, ApiKey.DELETE_RECORDS]
            assert await admin.list_offsets(LATEST, timeout=1) == end_at(100)

    simulated(test)


def test_closing_ends_what_is_under_way():
    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        cluster.scripts[None, ApiKey.METADATA] = lambda *_: NO_ANSWER
        admin = cluster.client()
        waiting = asyncio.ensure_future(admin.list_offsets(LATEST, timeout=5))
        await asyncio.sleep(1)
        await admin.close()
        with pytest.raises(ClientClosedError):
            await waiting
        with pytest.raises(ClientClosedError):
            await admin.list_offsets(LATEST)
        assert cluster.clock.monotonic_ms() < 2000

    simulated(test)


def test_authentication_that_fails_is_not_tried_again():
    async def test(cluster: ScriptedCluster) -> None:
        cluster.scripts[None, ApiKey.SASL_HANDSHAKE] = lambda *_: SaslHandshakeResponse(
            error_code=0, mechanisms=["PLAIN"]
        )
        refused = SaslAuthenticateResponse(error_code=58, error_message="no", auth_bytes=b"")
        cluster.scripts[None, ApiKey.SASL_AUTHENTICATE] = lambda *_: refused
        login = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_username": "u",
            "sasl_password": "p",
        }
        async with cluster.client(**login) as admin:
            with pytest.raises(AuthenticationFailedError, match="u cannot log in with PLAIN: no"):
                await admin.list_offsets(LATEST)
        assert cluster.count(ApiKey.SASL_AUTHENTICATE) == 1

    simulated(test)


def test_a_connection_is_replaced_before_its_authentication_ends():
    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        cluster.scripts[None, ApiKey.SASL_HANDSHAKE] = lambda *_: SaslHandshakeResponse(
            error_code=0, mechanisms=["PLAIN"]
        )
        done = SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=10_000)
        cluster.scripts[None, ApiKey.SASL_AUTHENTICATE] = lambda *_: done
        login = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_username": "u",
            "sasl_password": "p",
        }
        async with cluster.client(**login) as admin:
            await admin.list_offsets(LATEST)
            await asyncio.sleep(8)
            await admin.list_offsets(LATEST)
            assert cluster.count(ApiKey.SASL_AUTHENTICATE) == 1
            await asyncio.sleep(1)
            await admin.list_offsets(LATEST)
            assert cluster.count(ApiKey.SASL_AUTHENTICATE) == 2

    simulated(test, 1)


def test_places_that_an_old_broker_does_not_support_fail_alone():
    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1, 1)
        cluster.versions[ApiKey.LIST_OFFSETS] = 6
        async with cluster.client() as admin:
            results = await admin.list_offsets({P0: OffsetSpec.MAX_TIMESTAMP, P1: OffsetSpec.EARLIEST})
        assert isinstance(results[P0], UnsupportedVersionError)
        assert results[P1] == ListedOffset(offset=0, timestamp_ms=-1, leader_epoch=-1)

    simulated(test)


def test_plain_tuples_are_partitions_too():
    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        async with cluster.client() as admin:
            assert await admin.list_offsets({("t", 0): OffsetSpec.LATEST}) == end_at(100)
            assert list((await admin.delete_records({("t", 0): 5})).values()) == [DeletedRecords(5, 5)]

    simulated(test)


def test_committed_offsets_are_read_where_they_exist():
    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1, 1)
        cluster.committed = {"g": {P0: (30, 5)}}
        async with cluster.client() as admin:
            found = await admin.list_group_offsets({"g": [P0, P1], "h": [P0]})
        assert found == {"g": {P0: CommittedOffset(offset=30, leader_epoch=5)}, "h": {}}

    simulated(test)


def test_a_topic_that_our_own_attempt_may_have_created_is_reported_as_such():
    """The answer was lost, and the second attempt finds a topic: ours, or another client's."""

    async def test(cluster: ScriptedCluster) -> None:
        def exists(broker: ScriptedBroker, request: Any) -> Any:
            row = CreatableTopicResult(name="t", error_code=36, error_message="Topic 't' already exists")
            return CreateTopicsResponse(topics=[row])

        def hangs_up_once(broker: ScriptedBroker, request: Any) -> Any:
            cluster.scripts[None, ApiKey.CREATE_TOPICS] = exists
            return HANG_UP

        async with cluster.client() as admin:
            cluster.scripts[None, ApiKey.CREATE_TOPICS] = exists
            assert "already exists" in str((await admin.create_topics([NewTopic(name="t")]))["t"])
            cluster.scripts[None, ApiKey.CREATE_TOPICS] = hangs_up_once
            assert "an earlier attempt of this call" in str((await admin.create_topics([NewTopic(name="t")]))["t"])

    simulated(test)


def test_a_topic_that_our_own_attempt_may_have_deleted_is_deleted():
    async def test(cluster: ScriptedCluster) -> None:
        def gone(broker: ScriptedBroker, request: Any) -> Any:
            return DeleteTopicsResponse(responses=[DeletableTopicResult(name="t", error_code=3)])

        def hangs_up_once(broker: ScriptedBroker, request: Any) -> Any:
            cluster.scripts[None, ApiKey.DELETE_TOPICS] = gone
            return HANG_UP

        async with cluster.client() as admin:
            cluster.scripts[None, ApiKey.DELETE_TOPICS] = hangs_up_once
            assert await admin.delete_topics(["t"]) == {"t": None}
            assert isinstance((await admin.delete_topics(["t"]))["t"], BrokerAnsweredError)

    simulated(test)


def test_codes_newer_than_our_table_are_final_and_have_a_number():
    assert code_name(999) == "error 999"
    assert not is_retriable(999)
    assert is_retriable(6)


def test_the_same_seed_sends_the_same_requests():
    """Nothing depends on the order of a set: a failure can be repeated."""

    async def test(cluster: ScriptedCluster) -> list[Any]:
        cluster.add_topic("t", *(1 + index % 3 for index in range(30)))
        cluster.committed = {"g": {TopicPartition("t", index): (index, 5) for index in range(30)}}
        async with cluster.client() as admin:
            await admin.list_offsets({TopicPartition("t", index): OffsetSpec.LATEST for index in range(30)})
            await admin.list_group_offsets({"g": [TopicPartition("t", index) for index in range(30)]})
        return [(asked.broker_id, asked.key, asked.at_ms) for asked in cluster.asked]

    assert simulated(test, seed=5) == simulated(test, seed=5)
