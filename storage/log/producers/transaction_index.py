"""The aborted transactions of a log, which a consumer that reads committed records leaves out.

Each segment whose markers end aborted transactions has a `.txnindex` file, byte for byte Kafka's. All integers are
big-endian; entries are in the order of their markers:

| position | bytes | field                                                                                     |
|----------|-------|-------------------------------------------------------------------------------------------|
| 0        | 2     | version, 0                                                                                |
| 2        | 8     | producer id                                                                               |
| 10       | 8     | first offset                                                                              |
| 18       | 8     | last offset (inclusive), that of the marker, which lies in this segment                   |
| 26       | 8     | last stable offset (exclusive) once the marker was committed: no later entry begins below |

    >>> encode_aborted([CompletedTransaction(7, 40, 42, True, 43)]).hex(" ", 8)
    '0000 0000000000000007 0000000000000028 000000000000002a 000000000000002b'
    >>> decode_aborted(bytes(34), 10) is None
    True

The index of the active segment is kept in memory and written when the segment is closed; after an unclean stop it is
rebuilt from the batches. A damaged file is rebuilt too. Segments without aborted transactions have no file.

Source: KIP-98, Kafka's `TransactionIndex`, `AbortedTxn`.
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final

from lowtide.protocol.types import Offset
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.errors import DamagedSegmentError, remove_file, storage_error
from lowtide.storage.log.producers.open_transactions import CompletedTransaction
from lowtide.storage.log.segments.segment_names import TRANSACTION_INDEX_SUFFIX, offset_name

_ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0

LOADED_MAX: Final = 16
"""Closed segments of one log whose entries are kept in memory."""


def encode_aborted(entries: Iterable[CompletedTransaction]) -> bytes:
    """Returns the bytes of a file."""
    return b"".join(
        _ENTRY.pack(_VERSION, entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
        for entry in entries
    )


def decode_aborted(content: bytes, base_offset: Offset) -> list[CompletedTransaction] | None:
    """Returns the entries in a segment's file; None if it isn't valid: an empty one may be left by a power cut."""
    if not content or len(content) % _ENTRY.size:
        return None
    entries = []
    before, stable = base_offset - 1, 0
    for version, producer_id, first_offset, last_offset, last_stable_offset in _ENTRY.iter_unpack(content):
        if (
            version != _VERSION
            or not 0 <= first_offset < last_offset
            or last_offset <= before
            or first_offset < stable
            or not 0 <= last_stable_offset <= last_offset + 1
        ):
            return None
        before, stable = last_offset, last_stable_offset
        entries.append(CompletedTransaction(producer_id, first_offset, last_offset, True, last_stable_offset))
    return entries


class TransactionIndex:
    """The aborted transactions of one log, by segment."""

    __slots__ = ("_bases", "_directory", "_filesystem", "_loaded", "_unwritten")

    def __init__(self, filesystem: FileSystem, directory: str, bases: Iterable[Offset] = ()) -> None:
        """`bases` are the base offsets of the segments that have a file."""
        self._filesystem = filesystem
        self._directory = directory
        self._bases = sorted(bases)
        """The segments that have any entry."""
        self._loaded: dict[Offset, list[CompletedTransaction]] = {}
        """Segments whose entries are in memory, the last used one at the end."""
        self._unwritten: set[Offset] = set()
        """Segments whose file isn't up to date."""

    def relocate(self, directory: str) -> None:
        self._directory = directory

    @property
    def bases(self) -> tuple[Offset, ...]:
        """The base offsets of the segments with aborted transactions or a file."""
        return tuple(self._bases)

    def path(self, base_offset: Offset) -> str:
        return f"{self._directory}/{offset_name(base_offset)}{TRANSACTION_INDEX_SUFFIX}"

    def base_of(self, path: str) -> Offset:
        """Returns the base offset of the segment whose file this is."""
        return int(path[-len(offset_name(0)) - len(TRANSACTION_INDEX_SUFFIX) : -len(TRANSACTION_INDEX_SUFFIX)])

    def note(self, base_offset: Offset, transaction: CompletedTransaction) -> None:
        """Adds the marker of an aborted transaction to the segment at `base_offset`. Errors: StorageError."""
        if base_offset in self._bases:
            entries = self.entries(base_offset)
        else:
            insort(self._bases, base_offset)
            entries = self._loaded[base_offset] = []
        if not entries or transaction.last_offset > entries[-1].last_offset:
            entries.append(transaction)
            self._unwritten.add(base_offset)

    def entries(self, base_offset: Offset) -> list[CompletedTransaction]:
        """Returns the entries of one segment.

        Errors: DamagedSegmentError if its file is invalid or gone; StorageError.
        """
        entries = self._loaded.pop(base_offset, None)
        if entries is None:
            path = self.path(base_offset)
            try:
                entries = decode_aborted(self._filesystem.read_bytes(path), base_offset)
            except FileNotFoundError:
                entries = None
            except OSError as error:
                raise storage_error(path, error) from error
            if entries is None:
                raise DamagedSegmentError(path, "it is no index of aborted transactions")
        self._loaded[base_offset] = entries
        if len(self._loaded) > LOADED_MAX + len(self._unwritten):
            self._forget_one()
        return entries

    def _forget_one(self) -> None:
        """Drops entries that a file has too; those of the last segment are needed for its next marker."""
        for base_offset in self._loaded:
            if base_offset not in self._unwritten and base_offset != self._bases[-1]:
                del self._loaded[base_offset]
                return

    def collect(self, first_base: Offset, offset: Offset, end_offset: Offset) -> list[CompletedTransaction]:
        """Returns the aborted transactions with records from `offset` up to `end_offset` (exclusive).

        `first_base` is the base offset of the segment that holds `offset`. Errors: as `entries`.
        """
        found = []
        for base_offset in self._bases[bisect_left(self._bases, first_base) :]:
            for entry in self.entries(base_offset):
                if entry.last_offset >= offset and entry.first_offset < end_offset:
                    found.append(entry)
                if entry.last_stable_offset >= end_offset:
                    return found
        return found

    def write(self, base_offset: Offset) -> list[str]:
        """Writes the file of a closed segment, if it has entries; returns its path. Errors: OSError."""
        if base_offset not in self._unwritten:
            return []
        path = self.path(base_offset)
        self._filesystem.write_bytes(path, encode_aborted(self._loaded[base_offset]))
        self._unwritten.discard(base_offset)
        return [path]

    def forget_below(self, base_offset: Offset) -> None:
        """Forgets the segments below the one at `base_offset`, which are removed with their files."""
        self._forget(self._bases[: bisect_left(self._bases, base_offset)])

    def replaced(self, bases: Iterable[Offset], base_offset: Offset, *, has_file: bool) -> None:
        """Replaces the segments at `bases` by one at `base_offset`, which has a file or no aborted transactions."""
        self._forget([base for base in bases if base in self._bases])
        if has_file:
            insort(self._bases, base_offset)

    def hold(self, base_offset: Offset, path: str) -> None:
        """Keeps the entries of a segment in memory until `release`, while its file is called `path`.

        Errors: OSError.
        """
        if base_offset in self._bases and base_offset not in self._unwritten:
            self._loaded[base_offset] = decode_aborted(self._filesystem.read_bytes(path), base_offset) or []
            self._unwritten.add(base_offset)

    def release(self, base_offset: Offset) -> None:
        """Ends `hold`: the file of the segment has its name."""
        self._unwritten.discard(base_offset)

    def unwritten(self) -> list[CompletedTransaction]:
        """Returns the entries that no file has yet. Errors: as `entries`."""
        return [entry for base_offset in sorted(self._unwritten) for entry in self.entries(base_offset)]

    @property
    def written_bases(self) -> list[Offset]:
        """The base offsets of segments whose file has all entries, rising."""
        return [base_offset for base_offset in self._bases if base_offset not in self._unwritten]

    def forget_from(self, base_offset: Offset) -> None:
        """Forgets the segments from the one at `base_offset` on, which were removed with their files."""
        self._forget(self._bases[bisect_left(self._bases, base_offset) :])

    def load(self, base_offset: Offset) -> None:
        """Loads the entries of a segment, so that cutting it needs no file. Errors: StorageError."""
        if base_offset in self._bases:
            with contextlib.suppress(DamagedSegmentError):
                self.entries(base_offset)

    def cut(self, base_offset: Offset, end_offset: Offset) -> None:
        """Cuts the entries of the last segment, which begins at `base_offset`, to the exclusive log end.

        Errors: StorageError.

        Its file is removed until the segment is closed again.
        """
        if base_offset not in self._bases:
            return
        try:
            entries = [entry for entry in self.entries(base_offset) if entry.last_offset < end_offset]
        except DamagedSegmentError:
            entries = None
        remove_file(self._filesystem, self.path(base_offset))
        self._forget([base_offset])
        if entries:
            self._bases.append(base_offset)
            self._loaded[base_offset] = entries
            self._unwritten.add(base_offset)

    def begin_rebuild(self, base_offset: Offset) -> None:
        """Forgets the entries of a segment before its markers are added again."""
        self._forget([base_offset] if base_offset in self._bases else [])
        insort(self._bases, base_offset)
        self._loaded[base_offset] = []
        self._unwritten.add(base_offset)

    def end_rebuild(self, base_offset: Offset) -> None:
        """Ends a rebuild. A segment without entries has no file. Errors: StorageError."""
        if self._loaded[base_offset]:
            return
        self._forget([base_offset])
        remove_file(self._filesystem, self.path(base_offset))

    def _forget(self, bases: list[Offset]) -> None:
        for base_offset in list(bases):
            self._bases.remove(base_offset)
            self._loaded.pop(base_offset, None)
            self._unwritten.discard(base_offset)
