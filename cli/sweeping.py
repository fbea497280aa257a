"""A sweep over many partitions: its state, which can be kept in a file and taken up again, and its pace.

Pure; time is passed in. The offsets are fixed when a sweep begins and are in its file with the topic ids, so that what
is taken up later deletes what was planned then: nothing that came since, and nothing of a topic that was created again.
A delete whose answer was never seen is sent again, to the same offset.

The file is JSON: `version` 1, `request` (what was asked for, which must be the same when it is taken up), `cluster_id`,
`topic_ids`, and
`partitions`: lists of topic, partition, log start when it was planned (or null), offset, and `pending`, `done`, or why it failed.
Migration: another layout gets another version; version 1 must then still be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from lowtide.protocol.types import Offset, TopicId, TopicPartition, parse_topic_id, topic_id_text

STATE_VERSION: Final = 1
STATE_BYTES_MAX: Final = 256 << 20
CHUNK: Final = 10_000
"""Partitions in one call, at most: so many are done again if the sweep is killed."""

PENDING: Final = "pending"
DONE: Final = "done"


class StateError(ValueError):
    """Why a file of state can't be used, in a sentence."""


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    request: str
    cluster_id: str | None
    topic_ids: dict[str, str]
    partitions: list[tuple[str, int, int | None, int, str]]


@dataclass(slots=True)
class SweptPartition:
    """One partition: where it starts (if known), up to where it is deleted (exclusive), and what became of it."""

    log_start: Offset | None
    offset: Offset
    outcome: str = PENDING

    @property
    def records(self) -> int:
        """Offsets that go, as far as is known."""
        return 0 if self.log_start is None else max(0, self.offset - self.log_start)


@dataclass(slots=True, kw_only=True)
class Sweep:
    """All of it."""

    request: str
    """What was asked for, in words that are equal when the same is asked for again."""
    cluster_id: str | None
    topic_ids: dict[str, TopicId]
    partitions: dict[TopicPartition, SweptPartition] = field(default_factory=dict)

    def pending(self) -> list[TopicPartition]:
        """What is still to be done, in its order. What failed is tried again by the next run."""
        return [partition for partition, each in self.partitions.items() if each.outcome == PENDING]

    def retry_failed(self) -> None:
        """What failed is to be done again."""
        for each in self.partitions.values():
            if each.outcome != DONE:
                each.outcome = PENDING

    def count(self, outcome: str) -> int:
        """Partitions with this outcome."""
        return sum(each.outcome == outcome for each in self.partitions.values())

    def failures(self) -> dict[TopicPartition, str]:
        """Why partitions failed."""
        return {
            partition: each.outcome
            for partition, each in self.partitions.items()
            if each.outcome not in (PENDING, DONE)
        }

    def note(self, outcomes: Mapping[TopicPartition, str | None]) -> None:
        """What became of partitions: None is done."""
        for partition, reason in outcomes.items():
            self.partitions[partition].outcome = DONE if reason is None else reason

    def encode(self) -> bytes:
        """The bytes of its file."""
        rows = [
            (key.topic, key.partition, each.log_start, each.offset, each.outcome)
            for key, each in self.partitions.items()
        ]
        ids = {topic: topic_id_text(topic_id) for topic, topic_id in self.topic_ids.items()}
        return msgspec.json.encode(_Stored(STATE_VERSION, self.request, self.cluster_id, ids, rows)) + b"\n"


def decode_sweep(content: bytes, path: str) -> Sweep:
    """The sweep in a file. Errors: StateError."""
    try:
        stored = msgspec.json.decode(content, type=_Stored)
        ids = {topic: parse_topic_id(text) for topic, text in stored.topic_ids.items()}
    except ValueError as error:
        message = f"{path} is no state of a sweep: {error}."
        raise StateError(message) from None
    if stored.version != STATE_VERSION:
        message = f"{path} has version {stored.version}; only {STATE_VERSION} is known."
        raise StateError(message)
    sweep = Sweep(request=stored.request, cluster_id=stored.cluster_id, topic_ids=ids)
    for topic, partition, log_start, offset, outcome in stored.partitions:
        key = TopicPartition(topic, partition)
        if key in sweep.partitions or partition < 0 or offset < 0 or not outcome:
            message = f"{path} is no state of a sweep: {key} is there twice, or can't be."
            raise StateError(message)
        sweep.partitions[key] = SweptPartition(log_start, offset, outcome)
    return sweep


def check_same(sweep: Sweep, request: str, cluster_id: str | None, path: str) -> None:
    """Whether a sweep may be taken up by this call. Errors: StateError."""
    if sweep.request != request:
        message = f"{path} is of another sweep ({sweep.request}): name another file, or remove it to start over."
        raise StateError(message)
    if None not in (sweep.cluster_id, cluster_id) and sweep.cluster_id != cluster_id:
        message = f"{path} is of cluster {sweep.cluster_id}, this is {cluster_id}."
        raise StateError(message)


def describe_request(patterns: Iterable[str], target: str, *, leader_only: bool) -> str:
    """What was asked for, in words."""
    return f"{', '.join(sorted(set(patterns)))}: {target}{', leader only' if leader_only else ''}"


class Pace:
    """Lets so many partitions through in a second, evenly; without a rate, all."""

    def __init__(self, rate: float | None, now_ms: int) -> None:
        """`rate` is partitions a second."""
        assert rate is None or rate > 0, rate
        self._rate = rate
        self._free_at_ms = float(now_ms)

    def chunk(self) -> int:
        """How many go at once: what a quarter of a second lets through."""
        return CHUNK if self._rate is None else max(1, min(CHUNK, int(self._rate / 4)))

    def wait_ms(self, count: int, now_ms: int) -> int:
        """How long to wait before the next `count` may go, which are then taken as gone."""
        if self._rate is None:
            return 0
        start = max(self._free_at_ms, now_ms)
        self._free_at_ms = start + count * 1000 / self._rate
        return max(0, round(start) - now_ms)
