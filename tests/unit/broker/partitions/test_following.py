"""A follower: its requests, its reactions to responses, and its waits."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from lowtide.metadata import keys
from lowtide.metadata.records import FeaturesRecord, encode
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.simulation.chronicle import BrokerLog, Chronicle

from .following import NONE, SESSION, Following, epochs_in, offsets, records, row, simulate


def test_it_fetches_as_a_replica_and_then_repeats_nothing() -> None:
    async def run(world: Following) -> None:
        log = await world.begin()
        first = await world.next()
        message = first.message
        assert (first.version, message.session_id, message.session_epoch) == (17, 0, 0)
        assert (message.replica_state.replica_id, message.replica_state.replica_epoch) == (1, world.own_epoch)
        assert (message.max_wait_ms, message.min_bytes, message.max_bytes) == (500, 1, 10 << 20)
        assert message.topics[0].topic_id == world.replicas.image.topics["t"].topic_id
        (asked,) = first.rows
        assert (asked.fetch_offset, asked.log_start_offset, asked.last_fetched_epoch, asked.current_leader_epoch) == (
            0,
            0,
            -1,
            0,
        )
        assert asked.partition_max_bytes == 1 << 20
        world.answer(first, row(records=records(0, 3), high_watermark=2))
        second = await world.next()
        assert offsets(log) == (0, 2, 3)
        assert (second.message.session_id, second.message.session_epoch) == (SESSION, 1)
        assert [(asked.fetch_offset, asked.last_fetched_epoch) for asked in second.rows] == [(3, 0)]
        world.answer(second, row(high_watermark=3))
        third = await world.next()
        assert offsets(log) == (0, 3, 3)
        assert (third.message.session_epoch, third.message.topics) == (2, [])
        world.answer(third)
        assert (await world.next()).message.session_epoch == 3

    simulate(run)


def test_without_a_session_every_request_is_whole() -> None:
    async def run(world: Following) -> None:
        await world.begin()
        for _ in range(3):
            asked = await world.fetched(row(), session=0)
            assert (asked.message.session_id, asked.message.session_epoch, len(asked.rows)) == (0, 0, 1)

    simulate(run)


@pytest.mark.parametrize("error", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH])
def test_a_refused_session_is_replaced_at_once(error: ErrorCode) -> None:
    async def run(world: Following) -> None:
        log = await world.begin()
        await world.fetched(row(records=records(0)))
        asked = await world.next()
        world.answer(asked, error=error)
        again = await world.next()
        assert again.at_s - asked.at_s < 0.01
        assert (again.message.session_epoch, [each.fetch_offset for each in again.rows]) == (0, [1])
        assert again.message.session_id == (0 if error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND else SESSION)
        world.answer(again, row(records=records(1)))
        await world.next()
        assert log.log_end_offset == 2

    simulate(run)


def test_a_session_that_is_always_refused_is_not_requested_in_every_fetch() -> None:
    async def run(world: Following) -> None:
        await world.begin()
        times = []
        for _ in range(6):
            asked = await world.next()
            times.append(asked.at_s)
            world.answer(asked, error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        assert times[-1] - times[-2] > 0.9

    simulate(run)


# Truncation


def test_where_the_logs_diverge_it_truncates_and_ignores_the_rest_of_that_response() -> None:
    """KIP-595, KAFKA-14704: such a high watermark and log start would expose records that are about to be truncated."""

    async def run(world: Following) -> None:
        log = await world.filled(0, 0, 0, high_watermark=1)
        asked = await world.new_leader_epoch(2)
        assert [(each.fetch_offset, each.last_fetched_epoch, each.current_leader_epoch) for each in asked.rows] == [
            (3, 0, 2)
        ]
        world.answer(asked, row(diverging=(0, 2), high_watermark=3, log_start_offset=2, records=records(3, epoch=2)))
        again = await world.next()
        assert offsets(log) == (0, 1, 2)
        assert [(each.fetch_offset, each.log_start_offset) for each in again.rows] == [(2, 0)]
        world.answer(again, row(records=records(2, epoch=2), high_watermark=3))
        await world.next()
        assert offsets(log) == (0, 3, 3)
        assert epochs_in(log) == [0, 0, 2]

    simulate(run)


def test_after_fast_elections_it_asks_once_more_for_each_epoch_that_the_leader_does_not_have() -> None:
    """KIP-279: truncate to the end of the leader's epoch in the local log, and ask again."""

    async def run(world: Following) -> None:
        log = await world.filled(0, 1, 1, 4, 4)
        asked = await world.new_leader_epoch(6)
        assert asked.rows[0].last_fetched_epoch == 4
        world.answer(asked, row(diverging=(3, 4)))
        asked = await world.next()
        assert (asked.rows[0].fetch_offset, asked.rows[0].last_fetched_epoch) == (3, 1)
        world.answer(asked, row(diverging=(1, 2)))
        asked = await world.next()
        assert (asked.rows[0].fetch_offset, asked.rows[0].last_fetched_epoch) == (2, 1)
        world.answer(
            asked, row(records=records(2, epoch=3) + records(3, epoch=3) + records(4, epoch=6), high_watermark=5)
        )
        await world.next()
        assert epochs_in(log) == [0, 1, 3, 3, 6]

    simulate(run)


def test_it_fetches_nothing_before_a_truncation_is_on_the_disk() -> None:
    async def run(world: Following) -> None:
        log = await world.filled(0, 0, 0)
        asked = await world.new_leader_epoch(2)
        started = world.loop.time()
        world.set_commit_ms(50)
        world.answer(asked, row(diverging=(0, 1)))
        asked = await world.next()
        assert world.loop.time() - started > 0.1, "the truncation, and then the lowered recovery point"
        assert [each.fetch_offset for each in asked.rows] == [1]
        assert log.log_end_offset == 1

    simulate(run)


def test_a_truncation_to_below_the_log_start_takes_its_last_epoch_from_the_leader() -> None:
    async def run(world: Following) -> None:
        log = await world.filled(0, 0, 3, 3, high_watermark=4)
        await world.fetched(row(log_start_offset=2, high_watermark=4))
        await world.fetched()
        assert offsets(log) == (2, 4, 4)
        asked = await world.new_leader_epoch(5)
        world.answer(asked, row(diverging=(1, 1), log_start_offset=0))
        asked = await world.next()
        assert offsets(log) == (1, 1, 1)
        assert [(each.fetch_offset, each.last_fetched_epoch, each.log_start_offset) for each in asked.rows] == [
            (1, 1, 1)
        ]

    simulate(run)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 2, (0, 1, 2)),  # ahead of the leader: the records that the leader lacks are truncated
        (0, 3, (0, 1, 3)),  # in range when asked again: nothing is truncated
        (2, 9, (0, 1, 3)),
        (5, 9, (5, 5, 5)),  # below the leader's log start: all is truncated
        (3, 9, (3, 3, 3)),  # at its log start, and no response yet
    ],
)
def test_out_of_range_asks_where_the_leaders_log_starts_and_ends(
    start: int, end: int, expected: tuple[int, int, int]
) -> None:
    """KAFKA-2143, KAFKA-7414: ahead is not behind, and an outdated response deletes nothing."""

    async def run(world: Following) -> None:
        log = await world.filled(0, 0, 0, high_watermark=1)
        asked = await world.new_leader_epoch(2)
        world.answer(asked, row(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=-1, log_start_offset=-1))
        for offset, timestamp in ((end, -1), (start, -2)):
            asked = await world.next(ApiKey.LIST_OFFSETS)
            assert asked.message.replica_id == 1
            (question,) = asked.message.topics[0].partitions
            assert (question.timestamp, question.current_leader_epoch) == (timestamp, 2)
            world.answer_offset(asked, offset)
        asked = await world.next()
        assert offsets(log) == expected
        assert asked.rows[0].fetch_offset == expected[2]

    simulate(run)


def test_out_of_range_from_a_former_leader_changes_nothing() -> None:
    async def run(world: Following) -> None:
        log = await world.filled(0, 0, 0)
        asked = await world.next()
        world.answer(asked, row(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        asked = await world.next(ApiKey.LIST_OFFSETS)
        await world.change(leader_epoch=1)
        world.answer_offset(asked, 0)
        world.answer_offset(await world.next(ApiKey.LIST_OFFSETS), 0)
        asked = await world.next()
        assert (asked.rows[0].fetch_offset, asked.rows[0].current_leader_epoch) == (3, 1)
        assert log.log_end_offset == 3

    simulate(run)


# Responses that are ignored


def test_an_answer_to_an_earlier_leader_epoch_is_ignored() -> None:
    async def run(world: Following) -> None:
        log = await world.begin()
        asked = await world.next()
        await world.change(leader_epoch=3)
        world.answer(asked, row(records=records(0), high_watermark=1, log_start_offset=0))
        asked = await world.next()
        assert [(each.fetch_offset, each.current_leader_epoch) for each in asked.rows] == [(0, 3)]
        assert offsets(log) == (0, 0, 0)
        assert not world.partition().may_serve_as_follower(world.own_epoch, world.clock.monotonic_ms(), 8000)

    simulate(run)


def test_records_of_a_later_leader_epoch_are_ignored() -> None:
    """KAFKA-18723: the leader was elected again after the request was sent; its new records need a new check."""

    async def run(world: Following) -> None:
        log = await world.begin()
        await world.fetched(row(records=records(0) + records(1, epoch=1), high_watermark=2))
        assert log.log_end_offset == 1

    simulate(run)


@pytest.mark.parametrize("fault", ["checksum", "offset"])
def test_invalid_records_are_not_appended_and_other_partitions_continue(fault: str) -> None:
    async def run(world: Following) -> None:
        log = await world.begin((2, 1), (2, 1))
        asked = await world.next()
        bad = bytearray(records(0))
        if fault == "checksum":
            bad[-1] ^= 1
        else:
            bad = bytearray(records(0) + records(0))
        world.answer(
            asked,
            row(records=bytes(bad), high_watermark=1),
            row(partition_index=1, records=records(0), high_watermark=1),
        )
        asked = await world.next()
        assert log.log_end_offset == 0
        assert world.partition(1).log.log_end_offset == 1
        assert asked.message.forgotten_topics_data[0].partitions == [0]
        assert [each.partition for each in asked.rows] == [1]
        world.answer(asked)
        while not any(each.partition == 0 for each in asked.rows):
            asked = await world.next()
            world.answer(asked)
        assert asked.rows[0].fetch_offset == 0

    simulate(run)


# Back-off


def test_a_leader_that_does_not_have_the_metadata_yet_is_asked_again_soon_and_then_less_often() -> None:
    async def run(world: Following) -> None:
        await world.begin()
        times = []
        for _ in range(9):
            asked = await world.next()
            times.append(asked.at_s)
            assert len(asked.rows) == 1
            world.answer(asked, row(error_code=ErrorCode.UNKNOWN_TOPIC_ID))
        waits = [round((after - before) * 1000) for before, after in itertools.pairwise(times)]
        assert all(
            abs(wait - expected) <= 6
            for wait, expected in zip(waits, [20, 40, 80, 160, 320, 640, 1000, 1000], strict=True)
        ), waits

    simulate(run)


def test_a_leader_that_is_gone_is_asked_again_after_the_back_off() -> None:
    async def run(world: Following) -> None:
        await world.begin()
        asked = await world.next()
        asked.connection.transport.abort()
        again = await world.next()
        assert 0.9 < again.at_s - asked.at_s < 1.2
        assert (again.message.session_epoch, len(again.rows)) == (0, 1)

    simulate(run)


def test_a_leader_that_is_silent_is_given_up() -> None:
    async def run(world: Following) -> None:
        await world.begin(replica_socket_timeout_ms="2000")
        asked = await world.next()
        again = await world.next(within_s=10)
        assert 2.9 < again.at_s - asked.at_s < 3.2

    simulate(run)


def test_another_leader_is_followed_at_once() -> None:
    async def run(world: Following) -> None:
        log = await world.begin((2, 1), (2, 1))
        await world.fetched(row(records=records(0)), row(partition_index=1))
        asked = await world.next()
        await world.change(leader=1, leader_epoch=1)
        assert (await world.send_produce(acks=1)).error_code == NONE
        world.answer(asked, row(records=records(1), high_watermark=1))
        asked = await world.next()
        assert asked.message.forgotten_topics_data[0].partitions == [0]
        assert epochs_in(log) == [0, 1]

    simulate(run)


# Reads of consumers, and old versions


def test_it_may_be_read_while_its_leader_responds_and_its_log_start_is_the_leaders() -> None:
    async def run(world: Following) -> None:
        await world.filled(0, 0, 0, high_watermark=3)

        def may_serve() -> bool:
            return world.partition().may_serve_as_follower(world.own_epoch, world.clock.monotonic_ms(), 2000)

        assert may_serve()
        for _ in range(5):
            asked = await world.next()
            await asyncio.sleep(0.9)
            world.answer(asked)
            await asyncio.sleep(0.1)
            assert may_serve(), "a session confirms the partitions that it leaves out"
        world.set_commit_ms(40)
        asked = await world.next()
        world.answer(asked, row(high_watermark=3, log_start_offset=2))
        await asyncio.sleep(0.002)
        assert not may_serve(), "the log start is not durable here yet"
        asked = await world.next()
        await asyncio.sleep(0.05)
        assert may_serve()
        await asyncio.sleep(2.1)
        assert not may_serve(), "the response was long ago"

    simulate(run)


def test_an_answer_that_names_it_with_an_error_does_not_confirm_that_nothing_is_new() -> None:
    """DR7: a fenced leader answers fetches too, and then its response does not confirm its log start."""

    async def run(world: Following) -> None:
        await world.filled(0, 0, 0, high_watermark=3)
        asked = await world.next()
        await asyncio.sleep(1.5)
        world.answer(asked, row(high_watermark=3))
        world.answer(await world.next(), row(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        await asyncio.sleep(1.0)
        assert not world.partition().may_serve_as_follower(world.own_epoch, world.clock.monotonic_ms(), 2000)

    simulate(run)


def test_an_old_broker_fetches_by_name_and_asks_for_epochs_separately() -> None:
    """KIP-107's first restart: log starts are not reported; KIP-101 before Fetch reported divergence."""

    async def run(world: Following) -> None:
        log = await world.begin(inter_broker_protocol_version="0.10.2")
        asked = await world.next()
        assert (asked.version, asked.message.topics[0].topic, asked.message.replica_id) == (4, "t", 1)
        world.answer(asked, row(records=records(0) + records(1) + records(2), high_watermark=1))
        asked = await world.next()
        assert [each.fetch_offset for each in asked.rows] == [3]
        await world.change(leader_epoch=1)
        world.answer(asked, row(high_watermark=1))
        asked = await world.next(ApiKey.OFFSET_FOR_LEADER_EPOCH)
        (question,) = asked.message.topics[0].partitions
        assert (asked.message.replica_id, question.leader_epoch, question.current_leader_epoch) == (1, 0, 1)
        world.answer_epoch(asked, 0, 2)
        asked = await world.asks_again(2)
        assert offsets(log) == (0, 1, 2)
        assert [each.fetch_offset for each in asked.rows] == [2]

    simulate(run)


def test_an_old_broker_that_is_truncated_to_the_start_of_the_leaders_log_starts_over() -> None:
    """The leader deleted what its epoch began with: the records below may be others, and nothing compares them."""

    async def run(world: Following) -> None:
        log, asked = await world.asks_for_an_epoch()
        world.answer_epoch(asked, 0, 2)
        asked = await world.asks_again(2, start=2)
        assert offsets(log) == (2, 2, 2)
        assert [each.fetch_offset for each in asked.rows] == [2]

    simulate(run)


@pytest.mark.parametrize(("start", "expected"), [(3, (3, 3, 3)), (2, (0, 1, 3)), (0, (0, 1, 3))])
def test_an_old_broker_asks_where_the_leaders_log_starts_if_that_may_be_where_its_own_ends(
    start: int, expected: tuple[int, int, int]
) -> None:
    """Its last records are never compared: the leader knows no epoch below its log start."""

    async def run(world: Following) -> None:
        log, asked = await world.asks_for_an_epoch()
        world.answer_epoch(asked, 0, 3)
        world.answer_offset(await world.next(ApiKey.LIST_OFFSETS), 9)
        world.answer_offset(await world.next(ApiKey.LIST_OFFSETS), start, error=ErrorCode.LEADER_NOT_AVAILABLE)
        world.answer_offset(await world.next(ApiKey.LIST_OFFSETS), 9)
        world.answer_offset(await world.next(ApiKey.LIST_OFFSETS), start)
        asked = await world.next()
        assert offsets(log) == expected
        assert [each.fetch_offset for each in asked.rows] == [3]

    simulate(run)


def test_a_request_to_a_leaders_former_registration_is_not_waited_for() -> None:
    """A machine without power refuses nothing: the request would wait for its timeout of half a minute."""

    async def run(world: Following) -> None:
        await world.begin()
        await world.next()
        await asyncio.sleep(2)
        before = world.loop.time()
        await world.register(2)
        asked = await world.next()
        assert asked.at_s - before < 0.1
        assert (asked.message.session_epoch, len(asked.rows)) == (0, 1)

    simulate(run)


def test_an_old_broker_that_was_away_while_the_others_agreed_stops_and_logs_why() -> None:
    async def run(world: Following) -> None:
        await world.begin(inter_broker_protocol_version="0.10.2")
        assert world.broker is not None
        assert world.broker._session is not None
        chronicle = Chronicle(world.loop.time)
        world.broker.log = BrokerLog(chronicle, "broker-1")
        await world.put(keys.FEATURES, encode(FeaturesRecord(log_start_reporting=1)))
        await world.store.lease_revoke(world.broker._session._lease.id)
        await asyncio.sleep(1.0)
        assert world.broker.failed
        assert "raise it, or leave it out" in chronicle.text()
        assert chronicle.violation is None, "it is no bug"

    simulate(run)
