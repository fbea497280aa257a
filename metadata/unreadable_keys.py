"""Keys of the metadata store that are not understood: what the image shows instead, and what the log and the metrics say of them.

A key that can't be read stops what depends on it, and nothing else. Where the value from before is known, it stays in force, as of the
revision of the one that can't be read: the next change of it writes a whole value again. Where it isn't known, as at a start:

| what can't be read | instead |
|---|---|
| a partition | it has no leader and no replicas that are known; no plan changes it, and its log stays where it is |
| a topic | it isn't served; its logs and partitions stay |
| what is set on a topic or on brokers | the defaults, but nothing is deleted by age, by size or by compaction |
| a rule of access control, or a change of many | only super users are allowed anything |
| a credential, a delegation token | it admits no client, also where the value from before is known |
| a stale mark | all replicas of that broker are stale (rule DR8) |
| a known broker | it is known, without an address |
| a suspension | no broker acts |
| the cluster's id, its history, its features | a broker does not start |
| anything else | as if it were not set |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.metadata.store import Revision


class Unreadable(msgspec.Struct, frozen=True, gc=False):
    """A key that can't be read: since which revision, why, and whether the value from before is in force."""

    revision: Revision
    reason: str
    keeps: bool = False


class UnreadableKeys:
    """The unreadable keys of one step from an image to the next.

    Copies the mapping at most once, and only if it changes.
    """

    def __init__(self, old: Mapping[bytes, Unreadable]) -> None:
        self._old = old
        self._new: dict[bytes, Unreadable] | None = None

    def note(self, key: bytes, revision: Revision, reason: str, *, keeps: bool) -> None:
        """Notes that a key can't be read."""
        self._to_change()[key] = Unreadable(revision, reason, keeps)

    def forget(self, key: bytes) -> None:
        """Removes a key that was read again or deleted."""
        if key in self.found:
            del self._to_change()[key]

    def forget_under(self, prefix: bytes) -> None:
        """Removes all keys with this prefix."""
        for key in [key for key in self.found if key.startswith(prefix)]:
            self.forget(key)

    @property
    def found(self) -> Mapping[bytes, Unreadable]:
        """What can't be read now."""
        return self._old if self._new is None else self._new

    def _to_change(self) -> dict[bytes, Unreadable]:
        if self._new is None:
            self._new = dict(self._old)
        return self._new
