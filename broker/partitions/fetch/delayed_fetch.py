"""Fetches that wait for records: consumers for the high watermark, followers for the log end.

One of very many partitions is read in slices (`fetch_in_slices`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lowtide.broker.partitions.fetch.fetch_in_slices import (
    answer_in_slices,
    available_bytes,
    end_own_session,
    give_back,
    look_in_slices,
)
from lowtide.broker.partitions.fetch.fetch_reader import FetchReader, respond
from lowtide.broker.partitions.fetch.fetch_session import FetchPlan
from lowtide.broker.partitions.fetch.fetch_targets import FetchOutcome, FetchRules, FetchTarget
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import DelayedQueue, Pending
from lowtide.broker.turns import PARTITIONS_AT_ONCE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition
from lowtide.replication.purgatory import DelayedOperation


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

    A fetch of a session waits for changes that the session sees; any other one watches each of its partitions.
    """

    __slots__ = (
        "_found",
        "expires_ms",
        "has_news",
        "held",
        "is_due",
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
        super().__init__()
        self.reader = reader
        self.replicas = replicas
        self.plan = plan
        self.targets = targets
        self.rules = rules
        self.expires_ms = deadline_ms
        self.session = plan.session
        self._found = 0
        self.held = 0
        self.has_news = False
        self.is_due = False
        self.pending: Pending[Any] = Pending()
        self.pending.on_abandoned = self._forget

    @property
    def deadline_ms(self) -> int:
        """On the monotonic clock."""
        return self.expires_ms

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

    def wake(self) -> None:
        """Answers now: the follower has a partition to add."""
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
        """Returns one offset more than now for each partition."""
        if self.session is not None:
            return ()
        found = (threshold_of(self.reader, target, self.rules) for target in self.targets)
        wanted = [(entry[0], entry[1] + 1) for entry in found if entry is not None]
        self._found = len(wanted)
        return wanted

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
