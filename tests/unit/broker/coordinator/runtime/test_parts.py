"""The parts of a coordinator that can be tested alone: timers, the partition of a group, batches of records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.coordinator.runtime.effects import Effects, append_error
from lowtide.broker.coordinator.runtime.offsets_topic import java_hash
from lowtide.broker.coordinator.runtime.shard import RECORD_OVERHEAD, Shard, make_batch, make_batches, split_batches
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.protocol.consumer_group_records import ConsumerGroupChange, RecordType, encode_change
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import (
    GroupMetadata,
    GroupMetadataValue,
    OffsetCommit,
    OffsetCommitKey,
    OffsetCommits,
    OffsetCommitValue,
    decode_record,
)
from lowtide.protocol.records import (
    LOG_OVERHEAD,
    MAGIC_POSITION,
    RECORD_BATCH_OVERHEAD,
    iterate_records,
    read_batch_header,
)
from lowtide.protocol.types import TopicPartition
from lowtide.storage.log.validation.validator import ValidatedBatch
from tests.unit.broker.coordinator.group_world import singly


@pytest.mark.parametrize(
    ("text", "expected"), [("", 0), ("group", 98629247), ("hello world", 1794106052), ("polygenelubricants", 0)]
)
def test_a_group_is_where_kafka_has_it(text: str, expected: int):
    """The last hash is the smallest integer, which has no positive counterpart: Kafka uses 0 for it."""
    assert java_hash(text) == expected


def test_letters_beyond_sixteen_bits_count_as_two():
    assert java_hash("\U0001f30a") == java_hash("\ud83c\udf0a") == 0xD83C * 31 + 0xDF0A


@pytest.mark.parametrize("length", [1, 255, 256, 257, 512, 1000])
def test_the_hash_of_a_long_name_is_javas(length: int):
    """Java hashes unit by unit: each step adds one unit to the hash of the prefix."""
    text = "gruppé\u4e00"[:1] + "gruppé\u4e00" * length
    value = 0
    for unit in text:
        value = (value * 31 + ord(unit)) & 0xFFFF_FFFF
    assert java_hash(text) == abs(value - (1 << 32) if value & 0x8000_0000 else value)


@pytest.mark.parametrize(
    ("deadlines", "fired"),
    [
        pytest.param([("late", 30), ("soon", 10), ("moved", 5), ("moved", 20)], ["soon", "moved", "late"], id="order"),
        pytest.param([("a", 30), ("b", 20), ("a", 10)], ["a", "b"], id="set earlier"),
        pytest.param([("b", 1), ("a", 1), ("c", 1), ("b", 1)], ["b", "a", "c"], id="equal: the one set first"),
    ],
)
def test_timers_fire_in_the_order_of_their_deadlines(deadlines: list[tuple[str, int]], fired: list[str]):
    timers: Timers[str] = Timers()
    for key, deadline_ms in deadlines:
        timers.schedule(key, deadline_ms)
    timers.schedule("gone", 0)
    timers.cancel("gone")
    first_ms = min(dict(deadlines).values())
    assert timers.take_due(first_ms - 1) is None
    assert timers.next_ms is not None
    assert timers.next_ms <= first_ms
    assert [timers.take_due(30) for _ in range(len(fired) + 1)] == [*fired, None]
    assert (len(timers), timers.next_ms) == (0, None)


def test_timers_report_a_deadline_before_all_others_and_no_other():
    """Protects waiting requests: the single timer of all coordinators is set again only for these."""
    timers: Timers[str] = Timers()
    answered = []
    for key, deadline_ms in (
        ("first", 20),
        ("later", 30),
        ("as soon", 20),
        ("sooner", 10),
        ("later", 5),
        ("sooner", 40),
    ):
        timers.has_sooner = False
        timers.schedule(key, deadline_ms)
        answered.append(timers.has_sooner)
    assert answered == [True, False, False, True, True, False]


def test_a_deadline_that_was_put_off_holds_up_no_other():
    timers: Timers[str] = Timers()
    timers.schedule("put off", 10)
    timers.schedule("moved", 11)
    timers.schedule("due", 12)
    timers.schedule("put off", 13)
    timers.schedule("moved", 9)
    timers.schedule("moved", 20)
    assert timers.take_due(12) == "due"
    assert timers.take_due(12) is None
    assert (timers.take_due(13), timers.take_due(13)) == ("put off", None)
    assert (timers.deadline_of("moved"), timers.deadline_of("put off")) == (20, None)


def test_what_is_due_next_is_none_of_the_cancelled():
    timers: Timers[str] = Timers()
    assert (timers.next_ms, timers.has_sooner) == (None, False)
    for key, deadline_ms in (("first", 10), ("second", 20), ("third", 30)):
        timers.schedule(key, deadline_ms)
    timers.cancel("first")
    timers.cancel("stranger")
    assert timers.next_ms == 20
    timers.cancel("second")
    timers.cancel("third")
    assert (timers.next_ms, timers.take_due(99), timers.has_sooner) == (None, None, True)


def test_cancelled_timers_leave_nothing_behind():
    timers: Timers[int] = Timers()
    timers.schedule(-1, 20_000)
    for key in range(10_000):
        timers.schedule(key, key)
        timers.cancel(key)
    assert len(timers._heap) < 200
    assert timers.take_due(20_000) == -1


def test_records_are_split_into_batches_that_fit():
    records = [(b"k" * 50, b"v" * 50)] * 10
    room = RECORD_BATCH_OVERHEAD + 3 * (100 + RECORD_OVERHEAD)
    batches = split_batches(records, room)
    assert batches is not None
    assert [len(batch) for batch in batches] == [3, 3, 3, 1]
    assert all(make_batch(batch, 0).size_bytes <= room for batch in batches)
    assert split_batches(records, RECORD_BATCH_OVERHEAD + 100) is None
    assert split_batches(records, 1 << 20) == [records]


def test_a_record_may_fill_a_batch():
    large, small = (b"k" * 50, b"v" * 50), (b"k", None)
    room = RECORD_BATCH_OVERHEAD + 100 + RECORD_OVERHEAD
    assert split_batches([large, small, small], room) == [[large], [small, small]]
    assert split_batches([small, large], room - 1) is None


def test_records_are_one_batch_where_that_fits():
    records = [(b"k" * 50, b"v" * 50)] * 3
    size_bytes = make_batch(records, 0).size_bytes
    assert [batch.record_count for batch in make_batches(records, 0, None, size_bytes)] == [3]
    assert [batch.record_count for batch in make_batches(records, 0, None, size_bytes - 1)] == [2, 1]
    assert make_batches(records, 0, None, 100) == []


def bytes_of(batch: ValidatedBatch) -> bytes:
    """A batch as the log writes it, at offset 0."""
    return bytes(8) + (batch.size_bytes - LOG_OVERHEAD).to_bytes(4, "big") + bytes(4) + b"".join(batch.tail)


@pytest.mark.parametrize("producer", [None, (7, 3)])
def test_a_batch_says_what_its_bytes_say(producer: tuple[int, int] | None):
    records = [(b"a", b"1"), (b"b", None), (b"c", b"3")]
    batch = make_batch(records, 1_000, producer)
    image = bytes_of(batch)
    header = read_batch_header(image)
    assert (len(image), len(image) - MAGIC_POSITION) == (batch.size_bytes, len(batch.tail[0]))
    assert (batch.last_offset_delta, batch.record_count) == (header.last_offset_delta, header.record_count) == (2, 3)
    assert (
        (batch.max_timestamp, batch.base_timestamp) == (header.max_timestamp, header.base_timestamp) == (1_000, 1_000)
    )
    assert batch.offset_delta_of_max_timestamp == 0
    assert (
        (batch.producer_id, batch.producer_epoch)
        == (header.producer_id, header.producer_epoch)
        == (producer or (-1, -1))
    )
    assert batch.base_sequence == header.base_sequence == -1
    assert batch.is_transactional == header.is_transactional == (producer is not None)
    assert [(record.key, record.value) for record in iterate_records(image, max_bytes=1_000)] == records


# ------------------------------------------------------------------ shards
def shard_of(**fields: Any) -> Shard[Any]:
    """A shard of a partition that is led here, but for `fields`."""
    partition: Any = SimpleNamespace(
        topic_partition=TopicPartition("t", 0),
        led_since=5,
        is_leader=True,
        leadership=None,
        log=SimpleNamespace(offline=False),
    )
    shard: Shard[Any] = Shard(0, partition, None)
    for name, value in fields.items():
        setattr(partition, name, value)
    return shard


def test_a_shard_belongs_to_one_leadership():
    assert shard_of().leads
    assert not shard_of(led_since=6).leads
    assert not shard_of(is_leader=False).leads
    assert not shard_of(log=SimpleNamespace(offline=True)).leads


def test_a_new_shard_is_not_loaded():
    shard = shard_of()
    assert [shard.loaded, shard.unloaded, shard.awaits_commit] == [False] * 3
    assert (shard.records_loaded, shard.records_left_aside) == (0, 0)


def test_what_waits_continues_in_the_order_in_which_it_was_asked_for():
    shard = shard_of()
    for end_offset in (5, 3, 7, 6):
        shard.wait(end_offset, 9, [])
    assert [each.end_offset for each in shard.waiting] == [5, 5, 7, 7]


# ------------------------------------------------------------------ effects
OFFSET = OffsetCommitValue(offset=4, metadata="", commit_timestamp=1_000, leader_epoch=2, topic_id=bytes([7]) * 16)


def test_records_and_what_they_say_are_asked_for_together():
    effects = Effects(0, 1_000)
    effects.keep_offset("g", "t", 1, OFFSET)
    effects.keep_offset("g", "t", 1, None)
    several = OffsetCommits("g", "t", {1: OFFSET, 2: OFFSET}, 0)
    effects.keep_offsets(several)
    value = GroupMetadataValue(
        protocol_type="", generation=0, protocol=None, leader=None, current_state_timestamp=-1, members=[]
    )
    effects.keep_group("g", value)
    effects.keep_group("g", None)
    assert effects.changes == [
        OffsetCommit(OffsetCommitKey(group="g", topic="t", partition=1), OFFSET),
        OffsetCommit(OffsetCommitKey(group="g", topic="t", partition=1), None),
        several,
        GroupMetadata("g", value),
        GroupMetadata("g", None),
    ]
    assert [decode_record(*record) for record in effects.records] == [
        single for change in effects.changes for single in singly(change)
    ]


def test_a_change_is_encoded_once():
    change = ConsumerGroupChange(RecordType.MEMBER, "g", "m", None)
    effects = Effects(0, 0)
    effects.keep_change(change)
    effects.keep_encoded(change, (b"key", b"value"))
    assert effects.records == [encode_change(change), (b"key", b"value")]
    assert effects.changes == [change, change]


def test_answers_are_given_at_once_or_promised():
    effects = Effects(0, 0)
    effects.answer("one", "now")
    effects.answer_when_committed("other", "then", lambda error: ("failed", error))
    assert effects.answers == [("one", "now")]
    [promise] = effects.then
    for error, response in (
        (ErrorCode.NONE, "then"),
        (ErrorCode.REQUEST_TIMED_OUT, ("failed", ErrorCode.COORDINATOR_NOT_AVAILABLE)),
    ):
        after = Effects(0, 0)
        promise(error, after)
        assert after.answers == [("other", response)]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_members_receive_the_error_for_a_record_that_could_not_be_kept(error: ErrorCode, expected: ErrorCode):
    assert append_error(error) == expected
