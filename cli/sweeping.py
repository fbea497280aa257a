"""The state of a sweep over many partitions, which a file keeps, and its pace.

Pure; time is passed in. The offsets and topic ids are fixed at the beginning and kept in the file. A resumed sweep
therefore deletes what was planned: no later records, and nothing of a topic that was created again. A delete without an
answer is sent again, with the same offset.

The file is JSON: `version` 1, `request` (which must be the same when the sweep is resumed), `cluster_id`, `topic_ids`,
and `partitions`: lists of topic, partition, log start at planning (or null), offset, and `pending`, `done` or an error.
Migration: another layout gets another version; version 1 must remain readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from lowtide.protocol.types import Offset, TopicId, TopicPartition, parse_topic_id, topic_id_text
from lowtide.runtime.json_text import decode_json

STATE_VERSION: Final = 1
STATE_BYTES_MAX: Final = 256 << 20
CHUNK: Final = 10_000
"""Partitions in one call, at most; after a kill so many are sent again."""

PENDING: Final = "pending"
DONE: Final = "done"


class StateError(ValueError):
    """The state in a file is unusable; the text is a sentence."""


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    request: str
    cluster_id: str | None
    topic_ids: dict[str, str]
    partitions: list[tuple[str, int, int | None, int, str]]


@dataclass(slots=True)
class SweptPartition:
    """A partition: its log start, if known, the offset to delete to (exclusive), and the outcome."""

    log_start: Offset | None
    offset: Offset
    outcome: str = PENDING

    @property
    def records(self) -> int:
        """How many offsets are deleted, as far as it is known."""
        return 0 if self.log_start is None else max(0, self.offset - self.log_start)


@dataclass(slots=True, kw_only=True)
class Sweep:
    """The state of a sweep."""

    request: str
    """The request in words; the same request has the same words."""
    cluster_id: str | None
    topic_ids: dict[str, TopicId]
    partitions: dict[TopicPartition, SweptPartition] = field(default_factory=dict)

    def pending(self) -> list[TopicPartition]:
        """Returns the partitions that are still to be deleted, in order."""
        return [partition for partition, each in self.partitions.items() if each.outcome == PENDING]

    def retry_failed(self) -> None:
        """Makes failed partitions pending again."""
        for each in self.partitions.values():
            if each.outcome != DONE:
                each.outcome = PENDING

    def count(self, outcome: str) -> int:
        """Returns how many partitions have an outcome."""
        return sum(each.outcome == outcome for each in self.partitions.values())

    def failures(self) -> dict[TopicPartition, str]:
        """Returns the errors of failed partitions."""
        return {
            partition: each.outcome
            for partition, each in self.partitions.items()
            if each.outcome not in (PENDING, DONE)
        }

    def note(self, outcomes: Mapping[TopicPartition, str | None]) -> None:
        """Notes the outcomes of partitions; None is done."""
        for partition, reason in outcomes.items():
            self.partitions[partition].outcome = DONE if reason is None else reason

    def encode(self) -> bytes:
        """Returns the contents of the file."""
        rows = [
            (key.topic, key.partition, each.log_start, each.offset, each.outcome)
            for key, each in self.partitions.items()
        ]
        ids = {topic: topic_id_text(topic_id) for topic, topic_id in self.topic_ids.items()}
        return msgspec.json.encode(_Stored(STATE_VERSION, self.request, self.cluster_id, ids, rows)) + b"\n"


def decode_sweep(content: bytes, path: str) -> Sweep:
    """Reads the contents of a file. Errors: StateError."""
    try:
        stored = decode_json(content, _Stored)
        ids = {topic: parse_topic_id(text) for topic, text in stored.topic_ids.items()}
    except ValueError as error:
        raise StateError(f"{path} is not the state of a sweep: {error}.") from None
    if stored.version != STATE_VERSION:
        raise StateError(f"{path} has version {stored.version}: only version {STATE_VERSION} is supported.")
    sweep = Sweep(request=stored.request, cluster_id=stored.cluster_id, topic_ids=ids)
    for topic, partition, log_start, offset, outcome in stored.partitions:
        key = TopicPartition(topic, partition)
        if key in sweep.partitions or partition < 0 or offset < 0 or not outcome:
            raise StateError(f"{path} is not the state of a sweep: {key} is invalid or repeated.")
        sweep.partitions[key] = SweptPartition(log_start, offset, outcome)
    return sweep


def check_same(sweep: Sweep, request: str, cluster_id: str | None, path: str) -> None:
    """Errors: StateError if a request can't resume a sweep."""
    if sweep.request != request:
        raise StateError(
            f"{path} belongs to another sweep ({sweep.request}): give another file, or remove it to start over."
        )
    if None not in (sweep.cluster_id, cluster_id) and sweep.cluster_id != cluster_id:
        raise StateError(f"{path} belongs to cluster {sweep.cluster_id}: this is {cluster_id}.")


def describe_request(patterns: Iterable[str], target: str, *, leader_only: bool) -> str:
    """Describes a request in words."""
    return f"{', '.join(sorted(set(patterns)))}: {target}{', leader only' if leader_only else ''}"


class SweepPace:
    """Limits the partitions a second, evenly; without a rate there is no limit."""

    def __init__(self, rate: float | None, now_ms: int) -> None:
        """`rate` is partitions a second."""
        assert rate is None or rate > 0, rate
        self._rate = rate
        self._free_at_ms = float(now_ms)

    def chunk(self) -> int:
        """Returns how many partitions are sent at once: those of a quarter of a second."""
        return CHUNK if self._rate is None else max(1, min(CHUNK, int(self._rate / 4)))

    def wait_ms(self, count: int, now_ms: int) -> int:
        """Returns how long to wait before the next `count` partitions, and counts them as sent."""
        if self._rate is None:
            return 0
        start = max(self._free_at_ms, now_ms)
        self._free_at_ms = start + count * 1000 / self._rate
        return max(0, round(start) - now_ms)
