"""Offsets in transactions: which producers may commit them, when they are returned, and which of them win."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.groups import pending_offsets
from lowtide.broker.coordinator.groups.consumed import ConsumedEnd, ConsumedOffsets, Release
from lowtide.broker.coordinator.runtime.in_transaction import EndMarker, InTransaction
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import OffsetCommit, OffsetCommitKey, OffsetCommitValue
from lowtide.protocol.messages.describe_consumed_offsets import ConsumedOffsetsTopic
from lowtide.protocol.messages.offset_delete import OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from lowtide.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.examples import examples
from tests.unit.broker.coordinator.consumer_world import ConsumerWorld
from tests.unit.broker.coordinator.group_world import GROUP, World

from .test_committed_offsets import RETENTION_MS, SUBSCRIBED_TO_T, TOPIC_ID, commit, committed, delete

PRODUCER = 7


@pytest.fixture
def world() -> World:
    settings = GroupSettings(
        initial_rebalance_delay_ms=0, offsets_retention_ms=RETENTION_MS, retention_check_interval_ms=1_000
    )
    return World(settings)


def commit_in_transaction(
    world: World, offset: int, *, producer_id: int = PRODUCER, topic: str = "t", metadata: str = "", **more: object
) -> int:
    """Commit one offset; the error code of the request, or of its partition."""
    row = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=metadata)
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id=GROUP,
        producer_id=producer_id,
        producer_epoch=0,
        topics=[TxnOffsetCommitRequestTopic(name=topic, topic_id=TOPIC_ID, partitions=[row])],
        **more,
    )
    effects = world.effects()
    error = world.groups.check_transactional_commit(request, effects.now_ms)
    if error == ErrorCode.NONE:
        [answer] = world.groups.committed.commit_in_transaction(request, request.topics, effects)
        error = ErrorCode(answer.partitions[0].error_code)
    world.carry_out(effects)
    return error


def is_stable(world: World, topic: str = "t") -> bool:
    return not world.groups.committed.pending.has(GROUP, topic, 0)


@pytest.mark.parametrize(("is_commit", "told"), [(True, 9), (False, 5)])
def test_what_is_pending_counts_when_its_transaction_is_committed_and_never_otherwise(
    world: World, is_commit: bool, told: int
):
    commit(world, 5)
    commit_in_transaction(world, 8)
    assert commit_in_transaction(world, 9) == ErrorCode.NONE
    for each in (world, world.reload()):
        assert (committed(each), is_stable(each)) == (5, False)
    world.end_transaction(PRODUCER + 1, is_commit=True)
    assert (committed(world), is_stable(world)) == (5, False)
    world.end_transaction(PRODUCER, is_commit=is_commit)
    for each in (world, world.reload()):
        assert (committed(each), is_stable(each)) == (told, True)
    world.end_transaction(PRODUCER, is_commit=True)
    assert committed(world) == told


def test_a_commit_made_after_one_in_a_transaction_stays_when_that_is_committed(world: World):
    commit_in_transaction(world, 9)
    commit(world, 5)
    assert (committed(world), is_stable(world)) == (5, False)
    world.end_transaction(PRODUCER, is_commit=True)
    assert (committed(world), is_stable(world)) == (5, True)


def test_of_two_transactions_the_one_that_wrote_last_counts(world: World):
    commit_in_transaction(world, 5, producer_id=1)
    commit_in_transaction(world, 6, producer_id=2)
    world.end_transaction(2, is_commit=True)
    assert (committed(world), is_stable(world)) == (6, False)
    world.end_transaction(1, is_commit=True)
    assert (committed(world), is_stable(world)) == (6, True)
    commit_in_transaction(world, 7, producer_id=1)
    commit_in_transaction(world, 8, producer_id=2)
    world.end_transaction(2, is_commit=False)
    world.end_transaction(1, is_commit=True)
    assert committed(world) == 7


def test_members_are_checked_by_their_generation_and_others_are_accepted(world: World):
    assert (
        commit_in_transaction(world, 5, member_id="m", generation_id_or_member_epoch=1) == ErrorCode.ILLEGAL_GENERATION
    )
    [member], generation_id = world.stable(instance_id="i")
    more = {"member_id": member, "group_instance_id": "i"}
    assert commit_in_transaction(world, 5, **more, generation_id_or_member_epoch=generation_id) == ErrorCode.NONE
    assert (
        commit_in_transaction(world, 5, **more, generation_id_or_member_epoch=generation_id + 1)
        == ErrorCode.ILLEGAL_GENERATION
    )
    stranger = {"member_id": "stranger", "generation_id_or_member_epoch": generation_id}
    assert commit_in_transaction(world, 5, **stranger) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_in_transaction(world, 5, **stranger, group_instance_id="i") == ErrorCode.FENCED_INSTANCE_ID
    assert commit_in_transaction(world, 5) == ErrorCode.NONE
    generation_id = world.join(member, instance_id="i", protocols=(("range", b"other"),)).response.generation_id
    assert commit_in_transaction(world, 5, **more, generation_id_or_member_epoch=generation_id) == ErrorCode.NONE


def test_metadata_has_a_limit(world: World):
    assert commit_in_transaction(world, 5, metadata="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert is_stable(world)


def test_a_transaction_has_a_limit_of_offsets(world: World, monkeypatch: pytest.MonkeyPatch):
    """They become committed in one turn of the loop: a million of them would block it for a second."""
    monkeypatch.setattr(pending_offsets, "PENDING_OFFSETS_MAX", 3)
    assert [commit_in_transaction(world, 1, topic=f"t{number}") for number in range(4)] == [ErrorCode.NONE] * 3 + [
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    ]
    assert commit_in_transaction(world, 1, producer_id=PRODUCER + 1) == ErrorCode.NONE
    world.end_transaction(PRODUCER, is_commit=True)
    assert commit_in_transaction(world, 2, topic="t3") == ErrorCode.NONE


def test_nothing_expires_while_a_transaction_is_open(world: World):
    commit(world, 5)
    commit(world, 5, topic="u")
    commit_in_transaction(world, 9)
    world.pass_time(2 * RETENTION_MS)
    assert (committed(world), committed(world, "u")) == (5, None)
    world.end_transaction(PRODUCER, is_commit=False)
    world.pass_time(2_000)
    assert (committed(world), world.groups.by_id) == (None, {})


def test_a_group_with_only_pending_offsets_is_kept(world: World):
    commit_in_transaction(world, 9)
    world.pass_time(2 * RETENTION_MS)
    assert list(world.groups.by_id) == [GROUP]
    world.end_transaction(PRODUCER, is_commit=True)
    assert committed(world) == 9


def test_what_is_deleted_does_not_return_with_its_transaction(world: World):
    commit(world, 5)
    for topic in ("t", "u"):
        commit_in_transaction(world, 9, topic=topic)
    assert delete(world, "t", "u") == {"t": 0, "u": 0}
    world.end_transaction(PRODUCER, is_commit=True)
    for each in (world, world.reload()):
        assert (committed(each), committed(each, "u"), is_stable(each)) == (None, None, True)


def test_pending_offsets_of_topics_that_are_consumed_stay(world: World):
    world.stable(protocols=(("range", SUBSCRIBED_TO_T),))
    commit_in_transaction(world, 9)
    assert delete(world, "t") == {"t": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    world.end_transaction(PRODUCER, is_commit=True)
    assert committed(world) == 9


def test_a_group_is_deleted_with_what_is_pending(world: World):
    commit_in_transaction(world, 9)
    commit_in_transaction(world, 9, topic="u", producer_id=8)
    effects = world.effects()
    assert world.groups.delete_group(GROUP, effects) == ErrorCode.NONE
    world.carry_out(effects)
    for producer_id in (PRODUCER, 8):
        world.end_transaction(producer_id, is_commit=True)
    for each in (world, world.reload()):
        assert (committed(each), committed(each, "u"), each.groups.by_id) == (None, None, {})


@pytest.mark.parametrize(("topic_id", "told"), [(TOPIC_ID, None), (bytes([8]) * 16, 9)])
def test_a_topic_is_deleted_with_its_pending_offsets_but_not_for_a_newer_one(
    world: World, topic_id: bytes, told: int | None
):
    commit_in_transaction(world, 9)
    effects = world.effects()
    world.groups.committed.delete_topics(GROUP, [("t", topic_id)], effects)
    world.carry_out(effects)
    world.end_transaction(PRODUCER, is_commit=True)
    assert committed(world) == told


def test_what_is_pending_is_not_consumed(world: World):
    commit(world, 5)
    commit_in_transaction(world, 9)
    found = ConsumedOffsets([ConsumedOffsetsTopic(name="t", topic_id=TOPIC_ID, partitions=[0])])
    for _ in found.take_in(world.groups, GROUP):
        pass
    assert found.found["t"][0] == ConsumedEnd(5, GROUP, Release(5, GROUP, None))


def test_the_offsets_of_a_group_wait_for_the_marker_of_its_transaction(world: World):
    commit_in_transaction(world, 9)
    assert world.groups.read_barrier(GROUP) == 0
    world.end_transaction(PRODUCER, is_commit=False)
    assert world.groups.read_barrier(GROUP) == 1


TOPICS = ("t", "u")
PRODUCERS = (1, 2, 3)


class Offsets(RuleBasedStateMachine):
    """Commits with and without transactions, ends, deletions, compactions and loads, against a model."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.history: list[tuple[int, InTransaction | EndMarker | OffsetCommit]] = []

    def append(self, change: InTransaction | EndMarker | OffsetCommit) -> None:
        self.history.append((self.world.end_offset, change))
        self.world.append(change)

    @rule(topic=st.sampled_from(TOPICS), value=st.integers(0, 99), producer_id=st.sampled_from((None, *PRODUCERS)))
    def commits(self, topic: str, value: int, producer_id: int | None) -> None:
        key = OffsetCommitKey(group=GROUP, topic=topic, partition=0)
        change = OffsetCommit(key, OffsetCommitValue(offset=value, metadata="", commit_timestamp=0))
        self.append(change if producer_id is None else InTransaction(producer_id, change))

    @rule(producer_id=st.sampled_from(PRODUCERS), is_commit=st.booleans())
    def ends(self, producer_id: int, is_commit: bool) -> None:
        self.append(EndMarker(producer_id, is_commit))

    @rule(topic=st.sampled_from(TOPICS))
    def deletes(self, topic: str) -> None:
        rows = [OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])]
        group = self.world.groups.find_for_offset_delete(GROUP)
        if not isinstance(group, ErrorCode):
            effects = self.world.effects()
            self.world.groups.committed.delete(group, rows, effects)
            for change in effects.changes:
                self.append(change)

    @rule()
    def another_coordinates(self) -> None:
        self.world = self.world.reload()

    @rule()
    def is_compacted(self) -> None:
        """Below the first open transaction, each key's last committed record stays; aborted records are removed."""
        entries, end = self.world.log, self.last_stable_offset()
        ends = [(offset, change) for offset, change in entries if isinstance(change, EndMarker)]
        last: dict[str, int] = {}
        counts: dict[int, bool] = {}
        for offset, change in entries:
            if isinstance(change, EndMarker) or offset >= end:
                continue
            is_committed = True
            if isinstance(change, InTransaction):
                is_committed = next(
                    each.is_commit for at, each in ends if at > offset and each.producer_id == change.producer_id
                )
            counts[offset] = is_committed
            record = change.change if isinstance(change, InTransaction) else change
            if is_committed:
                last[record.key.topic] = offset
        kept = set(last.values())
        self.world.log = [(offset, change) for offset, change in entries if offset not in counts or offset in kept]
        self.world = self.world.reload()

    def last_stable_offset(self) -> int:
        opened: dict[int, int] = {}
        for offset, change in self.world.log:
            if isinstance(change, InTransaction):
                opened.setdefault(change.producer_id, offset)
            elif isinstance(change, EndMarker):
                opened.pop(change.producer_id, None)
        return min(opened.values(), default=self.world.end_offset)

    def expected(self, topic: str) -> tuple[int | None, bool]:
        """The committed offset and whether it is stable: the last record of a committed transaction, unless deleted."""
        found: int | None = None
        unstable: set[int] = set()
        for index, (_, change) in enumerate(self.history):
            if isinstance(change, EndMarker):
                unstable.discard(change.producer_id)
                continue
            record = change.change if isinstance(change, InTransaction) else change
            if record.key.topic != topic:
                continue
            if not isinstance(change, InTransaction):
                found = None if record.value is None else record.value.offset
                if record.value is None:
                    unstable.clear()
                continue
            producer_id = change.producer_id
            rest = self.history[index:]
            ended = next(
                (end for _, end in rest if isinstance(end, EndMarker) and end.producer_id == producer_id), None
            )
            if ended is None:
                unstable.add(producer_id)
            elif ended.is_commit:
                found = record.value.offset
        return found, not unstable

    @invariant()
    def tells_what_counts(self) -> None:
        for topic in TOPICS:
            assert (committed(self.world, topic), is_stable(self.world, topic)) == self.expected(topic)


TestOffsets = Offsets.TestCase
TestOffsets.settings = settings(max_examples=examples(200), stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        ("a", 2, ErrorCode.NONE),
        ("", -1, ErrorCode.NONE),
        ("a", 1, ErrorCode.ILLEGAL_GENERATION),
        ("a", 3, ErrorCode.ILLEGAL_GENERATION),
        ("a", -1, ErrorCode.ILLEGAL_GENERATION),
        ("b", 2, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_producer_gets_the_same_error_for_a_wrong_epoch_as_for_a_wrong_generation(
    member_id: str, epoch: int, error: ErrorCode
):
    """Producers know this code and abort; the code of the new protocol would be fatal for them."""
    consumers = ConsumerWorld()
    consumers.enter("a")
    assert commit_in_transaction(consumers, 5, member_id=member_id, generation_id_or_member_epoch=epoch) == error
