"""What the judge calls an anomaly, and what it must not: a late or lost answer promises nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from lowtide.protocol.types import TopicPartition
from lowtide.verification.history import ANOMALIES_MAX, OperationHistory
from lowtide.verification.judge import AnomalyKind
from lowtide.verification.operations import (
    FOREIGN,
    PERSONS,
    DeleteOperation,
    EraseOperation,
    OffsetsOperation,
    PartitionOperation,
    ProduceOperation,
    ReadOperation,
    Result,
    sentence_of,
)

KEY = TopicPartition("t", 0)


class History:
    """A history that is written down step by step; each step takes a millisecond."""

    def __init__(self) -> None:
        self.history = OperationHistory([KEY])
        self._now = 0

    def begin(self, operation: PartitionOperation) -> PartitionOperation:
        self._now += 1
        self.history.invoke(operation, self._now)
        return operation

    def end(self, operation: PartitionOperation, result: Result = Result.OK) -> None:
        self._now += 1
        operation.result = result
        self.history.complete(operation, self._now)

    def do(self, operation: PartitionOperation, result: Result = Result.OK) -> None:
        self.end(self.begin(operation), result)

    def fault(self) -> None:
        fault = self.history.begin_fault(1, self._now)
        fault.exit_code = 0
        self.history.end_fault(fault, self._now)

    @property
    def kinds(self) -> list[AnomalyKind]:
        return [seen.anomaly.kind for seen in self.history.anomalies.values()]


def produced(first: int, count: int, base: int = -1) -> ProduceOperation:
    return ProduceOperation(partition=KEY, broker=1, process="p", first_serial=first, count=count, base_offset=base)


def deleting(offset: int, low_watermark: int = -1) -> DeleteOperation:
    return DeleteOperation(partition=KEY, broker=1, process="d", offset=offset, low_watermark=low_watermark)


def read(start: int, *serials: int, broker: int = 1, **more: int) -> ReadOperation:
    """A read of consecutive offsets from `start` on, with these serial numbers."""
    records = tuple(enumerate(serials, start))
    end = start + len(serials)
    return ReadOperation(partition=KEY, broker=broker, process="r", start=start, records=records, end=end, **more)


def listed(log_start: int, broker: int = 1) -> OffsetsOperation:
    return OffsetsOperation(partition=KEY, broker=broker, process="r", log_start=log_start)


def erasing(person: int, searched_to: int = -1) -> EraseOperation:
    return EraseOperation(partition=KEY, broker=1, process="e", person=person, searched_to=searched_to)


def ten() -> History:
    """Ten acknowledged records at the offsets 0 to 9, with the serial numbers 0 to 9."""
    history = History()
    history.do(produced(0, 10, 0))
    return history


def ten_without_five() -> History:
    history = ten()
    history.do(deleting(5, 5))
    return history


class Case(NamedTuple):
    name: str
    steps: Callable[[], History]
    kinds: list[AnomalyKind]


def case_of(kinds: list[AnomalyKind], history: Callable[[], History], *operations: PartitionOperation) -> Case:
    def steps() -> History:
        made = history()
        for operation in operations:
            made.do(operation)
        return made

    return Case("; ".join(map(sentence_of, operations)), steps, kinds)


K = AnomalyKind


def cases() -> list[Case]:
    return [
        case_of([], ten, read(0, *range(10)), listed(0)),
        case_of([], ten_without_five, read(5, 5, 6, 7, 8, 9, log_start=5), listed(5)),
        case_of([K.NOT_DELETED], ten_without_five, read(4, 4, 5)),
        case_of([K.RETURNED], ten_without_five, listed(5), read(4, 4, 5)),
        case_of([K.NOT_DELETED], ten_without_five, listed(5), read(4, 4, 5, broker=2)),
        case_of([K.LOG_START_FELL], ten_without_five, listed(4)),
        case_of([K.LOG_START_FELL], ten_without_five, read(5, 5, 6, log_start=4)),
        case_of([K.NOT_DELETED], ten, deleting(5, 4)),
        case_of([], ten_without_five, deleting(3, 3)),  # A replica has returned that does not serve yet.
        case_of([], ten_without_five, deleting(3, 5)),
        case_of([K.OVER_DELETED], ten_without_five, listed(6)),
        case_of([K.OVER_DELETED], ten, deleting(5, 6)),
        case_of([K.LOST], ten_without_five, read(5, 5, 6, 7, 8, 9), read(5, *()), read(6, 6, expected_end=10)),
        case_of([K.OFFSET_REUSED], ten, produced(10, 1, 9)),
        case_of([K.OFFSET_REUSED], ten, produced(10, 2), read(8, 8, 10)),
        case_of([K.DUPLICATED], ten, read(9, 9, 9)),
        case_of([K.NOT_SENT], ten, read(9, 9, FOREIGN)),
    ]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_what_a_history_shows(case: Case) -> None:
    kinds = case.steps().kinds
    assert list(dict.fromkeys(kinds)) == case.kinds


def test_what_is_read_again_after_a_fault_has_returned() -> None:
    """Nothing had shown that the broker had deleted it, but it had acknowledged."""
    history = ten_without_five()
    history.fault()
    history.do(read(4, 4, 5))
    assert history.kinds == [AnomalyKind.RETURNED]


def test_a_gap_is_a_lost_record() -> None:
    history = ten_without_five()
    gap = ReadOperation(partition=KEY, broker=1, process="r", start=5, records=((5, 5), (8, 8)), end=9)
    history.do(gap)
    assert history.kinds == [AnomalyKind.LOST]
    assert "offset 6 is the first" in next(iter(history.history.anomalies.values())).anomaly.sentence


def test_records_that_a_pending_delete_names_may_be_gone() -> None:
    history = ten()
    delete = history.begin(deleting(5))
    history.do(listed(5))
    history.do(read(5, 5, 6))
    assert history.kinds == []
    history.end(delete, Result.UNKNOWN)
    history.do(listed(5))
    history.do(listed(6))
    assert history.kinds == [AnomalyKind.OVER_DELETED]


def test_a_delete_without_an_answer_promises_nothing() -> None:
    history = ten()
    history.do(deleting(5), Result.UNKNOWN)
    history.do(read(0, *range(10)))
    assert history.kinds == []


def test_a_read_that_began_before_the_acknowledgement_may_have_old_records() -> None:
    history = ten()
    delete = history.begin(deleting(5, 5))
    old = history.begin(read(0, *range(10)))
    history.end(delete)
    history.end(old)
    assert history.kinds == []


def test_a_refused_delete_must_not_delete() -> None:
    history = ten()
    history.do(deleting(5), Result.REFUSED)
    history.do(listed(5))
    assert history.kinds == [AnomalyKind.OVER_DELETED]


@pytest.mark.parametrize("refused_first", [False, True])
def test_a_refused_record_must_not_be_read(*, refused_first: bool) -> None:
    history = ten()
    refused = history.begin(produced(10, 1))
    seen = read(10, 10)
    if refused_first:
        history.end(refused, Result.REFUSED)
        history.do(seen)
    else:
        history.do(seen)
        history.end(refused, Result.REFUSED)
    assert history.kinds == [AnomalyKind.NOT_SENT]


def test_a_record_without_an_answer_may_be_there_or_not() -> None:
    history = ten()
    history.do(produced(10, 2), Result.UNKNOWN)
    history.do(read(9, 9, 10))
    history.do(produced(12, 1, 11))
    history.do(read(9, 9, 10, 12))
    assert history.kinds == []


def test_a_broker_that_answers_a_lower_log_start_than_before() -> None:
    """The delete was not acknowledged, but its effect was shown."""
    history = ten()
    history.do(deleting(5), Result.UNKNOWN)
    history.do(listed(5))
    history.do(listed(0, broker=2))
    assert history.kinds == [], "another broker may be behind"
    history.do(listed(0))
    assert history.kinds == [AnomalyKind.LOG_START_FELL]


def test_erased_records_may_be_missing_and_must_not_return() -> None:
    history = ten()
    history.do(erasing(3, searched_to=10))
    without = ReadOperation(
        partition=KEY,
        broker=1,
        process="r",
        start=0,
        end=10,
        records=tuple((each, each) for each in range(10) if each != 3),
    )
    history.do(without)
    assert history.kinds == []
    history.do(read(2, 2, 3))
    assert history.kinds == [AnomalyKind.ERASED_FOUND]


def test_later_records_of_an_erased_person_stay() -> None:
    history = ten()
    erasure = history.begin(erasing(3, searched_to=10))
    history.do(produced(10, PERSONS, 10))
    history.end(erasure)
    history.do(read(20, *range(20, 25)))
    assert history.kinds == []
    history.do(ReadOperation(partition=KEY, broker=1, process="r", start=22, end=25, records=((22, 22), (24, 24))))
    assert history.kinds == [AnomalyKind.LOST], "the erasure did not search there"


def test_deletes_that_came_back_are_counted_once_each() -> None:
    history = ten()
    for offset in (2, 5, 8):
        history.do(deleting(offset, offset))
    history.do(listed(8))
    for _ in range(3):
        history.do(read(3, 3, 4, 5, 6, 7, 8, 9))
    judge = history.history.judges[KEY]
    assert len(judge.deletes) == 3
    assert len(judge.came_back) == 2, "the deletes below 5 and 8"
    assert [seen.count for seen in history.history.anomalies.values()] == [3]


def test_an_anomaly_is_shown_with_the_delete_and_the_fault_before_it() -> None:
    history = ten_without_five()
    history.fault()
    for _ in range(20):
        history.do(listed(5))
    history.do(read(0, *range(10)))
    (seen,) = history.history.anomalies.values()
    lines = [sentence_of(each) for each in seen.operations]
    assert lines[0] == "broker 1: delete below 5: ok, low watermark 5"
    assert lines[1] == "fault command, round 1: exit code 0"
    assert lines[-1] == "broker 1: fetch from 0: offsets 0 to 9"
    assert len(lines) < 15


def test_only_so_many_anomalies_are_kept() -> None:
    """Protects a long run against a cluster with many anomalies."""
    history = ten()
    for number in range(ANOMALIES_MAX + 5):
        history.do(listed(number + 1))
        history.do(deleting(number + 1, number + 1))
    assert len(history.history.anomalies) == ANOMALIES_MAX
    assert history.history.further_anomalies == 5
