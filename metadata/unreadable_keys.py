"""Keys of the metadata store that can't be read, and what the image shows instead.

An unreadable key affects only what depends on it. If the previous value is known, it stays in effect, with the revision
of the unreadable one, so the key's next change writes a whole value again. If it isn't known, as at a start:

| unreadable key | effect |
|---|---|
| a partition | it has no leader and no known replicas; no plan changes it, and its log stays |
| a topic | it isn't served; its logs and partitions stay |
| a topic or broker configuration | the defaults, but nothing is deleted by age, by size or by compaction |
| an access control rule, or a large change of rules | only super users are allowed anything |
| a credential, a delegation token | it admits no client, even if the previous value is known |
| a stale mark | all replicas of that broker are stale (rule DR8) |
| a known broker | it is known, without an address |
| a suspension | no broker acts |
| the cluster's id, its history, its features | a broker does not start |
| anything else | as if it were not set |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.metadata.draft import Draft

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.metadata.store import Revision


class Unreadable(msgspec.Struct, frozen=True, gc=False):
    """An unreadable key: since which revision, why, and whether the previous value stays in effect."""

    revision: Revision
    reason: str
    keeps: bool = False


class UnreadableKeys:
    """The unreadable keys of the next image."""

    def __init__(self, old: Mapping[bytes, Unreadable]) -> None:
        self._keys = Draft(old)

    def note(self, key: bytes, revision: Revision, reason: str, *, keeps: bool) -> None:
        self._keys.put(key, Unreadable(revision, reason, keeps))

    def forget(self, key: bytes) -> None:
        """Removes a key that was read again or deleted."""
        if key in self.found:
            self._keys.put(key, None)

    def forget_under(self, prefix: bytes) -> None:
        for key in [key for key in self.found if key.startswith(prefix)]:
            self.forget(key)

    @property
    def found(self) -> Mapping[bytes, Unreadable]:
        """The keys that can't be read now."""
        return self._keys.now
