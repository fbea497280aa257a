"""The Fetch that waits for more.

A fetch is answered at once when it has to be (`min_bytes` are there, the read met an error or a diverging epoch, a follower has a log
start to be told, or nothing may be waited for); else it waits until one of its partitions has more: a consumer for the high watermark, a
follower for the log end. Cases, after Kafka's `DelayedFetch`: A, B leadership or replica gone; C partition unknown; D directory offline;
E leader epoch fenced (all four: the key is released, and the read finds the error); F the offset lies in an older segment than the end,
and G enough bytes: the key is advanced, and the bytes are counted. A log start that rises does not end the wait of a consumer; the read at
the end finds it. That of a follower it does (rule R5).

A fetch of a session waits for what the session hears; any other one watches each of its partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lowtide.broker.delayed.fetch_reader import READ_COMMITTED, FetchOutcome, FetchReader, FetchRules
from lowtide.broker.delayed.queue import DelayedQueue, DelayedRequest
from lowtide.broker.fetch_session import FetchPlan, FetchTarget
from lowtide.broker.pending import Pending
from lowtide.broker.replica_manager import ReplicaManager
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchableTopicResponse, FetchResponse
from lowtide.protocol.types import BrokerId, TopicPartition

__all__ = ["READ_COMMITTED", "DelayedFetch", "FetchOutcome", "FetchReader", "FetchRules", "respond"]


class DelayedFetch(DelayedRequest):
    """A fetch that waits for `minimum_bytes` or its deadline."""

    __slots__ = ("_deadline_ms", "_found", "_is_due", "_plan", "_reader", "_replicas", "_rules", "_targets", "pending")

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
        self._found = 0
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
        if self._plan.session is not None:
            self._plan.session.waiting = self
        if self._rules.is_follower:
            self._replicas.led.park(self._rules.replica_id, self)
        return True

    def look(self) -> None:
        """A partition of the session has changed."""
        self._queue.wake(self)

    def wake(self) -> None:
        """Answer, whatever there is: the follower has a partition to add."""
        self._is_due = True
        self._queue.wake(self)

    def try_complete(self) -> bool:
        """Read and answer when enough is there, or when a read would meet an error."""
        if not self._is_due:
            available = self._reader.available_bytes(self._to_visit(), self._rules, found=self._found)
            if available is not None and available < self._rules.minimum_bytes:
                return False
        self.complete_late()
        return True

    def complete_late(self) -> None:
        """Read anew and answer with what there is."""
        self._leave()
        outcome = self._reader.read(self._to_visit(), self._rules)
        self.pending.complete(respond(self._plan, outcome, self._rules, self._reader))

    def fail(self) -> None:
        """Close the connection."""
        self._leave()
        self.pending.fail()

    def thresholds(self) -> Iterable[tuple[TopicPartition, int]]:
        """One more record than now, of each partition."""
        if self._plan.session is not None:
            return ()
        found = (self._reader.threshold_of(target, self._rules) for target in self._targets)
        wanted = [(entry[0], entry[1] + 1) for entry in found if entry is not None]
        self._found = len(wanted)
        return wanted

    @property
    def _queue(self) -> DelayedQueue:
        if self._plan.session is not None:
            return self._replicas.session_fetches
        return self._replicas.follower_fetches if self._rules.is_follower else self._replicas.fetches

    def _to_visit(self) -> list[FetchTarget]:
        return self._targets if self._plan.session is None else list(self._plan.session.changed)

    def _forget(self) -> None:
        self._leave()
        self._queue.remove(self)

    def _leave(self) -> None:
        session = self._plan.session
        if session is not None and session.waiting is self:
            session.waiting = None
        if self._rules.is_follower:
            self._replicas.led.unpark(self._rules.replica_id, self)


def respond(plan: FetchPlan, outcome: FetchOutcome, rules: FetchRules, reader: FetchReader) -> FetchResponse:
    """The answer: all partitions, or in an incremental session those with news."""
    responses: list[FetchableTopicResponse] = []
    by_topic: dict[Any, FetchableTopicResponse] = {}
    leaders: set[BrokerId] = set()
    session = plan.session
    for target, answer in outcome.answers:
        if target.follower is not None and answer.error_code == ErrorCode.NONE and answer.diverging_epoch is None:
            target.follower.told_log_start = answer.log_start_offset
        if session is not None:
            news = target.has_news(answer)
            target.tell(answer)
            session.on_answered(target, answer)
            if plan.incremental and not news:
                continue
        if answer.current_leader is not None:
            leaders.add(answer.current_leader.leader_id)
        of = target.topic_id if rules.api_version >= TOPIC_IDS_SINCE else target.topic
        topic = by_topic.get(of)
        if topic is None:
            topic = by_topic[of] = FetchableTopicResponse(topic=target.topic, topic_id=target.topic_id, partitions=[])
            responses.append(topic)
        topic.partitions.append(answer)
    if rules.is_follower:
        reader.note_sent(outcome)
    endpoints = [endpoint for endpoint in reader.endpoints() if endpoint.node_id in leaders] if leaders else []
    return FetchResponse(
        throttle_time_ms=0, error_code=ErrorCode.NONE, session_id=plan.session_id, responses=responses, node_endpoints=endpoints
    )
