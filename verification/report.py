"""The report of a run, in the form of Jepsen's reports: what was done, what was seen, and a verdict.

As JSON it has the same content. Offsets that end a range are exclusive unless the key says `last`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final

from lowtide.verification.history import (
    DELETE,
    ERASE,
    FOLLOWER_READ,
    LEADER_READ,
    OFFSETS,
    PRODUCE,
    OperationHistory,
    SeenAnomaly,
)
from lowtide.verification.judge import AnomalyKind
from lowtide.verification.operations import AnyOperation, Result, sentence_of
from lowtide.verification.run import RunResult

SHOWN_MAX: Final = 10
"""So many anomalies of each kind are shown to people; JSON has all that were kept."""

_ERRORS_MAX: Final = 20

_KINDS: Final = (PRODUCE, DELETE, LEADER_READ, FOLLOWER_READ, OFFSETS, ERASE)


class RunVerdict(StrEnum):
    """Whether the cluster kept its promises in this run."""

    KEPT = "no anomaly"
    BROKEN = "anomalies"
    UNKNOWN = "unknown"
    """Nothing can be said: no delete was acknowledged, or nothing was read below one."""


def verdict_of(result: RunResult) -> RunVerdict:
    """Returns the verdict."""
    history = result.history
    if history.anomalies:
        return RunVerdict.BROKEN
    read = any(survey.read for survey in result.surveys)
    known = deletes_of(history)[0] and history.reads_below_deletes[True] and read
    return RunVerdict.KEPT if known else RunVerdict.UNKNOWN


def deletes_of(history: OperationHistory) -> tuple[int, int]:
    """Returns how many deletes were acknowledged that raised a log start, and how many of them came back."""
    judges = history.judges.values()
    return sum(len(judge.deletes) for judge in judges), sum(len(judge.came_back) for judge in judges)


def report_value(result: RunResult, seed: int) -> dict[str, Any]:
    """Returns the report for programs."""
    history = result.history
    acknowledged, came_back = deletes_of(history)
    return {
        "verdict": verdict_of(result).name.lower(),
        "finished": result.is_finished,
        "seed": seed,
        "cluster_id": result.cluster.cluster_id,
        "brokers": [broker.broker_id for broker in result.cluster.brokers],
        "topics": result.topics,
        "partitions": len(history.judges),
        "replication_factor": result.replication_factor,
        "erases_keys": result.erases,
        "reads_followers": result.reads_followers,
        "duration_ms": result.duration_ms,
        "operations": [
            {"kind": kind} | {each.value: history.counts[kind, each] for each in Result}
            for kind in _KINDS
            if _is_used(history, kind)
        ],
        "errors": [
            {"kind": kind, "error": error, "count": count}
            for (kind, error), count in history.errors.most_common(_ERRORS_MAX)
        ],
        "records_produced": history.records_produced,
        "records_read": history.records_read,
        "reads_below_deletes": {
            "leaders": history.reads_below_deletes[True],
            "followers": history.reads_below_deletes[False],
        },
        "deletes_acknowledged": acknowledged,
        "deletes_that_came_back": came_back,
        "elections": result.elections,
        "faults": [_operation_value(fault) for fault in history.faults],
        "surveys": [
            {"at_ms": each.at_ms, "replicas_read": len(each.read), "not_read": len(each.unread), "led": len(each.led)}
            for each in result.surveys
        ],
        "anomalies": [_anomaly_value(each) for each in history.anomalies.values()],
        "further_anomalies": history.further_anomalies,
        "remaining_topics": result.remaining_topics,
    }


def _anomaly_value(seen: SeenAnomaly) -> dict[str, Any]:
    return {
        "kind": seen.anomaly.kind.name.lower(),
        "topic": seen.partition.topic,
        "partition": seen.partition.partition,
        "sentence": seen.anomaly.sentence,
        "first_ms": seen.first.at_ms,
        "last_ms": seen.last.at_ms,
        "count": seen.count,
        "operations": [_operation_value(each) for each in seen.operations],
    }


def _operation_value(operation: AnyOperation) -> dict[str, Any]:
    return {
        "invoked_ms": operation.invoked.at_ms,
        "returned_ms": None if operation.returned is None else operation.returned.at_ms,
        "operation": sentence_of(operation),
    }


def _is_used(history: OperationHistory, kind: str) -> bool:
    return any(history.counts[kind, each] for each in Result)


def report_lines(result: RunResult, seed: int) -> Iterator[str]:
    """Yields the report for people."""
    history = result.history
    brokers = ", ".join(str(broker.broker_id) for broker in result.cluster.brokers)
    topics = f"{len(result.topics)} topics" if len(result.topics) > 1 else "1 topic"
    yield "What was tested"
    yield f"  cluster {result.cluster.cluster_id}, brokers {brokers}"
    yield (
        f"  {topics} with {len(history.judges)} partitions together, replication factor {result.replication_factor}, "
        f"seed {seed}"
    )
    yield f"  {result.duration_ms / 1000:.0f} s{'' if result.is_finished else ', ended early'}"
    yield f"  keys {'were erased too' if result.erases else 'were not erased: the brokers do not know the request'}"
    if not result.reads_followers:
        yield "  followers were not read: the brokers do not allow it"
    yield ""
    yield from _done_lines(result)
    yield ""
    yield from _anomaly_lines(history)
    yield from _verdict_lines(result)


def _done_lines(result: RunResult) -> Iterator[str]:
    history = result.history
    yield "What was done"
    yield f"  {'operation':22}{'ok':>10}{'refused':>10}{'unknown':>10}"
    for kind in _KINDS:
        if _is_used(history, kind):
            yield f"  {kind:22}" + "".join(f"{history.counts[kind, each]:>10}" for each in Result)
    below = history.reads_below_deletes
    yield f"  {history.records_produced} records were acknowledged, {history.records_read} were read"
    yield f"  deleted offsets were asked for {below[True]} times at leaders, {below[False]} times at followers"
    failed = sum(fault.exit_code != 0 for fault in history.faults if fault.returned is not None)
    faults = len(history.faults) + history.further_faults
    yield f"  the fault command ran {faults} times, {failed} times without success; {result.elections} elections"
    read, unread = (sum(len(getattr(each, name)) for each in result.surveys) for name in ("read", "unread"))
    led = sum(len(each.led) for each in result.surveys)
    yield (
        f"  {len(result.surveys)} surveys: replicas were read to the end {read} times, {led} times as elected leaders; "
        f"{unread} times they were not in sync, or did not answer"
    )
    for (kind, error), count in history.errors.most_common(_ERRORS_MAX):
        yield f"  {kind}: {error}, {count} times"


def _anomaly_lines(history: OperationHistory) -> Iterator[str]:
    shown = Counter[AnomalyKind]()
    if not history.anomalies:
        return
    yield "Anomalies"
    order = list(AnomalyKind)
    for seen in sorted(history.anomalies.values(), key=lambda each: order.index(each.anomaly.kind)):
        kind = seen.anomaly.kind
        shown[kind] += 1
        if shown[kind] > SHOWN_MAX:
            continue
        where = f"{seen.partition.topic}:{seen.partition.partition}"
        yield f"  {kind}: {where}, {_time(seen.first.at_ms)}, seen {seen.count} times"
        yield f"    {seen.anomaly.sentence}"
        for operation in seen.operations:
            returned = "..." if operation.returned is None else _time(operation.returned.at_ms)
            yield f"      {_time(operation.invoked.at_ms):>11} - {returned:>11}  {sentence_of(operation)}"
    for kind, count in shown.items():
        if count > SHOWN_MAX:
            yield f"  {kind}: {count - SHOWN_MAX} more"
    if history.further_anomalies:
        yield f"  {history.further_anomalies} more are not kept"
    yield ""


def _time(at_ms: int) -> str:
    return f"{at_ms / 1000:.3f} s"


def _verdict_lines(result: RunResult) -> Iterator[str]:
    history, verdict = result.history, verdict_of(result)
    acknowledged, came_back = deletes_of(history)
    yield "Verdict"
    if verdict is RunVerdict.BROKEN:
        kinds = Counter(seen.anomaly.kind for seen in history.anomalies.values())
        yield f"  broken: {', '.join(f'{kind} ({count})' for kind, count in kinds.items())}"
    elif verdict is RunVerdict.KEPT:
        yield "  no anomaly: no answer contradicts a promise. This run proves nothing about others."
    else:
        yield "  unknown: no delete was acknowledged, or no survey read a replica to the end"
    yield f"  {came_back} of {acknowledged} acknowledged deletes came back"
    for name, reason in result.remaining_topics.items():
        yield f"  topic {name} could not be deleted: {reason}"
