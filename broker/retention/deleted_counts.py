"""How much was deleted, by reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from lowtide.storage.log.retention.retention_plan import Reason


class DeletedCount(msgspec.Struct):
    """What went from a topic for one reason, since the broker started."""

    segments: int = 0
    size_bytes: int = 0
    offsets: int = 0
    """Compaction may have left fewer records."""


def total_counts(several: Iterable[Mapping[Reason, DeletedCount]]) -> dict[Reason, DeletedCount]:
    """The sum of several, with every reason."""
    totals = {reason: DeletedCount() for reason in Reason}
    for counts in several:
        for reason, count in counts.items():
            total = totals[reason]
            total.segments += count.segments
            total.size_bytes += count.size_bytes
            total.offsets += count.offsets
    return totals
