"""Which transactions of a log were aborted: what a consumer that reads committed records has to leave out.

Each segment whose markers end aborted transactions has a `.txnindex` file, byte for byte Kafka's, all integers
big-endian; entries are in
the order of their markers:

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

That of the segment that is written lives in memory and reaches its file when the segment is closed; after an unclean
stop it is built again from the batches. A file that is no good is built again, too; segments without aborted
transactions have none.

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
from lowtide.storage.errors import DamagedSegmentError, storage_error
from lowtide.storage.log.producers.open_transactions import CompletedTransaction
from lowtide.storage.log.segments.segment_names import TRANSACTION_INDEX_SUFFIX, offset_name

_ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0

LOADED_MAX: Final = 16
"""Closed segments of one log whose entries are kept in memory."""


def encode_aborted(entries: Iterable[CompletedTransaction]) -> bytes:
    """A file's bytes."""
    return b"".join(
        _ENTRY.pack(_VERSION, entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
        for entry in entries
    )


def decode_aborted(content: bytes, base_offset: Offset) -> list[CompletedTransaction] | None:
    """The entries in the file of a segment, or None if it isn't a valid one: an empty one may be what a power cut left."""
    if not content or len(content) % _ENTRY.size:
        return None
    entries = []
    before = base_offset - 1
    for version, producer_id, first_offset, last_offset, last_stable_offset in _ENTRY.iter_unpack(content):
        if (
            version != _VERSION
            or not 0 <= first_offset < last_offset
            or last_offset <= before
            or last_stable_offset < 0
        ):
            return None
        before = last_offset
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
        """Those whose entries are in memory, the one used last at the end."""
        self._unwritten: set[Offset] = set()
        """Those whose file doesn't hold what is in memory."""

    def relocate(self, directory: str) -> None:
        """The log's folder was renamed."""
        self._directory = directory

    @property
    def bases(self) -> tuple[Offset, ...]:
        """The base offsets of the segments that have aborted transactions, or a file that says so."""
        return tuple(self._bases)

    def path(self, base_offset: Offset) -> str:
        """The file of a segment."""
        return f"{self._directory}/{offset_name(base_offset)}{TRANSACTION_INDEX_SUFFIX}"

    def base_of(self, path: str) -> Offset:
        """The segment whose file this is."""
        return int(path[-len(offset_name(0)) - len(TRANSACTION_INDEX_SUFFIX) : -len(TRANSACTION_INDEX_SUFFIX)])

    def damaged(self) -> list[Offset]:
        """The segments whose files are no good. Errors: StorageError."""
        found = []
        for base_offset in self._bases:
            try:
                self.entries(base_offset)
            except DamagedSegmentError:
                found.append(base_offset)
        return found

    def note(self, base_offset: Offset, transaction: CompletedTransaction) -> None:
        """The marker of an aborted transaction was appended to the segment at `base_offset`. Errors: StorageError."""
        if base_offset in self._bases:
            entries = self.entries(base_offset)
        else:
            insort(self._bases, base_offset)
            entries = self._loaded[base_offset] = []
        if not entries or transaction.last_offset > entries[-1].last_offset:
            entries.append(transaction)
            self._unwritten.add(base_offset)

    def entries(self, base_offset: Offset) -> list[CompletedTransaction]:
        """Those of one segment. Errors: DamagedSegmentError where the file is no good or gone; StorageError."""
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
        """Let go of entries that the file has, too; those of the last segment are needed for its next marker."""
        for base_offset in self._loaded:
            if base_offset not in self._unwritten and base_offset != self._bases[-1]:
                del self._loaded[base_offset]
                return

    def collect(self, first_base: Offset, offset: Offset, end_offset: Offset) -> list[CompletedTransaction]:
        """The aborted transactions that have to do with records from `offset` up to `end_offset` (exclusive).

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
        """Write the file of a segment that is closed, if it has one to write; returns its path. Errors: OSError."""
        if base_offset not in self._unwritten:
            return []
        path = self.path(base_offset)
        self._filesystem.write_bytes(path, encode_aborted(self._loaded[base_offset]))
        self._unwritten.discard(base_offset)
        return [path]

    def left_with_segments(self, base_offset: Offset) -> None:
        """The segments below the one at `base_offset` are gone or going, and take their files along."""
        self._forget(self._bases[: bisect_left(self._bases, base_offset)])

    def replaced(self, bases: Iterable[Offset], base_offset: Offset, *, has_file: bool) -> None:
        """The segments at `bases` gave way to one at `base_offset`, which has a file or no aborted transactions."""
        self._forget([base for base in bases if base in self._bases])
        if has_file:
            insort(self._bases, base_offset)

    def hold(self, base_offset: Offset, path: str) -> None:
        """The file of a segment is called `path` for a while: its entries stay in memory until `let_go`.

        Errors: OSError.
        """
        if base_offset in self._bases and base_offset not in self._unwritten:
            self._loaded[base_offset] = decode_aborted(self._filesystem.read_bytes(path), base_offset) or []
            self._unwritten.add(base_offset)

    def let_go(self, base_offset: Offset) -> None:
        """The file of a segment has its name."""
        self._unwritten.discard(base_offset)

    def unwritten(self) -> list[CompletedTransaction]:
        """The entries of which no file tells yet. Errors: as `entries`."""
        return [entry for base_offset in sorted(self._unwritten) for entry in self.entries(base_offset)]

    @property
    def written_bases(self) -> list[Offset]:
        """The base offsets of the segments of which a file tells all, rising."""
        return [base_offset for base_offset in self._bases if base_offset not in self._unwritten]

    def removed_from(self, base_offset: Offset) -> None:
        """The segments from the one at `base_offset` on are gone, with their files."""
        self._forget(self._bases[bisect_left(self._bases, base_offset) :])

    def load(self, base_offset: Offset) -> None:
        """Has the entries of a segment in memory, so that cutting it needs no file. Errors: StorageError."""
        if base_offset in self._bases:
            with contextlib.suppress(DamagedSegmentError):
                self.entries(base_offset)

    def cut(self, base_offset: Offset, end_offset: Offset) -> None:
        """The segment at `base_offset`, the last one now, was cut at the exclusive log end.

        Its file goes until it is closed again.
        Errors: StorageError.
        """
        if base_offset not in self._bases:
            return
        try:
            entries = [entry for entry in self.entries(base_offset) if entry.last_offset < end_offset]
        except DamagedSegmentError:
            entries = None
        path = self.path(base_offset)
        try:
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.unlink(path)
        except OSError as error:
            raise storage_error(path, error) from error
        self._forget([base_offset])
        if entries:
            self._bases.append(base_offset)
            self._loaded[base_offset] = entries
            self._unwritten.add(base_offset)

    def begin_rebuild(self, base_offset: Offset) -> None:
        """What is known of a segment is no good: the markers in it are about to be noted again."""
        self._forget([base_offset] if base_offset in self._bases else [])
        insort(self._bases, base_offset)
        self._loaded[base_offset] = []
        self._unwritten.add(base_offset)

    def end_rebuild(self, base_offset: Offset) -> None:
        """They have been noted. A segment that has none has no file. Errors: StorageError."""
        if self._loaded[base_offset]:
            return
        self._forget([base_offset])
        path = self.path(base_offset)
        try:
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.unlink(path)
        except OSError as error:
            raise storage_error(path, error) from error

    def _forget(self, bases: list[Offset]) -> None:
        for base_offset in list(bases):
            self._bases.remove(base_offset)
            self._loaded.pop(base_offset, None)
            self._unwritten.discard(base_offset)
