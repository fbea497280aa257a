"""One interface to all clients of this folder.

Every test is written once against `Driver` and runs with each client: kcat as a command, confluent-kafka, kafka-python
and aiokafka as libraries. Only a `Reader` stays open between calls; every other call opens its client, waits for the
result, and closes it.

Offsets are absolute; a start offset is the first requested offset, an end offset is one past the last record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Literal, NamedTuple, Protocol

DEADLINE_S = 120.0
"""The limit of one call of a client, far above the usual milliseconds."""

TO_HIGH_WATERMARK = -1
"""The offset in DeleteRecords that stands for the partition's high watermark (KIP-107)."""

Reset = Literal["error", "earliest"]
"""The reaction of a reader whose position is out of range: raise `OutOfRangeError`, or go to the first record."""


POLL_INTERVAL_S = 0.02


def until(condition: Callable[..., bool], *, but: tuple[type[Exception], ...] = ()) -> None:
    """Returns as soon as `condition` holds; one of the exceptions `but` counts as "not yet".

    Errors: TimeoutError after `DEADLINE_S`.
    """
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with suppress(*but):
            if condition():
                return
        time.sleep(POLL_INTERVAL_S)
    raise TimeoutError(f"the condition does not hold after {DEADLINE_S} s")


class OutOfRangeError(Exception):
    """The broker answered OFFSET_OUT_OF_RANGE, in any form that the client reports."""


class OutgoingRecord(NamedTuple):
    """A record to produce; `timestamp_ms` None leaves the time to the client."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class ReadRecord(NamedTuple):
    """A record as the client returned it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Reader(Protocol):
    """A consumer that is assigned one partition, without a group."""

    def read(self, count: int) -> list[ReadRecord]:
        """Returns exactly the next `count` records.

        Errors: `OutOfRangeError` when the position is out of range and the reader's reset is "error"; TimeoutError
        after `DEADLINE_S`.
        """

    def seek(self, offset: int) -> None:
        """Continues at `offset`, without asking the broker whether it exists."""


class Driver(Protocol):
    """One client. kcat lacks the last four calls except `partition_count`, and empty keys and values."""

    name: str

    def produce(
        self,
        topic: str,
        records: Sequence[OutgoingRecord],
        *,
        partition: int = 0,
        codec: str = "none",
        idempotent: bool = False,
    ) -> None:
        """Sends `records`, as one batch if the client allows that; returns when all are acknowledged (acks=all)."""

    def reader(
        self, topic: str, partition: int, start: int, *, reset: Reset = "error"
    ) -> AbstractContextManager[Reader]:
        """Opens a consumer at offset `start`."""

    def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Returns (beginning, end) of each partition by ListOffsets."""

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Returns the offset of the first record at or after `timestamp_ms`, None if there is none."""

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str], *, replicas: int = 1) -> None:
        """Creates a topic with this number of replicas of each partition."""

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic."""

    def partition_count(self, topic: str) -> int | None:
        """Returns the partition count of `topic` by Metadata, None if there is no such topic; never creates it."""

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """Deletes below the given offset of each partition and returns the low watermarks."""
