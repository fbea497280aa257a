"""The reactions of a follower to responses, and that it ends with its leader's bytes after any history of both."""

from __future__ import annotations

from random import Random
from struct import Struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import EpochEndOffset, PartitionData
from lowtide.protocol.types import TopicPartition
from lowtide.replication.epoch_ends import diverging_epoch
from lowtide.replication.follower import (
    Delay,
    FollowedPartition,
    NextStep,
    Reset,
    Truncate,
    append_fetched,
    decide,
    decide_range,
    first_truncation,
    note_truncated,
    truncation,
)
from lowtide.replication.partition import Partition
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.directory.log_starts import make_log_start_visible
from lowtide.storage.log.log import Log, LogConfig
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.opening.loader import create_log
from lowtide.storage.log.truncation import LogTruncation
from tests.examples import examples

KEY = TopicPartition("t", 0)
_PREFIX = Struct(">qii")
CONFIG = LogConfig(segment_bytes=300)


def stored(base_offset: int, epoch: int, value: bytes = b"x", count: int = 1) -> bytes:
    batch = bytearray(build_batch([(1, None, value, ()) for _ in range(count)]))
    _PREFIX.pack_into(batch, 0, base_offset, len(batch) - 12, epoch)
    return bytes(batch)


def new_partition(broker_id: int, *epochs: int) -> Partition:
    """A replica with one record of each of these leader epochs."""
    filesystem = MemoryFileSystem(Random(broker_id))
    filesystem.make_directories("/d/t-0")
    log = create_log(
        LogPlace(filesystem=filesystem, directory="/d/t-0", config=CONFIG, topic_partition=KEY, topic_id=b"t" * 16),
        now_ms=1,
    )
    partition = Partition(topic_partition=KEY, topic_id=b"t" * 16, local_broker_id=broker_id, log=log)
    for offset, epoch in enumerate(epochs):
        log.append_as_follower(memoryview(stored(offset, epoch)), now_ms=1)
    return partition


def raise_start(log: Log, offset: int) -> None:
    log.advance_high_watermark(offset)
    log.request_log_start(offset)
    make_log_start_visible(log, offset)


def following(*epochs: int, start: int = 0, leader_epoch: int = 9) -> FollowedPartition:
    partition = new_partition(1, *epochs)
    if start:
        raise_start(partition.log, start)
    return FollowedPartition(partition=partition, leader_epoch=leader_epoch)


def row(**values: Any) -> PartitionData:
    fields: dict[str, Any] = {
        "partition_index": 0,
        "error_code": 0,
        "high_watermark": 0,
        "log_start_offset": 0,
        "records": b"",
    }
    return PartitionData(**(fields | values))


# Truncation by leader epoch


def test_the_leader_has_the_epoch_and_its_end_is_lower() -> None:
    """KIP-101, the first scenario: records of the same epoch that the leader never had."""
    assert truncation(following(1, 1, 1).log, 1, 2) == Truncate(2, 1)


def test_the_leader_has_more_of_the_epoch_than_this_log() -> None:
    assert truncation(following(1, 1, 3).log, 1, 7) == Truncate(2, 1)


def test_an_epoch_of_the_leader_that_is_unknown_here_truncates_to_the_one_before_and_asks_again() -> None:
    """KIP-279: fast elections.

    Truncation to the leader's end would leave records of an epoch that the leader never had.
    """
    log = following(1, 2, 2, 5, 5).log
    assert truncation(log, 4, 4) == Truncate(3, 2)


def test_a_leader_epoch_older_than_all_that_is_known_here() -> None:
    log = following(4, 4, 6).log
    assert truncation(log, 2, 1) == Truncate(0, 2)
    raise_start(log, 1)
    assert truncation(log, 2, 1) == Truncate(1, 2)


def test_a_leader_without_epochs_leaves_committed_records() -> None:
    one = following(1, 1, 1)
    one.log.advance_high_watermark(2)
    assert truncation(one.log, -1, -1) == Truncate(2)
    assert truncation(one.log, -1, 1) == Truncate(1), "an old leader that returns no epoch, but an end"


def test_without_epochs_uncommitted_records_are_truncated_first() -> None:
    one = following()
    assert first_truncation(one.log) is None
    one.log.append_as_follower(memoryview(stored(0, -1)), now_ms=1)
    one.log.append_as_follower(memoryview(stored(1, -1)), now_ms=1)
    one.log.advance_high_watermark(1)
    assert first_truncation(one.log) == Truncate(1)
    assert first_truncation(following(3, 3).log) is None


def test_an_emptied_log_does_not_truncate_forever() -> None:
    one = following(7, 7, start=2)
    step = truncation(one.log, 5, 2)
    assert step == Truncate(2, 5)
    LogTruncation(one.log).truncate_to(step.offset, now_ms=1)
    note_truncated(one.log, step)
    assert one.log.leader_epochs.entries() == [(5, 2)]


# Answers


def test_diverging_records_are_truncated_and_the_rest_of_the_response_is_ignored() -> None:
    """KAFKA-14704."""
    one = following(1, 1, 1)
    answer = row(
        diverging_epoch=EpochEndOffset(epoch=1, end_offset=2),
        high_watermark=3,
        log_start_offset=9,
        records=stored(3, 2),
    )
    assert decide(one, answer) == Truncate(2, 1)
    assert (one.log.high_watermark, one.received_log_start, one.heard) == (0, -1, False)


def test_at_or_below_the_leaders_log_start_the_log_is_emptied() -> None:
    """KAFKA-7414, KAFKA-9491; at the log start only while the last record has not been compared."""
    one = following(1, 1, 1)
    assert decide(one, row(log_start_offset=4)) == Reset(4)
    assert decide(one, row(log_start_offset=3)) == Reset(3)
    assert decide(one, row(log_start_offset=2)) is NextStep.APPEND
    assert decide(following(1, 1, 1, start=3), row(log_start_offset=3)) is NextStep.APPEND, "it is empty already"
    append_fetched(one, row(log_start_offset=2, high_watermark=3), 1)
    assert decide(one, row(log_start_offset=3)) is NextStep.APPEND
    assert decide(one, row(log_start_offset=4)) == Reset(4)


def test_errors_cause_a_back_off_and_only_out_of_range_causes_a_request() -> None:
    one = following(1)
    assert decide(one, row(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)) is NextStep.ASK_RANGE
    assert decide(one, row(error_code=ErrorCode.UNKNOWN_LEADER_EPOCH)) == Delay("UNKNOWN_LEADER_EPOCH", lagging=True)
    assert decide(one, row(error_code=ErrorCode.KAFKA_STORAGE_ERROR)) == Delay("KAFKA_STORAGE_ERROR")


def test_ahead_is_truncated_below_is_emptied_and_otherwise_nothing_changes() -> None:
    """KAFKA-2143: a leader that is behind has not deleted records."""
    one = following(1, 1, 1)
    assert decide_range(one, 0, 2) == Truncate(2)
    assert decide_range(one, 4, 9) == Reset(4)
    assert isinstance(decide_range(one, 0, 3), Delay)
    assert isinstance(decide_range(one, 2, 9), Delay)


def test_the_high_watermark_follows_up_to_the_log_end_and_never_falls() -> None:
    one = following(1, 1)
    assert append_fetched(one, row(high_watermark=7), 1).has_news
    assert (one.log.high_watermark, one.lag) == (2, 5)
    assert not append_fetched(one, row(high_watermark=1), 1).has_news
    assert one.log.high_watermark == 2


@pytest.mark.parametrize("is_erased", [False, True])
def test_an_empty_replica_stores_no_erased_record_of_a_batch_that_straddles_its_start(is_erased: bool) -> None:
    """D15: the leader still has them. A replica that has not reported them as erased has the leader's bytes (P1)."""
    batch = bytearray(build_batch([(1, None, b"deleted", ()), (2, None, b"kept", ()), (3, None, b"newer", ())]))
    _PREFIX.pack_into(batch, 0, 2, len(batch) - 12, 1)
    one = following(1, 1, 1, start=3)
    one.log.erasures.deleted_to = 3 if is_erased else 0
    append_fetched(one, row(records=bytes(batch) + stored(5, 1), high_watermark=6), 1)
    assert (one.log.log_start_offset, one.log.log_end_offset) == (3, 6)
    [segment] = one.log.segments
    content = segment.file.pread(segment.size, 0)
    assert [word in content for word in (b"deleted", b"kept", b"newer")] == [not is_erased, True, True]


def test_the_back_off_grows_and_ends_with_a_successful_response() -> None:
    one = following(1)
    rests = []
    for _ in range(8):
        one.back_off(100, 1000, lagging=True)
        rests.append(one.backoff_ms)
    assert rests == [20, 40, 80, 160, 320, 640, 1000, 1000]
    append_fetched(one, row(), 1)
    one.back_off(100, 1000, lagging=True)
    assert (one.backoff_ms, one.delayed_until_ms) == (20, 120)
    one.back_off(100, 1000, lagging=False)
    assert one.backoff_ms == 1000


# Convergence


class Replicas:
    """Some replicas without a network: the test names the leader, and a fetch is a function call."""

    def __init__(self, count: int) -> None:
        self.partitions = [new_partition(number) for number in range(count)]
        self.epoch = 0
        self.leader = 0
        self.followings: dict[int, FollowedPartition] = {}
        self.serial = 0

    def elect(self, leader: int) -> None:
        """Elect any replica, also uncleanly."""
        self.epoch += 1
        self.leader = leader
        for number, partition in enumerate(self.partitions):
            partition.leader_id, partition.leader_epoch = leader, self.epoch
            self.followings[number] = FollowedPartition(partition=partition, leader_epoch=self.epoch)

    def append(self, count: int) -> None:
        log = self.partitions[self.leader].log
        for _ in range(count):
            self.serial += 1
            batch = stored(log.log_end_offset, self.epoch, b"%d" % self.serial, count=1 + self.serial % 3)
            log.append_as_follower(memoryview(batch), now_ms=1)

    def delete(self, part: float) -> None:
        log = self.partitions[self.leader].log
        offset = log.log_start_offset + round((log.log_end_offset - log.log_start_offset) * part)
        raise_start(log, offset)

    def answer(self, number: int) -> PartitionData:
        """The leader's response to a fetch of a follower: range below, epochs, range above, records."""
        leader, log = self.partitions[self.leader], self.partitions[number].log
        offset, epoch = log.log_end_offset, log.leader_epochs.latest
        if offset < leader.log.log_start_offset:
            return row(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        parts = diverging_epoch(leader, offset, epoch) if epoch >= 0 else None
        if isinstance(parts, ErrorCode) or (parts is None and offset > leader.log.log_end_offset):
            return row(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        told = {"high_watermark": leader.log.high_watermark, "log_start_offset": leader.log.log_start_offset}
        if parts is not None:
            return row(diverging_epoch=EpochEndOffset(epoch=parts.leader_epoch, end_offset=parts.end_offset), **told)
        read = leader.log.read(offset, 200, end_offset=leader.log.log_end_offset)
        assert read.error_code == ErrorCode.NONE
        data = b"" if read.slice is None else read.slice.file.pread(read.slice.size, read.slice.position)
        return row(records=data, **told)

    def fetch(self, number: int) -> None:
        """One round of a follower."""
        one, log = self.followings[number], self.partitions[number].log
        leader = self.partitions[self.leader].log
        answer = self.answer(number)
        decision = decide(one, answer)
        if decision is NextStep.ASK_RANGE:
            decision = decide_range(one, leader.log_start_offset, leader.log_end_offset)
        if isinstance(decision, Truncate):
            LogTruncation(log).truncate_to(decision.offset, now_ms=1)
            note_truncated(log, decision)
        elif isinstance(decision, Reset):
            LogTruncation(log).truncate_fully_and_start_at(decision.offset, leader_epoch=self.epoch, now_ms=1)
        elif decision is NextStep.APPEND:
            assert append_fetched(one, answer, 1).error is ErrorCode.NONE
            if one.received_log_start > log.log_start_offset:
                raise_start(log, one.received_log_start)

    def batches(self, number: int, start: int) -> list[bytes]:
        """The whole batches that a reader receives from `start` on."""
        log = self.partitions[number].log
        found = []
        for segment in log.segments:
            for position, header in segment.batches(0):
                if header.last_offset >= start:
                    found.append(segment.file.pread(header.size_bytes, position))
        return found


step = st.one_of(
    st.tuples(st.just("elect"), st.integers(0, 2)),
    st.tuples(st.just("append"), st.integers(1, 4)),
    st.tuples(st.just("delete"), st.sampled_from([0.2, 0.5, 1.0])),
    st.tuples(st.just("fetch"), st.integers(0, 2)),
)


@settings(max_examples=examples(250), deadline=None)
@given(st.lists(step, max_size=60), st.integers(0, 2))
def test_followers_end_with_their_leaders_bytes_after_any_history(
    steps: list[tuple[str, Any]], last_leader: int
) -> None:
    replicas = Replicas(3)
    replicas.elect(0)
    for name, value in steps:
        if name != "fetch" or value != replicas.leader:
            getattr(replicas, name)(value)
    replicas.elect(last_leader)
    replicas.append(2)
    leader = replicas.partitions[last_leader].log
    for number in (number for number in range(3) if number != last_leader):
        log = replicas.partitions[number].log
        for rounds in range(400):  # noqa: B007
            if (log.log_end_offset, log.log_start_offset, log.leader_epochs.latest) == (
                leader.log_end_offset, max(leader.log_start_offset, log.log_start_offset), leader.leader_epochs.latest
            ):  # fmt: skip
                break
            replicas.fetch(number)
        else:
            raise AssertionError(
                f"no end after {rounds + 1} rounds: {log.describe()}, {log.leader_epochs.entries()}; "
                f"{leader.describe()}"
            )
        start = max(log.log_start_offset, leader.log_start_offset)
        assert replicas.batches(number, start) == replicas.batches(last_leader, start)
        known = [entry for entry in leader.leader_epochs.entries() if entry[1] > start]
        assert [entry for entry in log.leader_epochs.entries() if entry[1] > start] == known
        assert log.log_start_offset >= leader.log_start_offset
