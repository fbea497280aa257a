"""Deletes at a leader with followers: rules DR1 to DR6, each by its effect on a client."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from lowtide.metadata import keys
from lowtide.metadata.records import encode
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest
from lowtide.protocol.types import topic_id_text
from lowtide.storage.errors import StorageError

from .leading import LAG_MS, NONE, Follower, Leading, simulate

SOON_S = 0.05


async def begin(world: Leading, *, isr: tuple[int, ...] = (1, 2, 3)) -> tuple[Follower, Follower]:
    """Three replicas that all have three records; the third only if it is in the ISR."""
    await world.start(2, 3)
    await world.create_topic()
    if isr != (1, 2, 3):
        await world.change(
            isr=isr, isr_epochs=tuple(world.epochs.get(member, world.image().isr_epochs[0]) for member in isr)
        )
    second, third = await world.follower(2), await world.follower(3)
    await world.produce(3, acks=1)
    await second.catch_up()
    if 3 in isr:
        await third.catch_up()
    assert world.partition().log.high_watermark == 3
    return second, third


async def parked(world: Leading, offset: int = 2, **options: Any) -> asyncio.Future[Any]:
    """A delete that waits for followers."""
    client = await world.connect()
    delete = asyncio.ensure_future(world.delete(offset, **{"timeout_ms": 5000, "client": client, **options}))
    await asyncio.sleep(0.02)
    assert not delete.done()
    assert world.partition().log.log_start_offset >= offset
    return delete


def test_a_delete_is_acknowledged_when_all_have_reported_it() -> None:
    async def run(world: Leading) -> None:
        second, third = await begin(world)
        delete = await parked(world)
        assert (await second.fetch()).log_start_offset == 2
        second.start = 2
        await second.fetch()
        third.start = 1
        await third.fetch()
        await asyncio.sleep(SOON_S)
        assert not delete.done()
        third.start = 2
        await third.fetch()
        row = await delete
        assert (row.error_code, row.low_watermark, row.leader_log_start_offset) == (NONE, 2, 2)
        assert world.leadership().floor == 2

    simulate(run)


def test_a_fetch_is_answered_at_once_while_there_is_a_log_start_to_report() -> None:
    """Rule DR5, with and without a session."""

    async def run(world: Leading) -> None:
        second, third = await begin(world)
        waiting = second.client.send(second.request(wait_ms=5000), 17)
        request = third.request()
        request.session_epoch = 0
        opened = await third.client.request(request, 17)
        request = third.request(wait_ms=5000, names=False)
        request.session_id, request.session_epoch = opened.session_id, 1
        waiting_too = third.client.send(request, 17)
        await asyncio.sleep(0.01)
        started = world.loop.time()
        delete = await parked(world)
        for answer in (await waiting, await waiting_too):
            assert answer.responses[0].partitions[0].log_start_offset == 2
        assert world.loop.time() - started < SOON_S
        # The log start is sent once: the next fetch waits, until the follower has reported it.
        started = world.loop.time()
        await second.fetch(wait_ms=300)
        assert world.loop.time() - started > 0.29
        second.start = third.start = 2
        await second.fetch()
        await third.fetch()
        assert (await delete).error_code == NONE

    simulate(run)


def test_a_new_session_receives_the_log_start_again() -> None:
    async def run(world: Leading) -> None:
        second, _ = await begin(world)
        await parked(world)
        await second.fetch()
        request = second.request(wait_ms=5000)
        request.session_epoch = 0
        started = world.loop.time()
        await second.client.request(request, 17)
        assert world.loop.time() - started < SOON_S

    simulate(run)


def test_a_leader_only_delete_never_waits_for_followers_and_an_ordinary_one_below_it_does() -> None:
    async def run(world: Leading) -> None:
        second, third = await begin(world)
        started = world.loop.time()
        row = await world.delete(2, leader_only=True)
        assert (row.error_code, row.low_watermark, row.leader_log_start_offset) == (NONE, 0, 2)
        assert world.loop.time() - started < SOON_S
        assert world.leadership().floor == 0, "steady leader-only deletes keep no follower out of the ISR"
        delete = await parked(world, 1)
        for follower in (second, third):
            follower.start = 1
            await follower.fetch()
        row = await delete
        assert (row.error_code, row.low_watermark, row.leader_log_start_offset) == (NONE, 1, 2)

    simulate(run)


def test_a_delete_that_timed_out_and_is_repeated_parks_again_while_a_follower_is_frozen() -> None:
    async def run(world: Leading) -> None:
        second, third = await begin(world)
        started = world.loop.time()
        delete = await parked(world, timeout_ms=200)
        second.start = 2
        await second.fetch()
        row = await delete
        assert (row.error_code, row.low_watermark, row.leader_log_start_offset) == (ErrorCode.REQUEST_TIMED_OUT, 0, 2)
        assert 0.2 <= world.loop.time() - started < 0.25
        again = await parked(world)
        third.start = 2
        await third.fetch()
        assert (await again).error_code == NONE
        at_once = await world.delete(2)
        assert (at_once.error_code, at_once.low_watermark) == (NONE, 2)

    simulate(run)


def test_a_client_that_disconnects_while_its_delete_waits_for_followers_is_forgotten() -> None:
    """Its delete and its connection are removed; the delete of another client still waits."""

    async def run(world: Leading) -> None:
        second, third = await begin(world)
        other = await parked(world)
        known = set(world.broker.serving.host.connections)
        client = await world.connect()
        gone = asyncio.ensure_future(world.delete(2, timeout_ms=5000, client=client))
        await asyncio.sleep(0.02)
        [connection] = set(world.broker.serving.host.connections) - known
        connection._transport.abort()  # A reset: after a plain close the request is kept for some time.
        with pytest.raises(ConnectionError):
            await gone
        assert set(world.broker.serving.host.connections) == known
        assert len(world.replicas.waiting.deletes) == 1
        for follower in (second, third):
            follower.start = 2
            await follower.fetch()
        assert (await other).error_code == NONE

    simulate(run)


def test_a_replica_that_is_live_and_not_in_sync_is_waited_for_too() -> None:
    async def run(world: Leading) -> None:
        second, third = await begin(world, isr=(1, 2))
        third.end = 1
        await third.fetch()
        delete = await parked(world)
        second.start = 2
        await second.fetch()
        await asyncio.sleep(SOON_S)
        assert not delete.done()
        third.end, third.start = 2, 2
        await third.fetch()
        assert (await delete).error_code == NONE

    simulate(run)


def test_a_replica_that_falls_silent_is_not_waited_for_and_nothing_else_wakes() -> None:
    async def run(world: Leading) -> None:
        second, third = await begin(world, isr=(1, 2))
        third.end = 1
        await third.fetch()
        silent = world.loop.time()
        delete = await parked(world, timeout_ms=3 * LAG_MS)
        second.start = 2
        await second.fetch()
        row = await delete
        assert row.error_code == NONE
        assert LAG_MS / 1000 < world.loop.time() - silent < LAG_MS / 1000 + SOON_S

    simulate(run)


def test_a_new_leader_waits_for_every_replica_that_is_live_in_its_image() -> None:
    async def run(world: Leading) -> None:
        second, _ = await begin(world, isr=(1, 2))
        await world.change(leader_epoch=1)
        second.start = 2
        await second.fetch()
        delete = await parked(world)
        await second.fetch()
        await asyncio.sleep(SOON_S)
        assert not delete.done(), "broker 3 may fetch at any moment"

    simulate(run)


def test_a_report_counts_for_its_leader_epoch_and_registration_only() -> None:
    async def run(world: Leading) -> None:
        second, third = await begin(world)
        await world.delete(2, leader_only=True)
        second.start = third.start = 2
        await second.fetch()
        await third.fetch()
        assert (await world.delete(2)).error_code == NONE
        await world.change(leader_epoch=1)
        await second.fetch()
        delete = await parked(world)
        await third.fetch()
        assert (await delete).error_code == NONE
        await world.register(3)
        delete = await parked(world)
        stale = await third.fetch(replica_epoch=world.epochs[3] - 1)
        assert stale.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await asyncio.sleep(SOON_S)
        assert not delete.done()
        await third.fetch()
        assert (await delete).error_code == NONE

    simulate(run)


async def parked_behind_an_unseen_registration(world: Leading) -> tuple[int, asyncio.Future[Any]]:
    """A delete that waits for broker 3, whose last fetch had an unknown registration: its epoch, and the delete."""
    second, third = await begin(world, isr=(1, 2))
    await world.fence(3)
    newer = world.replicas.image.revision + 1
    await third.fetch(replica_epoch=newer)
    delete = await parked(world)
    second.start = 2
    await second.fetch()
    await asyncio.sleep(SOON_S)
    assert not delete.done()
    return newer, delete


def test_a_registration_that_the_image_does_not_have_yet_counts_as_live() -> None:
    async def run(world: Leading) -> None:
        newer, delete = await parked_behind_an_unseen_registration(world)
        assert 3 not in world.leadership().maximal_isr
        epoch = await world.register(3)
        assert epoch == newer
        await world.fence(3)
        assert (await asyncio.shield(delete)).error_code == NONE

    simulate(run)


def test_a_registration_that_was_invented_or_is_over_stops_no_delete_once_the_image_is_younger() -> None:
    async def run(world: Leading) -> None:
        newer, delete = await parked_behind_an_unseen_registration(world)
        await world.put(b"something/else", b"1")
        assert world.replicas.image.revision == newer
        await asyncio.sleep(SOON_S)
        assert delete.done()
        assert (await delete).error_code == NONE

    simulate(run)


def test_a_report_of_a_follower_before_its_registration_was_known_is_asked_for_again_at_once() -> None:
    async def run(world: Leading) -> None:
        second, third = await begin(world, isr=(1, 2))
        await world.fence(3)
        newer = world.replicas.image.revision + 1
        delete = await parked(world)
        second.start = third.start = 2
        third.end = world.partition().log.log_end_offset
        waiting = asyncio.ensure_future(third.fetch(replica_epoch=newer, wait_ms=LAG_MS))
        await asyncio.sleep(SOON_S)
        await second.fetch()
        await asyncio.sleep(SOON_S)
        assert not waiting.done()
        assert not delete.done()
        assert await world.register(3) == newer
        await asyncio.sleep(SOON_S)
        assert waiting.done(), "its next fetch counts"
        assert not delete.done()
        await third.fetch()
        assert (await delete).error_code == NONE

    simulate(run)


@pytest.mark.parametrize(("broker_id", "newer"), [(3, 1), (3, 1 << 40), (3, -1), (9, 0)])
def test_an_unknown_follower_gets_no_session(broker_id: int, newer: int) -> None:
    """A follower's session evicts a client's session, so invented followers would evict them all."""

    async def run(world: Leading) -> None:
        _, third = await begin(world)
        third.session_epoch = 0
        request = third.request(replica_id=broker_id, replica_epoch=world.epochs[3] + newer)
        assert (await third.client.request(request, 17)).session_id == 0
        assert (await third.client.request(third.request(), 17)).session_id != 0

    simulate(run)


EVENTS = (
    "fenced and dropped",
    "assignment",
    "not leader",
    "leads on in the next epoch",
    "flips",
    "re-created",
    "deleted",
    "own directory",
    "own fence",
    "directory of a follower",
    "wants to stop",
)


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_that_ends_a_delete_answers_it_at_once(event: str) -> None:
    """Rules DR4 and DR6."""

    async def run(world: Leading) -> None:
        outside = event in ("directory of a follower", "wants to stop")
        second, third = await begin(world, isr=(1, 2) if outside else (1, 2, 3))
        if outside:
            third.end = 1
            await third.fetch()
        delete = await parked(world)
        second.start = 2
        await second.fetch()
        await asyncio.sleep(SOON_S)
        assert not delete.done()
        started = world.loop.time()
        await happen(world, event)
        row = await delete
        assert world.loop.time() - started < SOON_S
        expected = {
            "not leader": ErrorCode.NOT_LEADER_OR_FOLLOWER,
            "leads on in the next epoch": ErrorCode.NOT_LEADER_OR_FOLLOWER,
            "flips": ErrorCode.NOT_LEADER_OR_FOLLOWER,
            "re-created": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "deleted": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "own directory": ErrorCode.KAFKA_STORAGE_ERROR,
            "own fence": ErrorCode.NOT_LEADER_OR_FOLLOWER,
        }.get(event, NONE)
        assert row.error_code == expected
        if expected != NONE:
            assert (row.low_watermark, row.leader_log_start_offset) == (-1, -1)

    simulate(run)


async def happen(world: Leading, event: str) -> None:
    topic = world.replicas.image.topics["t"]
    mine = world.image().isr_epochs[0]
    match event:
        case "fenced and dropped":
            await world.fence(3)
        case "assignment":
            await world.change(replicas=(1, 2), isr=(1, 2), isr_epochs=(mine, world.epochs[2]))
            await world.fence(3)  # While it is registered, it may answer consumers as a replica does.
        case "not leader":
            await world.change(leader=2, leader_epoch=1)
        case "leads on in the next epoch":
            await world.change(leader_epoch=1)
        case "flips":
            await world.change(leader_epoch=2)
        case "deleted":
            await delete_topic(world)
        case "re-created":
            await delete_topic(world)
            await world.create_topic()
        case "own directory":
            log = world.partition().log
            world.replicas.log_manager.fail_directory_of(log, StorageError("/data", "it broke"))
        case "own fence":
            world.replicas.is_fenced = lambda: True
            world.broker.serving.partitions.hosted.on_fenced()
        case "directory of a follower":
            await world.put(keys.offline(3), encode({topic_id_text(topic.topic_id): [0]}), lease_of=3)
        case "wants to stop":
            await world.put(keys.shutdown(3), b"%d" % world.epochs[3], lease_of=3)


async def delete_topic(world: Leading) -> None:
    await world.client.request(DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000), 3)
    await world.see()


def test_partitions_of_a_request_are_independent() -> None:
    async def run(world: Leading) -> None:
        await world.start(2, 3)
        await world.create_topic("t", (1, 2), (1, 3), (2, 1))
        await world.fence(3)
        for number in (0, 1):
            await world.send_produce(number=number, acks=1)
        follower = await world.follower(2, end=1)
        await follower.fetch()
        rows = [DeleteRecordsPartition(partition_index=number, offset=1) for number in (0, 1, 2)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=rows)], timeout_ms=300)
        answer = await world.client.request(request, 3)
        told = [(row.error_code, row.low_watermark, row.leader_log_start_offset) for row in answer.topics[0].partitions]
        assert told == [(ErrorCode.REQUEST_TIMED_OUT, 0, 1), (NONE, 1, 1), (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)]

    simulate(run)


def test_a_follower_joins_the_isr_only_with_the_deletes_that_were_acknowledged() -> None:
    """Rule DR2."""

    async def run(world: Leading) -> None:
        second, third = await begin(world, isr=(1, 2))
        second.start = 2
        await second.fetch()
        await world.fence(3)
        assert (await world.delete(2)).error_code == NONE
        await world.register(3)
        third.end = 3
        await third.fetch()
        await asyncio.sleep(0.05)
        assert world.leadership().maximal_isr == {1, 2}
        third.start = 2
        await third.fetch()
        assert world.leadership().maximal_isr == {1, 2, 3}

    simulate(run)


def test_while_log_starts_are_not_reported_no_ordinary_delete_is_acknowledged() -> None:
    """KIP-107's first rolling restart: followers fetch with version 4."""

    async def run(world: Leading) -> None:
        second, third = await begin(world)
        await world.put(keys.FEATURES, b'{"log_start_reporting": 0}')
        assert (await second.fetch(version=4)).error_code == NONE
        assert (await third.fetch(version=4)).error_code == NONE
        assert world.leadership().maximal_isr == {1, 2, 3}
        row = await world.delete(1, timeout_ms=200)
        assert (row.error_code, row.leader_log_start_offset) == (ErrorCode.REQUEST_TIMED_OUT, 1)
        await world.produce(1, acks=1)
        second.end = third.end = 4
        await second.fetch(version=4)
        await third.fetch(version=4)
        assert world.partition().log.high_watermark == 4

    simulate(run)


def test_a_delete_is_acknowledged_as_soon_as_all_brokers_report_log_starts() -> None:
    """Rule DR4: a change of the feature levels of the brokers is an event that can end a delete."""

    async def run(world: Leading) -> None:
        second, third = await begin(world)
        await world.put(keys.FEATURES, b'{"log_start_reporting": 0}')
        delete = await parked(world)
        second.start = third.start = 2
        await second.fetch()
        await third.fetch()
        await asyncio.sleep(SOON_S)
        assert not delete.done()
        started = world.loop.time()
        await world.put(keys.FEATURES, b'{"log_start_reporting": 1}')
        assert (await delete).error_code == NONE
        assert world.loop.time() - started < SOON_S

    simulate(run)


def test_a_delete_is_answered_if_its_journal_fails_at_once() -> None:
    """Protects D13: the directory was offline before the request waited, so nothing woke it before its timeout."""

    async def run(world: Leading) -> None:
        await begin(world)
        world.filesystem.fail_next("write", errno.EIO, path_contains="log-start")
        async with asyncio.timeout(1):
            assert (await world.delete(2, timeout_ms=5_000)).error_code == ErrorCode.KAFKA_STORAGE_ERROR

    simulate(run)
