"""Decides which versions of keys go with records that offsets or a header name in a compacted log. Pure.

With a version all older ones of its key go: without it, one of them could be read as the current value. So the newest
version goes only if somebody wants that: offsets need `force` for it. A header is a person's own, as a key is: it needs
none. Records without a key, from before the log was compacted, have no versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from lowtide.protocol.types import Offset, ProducerId
from lowtide.storage.erasures.log_search import SearchedLog
from lowtide.storage.erasures.record_search import FoundRecords, KeySelector, OffsetSelector, RecordSelector

NEWEST: Final = "Offset {} is the newest version of its key: with force it is erased, and the key has no value then."


class ErasureTerms(NamedTuple):
    """What a client wants to be erased."""

    selector: RecordSelector
    force: bool = False
    """Whether offsets may name the newest version of a key."""
    names_newest: bool = False
    """Whether a search names the newest versions of keys."""

    @property
    def must_widen(self) -> bool:
        """Whether a compacted log must be searched for older versions."""
        return not isinstance(self.selector, KeySelector)

    @property
    def keeps_newest(self) -> bool:
        """Whether the newest version of a key is refused."""
        return isinstance(self.selector, OffsetSelector) and not self.force


def ends_of(named: SearchedLog) -> dict[bytes, Offset]:
    """Returns the keys of named records, each with the highest offset (inclusive)."""
    assert named.keys is not None
    columns = zip(named.records.offsets, named.keys.each(), strict=True)
    return {key: Offset(offset) for offset, (key, _) in columns if key is not None}


def newest_named(
    ends: Mapping[bytes, Offset], versions: SearchedLog, is_live: Callable[[Offset, ProducerId], bool]
) -> list[Offset]:
    """Returns the ends that are the newest versions of their keys, in ascending order.

    `versions` are all versions of the keys in ascending order: an end that has been compacted away is not among them.
    `is_live` tells whether consumers get a record, or will.
    """
    assert versions.keys is not None
    newest: dict[bytes, Offset] = {}
    for offset, (key, producer_id) in zip(versions.records.offsets, versions.keys.each(), strict=True):
        if key is not None and offset == ends[key]:
            newest[key] = Offset(offset)
        elif key in newest and is_live(Offset(offset), producer_id):
            del newest[key]
    return sorted(newest.values())


def up_to(ends: Mapping[bytes, Offset], versions: SearchedLog) -> FoundRecords:
    """Returns the versions up to the ends of their keys."""
    assert versions.keys is not None
    found, records = FoundRecords(), versions.records
    columns = zip(records.offsets, records.timestamps, records.leader_epochs, versions.keys.each(), strict=True)
    for offset, timestamp, leader_epoch, (key, _) in columns:
        if key is not None and offset <= ends[key]:
            found.offsets.append(offset)
            found.timestamps.append(timestamp)
            found.leader_epochs.append(leader_epoch)
    return found


def both(first: FoundRecords, second: FoundRecords) -> FoundRecords:
    """Returns the records of two searches of a log, each once, in ascending order of offsets."""
    found = FoundRecords()
    columns = (zip(each.offsets, each.timestamps, each.leader_epochs, strict=True) for each in (first, second))
    for offset, timestamp, leader_epoch in sorted({row[0]: row for rows in columns for row in rows}.values()):
        found.offsets.append(offset)
        found.timestamps.append(timestamp)
        found.leader_epochs.append(leader_epoch)
    return found
