"""What the driver gives to a task, and what a task may find lost: plain values, which can be pickled.

The driver's process of a stream starts with each query, and reads nothing: what reads is imported by executors only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from lowtide.pipeline.ranges import OffsetRange
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId

FETCH_BYTES: Final = 4 << 20
"""What one request asks for: larger costs more memory and no less CPU, smaller more requests."""


class DataLossError(Exception):
    """Records that were to be read are gone: one sentence that says which, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """How to read. Can be pickled."""

    read_committed: bool = True
    include_headers: bool = False
    fail_on_data_loss: bool = True
    fetch_bytes: int = FETCH_BYTES
    fetch_wait_ms: int = 500
    poll_timeout_ms: int = 120_000
    """How long nothing may come before the task gives up."""


class PlannedRange(NamedTuple):
    """A range, and the topic that was meant."""

    offsets: OffsetRange
    topic_id: TopicId = ZERO_TOPIC_ID
