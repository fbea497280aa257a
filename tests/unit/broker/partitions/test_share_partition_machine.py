"""A share partition against a naive model: a record is delivered to one member at a time until it is acknowledged.

The share coordinator is a dictionary. Its writes succeed or fail, late, and the leader may change at any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lowtide.broker.partitions.share.share_partition import NOTHING_TO_WRITE, SharePartition
from lowtide.broker.partitions.share.share_runs import FINAL, RecordState
from lowtide.broker.partitions.share.share_values import (
    AcknowledgedRange,
    AcknowledgeType,
    AcquiredRange,
    AcquireLimits,
    FetchedBatch,
    ShareLimits,
    StateBatch,
    StateWrite,
    StoredState,
)
from lowtide.protocol.errors import ErrorCode
from tests.examples import examples

LIMIT = 4
ISOLATED = 2
"""Deliveries after which a record is delivered apart from others."""
LOCK_MS = 100
IN_FLIGHT = 12
MEMBERS = ("a", "b", "c")
BECOMES = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
}


@dataclass
class Record:
    """What the model has of one offset."""

    state: RecordState = RecordState.AVAILABLE
    count: int = 0
    member: str = ""
    deadline_ms: int = 0
    becomes: RecordState | None = None
    write: int = 0


@dataclass
class Stored:
    """The share coordinator's state."""

    start: int = -1
    records: dict[int, tuple[RecordState, int]] = field(default_factory=dict)

    def store(self, write: StateWrite) -> None:
        assert write.start_offset >= self.start, "the stored start falls"
        self.start = write.start_offset
        for batch in write.batches:
            assert batch.state is not RecordState.ACQUIRED
            for offset in range(batch.first_offset, batch.last_offset + 1):
                self.records[offset] = batch.state, batch.delivery_count
        for offset in [offset for offset in self.records if offset < self.start]:
            del self.records[offset]

    def read(self) -> StoredState:
        rows = tuple(StateBatch(offset, offset, *self.records[offset]) for offset in sorted(self.records))
        return StoredState(state_epoch=1, start_offset=self.start, batches=rows)


class SharePartitions(RuleBasedStateMachine):
    """Members come and go at a share partition whose log grows, is compacted and loses its beginning."""

    @initialize(has_letters=st.booleans())
    def begin(self, has_letters: bool) -> None:
        self.given_up = RecordState.ARCHIVING if has_letters else RecordState.ARCHIVED
        """The state of a record that is given up."""
        self.letters: set[int] = set()
        self.decided: set[int] = set()
        """Offsets that are stored as given up, with dead letters."""
        self.now_ms = 0
        self.log: list[FetchedBatch] = []
        self.log_start = self.log_end = 0
        self.stored = Stored()
        self.lead()

    def lead(self) -> None:
        """A new leader reads what is stored."""
        limits = ShareLimits(
            delivery_count_limit=LIMIT,
            lock_duration_ms=LOCK_MS,
            record_locks_max=IN_FLIGHT,
            has_dead_letters=self.given_up is RecordState.ARCHIVING,
        )
        self.partition = SharePartition(self.stored.read(), self.log_start, limits)
        self.start = self.partition.start_offset
        assert self.start >= max(self.stored.start, self.log_start)
        self.write: StateWrite | None = None
        self.records = {offset: Record(state, count) for offset, (state, count) in self.stored.records.items()}

    def record(self, offset: int) -> Record:
        return self.records.setdefault(offset, Record())

    def visible(self, offset: int) -> bool:
        """Whether there is a record to deliver."""
        return any(batch.base_offset <= offset <= batch.last_offset and not batch.is_hidden for batch in self.log)

    # ------------------------------------------------------------------ the log
    @rule(count=st.integers(1, 6), is_hidden=st.booleans(), gap=st.sampled_from((0, 0, 1, 4)))
    def append(self, count: int, is_hidden: bool, gap: int) -> None:
        base = self.log_end + gap
        self.log_end = base + count
        self.log.append(FetchedBatch(base, self.log_end - 1, is_hidden and count < 3))

    @precondition(lambda self: self.log)
    @rule(number=st.integers(0, 20))
    def compact(self, number: int) -> None:
        del self.log[number % len(self.log)]

    @rule(offset=st.integers(0, 30))
    def delete_records(self, offset: int) -> None:
        self.log_start = max(self.log_start, min(self.log_start + offset, self.log_end))
        self.log = [batch for batch in self.log if batch.last_offset >= self.log_start]
        self.partition.move_start(self.log_start)
        assert self.partition.start_offset >= self.log_start

    # ------------------------------------------------------------------ members
    @rule(
        member=st.sampled_from(MEMBERS),
        most=st.integers(1, 8),
        size=st.integers(1, 8),
        is_strict=st.booleans(),
        is_joined=st.booleans(),
        depth=st.integers(1, 4),
    )
    def fetch(self, member: str, most: int, size: int, is_strict: bool, is_joined: bool, depth: int) -> None:
        self.take(member, AcquireLimits(most, size, is_strict, is_joined), depth)

    def take(self, member: str, wanted: AcquireLimits, depth: int) -> list[AcquiredRange]:
        offset = self.partition.next_fetch_offset
        read = [batch for batch in self.log if batch.last_offset >= offset][:depth]
        may, start, end = self.partition.may_acquire, self.partition.start_offset, self.partition.end_offset
        taken = self.partition.acquire(member, offset, read, wanted, self.now_ms)
        self.check_isolation(taken, wanted)
        last = offset - 1
        for each in taken:
            assert last < each.first_offset <= each.last_offset
            last = each.last_offset
            for number in range(each.first_offset, each.last_offset + 1):
                record = self.record(number)
                assert self.visible(number)
                assert number >= self.log_start
                assert record.state is RecordState.AVAILABLE
                assert record.becomes is None
                assert record.count < LIMIT
                assert each.delivery_count == record.count + 1
                self.records[number] = Record(RecordState.ACQUIRED, each.delivery_count, member, self.now_ms + LOCK_MS)
        count = sum(each.last_offset - each.first_offset + 1 for each in taken)
        if wanted.is_strict:
            assert count <= wanted.records_max
        is_apart = wanted.is_joined and self.record(offset).count >= ISOLATED
        if may and read and read[0].base_offset <= offset and not read[0].is_hidden and not is_apart:
            assert count > 0, "a record that is available is not delivered"
        if self.partition.end_offset > end:
            assert end - start < IN_FLIGHT
        for run in self.partition._runs:
            for number in range(run.first_offset, run.last_offset + 1):
                if run.state is RecordState.ARCHIVED and self.record(number).state is RecordState.AVAILABLE:
                    assert not self.visible(number), "a record is archived that could be delivered"
                    self.records[number] = Record(RecordState.ARCHIVED, self.record(number).count)
        for number in range(end, self.partition.start_offset):
            assert not self.visible(number) or number < self.log_start
        return taken

    def check_isolation(self, taken: list[AcquiredRange], wanted: AcquireLimits) -> None:
        """Records that failed often are delivered in a row, and for the last time alone."""
        offsets = [number for each in taken for number in range(each.first_offset, each.last_offset + 1)]
        counts = [self.record(number).count for number in offsets]
        if max(counts, default=0) >= ISOLATED:
            assert not wanted.is_joined
            assert len(set(counts)) == 1
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
            assert len(offsets) <= max(wanted.records_max // 2, 1)
        if LIMIT - 1 in counts:
            assert len(offsets) == 1

    @rule(
        member=st.sampled_from(MEMBERS),
        first=st.integers(0, 12),
        kinds=st.lists(st.sampled_from(AcknowledgeType), min_size=1, max_size=6),
    )
    def acknowledge(self, member: str, first: int, kinds: list[AcknowledgeType]) -> None:
        first += self.partition.start_offset
        types = tuple(int(kind) for kind in kinds)
        answer = self.partition.acknowledge(
            member, [AcknowledgedRange(first, first + len(types) - 1, types)], self.now_ms
        )
        has = [self.record(first + index) for index in range(len(types))]
        if first + len(types) > self.partition.end_offset:
            assert answer is ErrorCode.INVALID_REQUEST
            return
        if not all(
            record.state is RecordState.ACQUIRED and record.member == member and record.becomes is None
            for record in has
        ):
            assert answer is ErrorCode.INVALID_RECORD_STATE
            return
        assert type(answer) is int
        assert (answer == NOTHING_TO_WRITE) == all(kind is AcknowledgeType.RENEW for kind in kinds)
        self.note(has, kinds, answer)

    def note(self, has: list[Record], kinds: list[AcknowledgeType], number: int) -> None:
        for record, kind in zip(has, kinds, strict=True):
            if kind is AcknowledgeType.RENEW:
                record.deadline_ms = self.now_ms + LOCK_MS
            else:
                spent = kind is AcknowledgeType.RELEASE and record.count >= LIMIT
                is_given_up = spent or kind is AcknowledgeType.REJECT
                record.becomes, record.write = self.given_up if is_given_up else BECOMES[kind], number

    @rule(member=st.sampled_from(MEMBERS))
    def leave(self, member: str) -> None:
        released = self.partition.release(member)
        mine = [record for record in self.acquired() if record.member == member]
        assert released == len(mine)
        for record in mine:
            record.state, record.member = self.given_up if record.count >= LIMIT else RecordState.AVAILABLE, ""

    @rule(time_ms=st.integers(1, LOCK_MS))
    def pass_time(self, time_ms: int) -> None:
        self.now_ms += time_ms
        deadline = self.partition.next_deadline_ms
        late = [record for record in self.acquired() if record.deadline_ms <= self.now_ms]
        assert (deadline is not None and deadline <= self.now_ms) == bool(late)
        assert self.partition.expire(self.now_ms) == len(late)
        for record in late:
            record.state, record.member = self.given_up if record.count >= LIMIT else RecordState.AVAILABLE, ""

    def acquired(self) -> list[Record]:
        at_least = self.partition.start_offset
        own = [record for offset, record in self.records.items() if offset >= at_least]
        return [record for record in own if record.state is RecordState.ACQUIRED and record.becomes is None]

    # ------------------------------------------------------------------ dead letters
    @rule(most=st.integers(1, 4))
    def write_letters(self, most: int) -> None:
        """Dead letters are written only for what is stored as given up, each once in a leadership."""
        ranges = self.partition.given_up(most)
        if ranges:
            last = min(ranges[-1].last_offset, ranges[0].first_offset + most - 1)
            for each in ranges:
                for offset in range(each.first_offset, min(each.last_offset, last) + 1):
                    record = self.record(offset)
                    assert record.state is RecordState.ARCHIVING
                    assert self.stored.records[offset] == (RecordState.ARCHIVING, each.delivery_count)
                    assert each.is_rejected or each.delivery_count >= LIMIT
                    record.state = RecordState.ARCHIVED
                    self.letters.add(offset)
                self.partition.archive(each.first_offset, min(each.last_offset, last))

    # ------------------------------------------------------------------ the share coordinator
    @rule()
    def begin_write(self) -> None:
        write = self.partition.take_write()
        assert write is None or self.write is None, "two writes are under way"
        if write is not None:
            assert write.start_offset >= self.partition.start_offset
            self.write = write

    @precondition(lambda self: self.write is not None)
    @rule(is_stored=st.booleans())
    def end_write(self, is_stored: bool) -> None:
        write, self.write = self.write, None
        assert write is not None
        if is_stored:
            self.stored.store(write)
            rows = self.stored.records.items()
            self.decided |= {offset for offset, (state, _) in rows if state is RecordState.ARCHIVING}
        self.partition.complete_write(is_stored=is_stored)
        for record in self.records.values():
            if record.write == write.number and record.becomes is not None:
                if is_stored:
                    record.state, record.member = record.becomes, ""
                record.becomes, record.write = None, 0

    @rule()
    def write_all(self) -> None:
        """What is stored equals the state, once all is written."""
        if self.write is not None:
            self.end_write(is_stored=True)
        while (write := self.partition.take_write()) is not None:
            self.write = write
            self.end_write(is_stored=True)
        start = self.partition.start_offset
        assert self.stored.start <= start
        for offset in range(start, self.partition.end_offset):
            record = self.record(offset)
            has = record.state, record.count
            if record.state is RecordState.ACQUIRED:
                has = RecordState.AVAILABLE, record.count - 1
            if record.state is not RecordState.ARCHIVED or self.visible(offset):
                assert self.stored.records.get(offset, (RecordState.AVAILABLE, 0)) == has
        for offset in range(max(self.stored.start, self.log_start, 0), start):
            assert offset in self.stored.records or not self.visible(offset)

    @rule()
    def change_leader(self) -> None:
        self.lead()

    # ------------------------------------------------------------------ what always holds
    @invariant()
    def equals_the_model(self) -> None:
        partition = self.partition
        assert partition.start_offset >= self.start, "the start falls"
        self.start = partition.start_offset
        offset = partition.start_offset
        for run in partition._runs:
            assert run.first_offset == offset <= run.last_offset
            offset = run.last_offset + 1
            for number in range(run.first_offset, offset):
                record = self.record(number)
                assert (run.state, run.delivery_count, run.member_id) == (record.state, record.count, record.member), (
                    number
                )
                assert run.next_state is record.becomes
        assert offset == partition.end_offset
        first = next(iter(partition._runs), None)
        assert first is None or first.state not in FINAL
        for number, record in self.records.items():
            if number < partition.start_offset and number >= self.log_start and self.visible(number):
                assert record.state in FINAL, f"the start has passed {number}"
        next_offset = partition.next_fetch_offset
        for number in range(partition.start_offset, next_offset):
            record = self.record(number)
            assert record.state is not RecordState.AVAILABLE

    def teardown(self) -> None:
        """Whatever came before: a member that consumes gets all that is left."""
        if not hasattr(self, "partition"):
            return
        for _ in range(4 * (self.log_end + 1)):
            self.write_all()
            # Records that are given up take places in flight until their letters are written.
            self.write_letters(IN_FLIGHT)
            self.write_all()
            self.now_ms += LOCK_MS
            late = self.acquired()  # Before: records that are archived may let the start pass them.
            self.partition.expire(self.now_ms)
            for record in late:
                record.state, record.member = (
                    self.given_up if record.count >= LIMIT else RecordState.AVAILABLE,
                    "",
                )
            for each in self.take("last", AcquireLimits(8, 8), depth=4):
                count = each.last_offset - each.first_offset + 1
                has = [self.record(offset) for offset in range(each.first_offset, each.last_offset + 1)]
                answer = self.partition.acknowledge(
                    "last", [AcknowledgedRange(each.first_offset, each.last_offset, (1,))], self.now_ms
                )
                assert isinstance(answer, int)
                self.note(has, [AcknowledgeType.ACCEPT] * count, answer)
        self.write_all()
        while self.partition.given_up(1):
            self.write_letters(4)
            self.write_all()
        self.equals_the_model()
        for offset in self.decided - self.letters:
            assert offset < self.log_start, f"{offset} has no dead letter"
        for offset in range(self.log_start, self.log_end):
            assert not self.visible(offset) or self.record(offset).state in FINAL or offset < self.log_start, offset


TestSharePartition = SharePartitions.TestCase
TestSharePartition.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
