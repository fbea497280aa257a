"""How the descriptors that a broker may open are shared out: RLIMIT_NOFILE, from which every file and socket takes one.

| share | for |
|---|---|
| the reserve | journals, locks, checkpoints, the metadata store, recovery, compaction, connections to other brokers and etcd, accepting |
| segments | `.log` files that are open (`storage/log/segments/open_files.py`); others are opened when they are used |
| connections | accepted ones; `max.connections` may set less, never more |

So neither partitions nor clients take the descriptors that a broker needs: without a descriptor for its journal or its
store it can only stop. Source: the table of `RLIMIT_NOFILE` in Kafka's operations guide, which asks for 100,000 and
shares nothing out.
"""

from __future__ import annotations

from typing import NamedTuple

DESCRIPTORS_MIN = 128
"""With fewer a broker doesn't start."""

_RESERVE_MIN, _RESERVE_MAX = 64, 1024
_RESERVE_PART = 8
_SEGMENTS_PART = 3
_BACKLOG_PART = 2


class DescriptorBudget(NamedTuple):
    """Keeps descriptors in reserve for files, and says how many connections there may be."""

    limit: int
    reserve: int
    segment_files: int
    connections: int

    @property
    def accept_backlog(self) -> int:
        """Connections that may wait to be accepted: asyncio's loop accepts all that wait at once, uvloop one in each of its passes."""
        return self.reserve // _BACKLOG_PART

    def as_log(self) -> dict[str, int]:
        """For the line about limits that a start writes."""
        return {"open_files": self.limit, "open_segments": self.segment_files, "reserved_files": self.reserve}


def share_out(limit: int) -> DescriptorBudget:
    """The shares of `limit` descriptors.

    Errors: OSError, in one sentence, for a limit with which a broker can't work.
    """
    if limit < DESCRIPTORS_MIN:
        message = (
            f"the limit of open files (RLIMIT_NOFILE, ulimit -n) is {limit}: a broker needs at least {DESCRIPTORS_MIN}."
        )
        raise OSError(message)
    reserve = min(max(limit // _RESERVE_PART, _RESERVE_MIN), _RESERVE_MAX)
    segment_files = max((limit - reserve) // _SEGMENTS_PART, 1)
    return DescriptorBudget(limit, reserve, segment_files, limit - reserve - segment_files)
