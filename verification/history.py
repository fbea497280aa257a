"""The history of a run: numbers its moments, lets a judge decide over each partition, and keeps what a report shows.

Reads are not kept, only counted. Of each partition the last operations are, so that an anomaly is shown with what
happened before it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from lowtide.protocol.types import TopicPartition
from lowtide.verification.judge import Anomaly, PartitionJudge
from lowtide.verification.operations import (
    NOT_SENT,
    AnyOperation,
    DeleteOperation,
    EraseOperation,
    FaultOperation,
    Moment,
    OffsetsOperation,
    PartitionOperation,
    ProduceOperation,
    ReadOperation,
    Result,
)

ANOMALIES_MAX: Final = 1_000
"""So many different anomalies are kept; further ones are counted."""

_RECENT_MAX: Final = 8
"""The operations of a partition that are shown before an anomaly."""

_FAULTS_SHOWN_MAX: Final = 3
_FAULTS_MAX: Final = 10_000

PRODUCE: Final = "produce"
DELETE: Final = "delete records"
LEADER_READ: Final = "fetch from leaders"
FOLLOWER_READ: Final = "fetch from followers"
OFFSETS: Final = "list offsets"
ERASE: Final = "erase a key"


@dataclass(slots=True)
class SeenAnomaly:
    """An anomaly of a partition, with the operations around its first sight in the order of their invocation."""

    partition: TopicPartition
    anomaly: Anomaly
    operations: list[AnyOperation]
    first: Moment
    last: Moment
    count: int = 1


class OperationHistory:
    """All operations of a run. Times are milliseconds since its beginning."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        self.judges = {partition: PartitionJudge(partition) for partition in partitions}
        self.anomalies: dict[tuple[object, ...], SeenAnomaly] = {}
        self.further_anomalies = 0
        self.counts: Counter[tuple[str, Result]] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()
        self.records_produced = 0
        self.records_read = 0
        self.reads_below_deletes: Counter[bool] = Counter()
        """Answered fetches from below an acknowledged delete: of leaders (True) and of followers."""
        self.faults: list[FaultOperation] = []
        self.further_faults = 0
        self._recent = {partition: deque[PartitionOperation](maxlen=_RECENT_MAX) for partition in partitions}
        self._number = 0

    def moment(self, now_ms: int) -> Moment:
        """Returns the next moment."""
        self._number += 1
        return Moment(self._number, now_ms)

    def invoke(self, operation: PartitionOperation, now_ms: int) -> None:
        """Begins an operation."""
        operation.invoked = self.moment(now_ms)
        self.judges[operation.partition].invoke(operation)

    def complete(self, operation: PartitionOperation, now_ms: int) -> None:
        """Ends an operation, whose result is set, and judges it."""
        operation.returned = self.moment(now_ms)
        judge = self.judges[operation.partition]
        self._count(operation, judge)
        for anomaly in judge.complete(operation):
            self._keep(operation, anomaly)
        if operation.error != NOT_SENT:
            self._recent[operation.partition].append(operation)

    def begin_fault(self, number: int, now_ms: int) -> FaultOperation:
        """Begins a run of the user's command."""
        fault = FaultOperation(number=number, invoked=self.moment(now_ms))
        for judge in self.judges.values():
            judge.faults_until = math.inf
        if len(self.faults) < _FAULTS_MAX:
            self.faults.append(fault)
        else:
            self.further_faults += 1
        return fault

    def end_fault(self, fault: FaultOperation, now_ms: int) -> None:
        """Ends a run of the command, whose result is set."""
        fault.returned = self.moment(now_ms)
        for judge in self.judges.values():
            judge.faults_until = fault.returned.number

    def _count(self, operation: PartitionOperation, judge: PartitionJudge) -> None:
        kind = kind_of(operation)
        self.counts[kind, operation.result] += 1
        if operation.error:
            self.errors[kind, operation.error] += 1
        if isinstance(operation, ProduceOperation) and operation.result is Result.OK:
            self.records_produced += operation.count
        if isinstance(operation, ReadOperation) and operation.result is not Result.UNKNOWN:
            self.records_read += len(operation.records)
            promise = judge.delete_before(operation.invoked)
            if promise is not None and operation.start < promise.offset:
                self.reads_below_deletes[operation.leader] += 1

    def _keep(self, operation: PartitionOperation, anomaly: Anomaly) -> None:
        key = (operation.partition, anomaly.kind, *anomaly.subject)
        known = self.anomalies.get(key)
        assert operation.returned is not None
        if known is not None:
            known.count += 1
            known.last = operation.returned
        elif len(self.anomalies) < ANOMALIES_MAX:
            around = self._around(operation, anomaly)
            self.anomalies[key] = SeenAnomaly(
                operation.partition, anomaly, around, operation.returned, operation.returned
            )
        else:
            self.further_anomalies += 1

    def _around(self, operation: PartitionOperation, anomaly: Anomaly) -> list[AnyOperation]:
        """Returns the operations that made the promise, the faults since, the last ones, and the one that broke it."""
        since = min((cause.invoked.number for cause in anomaly.causes), default=0)
        faults = [
            fault
            for fault in self.faults[-_FAULTS_SHOWN_MAX:]
            if fault.returned is None or fault.returned.number > since
        ]
        around: list[AnyOperation] = [*anomaly.causes, *faults, *self._recent[operation.partition], operation]
        found = {each.invoked.number: each for each in around}
        return [found[number] for number in sorted(found)]


def kind_of(operation: PartitionOperation) -> str:
    """Returns the name under which an operation is counted."""
    if isinstance(operation, ReadOperation):
        return LEADER_READ if operation.leader else FOLLOWER_READ
    return _KINDS[type(operation)]


_KINDS: Final = {
    ProduceOperation: PRODUCE,
    DeleteOperation: DELETE,
    OffsetsOperation: OFFSETS,
    EraseOperation: ERASE,
}
