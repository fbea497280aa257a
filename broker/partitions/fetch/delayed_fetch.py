"""A Fetch that waits for more than there is: a consumer's for the high watermark, a follower's for the log end; and what may wait.

What is there is read in `fetch_reader`. A fetch of very many partitions is read in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from lowtide.broker.partitions.fetch.fetch_in_slices import enough_in_steps, read_steps, respond_in_steps
from lowtide.broker.partitions.fetch.fetch_reader import FetchReader, may_wait, respond
from lowtide.broker.partitions.fetch.fetch_rules import FetchOutcome, FetchRules
from lowtide.broker.partitions.fetch.fetch_session import FetchPlan, FetchSession, FetchTarget
from lowtide.broker.partitions.fetch.fetch_session_slots import NO_SESSION
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import DelayedQueue, DelayedRequest, Pending
from lowtide.broker.turns import PARTITIONS_AT_ONCE
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.types import TopicPartition

SHORT_WAIT_MS: Final = 10
"""How long a follower's fetch waits that lacks a partition."""

_LOOK_AGAIN_MS: Final = 50
"""After very many partitions were looked at in vain, they rest for so long: whatever changes, this takes but a part of the loop's time."""


class PlannedFetches:
    """Reads what fetches have planned, and answers them or lets them wait."""

    __slots__ = ("_replicas",)

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def of_consumer(
        self,
        reader: FetchReader,
        plan: FetchPlan,
        targets: list[FetchTarget],
        rules: FetchRules,
        now_ms: int,
    ) -> Any:
        """Read `targets`, which are those of the plan that have to be visited.

        Returns the answer, or the promise of one.
        """
        replicas = self._replicas
        if len(targets) > PARTITIONS_AT_ONCE:
            return DelayedFetch(
                reader, replicas, plan, targets, rules, now_ms + rules.maximum_wait_ms
            ).start_in_slices()
        outcome = reader.read(targets, rules)
        if not may_wait(plan, outcome, rules):
            return respond(plan, outcome, rules, reader)
        delayed = DelayedFetch(reader, replicas, plan, targets, rules, now_ms + rules.maximum_wait_ms)
        return delayed.pending if delayed.park() else respond(plan, outcome, rules, reader)

    def of_follower(
        self,
        reader: FetchReader,
        plan: FetchPlan,
        targets: list[FetchTarget],
        rules: FetchRules,
        now_ms: int,
    ) -> Any:
        """The same for a follower, whose positions are noted."""
        replicas, session = self._replicas, plan.session
        is_known = replicas.may_be_registered(rules.replica_id, rules.broker_epoch)
        if session is not None and not is_known:
            targets = session.visit_all()
        if session is not None and len(targets) > PARTITIONS_AT_ONCE:
            settle = partial(_settle_follower, replicas, plan, rules, now_ms)
            return DelayedFetch(reader, replicas, plan, targets, rules, now_ms).start_in_slices(settle, notes=True)
        outcome = reader.read(targets, rules, notes=True)
        if session is not None and is_known:
            session.times.last_ms = now_ms
        if not may_wait(plan, outcome, rules):
            return respond(plan, outcome, rules, reader)
        lacks_some = replicas.led.lacks_some(
            rules.replica_id, lambda: outcome.noted if session is None else session.followed_count, now_ms
        )
        wait_ms = min(rules.maximum_wait_ms, SHORT_WAIT_MS) if lacks_some else rules.maximum_wait_ms
        delayed = DelayedFetch(reader, replicas, plan, targets, rules, now_ms + wait_ms)
        return delayed.pending if delayed.park() else respond(plan, outcome, rules, reader)


def _settle_follower(
    replicas: ReplicaManager, plan: FetchPlan, rules: FetchRules, now_ms: int, outcome: FetchOutcome
) -> int:
    """Note a follower's fetch of many partitions, also for those that its next doesn't name.

    Returns until when it may wait.
    """
    if plan.session is not None and replicas.may_be_registered(rules.replica_id, rules.broker_epoch):
        plan.session.times.last_ms = max(now_ms, plan.session.times.last_ms)
    session = plan.session
    lacks_some = replicas.led.lacks_some(
        rules.replica_id, lambda: outcome.noted if session is None else session.followed_count, now_ms
    )
    return now_ms + (min(rules.maximum_wait_ms, SHORT_WAIT_MS) if lacks_some else rules.maximum_wait_ms)


class DelayedFetch(DelayedRequest):
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
        """Begin to wait. Returns False where too many do."""
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
        """Read in slices, then answer, or wait. Where too much is held already: answer what there is.

        What it waits for is reported through a session, which a consumer gets for this; a follower without one waits
        for nothing.
        `settle` gets what was read, once, and gives the deadline; `notes` as for `FetchReader.read`.
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
        """Wait, after all was looked at in slices, and look again for what came meanwhile, if anything did.

        False where that can't be.
        """
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
        """A partition of the session has changed."""
        self._has_news = True
        self._queue.wake(self)

    def wake(self) -> None:
        """Answer, whatever there is: the follower has a partition to add."""
        self._is_due = True
        self._queue.wake(self)

    def try_complete(self) -> bool:
        """Read, and answer when enough is there, or when the read met an error."""
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
            available = self._reader.available_bytes(targets, self._rules, found=0) if outcome.read_bytes else 0
            if available is not None and available < self._rules.minimum_bytes:
                return False
        self._answer(outcome)
        return True

    def _try_complete_all(self) -> bool:
        """As `try_complete`, where all partitions are read for the answer, whatever has changed."""
        if not self._is_due:
            targets = self._to_visit()
            if len(targets) > PARTITIONS_AT_ONCE:
                self._run(self._look_steps(targets))
                return True
            available = self._reader.available_bytes(targets, self._rules, found=self._found)
            if available is not None and available < self._rules.minimum_bytes:
                return False
        self.on_complete()
        return True

    def on_complete(self) -> None:
        """Read and answer with what there is."""
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
        """Close the connection."""
        self._leave()
        self._end_own_session()
        self.pending.fail()

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """One more record than now, of each partition."""
        if self._session is not None or self._held:
            return ()
        found = (self._reader.threshold_of(target, self._rules) for target in self._targets)
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
        """Nothing is held any more for a fetch in slices."""
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
