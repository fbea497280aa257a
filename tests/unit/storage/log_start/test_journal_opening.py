"""Opening a journal: adoption and damage; and any order of anything that may happen to it."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lowtide.protocol.types import ZERO_TOPIC_ID, TopicPartition
from lowtide.runtime.filesystem.memory import MemoryFileSystem, SimulatedCrashError
from lowtide.storage.checkpoint import LOG_BEGIN_CHECKPOINT, LOG_START_CHECKPOINT, encode_offsets
from lowtide.storage.errors import StorageError
from lowtide.storage.log_start.journal_format import REMOVED
from lowtide.storage.log_start.journal_loading import journal_path
from tests.examples import examples

from .journals import DIRECTORY, A, B, Fixture


def test_a_directory_that_kafka_wrote_is_adopted_once() -> None:
    filesystem = MemoryFileSystem(Random(1))
    filesystem.make_directories(DIRECTORY)
    kafka = {TopicPartition("a", 0): 50, TopicPartition("b", 1): 5, TopicPartition("elsewhere", 0): 9}
    filesystem.replace_file(f"{DIRECTORY}/{LOG_START_CHECKPOINT}", encode_offsets(kafka))
    fixture = Fixture(filesystem)
    assert fixture.journal.entries == {(A, 0): 50, (B, 1): 5}
    fixture.accept((A, 0, 20))
    fixture.committer.run()
    filesystem.power_cut()
    assert fixture.reopened().journal.entries == {(A, 0): 20, (B, 1): 5}, (
        "the old file does not win over a later truncation"
    )


def test_after_kafka_used_the_directory_the_larger_value_wins() -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 50), (A, 1, 50), (B, 0, 50))
    fixture.stop()
    fixture.filesystem.crash_process()
    kafka = {TopicPartition("a", 0): 70, TopicPartition("a", 1): 30, TopicPartition("b", 2): 1}
    fixture.filesystem.replace_file(f"{DIRECTORY}/{LOG_START_CHECKPOINT}", encode_offsets(kafka))
    expected = {(A, 0): 70, (A, 1): 50, (B, 0): 50, (B, 2): 1}
    assert fixture.reopened().journal.entries == expected
    fixture.filesystem.power_cut()
    assert fixture.reopened().journal.entries == expected


def test_kafka_s_values_wait_for_a_folder_without_a_known_topic_id() -> None:
    filesystem = MemoryFileSystem(Random(1))
    filesystem.make_directories(DIRECTORY)
    filesystem.replace_file(f"{DIRECTORY}/{LOG_START_CHECKPOINT}", encode_offsets({TopicPartition("a", 0): 50}))
    assert Fixture(filesystem, folders={TopicPartition("a", 0): ZERO_TOPIC_ID}).journal.entries == {}
    filesystem.crash_process()
    assert Fixture(filesystem).journal.entries == {(A, 0): 50}


@pytest.mark.parametrize("name", [LOG_BEGIN_CHECKPOINT, LOG_START_CHECKPOINT])
@pytest.mark.parametrize(
    "content", [b"", b"0\n", b"0\n2\na 0 1\n", b"1\n0\n", b"0\n1\na 0 x\n", b"\xff\n0\n", b"0\n1\na 0 -1\n"]
)
def test_an_offset_checkpoint_that_cannot_be_read_is_never_taken_for_no_deletes(name: str, content: bytes) -> None:
    fixture = Fixture()
    fixture.accept((A, 0, 5))
    fixture.stop()
    fixture.filesystem.crash_process()
    fixture.filesystem.replace_file(f"{DIRECTORY}/{name}", content)
    with pytest.raises(StorageError, match=f"{DIRECTORY}/{name}.*lowtide repair-log-start --log-dir {DIRECTORY}"):
        fixture.reopened()


@pytest.mark.parametrize("missing_sector", range(3))
def test_what_a_torn_frame_left_is_wiped_before_a_shorter_one_is_written_there(missing_sector: int) -> None:
    """Otherwise its later sectors follow the shorter frame and are taken for damage or for a frame."""
    fixture = Fixture()
    fixture.accept((A, 0, 5))
    fixture.committer.run()
    fixture.accept(*((B, partition, 7) for partition in range(60)))
    fixture.filesystem.crash_process()
    start, end = max(564, 512 * (missing_sector + 1)), 512 * (missing_sector + 2)
    fixture.filesystem.open(journal_path(DIRECTORY), write=True).pwritev([bytes(end - start)], start)
    again = fixture.reopened()
    assert again.journal.entries == {(A, 0): 5}
    again.accept((A, 1, 6))
    again.committer.run()
    again.filesystem.power_cut()
    assert again.reopened().journal.entries == {(A, 0): 5, (A, 1): 6}


def test_a_damaged_journal_is_named_with_the_command_that_repairs_it() -> None:
    fixture = Fixture()
    for offset in (1, 2, 3):
        fixture.accept((A, 0, offset))
        fixture.committer.run()
    fixture.filesystem.crash_process()
    file = fixture.filesystem.open(journal_path(DIRECTORY), write=True)
    file.pwritev([b"\x55"], 512 + 30)
    with pytest.raises(
        StorageError, match=f"{journal_path(DIRECTORY)}.*damaged.*lowtide repair-log-start --log-dir {DIRECTORY}"
    ):
        fixture.reopened()


def test_a_journal_that_is_missing_is_damage_where_there_was_one() -> None:
    fixture = Fixture()
    fixture.filesystem.crash_process()
    fixture.filesystem.unlink(journal_path(DIRECTORY))
    with pytest.raises(StorageError, match=r"is missing though this directory had one.*lowtide repair-log-start"):
        Fixture(fixture.filesystem, expected=True)
    again = fixture.reopened()
    again.journal.fold(partial(again.note, "folded"))
    again.committer.run()
    fixture.filesystem.crash_process()
    fixture.filesystem.unlink(journal_path(DIRECTORY))
    with pytest.raises(StorageError, match="is missing"):
        fixture.reopened()


def test_a_crash_at_any_step_of_opening_a_new_directory_leaves_it_to_be_opened() -> None:
    for step in range(1, 8):
        filesystem = MemoryFileSystem(Random(step))
        filesystem.make_directories(DIRECTORY)
        filesystem.crash_at = filesystem.operation_count + step
        try:
            Fixture(filesystem)
        except SimulatedCrashError:
            filesystem.power_cut()
        else:
            filesystem.crash_process()
        assert Fixture(filesystem).journal.entries == {}


# Any order of anything


KEYS = st.sampled_from([(A, 0), (A, 1), (B, 0)])
ENTRIES = st.lists(st.tuples(KEYS, st.one_of(st.just(REMOVED), st.integers(0, 1000))), min_size=1, max_size=40)


class JournalMachine(RuleBasedStateMachine):
    """The journal against the list of what was accepted.

    After a crash it must have the values after a prefix of that list, and the prefix
    must include everything that was acknowledged.
    """

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.filesystem = MemoryFileSystem(Random(seed))
        self.base: dict[tuple[bytes, int], int] = {}
        self.accepted: list[list[tuple[bytes, int, int]]] = []
        self.acknowledged = 0
        self.folds_under_way = False
        self.fixture = Fixture(self.filesystem)

    def after(self, count: int) -> dict[tuple[bytes, int], int]:
        state = dict(self.base)
        for entries in self.accepted[:count]:
            for topic_id, partition, offset in entries:
                if offset == REMOVED:
                    state.pop((topic_id, partition), None)
                else:
                    state[topic_id, partition] = offset
        return state

    def acknowledge(self, number: int, error: OSError | None) -> None:
        assert error is None
        assert number == self.acknowledged, "answers come in order, each once"
        self.acknowledged = number + 1

    @rule(entries=ENTRIES)
    def accept(self, entries: list[tuple[tuple[bytes, int], int]]) -> None:
        self.accepted.append([(topic_id, partition, offset) for (topic_id, partition), offset in entries])
        self.fixture.journal.request_log_starts(self.accepted[-1], partial(self.acknowledge, len(self.accepted) - 1))

    @rule()
    def fold(self) -> None:
        self.fixture.journal.fold(lambda _error: None)

    @precondition(lambda self: self.fixture.committer.waiting)
    @rule()
    def commit(self) -> None:
        self.fixture.committer.step()

    @rule()
    def commit_everything(self) -> None:
        self.fixture.committer.run()
        assert self.acknowledged == len(self.accepted)

    @precondition(lambda self: self.fixture.committer.waiting)
    @rule()
    def crash_between_disk_and_answer(self) -> None:
        """Durable, but the result was not reported."""
        self.fixture.committer.carry_out()
        self.reopen()

    @rule()
    def crash_process(self) -> None:
        self.filesystem.crash_process()
        self.reopen()

    @rule()
    def power_cut(self) -> None:
        self.filesystem.power_cut()
        self.reopen()

    @rule(steps=st.integers(1, 12), power=st.booleans())
    def crash_within(self, steps: int, power: bool) -> None:
        self.filesystem.crash_at = self.filesystem.operation_count + steps
        try:
            self.fixture.committer.run()
        except SimulatedCrashError:
            if power:
                self.filesystem.power_cut()
            else:
                self.filesystem.crash_process()
            self.reopen()
        else:
            self.filesystem.clear_faults()

    @rule(power=st.booleans(), steps=st.integers(1, 8))
    def crash_while_opening(self, power: bool, steps: int) -> None:
        self.filesystem.crash_process()
        self.filesystem.crash_at = self.filesystem.operation_count + steps
        try:
            Fixture(self.filesystem)
        except SimulatedCrashError:
            pass
        if power:
            self.filesystem.power_cut()
        else:
            self.filesystem.crash_process()
        self.reopen()

    @rule()
    def stop(self) -> None:
        self.fixture.stop()
        assert self.acknowledged == len(self.accepted)
        self.reopen()

    def reopen(self) -> None:
        self.filesystem.crash_process()
        self.fixture = Fixture(self.filesystem)
        found = dict(self.fixture.journal.entries)
        possible = [self.after(count) for count in range(self.acknowledged, len(self.accepted) + 1)]
        for key in set(found).union(*possible):
            assert found.get(key) in {state.get(key) for state in possible}, (key, found.get(key))
        self.base, self.accepted, self.acknowledged = found, [], 0

    @invariant()
    def what_is_visible_is_what_was_acknowledged(self) -> None:
        if hasattr(self, "fixture"):
            assert dict(self.fixture.journal.entries) == self.after(self.acknowledged)


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
