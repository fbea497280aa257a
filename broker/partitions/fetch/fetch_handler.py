"""The form that defines Fetch: plans what a request fetches, reads it, and answers or waits.

`FetchHandler` handles a request, `DelayedFetch` waits: for the high watermark as a consumer, for the log end as a
follower. `fetch_reader` reads. `fetch_in_slices` reads very many partitions. `usual_fetch` is the short form, which is
tried first.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lowtide.broker.partitions.fetch.fetch_errors import SESSIONS_SINCE, failed_throughout, refuse
from lowtide.broker.partitions.fetch.fetch_in_slices import (
    answer_in_slices,
    available_bytes,
    end_own_session,
    give_back,
    look_in_slices,
    start_in_slices,
)
from lowtide.broker.partitions.fetch.fetch_reader import may_wait, respond
from lowtide.broker.partitions.fetch.fetch_session import FINAL_EPOCH, INITIAL_EPOCH, FetchPlan
from lowtide.broker.partitions.fetch.fetch_session_slots import NO_SESSION
from lowtide.broker.partitions.fetch.fetch_targets import CONSUMER, READ_COMMITTED, FetchRules, requested_targets
from lowtide.broker.partitions.held_fetches import may_be_held
from lowtide.broker.pending import Pending
from lowtide.broker.turns import PARTITIONS_AT_ONCE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchRequest
from lowtide.protocol.types import UNKNOWN_BROKER_EPOCH
from lowtide.replication.purgatory import DelayedOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lowtide.broker.partitions.fetch.fetch_reader import FetchReader
    from lowtide.broker.partitions.fetch.fetch_session import FetchSessionCache
    from lowtide.broker.partitions.fetch.fetch_targets import FetchOutcome, FetchTarget
    from lowtide.broker.partitions.fetch.usual_fetch import UsualFetch
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.broker.pending import DelayedQueue
    from lowtide.broker.request_context import RequestContext
    from lowtide.protocol.types import BrokerEpoch, BrokerId, TopicPartition
    from lowtide.runtime.clock import Clock

SHORT_WAIT_MS: Final = 10
"""How long a follower's fetch waits that lacks a partition."""


class FetchHandler(msgspec.Struct, frozen=True, kw_only=True):
    """Handles Fetch requests. One for each broker; keeps no state of a request."""

    replicas: ReplicaManager
    sessions: FetchSessionCache
    clock: Clock
    maximum_bytes: int
    """`fetch.max.bytes`."""
    selects_replicas: bool
    """Whether a consumer's rack matters."""
    may_follow: Callable[[RequestContext], bool]
    """Whether a client may fetch as a follower."""
    of_listener: Mapping[str, FetchReader]
    """The readers of followers, and of consumers that may read everything, by listener."""
    for_client: Callable[[RequestContext], FetchReader] | None
    """Returns the reader of a consumer; None if all may read everything."""
    usual: UsualFetch | None

    def handle(self, request: FetchRequest, context: RequestContext) -> Any:
        """Returns the response, or a promise of it."""
        version, errors = context.api_version, self.replicas.traffic.errors
        if not is_sound(request):
            return refuse(request, version, ErrorCode.INVALID_REQUEST, errors)
        replica_id, broker_epoch = replica_of(request)
        if replica_id < 0 and self.usual is not None and (answer := self.usual.answer(request, context)) is not None:
            return answer
        now_ms = self.clock.monotonic_ms()
        if replica_id >= 0 and not self.may_follow(context):
            return failed_throughout(request, ErrorCode.TOPIC_AUTHORIZATION_FAILED, errors)  # As Kafka does.
        context.connection.of_a_follower = replica_id >= 0
        plan = self._plan(request, version, now_ms, replica_id, broker_epoch)
        if plan.error_code != ErrorCode.NONE:
            return refuse(request, version, ErrorCode(plan.error_code), errors)
        rules = FetchRules(
            api_version=version,
            read_committed=request.isolation_level == READ_COMMITTED,
            is_follower=replica_id >= 0,
            minimum_bytes=request.min_bytes,
            maximum_bytes=min(request.max_bytes, self.maximum_bytes),
            maximum_wait_ms=request.max_wait_ms,
            replica_id=replica_id,
            broker_epoch=broker_epoch,
            rack=request.rack_id if self.selects_replicas and replica_id < 0 else "",
        )
        if replica_id >= 0 or self.for_client is None:
            reader = self.of_listener[context.connection.listener_name]
        else:
            reader = self.for_client(context)
        if replica_id >= 0:
            return self._answer_follower(reader, plan, rules, now_ms)
        return self._answer_consumer(reader, plan, rules, now_ms)

    def _plan(
        self, request: FetchRequest, version: int, now_ms: int, replica_id: BrokerId, broker_epoch: BrokerEpoch
    ) -> FetchPlan:
        """Returns what the request fetches, with its session opened, continued or closed."""
        is_without_session = request.session_epoch == FINAL_EPOCH and request.session_id == NO_SESSION
        if version < SESSIONS_SINCE or is_without_session:
            return FetchPlan(targets=requested_targets(request).values())
        opens = request.session_epoch == INITIAL_EPOCH
        opens = opens and (replica_id < 0 or self.replicas.is_registered(replica_id, broker_epoch))
        replica_id = max(replica_id, CONSUMER)
        return self.sessions.plan(
            request, version, now_ms, replica_id=replica_id, broker_epoch=broker_epoch, opens=opens
        )

    def _answer_consumer(self, reader: FetchReader, plan: FetchPlan, rules: FetchRules, now_ms: int) -> Any:
        """Reads the partitions that the fetch must visit, and answers or waits."""
        deadline_ms, is_fenced, targets = now_ms + rules.maximum_wait_ms, self.replicas.is_fenced, list(plan.targets)
        if plan.session is not None and plan.incremental and is_fenced is not None and is_fenced():
            targets = plan.session.visit_all()
        if len(targets) > PARTITIONS_AT_ONCE:
            return start_in_slices(DelayedFetch(reader, self.replicas, plan, targets, rules, deadline_ms))
        outcome = reader.read(targets, rules)
        if may_wait(plan, outcome, rules):
            delayed = DelayedFetch(reader, self.replicas, plan, targets, rules, deadline_ms)
            if delayed.park():
                return delayed.pending
        return respond(plan, outcome, rules, reader)

    def _answer_follower(self, reader: FetchReader, plan: FetchPlan, rules: FetchRules, now_ms: int) -> Any:
        """Does the same for a follower, whose positions are noted."""
        replicas, session, targets = self.replicas, plan.session, list(plan.targets)
        is_known = replicas.may_be_registered(rules.replica_id, rules.broker_epoch)
        if session is not None and not is_known:
            targets = session.visit_all()
        if session is not None and len(targets) > PARTITIONS_AT_ONCE:
            deadline = partial(self._deadline_ms, plan, rules, now_ms, is_known=is_known)
            return start_in_slices(DelayedFetch(reader, replicas, plan, targets, rules, now_ms), deadline, notes=True)
        outcome = reader.read(targets, rules, notes=True)
        is_held = session is not None and outcome.read_bytes and may_be_held(outcome, rules, replicas.led.awaited_ends)
        deadline_ms = self._deadline_ms(plan, rules, now_ms, outcome, is_known=is_known)
        if is_held or may_wait(plan, outcome, rules):
            delayed = DelayedFetch(reader, replicas, plan, targets, rules, deadline_ms)
            if delayed.park():
                if is_held:
                    delayed.hold()
                return delayed.pending
        return respond(plan, outcome, rules, reader)

    def _deadline_ms(
        self, plan: FetchPlan, rules: FetchRules, now_ms: int, outcome: FetchOutcome, *, is_known: bool
    ) -> int:
        """Notes when a follower fetched, and returns until when its fetch waits: shortly if it lacks a partition."""
        session = plan.session
        if session is not None and is_known:
            session.times.last_ms = max(now_ms, session.times.last_ms)
        lacks_some = self.replicas.led.lacks_some(
            rules.replica_id, lambda: outcome.noted if session is None else session.followed_count, now_ms
        )
        return now_ms + (min(rules.maximum_wait_ms, SHORT_WAIT_MS) if lacks_some else rules.maximum_wait_ms)


class DelayedFetch(DelayedOperation):
    """A fetch that waits for `minimum_bytes` or its deadline.

    Cases, after Kafka's: A, B leadership or replica gone; C partition unknown; D directory offline; E leader epoch
    fenced (the key is released, and the read finds the error); F the offset lies in an older segment than the end, and
    G enough bytes: the key is advanced, and the bytes are counted. A log start that rises ends the wait of a follower
    (rule DR5), not of a consumer.

    A fetch of a session waits for changes that the session sees; any other one watches each of its partitions.
    """

    __slots__ = (
        "_found",
        "has_news",
        "held",
        "is_due",
        "is_held",
        "pending",
        "plan",
        "reader",
        "replicas",
        "rules",
        "session",
        "targets",
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
        super().__init__(deadline_ms)
        self.reader = reader
        self.replicas = replicas
        self.plan = plan
        self.targets = targets
        self.rules = rules
        self.session = plan.session
        self._found = 0
        self.held = 0
        self.has_news = False
        self.is_due = self.is_held = False
        self.pending: Pending[Any] = Pending()
        self.pending.on_abandoned = self._forget

    def park(self) -> bool:
        """Begins to wait. Returns False if too many fetches wait."""
        if not self._queue.watch(self):
            return False
        self.enlist()
        return True

    def enlist(self) -> None:
        """Lets the session, or the partitions that a follower must add, wake this fetch."""
        if self.session is not None:
            self.session.waiting = self
        if self.rules.is_follower:
            self.replicas.led.parked.add(self.rules.replica_id, self)

    def watch(self) -> bool:
        """Waits in its queue. Returns False if too many fetches wait."""
        return self._queue.watch(self)

    def look(self) -> None:
        """Tests the fetch again: a partition of its session has changed."""
        self.has_news = True
        self._queue.wake(self)

    def hold(self) -> None:
        """Answers soon, with records that nobody waits for."""
        self.replicas.led.held.add(self)

    def wake(self) -> None:
        """Answers now: the follower has a partition to add, or was held for long enough."""
        self.is_due = True
        self._queue.wake(self)

    def try_complete(self) -> bool:
        """Reads, and answers if there are enough bytes or an error."""
        if self.is_due or self.session is not self.plan.session:
            return self._try_complete_all()
        targets = self._to_visit()
        if len(targets) > PARTITIONS_AT_ONCE:
            look_in_slices(self, targets)
            return True
        watched = [target for target in targets if target.watched is not None]
        outcome = self.reader.read(targets, self.rules)
        is_gone = outcome.waitable < self._found or any(target.watched is None for target in watched)
        if not (is_gone or outcome.ends_wait or outcome.read_bytes >= self.rules.minimum_bytes):
            # A read ends with its segment; what lies behind it counts.
            available = available_bytes(self.reader, targets, self.rules, found=0) if outcome.read_bytes else 0
            if available is not None and available < self.rules.minimum_bytes:
                return False
        self._answer(outcome)
        return True

    def _try_complete_all(self) -> bool:
        """Like `try_complete`, if all partitions are read for the response, changed or not."""
        if not self.is_due:
            targets = self._to_visit()
            if len(targets) > PARTITIONS_AT_ONCE:
                look_in_slices(self, targets)
                return True
            available = available_bytes(self.reader, targets, self.rules, found=self._found)
            if available is not None and available < self.rules.minimum_bytes:
                return False
        self.on_complete()
        return True

    def on_complete(self) -> None:
        """Reads and answers now."""
        targets = self._to_visit() if self.session is self.plan.session else self.targets
        if len(targets) > PARTITIONS_AT_ONCE and answer_in_slices(self, targets):
            return
        self._answer(self.reader.read(targets, self.rules))

    def _answer(self, outcome: FetchOutcome) -> None:
        self.leave()
        if self.held:
            give_back(self)
        self.pending.complete(respond(self.plan, outcome, self.rules, self.reader))

    def fail(self) -> None:
        """Closes the connection."""
        self.leave()
        end_own_session(self)
        self.pending.fail()

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """Returns the end that each partition must reach: one record more than it has now."""
        if self.session is not None:
            return ()
        ends = []
        for target in self.targets:
            partition = self.reader.find(target, self.rules)
            if not isinstance(partition, ErrorCode):
                log = partition.log
                end_offset = log.log_end_offset if self.rules.is_follower else log.high_watermark
                ends.append((partition.topic_partition, end_offset + 1))
        self._found = len(ends)
        return ends

    @property
    def _queue(self) -> DelayedQueue:
        if self.session is not None:
            return self.replicas.waiting.session_fetches
        return self.replicas.waiting.follower_fetches if self.rules.is_follower else self.replicas.waiting.fetches

    def _to_visit(self) -> list[FetchTarget]:
        return self.targets if self.session is None else list(self.session.changed)

    def _forget(self) -> None:
        self.pending.on_abandoned = None  # Else it and its answer refer to each other.
        self.leave()
        self._queue.remove(self)
        end_own_session(self)

    def leave(self) -> None:
        """Ends what `enlist` began."""
        session = self.session
        if session is not None and session.waiting is self:
            session.waiting = None
        if self.rules.is_follower:
            self.replicas.led.parked.remove(self.rules.replica_id, self)


def replica_of(request: FetchRequest) -> tuple[BrokerId, BrokerEpoch]:
    """Returns the follower that fetches and its registration, as far as the version has them."""
    state = request.replica_state
    return (request.replica_id, UNKNOWN_BROKER_EPOCH) if state is None else (state.replica_id, state.replica_epoch)


def is_sound(request: FetchRequest) -> bool:
    """Returns whether limits and isolation level are valid."""
    if request.isolation_level not in (0, READ_COMMITTED) or request.max_bytes < 0:
        return False
    for topic in request.topics:  # A loop, for a generator costs more than the comparison.
        for row in topic.partitions:
            if row.partition_max_bytes < 0:
                return False
    return True
