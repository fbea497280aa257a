"""The Fetch that waits for more.

A fetch is answered at once when it has to be (`min_bytes` are there, the read met an error or a diverging epoch, a follower has a log
start to report, or nothing may be waited for); else it waits until one of its partitions has more: a consumer for the high watermark, a
follower for the log end. Cases, after Kafka's `DelayedFetch`: A, B leadership or replica gone; C partition unknown; D directory offline;
E leader epoch fenced (all four: the key is released, and the read finds the error); F the offset lies in an older segment than the end,
and G enough bytes: the key is advanced, and the bytes are counted. A log start that rises does not end the wait of a consumer; the read at
the end finds it. That of a follower it does (rule DR5).

A fetch of a session waits for changes that the session sees; any other one watches each of its partitions.

One of very many partitions is read in slices. It sees changes from its beginning on, so that none is missed that falls between two
slices: where a consumer has no session, by one of its own, which ends with the fetch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final

import msgspec

from lowtide.broker.partitions.delayed.fetch_reader import FetchOutcome, FetchReader, FetchRules, may_wait, respond
from lowtide.broker.partitions.delayed.queue import DelayedQueue, DelayedRequest
from lowtide.broker.partitions.fetch_session import NO_SESSION, FetchPlan, FetchSession, FetchTarget
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import Pending
from lowtide.broker.slices import PARTITIONS_AT_ONCE, PARTITIONS_OF_A_STEP
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.messages.fetch import FetchResponse
from lowtide.protocol.types import TopicPartition

_LOOK_AGAIN_MS: Final = 50
"""After very many partitions were looked at in vain, they rest for so long: whatever changes, this takes but a part of the loop's time."""


class DelayedFetch(DelayedRequest):
    """A fetch that waits for `minimum_bytes` or its deadline."""

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
        self.pending: Pending[FetchResponse] = Pending()
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
            self._replicas.led.park(self._rules.replica_id, self)
        return True

    def start_in_slices(
        self, settle: Callable[[FetchOutcome], int] | None = None, *, notes: bool = False
    ) -> FetchResponse | Pending[FetchResponse]:
        """Read in slices, then answer, or wait. Where too much is held already: answer what there is.

        What it waits for is heard of through a session, which a consumer gets for this; a follower without one waits for nothing.

        `settle` gets what was read, once, and gives the deadline; `notes` as for `FetchReader.read`.
        """
        is_deaf = self._session is None and self._rules.is_follower
        if is_deaf or not self._replicas.slices.take(len(self._targets)):
            self._is_due = True
            self._run(self._begin_steps(settle, notes=notes))
            return self.pending
        self._held = len(self._targets)
        if self._session is None and not self._rules.is_follower and self._rules.maximum_wait_ms > 0:
            by_key = OrderedDict((target.key, target) for target in self._targets)
            self._session = FetchSession(NO_SESSION, by_key, 0, uses_topic_ids=self._rules.api_version >= TOPIC_IDS_SINCE)
        if self._session is not None:
            self._session.waiting = self
        if self._rules.is_follower:
            self._replicas.led.park(self._rules.replica_id, self)
        self._run(self._begin_steps(settle, notes=notes))
        return self.pending

    def _run(self, steps: Iterator[None]) -> None:
        self._replicas.slices.run(steps, lambda: not self.pending.abandoned, self.fail)

    def _read_steps(self, targets: list[FetchTarget], outcome: FetchOutcome, *, notes: bool = False) -> Iterator[None]:
        for start in range(0, len(targets), PARTITIONS_OF_A_STEP):
            self._reader.read(targets[start : start + PARTITIONS_OF_A_STEP], self._rules, notes=notes, begun=outcome)
            yield

    def _begin_steps(self, settle: Callable[[FetchOutcome], int] | None, *, notes: bool) -> Iterator[None]:
        outcome = FetchOutcome([], 0, False, 0)
        yield from self._read_steps(self._targets, outcome, notes=notes)
        if settle is not None:
            self._deadline_ms = settle(outcome)
        if self._is_due or not may_wait(self._plan, outcome, self._rules):
            yield from self._tell_steps(outcome)
            return
        if self._session is not None and self._session is not self._plan.session:
            self._session.leave_idle()
        if not self._wait_on(again_ms=0):
            yield from self._tell_steps(outcome)

    def _wait_on(self, again_ms: int) -> bool:
        """Wait, after all was looked at in slices, and look again for what came meanwhile, if anything did. False where that can't be."""
        has_news, self._has_news = self._has_news, False
        if not self._queue.watch(self):
            return False
        if self._session is not None and self._session is self._plan.session:
            self._give_back()  # What a session holds is counted with the sessions.
        if has_news:
            self._replicas.slices.call_later(again_ms, self.look)
        return True

    def _look_steps(self, targets: list[FetchTarget]) -> Iterator[None]:
        self._has_news = False
        total = 0
        for start in range(0, len(targets), PARTITIONS_OF_A_STEP):
            available = self._reader.available_bytes(targets[start : start + PARTITIONS_OF_A_STEP], self._rules, found=0)
            total += available or 0
            if available is None or total >= self._rules.minimum_bytes or self._is_due:
                self.on_complete()
                return
            yield
        if not self._wait_on(_LOOK_AGAIN_MS):
            self.on_complete()

    def _answer_steps(self, targets: list[FetchTarget]) -> Iterator[None]:
        outcome = FetchOutcome([], 0, False, 0)
        yield from self._read_steps(targets, outcome)
        yield from self._tell_steps(outcome)

    def _tell_steps(self, outcome: FetchOutcome) -> Iterator[None]:
        response = yield from respond_in_steps(self._plan, outcome, self._rules, self._reader)
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
        if len(targets) > PARTITIONS_AT_ONCE and (self._held or self._replicas.slices.take(len(targets))):
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
            return self._replicas.session_fetches
        return self._replicas.follower_fetches if self._rules.is_follower else self._replicas.fetches

    def _to_visit(self) -> list[FetchTarget]:
        return self._targets if self._session is None else list(self._session.changed)

    def _forget(self) -> None:
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
        self._replicas.slices.give_back(held)

    def _leave(self) -> None:
        session = self._session
        if session is not None and session.waiting is self:
            session.waiting = None
        if self._rules.is_follower:
            self._replicas.led.unpark(self._rules.replica_id, self)


def respond_in_steps(
    plan: FetchPlan, outcome: FetchOutcome, rules: FetchRules, reader: FetchReader
) -> Generator[None, None, FetchResponse]:
    """As `respond`, some partitions at a time."""
    answers = outcome.answers
    whole = respond(plan, msgspec.structs.replace(outcome, answers=answers[:PARTITIONS_OF_A_STEP]), rules, reader)
    for start in range(PARTITIONS_OF_A_STEP, len(answers), PARTITIONS_OF_A_STEP):
        yield
        part = respond(plan, msgspec.structs.replace(outcome, answers=answers[start : start + PARTITIONS_OF_A_STEP]), rules, reader)
        for topic in part.responses:
            last = whole.responses[-1] if whole.responses else None
            if last is not None and (last.topic, last.topic_id) == (topic.topic, topic.topic_id):
                last.partitions += topic.partitions
            else:
                whole.responses.append(topic)
        known = {endpoint.node_id for endpoint in whole.node_endpoints}
        whole.node_endpoints += [endpoint for endpoint in part.node_endpoints if endpoint.node_id not in known]
    yield
    return whole
