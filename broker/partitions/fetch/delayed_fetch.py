"""Fetches that wait for records: consumers for the high watermark, followers for the log end.

Also reads fetches of very many partitions in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from lowtide.broker.partitions.fetch.fetch_in_slices import (
    available_bytes,
    enough_in_steps,
    read_steps,
    respond_in_steps,
)
from lowtide.broker.partitions.fetch.fetch_reader import FetchReader, may_wait, respond
from lowtide.broker.partitions.fetch.fetch_session import FetchPlan, FetchSession
from lowtide.broker.partitions.fetch.fetch_session_slots import NO_SESSION
from lowtide.broker.partitions.fetch.fetch_targets import FetchOutcome, FetchRules, FetchTarget
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import DelayedQueue, Pending
from lowtide.broker.turns import PARTITIONS_AT_ONCE
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition
from lowtide.replication.purgatory import DelayedOperation

_LOOK_AGAIN_MS: Final = 50
"""The pause after very many partitions were tested in vain, to leave most of the loop's time to others."""


def threshold_of(reader: FetchReader, target: FetchTarget, rules: FetchRules) -> tuple[TopicPartition, int] | None:
    """Returns the key of a target and the end of what it can read; None if there is nothing to wait for."""
    partition = reader.find(target, rules)
    if isinstance(partition, ErrorCode):
        return None
    return (
        partition.topic_partition,
        partition.log.log_end_offset if rules.is_follower else partition.log.high_watermark,
    )


class DelayedFetch(DelayedOperation):
    """A fetch that waits for `minimum_bytes` or its deadline.

    Cases, after Kafka's: A, B leadership or replica gone; C partition unknown; D directory offline; E leader epoch
    fenced (the key is released, and the read finds the error); F the offset lies in an older segment than the end, and
    G enough bytes: the key is advanced, and the bytes are counted. A log start that rises ends the wait of a follower
    (rule DR5), not of a consumer.

    A fetch of a session waits for changes that the session sees; any other one watches each of its partitions. One of
    many partitions is read in slices, and sees changes from its beginning on: a consumer's without a session has one of
    its own, which ends with the fetch.
    """

    __slots__ = (
        "_deadline_ms",
        "_found",
        "_has_news",
        "_held",
        "_is_due",
        "_plan",
        "_reader",
        "_replicas",
        "_rules",
        "_session",
        "_targets",
        "pending",
    )

    def __init__(
        self,
        reader: FetchReader,
        replicas: ReplicaManager,
        plan: FetchPlan,
        targets: list[FetchTarget],
        rules: FetchRules,
        deadline_ms: int,
    ) -> None:
        super().__init__()
        self._reader = reader
        self._replicas = replicas
        self._plan = plan
        self._targets = targets
        self._rules = rules
        self._deadline_ms = deadline_ms
        self._session = plan.session
        self._found = 0
        self._held = 0
        self._has_news = False
        self._is_due = False
        self.pending: Pending[Any] = Pending()
        self.pending.on_abandoned = self._forget

    @property
    def deadline_ms(self) -> int:
        """On the monotonic clock."""
        return self._deadline_ms

    def park(self) -> bool:
        """Begins to wait. Returns False if too many fetches wait."""
        if not self._queue.watch(self):
            return False
        if self._session is not None:
            self._session.waiting = self
        if self._rules.is_follower:
            self._replicas.led.parked.add(self._rules.replica_id, self)
        return True

    def start_in_slices(
        self, settle: Callable[[FetchOutcome], int] | None = None, *, notes: bool = False
    ) -> Pending[Any]:
        """Reads in slices, then answers or waits. Does not wait if fetches in slices hold too much already.

        Changes are reported through a session: a consumer gets one for this fetch, and a follower without a session
        does not wait. `settle` gets what was read and returns the deadline; `notes` as in `FetchReader.read`.
        """
        rules, held = self._rules, len(self._targets)
        may_have_own = not rules.is_follower and rules.maximum_wait_ms > 0
        if (self._session is None and not may_have_own) or not self._replicas.turns.hold(held):
            self._is_due = True
            self._run(self._begin_steps(settle, notes=notes))
            return self.pending
        self._held = held
        if self._session is None:
            targets = {target.key: target for target in self._targets}
            self._session = FetchSession(NO_SESSION, targets, 0, uses_topic_ids=rules.api_version >= TOPIC_IDS_SINCE)
        self._session.waiting = self
        if rules.is_follower:
            self._replicas.led.parked.add(rules.replica_id, self)
        self._run(self._begin_steps(settle, notes=notes))
        return self.pending

    def _run(self, steps: Iterator[None]) -> None:
        self._replicas.turns.start(steps, lambda: not self.pending.abandoned, self.fail)

    def _begin_steps(self, settle: Callable[[FetchOutcome], int] | None, *, notes: bool) -> Iterator[None]:
        outcome = FetchOutcome([], 0, False, 0)
        yield from read_steps(self._reader, self._targets, self._rules, outcome, notes=notes)
        if settle is not None:
            self._deadline_ms = settle(outcome)
        if self._is_due or not may_wait(self._plan, outcome, self._rules):
            return (yield from self._tell_steps(outcome))
        if self._session is not None and self._session is not self._plan.session:
            self._session.leave_idle()
        if not self._wait_on(again_ms=0):
            yield from self._tell_steps(outcome)

    def _wait_on(self, again_ms: int) -> bool:
        """Waits after a pass in slices, and tests again what changed meanwhile. Returns False if it cannot wait."""
        has_news, self._has_news = self._has_news, False
        if not self._queue.watch(self):
            return False
        if self._session is not None and self._session is self._plan.session:
            self._give_back()  # What a session holds is counted with the sessions.
        if has_news:
            self._replicas.turns.call_later(again_ms, self.look)
        return True

    def _look_steps(self, targets: list[FetchTarget]) -> Iterator[None]:
        self._has_news = False
        is_enough = yield from enough_in_steps(self._reader, targets, self._rules)
        if is_enough or self._is_due or not self._wait_on(_LOOK_AGAIN_MS):
            self.on_complete()

    def _answer_steps(self, targets: list[FetchTarget]) -> Iterator[None]:
        outcome = FetchOutcome([], 0, False, 0)
        yield from read_steps(self._reader, targets, self._rules, outcome)
        yield from self._tell_steps(outcome)

    def _tell_steps(self, outcome: FetchOutcome) -> Iterator[None]:
        response = yield from respond_in_steps(self._plan, outcome, self._rules, self._reader)
        outcome.count_sent(self._rules)
        self._leave()
        self._end_own_session()
        yield
        self.pending.complete(response)

    def look(self) -> None:
        """Tests the fetch again: a partition of its session has changed."""
        self._has_news = True
        self._queue.wake(self)

    def wake(self) -> None:
        """Answers now: the follower has a partition to add."""
        self._is_due = True
        self._queue.wake(self)

    def try_complete(self) -> bool:
        """Reads, and answers if there are enough bytes or an error."""
        if self._is_due or self._session is not self._plan.session:
            return self._try_complete_all()
        targets = self._to_visit()
        if len(targets) > PARTITIONS_AT_ONCE:
            self._run(self._look_steps(targets))
            return True
        watched = [target for target in targets if target.watched is not None]
        outcome = self._reader.read(targets, self._rules)
        is_gone = outcome.waitable < self._found or any(target.watched is None for target in watched)
        if not (is_gone or outcome.ends_wait or outcome.read_bytes >= self._rules.minimum_bytes):
            # A read ends with its segment; what lies behind it counts.
            available = available_bytes(self._reader, targets, self._rules, found=0) if outcome.read_bytes else 0
            if available is not None and available < self._rules.minimum_bytes:
                return False
        self._answer(outcome)
        return True

    def _try_complete_all(self) -> bool:
        """Like `try_complete`, if all partitions are read for the response, changed or not."""
        if not self._is_due:
            targets = self._to_visit()
            if len(targets) > PARTITIONS_AT_ONCE:
                self._run(self._look_steps(targets))
                return True
            available = available_bytes(self._reader, targets, self._rules, found=self._found)
            if available is not None and available < self._rules.minimum_bytes:
                return False
        self.on_complete()
        return True

    def on_complete(self) -> None:
        """Reads and answers now."""
        targets = self._to_visit() if self._session is self._plan.session else self._targets
        if len(targets) > PARTITIONS_AT_ONCE and (self._held or self._replicas.turns.hold(len(targets))):
            self._held = self._held or len(targets)
            self._run(self._answer_steps(targets))
            return
        self._answer(self._reader.read(targets, self._rules))

    def _answer(self, outcome: FetchOutcome) -> None:
        self._leave()
        if self._held:
            self._give_back()
        self.pending.complete(respond(self._plan, outcome, self._rules, self._reader))

    def fail(self) -> None:
        """Closes the connection."""
        self._leave()
        self._end_own_session()
        self.pending.fail()

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """Returns one offset more than now for each partition."""
        if self._session is not None or self._held:
            return ()
        found = (threshold_of(self._reader, target, self._rules) for target in self._targets)
        wanted = [(entry[0], entry[1] + 1) for entry in found if entry is not None]
        self._found = len(wanted)
        return wanted

    @property
    def _queue(self) -> DelayedQueue:
        if self._session is not None or self._held:
            return self._replicas.waiting.session_fetches
        return self._replicas.waiting.follower_fetches if self._rules.is_follower else self._replicas.waiting.fetches

    def _to_visit(self) -> list[FetchTarget]:
        return self._targets if self._session is None else list(self._session.changed)

    def _forget(self) -> None:
        self.pending.on_abandoned = None  # Else it and its answer refer to each other.
        self._leave()
        self._queue.remove(self)
        self._end_own_session()

    def _end_own_session(self) -> None:
        """Frees what a fetch in slices holds."""
        self._give_back()
        if self._session is not None and self._session is not self._plan.session:
            self._session.close()

    def _give_back(self) -> None:
        held, self._held = self._held, 0
        self._replicas.turns.let_go(held)

    def _leave(self) -> None:
        session = self._session
        if session is not None and session.waiting is self:
            session.waiting = None
        if self._rules.is_follower:
            self._replicas.led.parked.remove(self._rules.replica_id, self)
