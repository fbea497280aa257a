"""A partition's own decisions.

Whom it serves, what a delete may remove, where epochs end, and how it takes over what the metadata say.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from lowtide.metadata.image import PartitionImage
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import read_batch_header
from lowtide.protocol.types import TopicPartition
from lowtide.replication.epoch_ends import EpochEnd, diverging_epoch, end_offset_for_epoch
from lowtide.replication.former_replicas import awaited_former
from lowtide.replication.leadership import FollowerFetch
from lowtide.replication.partition import Partition, PartitionChange
from lowtide.replication.topic_traffic import Traffic
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.log.log import Log, LogConfig
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.offsets import LeaderEpochs
from lowtide.storage.log.opening.loader import create_log
from lowtide.storage.log.producers.producer_state import ACCEPTED

from .leaders import LAG_MS, TOPIC_ID, image_of, partition_of
from .test_follower import stored

KEY = TopicPartition("t", 3)
IMAGE = image_of(10, {1: 1, 2: 2, 3: 3})
OURS = 1


def log_of(*epochs: int, config: LogConfig | None = None, folder: str = "/d/t-3") -> Log:
    """A log with one record of each of these leader epochs."""
    filesystem = MemoryFileSystem(Random(1))
    filesystem.make_directories(folder)
    place = LogPlace(
        filesystem=filesystem, directory=folder, config=config or LogConfig(), topic_partition=KEY, topic_id=TOPIC_ID
    )
    log = create_log(place, now_ms=1)
    append(log, *epochs)
    return log


def append(log: Log, *epochs: int) -> None:
    for epoch in epochs:
        log.append_as_follower(memoryview(stored(log.log_end_offset, epoch)), now_ms=1)


def hosted(*epochs: int, config: LogConfig | None = None, name: str = "t", **more: Any) -> Partition:
    """A partition without a leader."""
    return Partition(
        topic_partition=TopicPartition(name, 3),
        topic_id=TOPIC_ID,
        local_broker_id=OURS,
        log=log_of(*epochs, config=config),
        **more,
    )


def state(leader: int = OURS, epoch: int = 5, *, isr: tuple[int, ...] = (1, 2), **more: Any) -> PartitionImage:
    """The epoch of a registration is its broker's number."""
    return partition_of(isr, isr, **({"leader": leader, "leader_epoch": epoch, "partition_epoch": 8} | more))


def led(*epochs: int, config: LogConfig | None = None, **more: Any) -> Partition:
    partition = hosted(*epochs, config=config)
    partition.become(state(**more), IMAGE, 0)
    return partition


# What it is before it has a leader


def test_a_new_partition_has_no_leader_and_serves_nobody() -> None:
    partition = hosted(5, 5)
    assert (partition.leader_id, partition.leader_epoch) == (-1, -1)
    assert (partition.replicas, partition.in_sync_replicas, partition.leadership) == ((), (), None)
    assert partition.check_leadership(-1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.check_delete(1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.topic_partition == KEY
    assert (partition.topic_id, partition.local_broker_id, partition.lag_time_max_ms) == (TOPIC_ID, OURS, 30_000)
    assert not partition.watchers


def test_batches_of_internal_topics_are_never_small() -> None:
    """Nor are those of topics that ask for flushes."""
    assert hosted(name="__consumer_offsets").small_batch_bytes == 0
    assert hosted().small_batch_bytes > 0
    assert hosted(config=LogConfig(flush_messages=1)).small_batch_bytes == 0


def test_a_configuration_is_that_of_the_log_and_of_what_producers_send() -> None:
    partition = hosted()
    assert not partition.rules.compacted
    assert (partition.rules.timestamp_type, partition.rules.allow_zstd) == ("create", True)
    assert partition.rules_without_zstd.allow_zstd is False
    config = LogConfig(
        cleanup_policy=("compact",), message_timestamp_type="LogAppendTime", max_message_bytes=77, flush_messages=1
    )
    partition.configure(config)
    assert partition.log.config == config
    assert partition.rules.compacted
    assert (partition.rules.timestamp_type, partition.rules.max_message_bytes) == ("log_append", 77)
    assert partition.small_batch_bytes == 0


# What the metadata say


def test_become_tells_whether_the_leadership_changed() -> None:
    partition = hosted()
    assert partition.become(state(2, 4), IMAGE, 0)
    assert (partition.is_leader, partition.leader_id, partition.leader_epoch) == (False, 2, 4)
    assert not partition.become(state(2, 4, partition_epoch=9), IMAGE, 0)
    assert partition.become(state(3, 4), IMAGE, 0), "another leader"
    assert partition.become(state(3, 5), IMAGE, 0), "another leader epoch"
    assert partition.become(state(OURS, 6), IMAGE, 0)
    assert partition.is_leader
    with pytest.raises(AssertionError, match="leader epoch falls"):
        partition.become(state(OURS, 5), IMAGE, 0)


def test_a_leader_that_leads_in_the_next_epoch_too_leads_since_the_first() -> None:
    """Between two epochs that follow each other no other broker can have led.

    Where one wasn't seen here, another may have.
    """
    partition = led()
    since = partition.leader_epoch
    assert partition.led_since == since
    for epoch in (since, since + 1, since + 2):
        partition.become(state(epoch=epoch), IMAGE, 0)
        assert partition.led_since == since
    partition.become(state(epoch=since + 4), IMAGE, 0)
    assert partition.led_since == since + 4
    partition.become(state(2, since + 5), IMAGE, 0)
    assert partition.led_since == since + 5, "another leader"
    partition.become(state(OURS, since + 6), IMAGE, 0)
    assert partition.led_since == since + 6, "back here"


def test_a_leadership_begins_with_the_leader_epoch_and_ends_with_it() -> None:
    partition = led(5, 5)
    first = partition.leadership
    assert first is not None
    assert (first.broker_id, first.topic_id, first.number, first.log) == (OURS, TOPIC_ID, 3, partition.log)
    first.note_fetch(FollowerFetch(2, 2, 1, 0, 5, 5), IMAGE, 0)
    partition.become(state(isr=(1,), partition_epoch=9), IMAGE, 0)
    assert partition.leadership is first, "the same leader epoch"
    assert partition.in_sync_replicas == (1,)
    assert first.maximal_isr == {1}
    partition.become(state(epoch=6), IMAGE, 0)
    assert partition.leadership is not first, "what followers reported to the last one isn't known to this one"
    assert partition.leadership is not None
    assert partition.leadership.followers[2].log_end_offset == -1
    partition.become(state(2, 7), IMAGE, 0)
    assert partition.leadership is None


@pytest.mark.parametrize(
    ("leaders", "begins_at"),
    [
        ([(1, 5), (OURS, 6)], 21),
        ([(1, 5), (3, 6), (OURS, 7)], 24),
        ([(1, 5), (OURS, 7)], 24),
        ([(OURS, 5), (OURS, 6)], 21),
    ],
)
def test_what_was_refused_is_the_beginning_of_a_producer_until_another_leads(
    leaders: list[tuple[int, int]], begins_at: int
) -> None:
    """That one may have got it, and its answer; and since then it may be deleted, so that this log never gets it."""
    image, partition = image_of(10, {1: 1, OURS: OURS, 3: 3}), hosted(5)
    (leader, epoch), *later = leaders
    partition.become(state(leader, epoch), image, 1)
    producers = partition.log.producer_state
    refused = build_batch([(1, None, b"v", ())] * 3, producer_id=7, producer_epoch=0, base_sequence=21)
    producers.note_refused(read_batch_header(refused), now_ms=1)
    for leader, epoch in later:
        partition.become(state(leader, epoch), image, 2)
    verdicts = [producers.check(7, 0, sequence, 1) is ACCEPTED for sequence in (21, 24)]
    assert verdicts == [True, begins_at == 24]


def test_the_only_replica_has_committed_all_that_it_has() -> None:
    partition = hosted(5, 5)
    partition.become(state(replicas=(1,), isr=(1,)), IMAGE, 0)
    assert partition.leadership is None
    assert partition.log.high_watermark == 2
    assert partition.knows_what_is_committed
    assert partition.has_enough_in_sync
    assert partition.may_have_enough_in_sync
    assert not partition.advance_high_watermark(IMAGE, 0), "nothing to wait for"
    partition.become(state(), IMAGE, 0)
    assert partition.leadership is not None, "another replica has come, within the leader epoch"


def test_the_only_replica_may_be_one_that_follows() -> None:
    """While its successor has no leader yet: what it has isn't committed by that."""
    partition = hosted(5, 5)
    partition.become(state(2, replicas=(1,), isr=(2,)), IMAGE, 0)
    assert (partition.leadership, partition.log.high_watermark) == (None, 0)


def test_the_high_watermark_rises_with_the_followers() -> None:
    partition = led(5, 5, 5)
    assert partition.leadership is not None
    assert not partition.knows_what_is_committed, "the leader epoch begins at offset 3"
    partition.leadership.note_fetch(FollowerFetch(2, 2, 2, 0, 5, 5), IMAGE, 0)
    assert partition.advance_high_watermark(IMAGE, 0)
    assert partition.log.high_watermark == 2
    assert not partition.advance_high_watermark(IMAGE, 0)
    assert not partition.knows_what_is_committed
    partition.leadership.note_fetch(FollowerFetch(2, 2, 3, 0, 5, 5), IMAGE, 0)
    assert partition.advance_high_watermark(IMAGE, 0)
    assert partition.knows_what_is_committed


@pytest.mark.parametrize(("least", "enough", "maximal"), [(1, True, True), (2, True, True), (3, False, False)])
def test_min_insync_replicas(least: int, enough: bool, maximal: bool) -> None:
    partition = led(config=LogConfig(min_insync_replicas=least))
    assert (partition.has_enough_in_sync, partition.may_have_enough_in_sync) == (enough, maximal)


def test_a_log_that_moves_is_the_leadership_s_too() -> None:
    partition = led(5)
    other = log_of(5, folder="/e/t-3")
    partition.move_to(other)
    assert partition.log is other
    assert partition.leadership is not None
    assert partition.leadership.log is other
    follower = hosted(5)
    follower.move_to(other)
    assert follower.log is other


def test_records_that_were_appended_as_leader_are_counted_once() -> None:
    traffic = Traffic()
    partition = hosted(5, 5, traffic=traffic)
    partition.become(state(2, 5), IMAGE, 0)
    append(partition.log, 5)
    partition.become(state(OURS, 6), IMAGE, 0)
    assert traffic.messages_in == 0, "those were copied"
    append(partition.log, 6, 6)
    partition.count_records()
    partition.count_records()
    assert traffic.messages_in == 2
    append(partition.log, 6)
    partition.become(state(2, 7), IMAGE, 0)
    assert traffic.messages_in == 3
    append(partition.log, 7)
    partition.count_records()
    assert traffic.messages_in == 3


def test_watchers_see_a_change_and_may_leave_meanwhile() -> None:
    class Watcher:
        def __init__(self) -> None:
            self.seen: list[PartitionChange] = []

        def on_partition_changed(self, change: PartitionChange) -> None:
            self.seen.append(change)
            partition.watchers.pop(self)

    partition = hosted()
    both = [Watcher(), Watcher()]
    partition.watchers.update(dict.fromkeys(both))
    partition.tell(PartitionChange.LOG_END)
    assert [watcher.seen for watcher in both] == [[PartitionChange.LOG_END]] * 2
    partition.tell(PartitionChange.ROLE)
    assert [watcher.seen for watcher in both] == [[PartitionChange.LOG_END]] * 2


# Whom it serves


@pytest.mark.parametrize(
    ("known", "code"),
    [
        (-1, ErrorCode.NONE),
        (5, ErrorCode.NONE),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_a_leader_serves_who_knows_its_epoch_or_none(known: int, code: ErrorCode) -> None:
    assert led().check_leadership(known) == code
    follower = led(leader=2)
    assert follower.check_leadership(known) == (code or ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.mark.parametrize(
    ("offset", "start"),
    [(-2, ErrorCode.OFFSET_OUT_OF_RANGE), (-1, 2), (0, 0), (1, 1), (2, 2), (3, ErrorCode.OFFSET_OUT_OF_RANGE)],
)
def test_a_delete_reaches_to_the_high_watermark_at_most(offset: int, start: int) -> None:
    partition = led(5, 5, 5)
    partition.log.advance_high_watermark(2)
    answer = partition.check_delete(offset)
    assert answer == start
    assert isinstance(answer, ErrorCode) == isinstance(start, ErrorCode)


@pytest.mark.parametrize(
    ("policy", "refused"), [(("delete",), False), (("compact",), True), (("compact", "delete"), False), ((), False)]
)
def test_a_topic_that_is_only_compacted_refuses_deletes(policy: tuple[str, ...], refused: bool) -> None:
    partition = led(5, config=LogConfig(cleanup_policy=policy))
    assert partition.check_delete(0) == (ErrorCode.POLICY_VIOLATION if refused else 0)


# Epochs


def test_epochs_end_where_the_next_one_begins() -> None:
    partition = led(1, 1, 3, epoch=6)
    assert [end_offset_for_epoch(partition, epoch) for epoch in range(1, 8)] == [
        EpochEnd(1, 2),
        EpochEnd(1, 2),
        EpochEnd(3, 3),  # Nothing was appended since: it ends with the log.
        EpochEnd(3, 3),
        EpochEnd(3, 3),
        EpochEnd(6, 3),  # The present one.
        EpochEnd(-1, -1),
    ]
    assert end_offset_for_epoch(partition, 0) == EpochEnd(0, 0), "no record is of it or older"
    assert end_offset_for_epoch(partition, -1) == EpochEnd(-1, -1)


def test_an_epoch_of_an_empty_log_ends_at_its_end() -> None:
    partition = led(epoch=6)
    assert [end_offset_for_epoch(partition, epoch) for epoch in (0, 5, 6)] == [
        EpochEnd(epoch, 0) for epoch in (0, 5, 6)
    ]
    assert end_offset_for_epoch(partition, 7) == EpochEnd(-1, -1)


def test_epoch_zero_is_one_like_others() -> None:
    partition = led(0, 0, epoch=2)
    assert end_offset_for_epoch(partition, 0) == EpochEnd(0, 2)
    assert end_offset_for_epoch(partition, 1) == EpochEnd(0, 2)
    assert diverging_epoch(partition, 2, 0) is None
    assert diverging_epoch(partition, 2, 1) == EpochEnd(0, 2)


@pytest.mark.parametrize(
    ("fetch_offset", "last_epoch", "answer"),
    [
        (2, 1, None),
        (3, 3, None),
        (1, 1, None),
        (3, 1, EpochEnd(1, 2)),  # Its epoch 1 is longer than ours.
        (3, 2, EpochEnd(1, 2)),  # We have no epoch 2.
        (2, 2, EpochEnd(1, 2)),
        (3, 7, ErrorCode.OFFSET_OUT_OF_RANGE),
        (3, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_where_a_reader_diverges(fetch_offset: int, last_epoch: int, answer: Any) -> None:
    assert diverging_epoch(led(1, 1, 3, epoch=6), fetch_offset, last_epoch) == answer


def test_a_log_whose_first_epochs_are_unknown() -> None:
    """Records of old message formats have none."""
    partition = led(2, 2, 2, epoch=6)
    partition.log.leader_epochs = LeaderEpochs([(2, 1)])
    assert end_offset_for_epoch(partition, 1) == EpochEnd(1, 1)
    assert diverging_epoch(partition, 2, 1) == EpochEnd(1, 1)


# A follower's consumers (rule DR7)


def test_only_a_follower_serves_as_a_follower() -> None:
    follower = led(2, leader=2)
    heard = {"leader_epoch": 5, "broker_epoch": 1, "leader_log_start_offset": 0, "sent_ms": 10}
    assert not follower.may_serve_as_follower(1, 10, LAG_MS)
    follower.follower_reads.note_answer(**heard)
    assert follower.may_serve_as_follower(1, 10, LAG_MS)
    assert not follower.may_serve_as_follower(2, 10, LAG_MS), "another registration"
    leader = led(2)
    leader.follower_reads.note_answer(**heard)
    assert not leader.may_serve_as_follower(1, 10, LAG_MS)


# Replicas that were removed


def test_no_delete_has_reached_all_while_a_removed_replica_may_answer() -> None:
    partition = led(5)
    partition.become(state(replicas=(1, 2, 3)), IMAGE, 10)
    assert partition.former_replicas is None, "none was removed"
    partition.become(state(isr=(1,), replicas=(1,), revision=9), IMAGE, 20)
    assert partition.leadership is None, "the only replica"
    assert list(awaited_former(partition, IMAGE, 20)) == [2, 3]
    assert partition.low_watermark(IMAGE, 20) == -1
    assert partition.former_replicas is not None
    for broker_id in (2, 3):
        partition.former_replicas.note_confirmed(broker_id, 9)
    assert partition.low_watermark(IMAGE, 20) == partition.log.log_start_offset == 0


def test_a_follower_keeps_who_was_removed_until_it_leads() -> None:
    partition = hosted(5)
    partition.become(state(leader=2, isr=(1, 2, 3)), IMAGE, 0)
    partition.become(state(leader=2, isr=(1, 2), replicas=(1, 2), revision=9), IMAGE, 10)
    later = 10 + partition.lag_time_max_ms + 5
    assert awaited_former(partition, IMAGE, later) == {}
    partition.become(state(epoch=6, isr=(1,), replicas=(1, 2), revision=10), IMAGE, later)
    ((broker_id, former),) = awaited_former(partition, IMAGE, later).items()
    assert (broker_id, former.since_ms, former.revision) == (3, later, 9)
    partition.become(state(epoch=6, isr=(1, 2), replicas=(1, 2), revision=11), IMAGE, later + 5)
    assert awaited_former(partition, IMAGE, later + partition.lag_time_max_ms + 1) == {}, (
        "the time doesn't begin again within an epoch"
    )
