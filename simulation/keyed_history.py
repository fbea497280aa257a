"""Records what clients saw of one compacted partition of a cluster, and checks that it was allowed.

Unlike `cluster_history`, offsets may be missing. Checked (letters of the invariants): C1 the last record of each key is
there, with its offset, unless it is an expired tombstone; an older one is removed only for a later one that was not
aborted. A record has a unique text, which contains its key, as a header, because a tombstone has no value.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from lowtide.protocol.types import Offset
from lowtide.simulation.cluster_history import ClusterPartitionHistory
from lowtide.simulation.transaction_history import Attempt

TOMBSTONE_SHARE_OF_TIME = 0.95


class Identity(NamedTuple):
    """The content of a record's text."""

    key: bytes
    is_tombstone: bool
    sent_ms: int

    @classmethod
    def of(cls, text: bytes) -> Identity:
        _, key, kind, sent_ms, _ = text.split(b"|", 4)
        return cls(key, kind == b"T", int(sent_ms))


class KeyedHistory(ClusterPartitionHistory):
    """The history of one compacted partition."""

    def __init__(self, name: str, *, delete_retention_ms: int) -> None:
        super().__init__(name)
        self.delete_retention_ms = delete_retention_ms
        self.attempts: dict[bytes, Attempt] = {}
        """The transactions of transactional records."""
        self.outcomes_are_void = False
        """Whether the transaction coordinator may have lost outcomes."""
        self.committed_end = 0

    def void_records(self) -> None:
        super().void_records()
        self.committed_end = 0

    def check_gaps(self, records: Container[Offset], start: Offset, last: Offset) -> None:
        """Compaction leaves gaps: see `check_whole`."""

    def check_whole(
        self, found: Container[Offset], *, start: Offset, end: Offset, now_ms: int, clocks_are_right: bool
    ) -> None:
        """Checks C1 over a replica from `start` to `end` (exclusive); `now_ms` is virtual time."""
        if self.records_are_void or end < self.committed_end:
            return  # A leader that doesn't know yet how much is committed may have compacted because of hidden records.
        known = self.seen | self.acknowledged
        last: dict[bytes, Offset] = {}
        for offset, text in known.items():
            if not self._is_aborted(text):
                key = Identity.of(text).key
                last[key] = max(last.get(key, -1), offset)
        for offset, text in known.items():
            if start <= offset < end and offset not in found and self._is_committed(text):
                identity = Identity.of(text)
                age_ms = now_ms - identity.sent_ms
                is_over = age_ms >= TOMBSTONE_SHARE_OF_TIME * self.delete_retention_ms or not clocks_are_right
                is_over_tombstone = identity.is_tombstone and is_over
                if last[identity.key] == offset and not is_over_tombstone and not self._may_lack(offset):
                    self.fail(
                        f"C1: the last record of {identity.key!r}, {text[:60]!r} at offset {offset}, is gone from "
                        f"{start} to {end}"
                    )

    def is_superseded(self, offset: Offset, text: bytes) -> bool:
        """Returns whether a later record of its key is known."""
        key = Identity.of(text).key
        return any(
            other > offset and Identity.of(each).key == key for other, each in (self.seen | self.acknowledged).items()
        )

    def _is_committed(self, text: bytes) -> bool:
        attempt = self.attempts.get(text)
        return attempt is None or (attempt.is_committed and not self.outcomes_are_void)

    def _is_aborted(self, text: bytes) -> bool:
        attempt = self.attempts.get(text)
        return attempt is not None and not self.outcomes_are_void and (attempt.is_refused or not attempt.commits_sent)
