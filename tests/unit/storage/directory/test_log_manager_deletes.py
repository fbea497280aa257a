"""Log starts that are durable before they are visible, due work, and any order of anything."""

from __future__ import annotations

import errno
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem.memory import SimulatedCrashError
from lowtide.storage.checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_BEGIN_CHECKPOINT,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    decode_offsets,
    encode_offsets,
    encode_partition_metadata,
)
from lowtide.storage.directory.log_starts import LogStartIncrement
from lowtide.storage.log.log import Log, LogConfig
from lowtide.storage.log.truncation import LogTruncation
from lowtide.storage.log.validation.validator import ValidatedBatch
from lowtide.storage.log_start.journal_image import JOURNAL_NAME
from lowtide.storage.log_start.journal_loading import journal_path
from tests.examples import examples

from .managed_logs import (
    A0,
    A1,
    B0,
    BATCH,
    CONFIG,
    ONE,
    TWO,
    A,
    World,
    append,
)


def test_a_delete_becomes_visible_when_it_is_durable_and_its_segments_are_removed_in_the_background() -> None:
    world = World()
    (log,) = world.create(A0)
    append(log, 20)
    segments = len(log.segments)
    assert segments > 5
    world.delete_to((A0, 73))
    assert (log.log_start_offset, log.log_start_pending, world.answers) == (0, 73, [])
    world.committers[ONE].step()
    assert (log.log_start_offset, log.log_start_pending, world.answers) == (73, 73, ["trimmed"])
    assert len(log.segments) < segments
    files = [name for name in world.names(log.directory) if name.endswith(".log")]
    assert len(files) == segments, "the event loop touched no file"
    world.run()
    assert len([name for name in world.names(log.directory) if name.endswith(".log")]) == len(log.segments)
    assert [name for name in world.names(log.directory) if name.endswith(".log.deleted")]
    world.tick(1000)
    assert not [name for name in world.names(log.directory) if name.endswith(".deleted")]


def test_a_request_over_many_partitions_and_two_directories_is_one_sync_in_each() -> None:
    world = World(ONE, TWO)
    logs = world.create(*(TopicPartition("a", partition) for partition in range(200)))
    for log in logs:
        append(log)
    world.delete_to(*((log.topic_partition, 3) for log in logs))
    world.committers[ONE].step()
    assert world.answers == []
    world.committers[TWO].step()
    assert world.answers == ["trimmed"]
    assert [committer.syncs for committer in world.committers.values()] == [1, 1]
    assert all(log.log_start_offset == 3 for log in logs)


def test_the_cost_of_a_delete_does_not_grow_with_the_segments() -> None:
    costs = set()
    for batches in (2, 40, 300):
        world = World()
        (log,) = world.create(A0)
        append(log, batches)
        before = world.filesystem.operation_count
        world.delete_to((A0, log.log_end_offset))
        world.committers[ONE].step()
        assert world.answers == ["trimmed"]
        costs.add(world.filesystem.operation_count - before)
    assert costs == {2}, "one write and one sync"


def test_a_failed_journal_takes_the_directory_offline_and_fails_waiting_deletes() -> None:
    world = World(ONE, TWO)
    here, there = world.create(A0, A1)
    append(here)
    append(there)
    world.filesystem.fail_next("sync", errno.EIO, path_contains=f"{ONE}/{JOURNAL_NAME}")
    world.delete_to((A0, 2), (A1, 3))
    world.run()
    assert world.answers == [("trimmed", errno.EIO)]
    assert world.failed == [(ONE, [A0])]
    assert (here.log_start_offset, there.log_start_offset) == (0, 3), "the other directory's log start rises"
    assert isinstance(BATCH, ValidatedBatch)
    assert here.append_as_leader(BATCH, leader_epoch=0, now_ms=1) == ErrorCode.KAFKA_STORAGE_ERROR
    world.delete_to((A0, 4), name="later")
    world.run()
    assert world.answers[-1] == ("later", errno.EIO)


def test_a_delete_overtaken_by_a_truncation_deletes_nothing_written_since() -> None:
    world = World()
    (log,) = world.create(A0)
    append(log, 4)
    world.delete_to((A0, 20))
    LogTruncation(log).truncate_to(10, now_ms=1)
    append(log, 4)
    world.run()
    assert (log.log_start_offset, log.log_end_offset) == (0, 30)
    world.restart()
    (log,) = world.manager.logs.values()
    assert (log.log_start_offset, log.log_end_offset) == (0, 30), "the journal was corrected too"


def test_of_two_deletes_the_larger_counts_in_any_order() -> None:
    """D12. The journal's last entry wins, so the smaller value must not be written after the larger one."""
    for first, second in ((7, 3), (3, 7), (7, 7)):
        world = World()
        append(world.create(A0)[0], 2)
        world.delete_to((A0, first))
        world.delete_to((A0, second))
        world.run()
        world.delete_to((A0, 1))
        world.run()
        assert world.manager.logs[A0].log_start_offset == 7
        world.restart()
        assert world.manager.logs[A0].log_start_offset == 7
        assert len(world.answers) == 3


def test_a_delete_of_a_log_that_is_deleted_meanwhile_changes_nothing() -> None:
    world = World()
    (log,) = world.create(A0)
    append(log)
    world.delete_to((A0, 2))
    world.manager.delete_logs([A0], partial(world.note, "deleted"))
    world.run()
    assert log.log_start_offset == 0
    assert world.manager._directories[ONE].parts.journal.entries == {}


def test_an_empty_list_of_log_starts_is_answered() -> None:
    world = World()
    world.manager.log_starts.request_log_starts([], partial(world.note, "nothing"))
    assert world.answers == []
    world.run()
    assert world.answers == ["nothing"]


# Due work


def test_checkpoints_are_written_when_due_and_only_after_a_change() -> None:
    world = World()
    (log,) = world.create(A0)
    append(log)
    world.tick(4999)
    assert not world.filesystem.exists(f"{ONE}/{HIGH_WATERMARK_CHECKPOINT}")
    world.tick(1)
    assert decode_offsets(world.filesystem.read_bytes(f"{ONE}/{HIGH_WATERMARK_CHECKPOINT}"), "") == {A0: 5}
    before = world.filesystem.operation_count
    world.tick(5000)
    assert world.filesystem.operation_count == before
    append(log)
    world.tick(5000)
    assert decode_offsets(world.filesystem.read_bytes(f"{ONE}/{HIGH_WATERMARK_CHECKPOINT}"), "") == {A0: 10}


def test_logs_are_flushed_by_time_by_count_and_after_a_roll() -> None:
    world = World()
    by_time, by_count, rolled = world.create(A0, A1, B0)
    by_time.configure(LogConfig(flush_ms=500))
    by_count.configure(LogConfig(flush_messages=10))
    for log in (by_time, by_count):
        append(log)
    append(rolled, 3)
    world.tick(499)
    assert (by_time.recovery_point, by_count.recovery_point) == (0, 0)
    assert rolled.recovery_point == 15, "a segment was closed"
    assert not by_count.flush_is_due
    append(by_count)
    assert by_count.flush_is_due
    world.manager.flush(by_count)
    world.tick(1)
    assert (by_time.recovery_point, by_count.recovery_point) == (5, 10)
    world.filesystem.power_cut()
    world.start()
    assert world.manager.logs[A1].log_end_offset == 10


def test_a_failed_flush_takes_the_directory_offline_and_nothing_is_tried_again() -> None:
    world = World()
    (log,) = world.create(A0)
    log.configure(LogConfig(flush_messages=1))
    append(log)
    world.filesystem.fail_next("sync", errno.EIO)
    world.manager.flush(log)
    world.run()
    assert world.failed == [(ONE, [A0])]
    before = world.filesystem.operation_count
    world.tick(100_000)
    assert world.filesystem.operation_count == before
    assert log.recovery_point == 0


def test_the_export_for_kafka_forgets_deleted_topics() -> None:
    """Kafka reads it by name: with an old topic's log start it would remove a new topic's records."""
    world = World()
    append(world.create(A0)[0])
    world.delete_to((A0, 4))
    world.run()
    world.manager.close()
    world.restart()
    world.manager.delete_logs([A0], partial(world.note, "deleted"))
    world.run()
    world.tick(60_000)
    assert decode_offsets(world.filesystem.read_bytes(f"{ONE}/{LOG_START_CHECKPOINT}"), "") == {}


def test_a_directory_that_kafka_wrote_is_opened() -> None:
    world = World()
    append(world.create(A0)[0], 3)
    world.manager.close()
    world.filesystem.crash_process()
    world.filesystem.unlink(journal_path(ONE))
    world.filesystem.unlink(f"{ONE}/{LOG_BEGIN_CHECKPOINT}")
    world.filesystem.replace_file(f"{ONE}/{LOG_START_CHECKPOINT}", encode_offsets({A0: 7}))
    world.start()
    assert world.manager.logs[A0].log_start_offset == 7
    world.restart(power=True)
    assert world.manager.logs[A0].log_start_offset == 7


def test_what_kafka_wrote_about_a_folder_without_topic_id_is_adopted_when_the_id_is_known() -> None:
    world = World()
    append(world.create(A0)[0], 3)
    world.manager.close()
    world.filesystem.crash_process()
    world.filesystem.unlink(f"{ONE}/a-0/{PARTITION_METADATA}")
    world.filesystem.write_bytes(f"{ONE}/{LOG_START_CHECKPOINT}", encode_offsets({A0: 7}))
    world.start()
    assert world.create(A0)[0].log_start_offset == 7
    append(world.create(B0)[0])
    world.delete_to((B0, 1))
    world.run()
    world.manager.close()
    assert decode_offsets(world.filesystem.read_bytes(f"{ONE}/{LOG_START_CHECKPOINT}"), "") == {A0: 7, B0: 1}
    world.restart()
    assert world.manager.logs[A0].log_start_offset == 7


def test_left_overs_of_a_deletion_are_finished_at_the_next_start() -> None:
    world = World()
    append(world.create(A0)[0])
    world.delete_to((A0, 4))
    world.run()
    world.filesystem.crash_process()
    gone = "a-0.0123456789abcdef0123456789abcdef-delete"
    world.filesystem.rename(f"{ONE}/a-0", f"{ONE}/{gone}")
    world.filesystem.write_bytes(f"{ONE}/{gone}/{PARTITION_METADATA}", encode_partition_metadata(A))
    world.start()
    world.run()
    world.tick()
    assert gone not in world.names(ONE)
    assert world.manager._directories[ONE].parts.journal.entries == {}


# Any order of anything


class ManagerMachine(RuleBasedStateMachine):
    """Deletes, deleted and recreated topics, crashes and stops; acknowledged log starts never fall."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.world = World(seed=seed)
        self.generation = 0
        self.topic_id = self.fresh_id()
        self.acknowledged = 0
        self.log_end = 0
        self.busy = False
        self.manager_log()

    def fresh_id(self) -> bytes:
        self.generation += 1
        return b"topic-%010d" % self.generation

    def manager_log(self) -> Log:
        return self.world.manager.create_log(A0, self.topic_id, CONFIG)

    @rule(batches=st.integers(1, 5))
    def write(self, batches: int) -> None:
        if not self.busy:
            append(self.manager_log(), batches)

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        if not self.busy:
            log = self.manager_log()
            offset = int(share * log.log_end_offset)
            done = partial(self.trimmed, self.topic_id, offset)
            self.world.manager.log_starts.request_log_starts([LogStartIncrement(log, offset)], done)

    def trimmed(self, topic_id: bytes, offset: int, error: OSError | None) -> None:
        assert error is None
        if topic_id == self.topic_id:
            self.acknowledged = max(self.acknowledged, offset)

    @rule()
    def flush(self) -> None:
        if not self.busy:
            self.world.manager._directories[ONE].flush(self.manager_log())

    @rule()
    def replace_topic(self) -> None:
        if not self.busy:
            self.busy = True
            self.world.manager.delete_logs([A0], self.replaced)

    def replaced(self, error: OSError | None) -> None:
        assert error is None
        self.busy = False
        self.topic_id = self.fresh_id()
        self.acknowledged = 0
        log = self.manager_log()
        assert (log.log_start_offset, log.log_end_offset) == (0, 0), (
            "a new topic begins at 0, not where the old one began"
        )

    @rule(committer=st.booleans())
    def one_step(self, committer: bool) -> None:
        waiting = self.world.committers[ONE] if committer else self.world.worker
        if waiting.waiting:
            waiting.step()

    @rule(later_ms=st.sampled_from([0, 1000, 5000, 60_000]))
    def time_goes_on(self, later_ms: int) -> None:
        self.world.clock.now_ms += later_ms
        self.world.work(0)

    @rule()
    def everything(self) -> None:
        self.world.run()
        assert not self.busy

    @rule()
    def stop_cleanly(self) -> None:
        if not self.busy:
            end = self.manager_log().log_end_offset
            self.world.manager.close()
            self.reopen(power=True)
            assert self.manager_log().log_end_offset == end

    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        self.reopen(power=power)

    @rule(steps=st.integers(1, 15), power=st.booleans())
    def crash_within(self, steps: int, power: bool) -> None:
        self.world.filesystem.crash_at = self.world.filesystem.operation_count + steps
        try:
            self.world.run()
        except SimulatedCrashError:
            self.reopen(power=power)
        self.world.filesystem.clear_faults()

    def reopen(self, *, power: bool) -> None:
        self.world.restart(power=power)
        found = self.world.manager.logs.get(A0)
        if self.busy and (found is None or A0 not in self.world.manager.logs):
            # The deletion got as far as renaming, or the folder was never durable: according to the metadata the topic
            # is gone.
            self.world.run()
            self.busy = False
            self.topic_id = self.fresh_id()
            self.acknowledged = 0
        elif self.busy:
            # According to the metadata the topic is deleted; the broker starts the deletion again.
            self.world.manager.delete_logs([A0], self.replaced)
        elif found is not None:
            assert found.topic_id == self.topic_id, "never another topic's folder"
        if not self.busy:
            self.manager_log()

    @invariant()
    def an_acknowledged_delete_stays(self) -> None:
        if hasattr(self, "world") and not self.busy:
            log = self.manager_log()
            assert log.log_start_offset >= self.acknowledged
            log.check_order()


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(max_examples=examples(80), stateful_step_count=30, deadline=None)
