"""Divides the file descriptors of a broker (RLIMIT_NOFILE) among its uses.

| share | use |
|---|---|
| reserve | journals, locks, checkpoints, metadata store, recovery, compaction, connections to brokers, accepting |
| segments | open `.log` files (`storage/log/segments/open_files.py`); others are opened when they are used |
| connections | accepted connections; `max.connections` can only lower it |

So neither partitions nor clients take the descriptors that a broker needs: without one for its journal or its store it
must stop. Source: Kafka's operations guide asks for 100,000 and divides nothing.
"""

from __future__ import annotations

from typing import NamedTuple

DESCRIPTORS_MIN = 128
"""The minimum for a broker to start."""

_RESERVE_MIN, _RESERVE_MAX = 64, 1024
_RESERVE_PART = 8
_SEGMENTS_PART = 3
_BACKLOG_PART = 2


class DescriptorBudget(NamedTuple):
    """The shares of a limit."""

    limit: int
    reserve: int
    segment_files: int
    connections: int

    @property
    def accept_backlog(self) -> int:
        """The listen backlog: asyncio accepts all waiting connections at once, uvloop one per pass."""
        return self.reserve // _BACKLOG_PART

    def as_log(self) -> dict[str, int]:
        return {"open_files": self.limit, "open_segments": self.segment_files, "reserved_files": self.reserve}


def share_out(limit: int) -> DescriptorBudget:
    """Divides `limit` descriptors.

    Errors: OSError, one sentence, if the limit is too low.
    """
    if limit < DESCRIPTORS_MIN:
        message = (
            f"the limit of open files (RLIMIT_NOFILE, ulimit -n) is {limit}: a broker needs at least {DESCRIPTORS_MIN}."
        )
        raise OSError(message)
    reserve = min(max(limit // _RESERVE_PART, _RESERVE_MIN), _RESERVE_MAX)
    segment_files = max((limit - reserve) // _SEGMENTS_PART, 1)
    return DescriptorBudget(limit, reserve, segment_files, limit - reserve - segment_files)
