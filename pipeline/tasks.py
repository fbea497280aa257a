"""The values that the driver sends to tasks. They can be pickled.

Only executors import the modules that read, because the driver's process starts with each query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from lowtide.pipeline.ranges import ReadRange
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId

FETCH_BYTES: Final = 4 << 20
"""The size of one request: larger ones cost more memory and no less CPU, smaller ones more requests."""


class DataLossError(Exception):
    """Records were deleted before they were read. The message names them and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """The read options of tasks. Can be pickled."""

    read_committed: bool = True
    include_headers: bool = False
    fail_on_data_loss: bool = True
    fetch_bytes: int = FETCH_BYTES
    fetch_wait_ms: int = 500
    poll_timeout_ms: int = 120_000
    """How long a task waits for records before it gives up."""


class PlannedRange(NamedTuple):
    """A range, with the id of its topic."""

    offsets: ReadRange
    topic_id: TopicId = ZERO_TOPIC_ID
