"""The `.log` file of a segment: open while it is used, within the bound of `OpenFiles`; its batches, places and slices.

A slice is bytes that are promised to a reader and read later, when its socket takes them.

Guards: a file that a slice or a barrier holds stays open for them when the segment releases or unlinks it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final, final

import msgspec

from lowtide.protocol.control_records import ControlRecord, read_control_record
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, BatchHeader, read_batch_header
from lowtide.protocol.types import FilePosition, Offset
from lowtide.runtime.filesystem import File, FileSystem, FileToSync, Syncable
from lowtide.storage.errors import DamagedSegmentError, storage_error
from lowtide.storage.log.segments.hole import HOLE_HEADER_BYTES, Hole, decode_hole
from lowtide.storage.log.segments.index import MAX_RELATIVE_OFFSET
from lowtide.storage.log.segments.open_files import OpenFiles
from lowtide.storage.log.segments.segment_life import WRITTEN, SegmentEvent, SegmentLife, next_life

if TYPE_CHECKING:
    from lowtide.storage.log.segments.pending_hole import PendingHole

KNOWN_STARTS: Final = 32
"""Batch starts remembered per generation; two generations exist. A tail reader lags the writer by fewer batches than
that.
"""


CONTROL_BYTES_MAX: Final = 1 << 16
"""A control batch holds one record of a few bytes."""

SCAN_BYTES: Final = 4096
"""The size of a read when looking for a batch: about what lies between two index entries."""
_WALK_BYTES: Final = 1 << 16

# Base offset, batch length and, after epoch, magic, CRC and attributes, the last offset's delta.
_PLACE: Final = Struct(">qi11xi")
_LENGTH_END: Final = 12


class SliceToken:
    """Says whether a slice's bytes are still those that were promised.

    All slices of a segment since its last cut share it.
    """

    __slots__ = ("valid",)

    def __init__(self) -> None:
        self.valid = True


@final
class FileSlice(msgspec.Struct, gc=False):
    """Bytes of an open file, to be read later: `size` of them from `position` on, as long as `token` is valid.

    It keeps the file open, even if the segment is deleted meanwhile.
    """

    file: File
    position: FilePosition
    size: int
    token: SliceToken

    def __len__(self) -> int:
        return self.size


class BatchPlace(msgspec.Struct, gc=False):
    """Where a batch lies: its first offset, its byte place and its size."""

    base_offset: Offset
    last_offset: Offset
    position: FilePosition
    size: int


class SegmentFile:
    """The `.log` file of a segment. `size` is where the last whole batch ends."""

    __slots__ = (
        "_file",
        "_filesystem",
        "_known",
        "_known_before",
        "_let_go",
        "base_offset",
        "files",
        "first_offset",
        "floor",
        "gone_offset",
        "hole",
        "life",
        "path",
        "punched",
        "size",
        "used",
    )

    def __init__(self, filesystem: FileSystem, path: str, base_offset: Offset, size: int) -> None:
        self._filesystem = filesystem
        self._file: File | None = None
        self.life = SegmentLife.CLOSED
        self._known: dict[Offset, FilePosition] = {}
        self._known_before: dict[Offset, FilePosition] = {}
        self._let_go: tuple[weakref.ref[File], ...] = ()
        """Open files that it has released while others held them."""
        self.files: OpenFiles | None = None
        """Bounds the open files; None while no log has the segment yet."""
        self.path = path
        self.base_offset = base_offset
        self.floor: FilePosition = 0
        """Where the first readable batch begins: behind a hole."""
        self.first_offset = base_offset
        """The first offset behind the hole; else the base offset."""
        self.punched: FilePosition = 0
        """How many bytes are certainly a hole."""
        self.gone_offset = base_offset
        """No record below is in the file: it is the end of the hole, or of what was erased."""
        self.hole: PendingHole | None = None
        """The hole to be made."""
        self.size = size
        self.used = False

    def forget_file(self) -> None:
        """Releases the open file; the next use opens it again."""
        if self._file is not None:
            file = weakref.ref(self._file)
            self._file = None
            if file() is not None:
                self._let_go = (*self.held(), file)
            if self.files is not None:
                self.files.closed(self, file)

    def held(self) -> tuple[weakref.ref[File], ...]:
        """Returns its released files that others still hold, such as slices: they may read what was there."""
        if self._let_go:
            self._let_go = tuple(file for file in self._let_go if file() is not None)
        return self._let_go

    def try_close(self) -> bool:
        """Closes the file unless slices or barriers hold it, too. Returns whether it did."""
        if self._file is None:
            return True
        file = weakref.ref(self._file)
        self._file = None
        self._file = file()
        return self._file is None

    @property
    def file(self) -> File:
        """The open file, opened now if necessary. Errors: StorageError."""
        file = self._file
        if file is None:
            try:
                file = self._open(for_writing=False)
            except OSError as error:
                raise storage_error(self.path, error) from error
        self.used = True
        return file

    def _open(self, *, for_writing: bool) -> File:
        files = self.files
        if files is not None:
            files.make_room(self, for_writing=for_writing)
        file = self._file = self._filesystem.open(self.path, write=self.life in WRITTEN)
        if files is not None:
            files.opened(self)
        return file

    def to_sync(self) -> Syncable:
        """Returns the file for a barrier to sync: the open one, or one that the barrier opens."""
        return self._file or FileToSync(self._filesystem, self.path)

    def on(self, event: SegmentEvent) -> None:
        """Changes the state. Errors: AssertionError for an impossible event."""
        self.life = next_life(self.life, event)

    @property
    def is_pinned(self) -> bool:
        """Whether it is the active segment."""
        return self.life in WRITTEN

    @property
    def is_open(self) -> bool:
        """Whether its file is open."""
        return self._file is not None

    # A hole

    def leave_out(self, hole: Hole) -> None:
        """Stops reading the hole's bytes."""
        self.floor = hole.size
        self.first_offset = hole.next_offset

    def fill_hole(self) -> None:
        """Gives up the hole: the file is about to be emptied, and is then read from byte 0 again."""
        self.abandon_hole()
        self.floor = self.punched = 0
        self.first_offset = self.gone_offset = self.base_offset

    def abandon_hole(self) -> None:
        """Gives up a hole that was begun: the file will soon be another's, or its name."""
        hole, self.hole = self.hole, None
        if hole is not None:
            hole.abandon()

    def read_hole(self) -> Hole | None:
        """Returns the hole at the beginning of the file, if there is one. Errors: StorageError."""
        return (
            decode_hole(self._read(self.file, HOLE_HEADER_BYTES, 0), self.base_offset)
            if self.size >= HOLE_HEADER_BYTES
            else None
        )

    # Batches

    def place_at(self, position: FilePosition) -> BatchPlace | None:
        """Returns the batch at `position`, an index entry; None if none begins there."""
        head = self._read(self._file or self.file, _PLACE.size, position)
        if len(head) < _PLACE.size:
            return None
        base_offset, length, delta = _PLACE.unpack(head)
        size = length + _LENGTH_END
        if size < RECORD_BATCH_OVERHEAD or position + size > self.size or base_offset < self.base_offset or delta < 0:
            return None
        return BatchPlace(base_offset, base_offset + delta, position, size)

    def scan(self, offset: Offset, position: FilePosition, entry_offset: Offset | None) -> BatchPlace | None:
        """Returns the first batch from byte `position` on that ends at or after `offset`; None if all end before.

        An index says that the batch that holds `entry_offset` begins there (None: no index says). Errors: StorageError.
        """
        file, size = self.file, self.size
        if position < self.floor:
            position, entry_offset = self.floor, None
        unpack, place_bytes = _PLACE.unpack_from, _PLACE.size
        while position < size:
            chunk = self._read(file, min(SCAN_BYTES, size - position), position)
            at, limit = 0, len(chunk) - place_bytes
            while at <= limit:
                base_offset, length, delta = unpack(chunk, at)
                batch_size = length + _LENGTH_END
                if (
                    batch_size < RECORD_BATCH_OVERHEAD
                    or position + at + batch_size > size
                    or base_offset < self.base_offset
                    or delta < 0
                    or (entry_offset is not None and position and base_offset > entry_offset)
                ):
                    raise DamagedSegmentError(self.path, f"no record batch begins at byte {position + at}")
                entry_offset = None
                if base_offset + delta >= offset:
                    return BatchPlace(base_offset, base_offset + delta, position + at, batch_size)
                at += batch_size
            if at == 0:
                raise DamagedSegmentError(self.path, f"the last {size - position} bytes are no record batch")
            position += at
        return None

    def size_at(self, position: FilePosition) -> int:
        """Returns the size of the batch at `position`. Errors: StorageError."""
        head = self._read(self.file, _LENGTH_END, position)
        size = int.from_bytes(head[8:12], "big") + _LENGTH_END if len(head) == _LENGTH_END else 0
        if not RECORD_BATCH_OVERHEAD <= size <= self.size - position:
            raise DamagedSegmentError(self.path, f"no record batch begins at byte {position}")
        return size

    def batches(self, position: FilePosition) -> Iterator[tuple[FilePosition, BatchHeader]]:
        """Yields the headers of the batches from byte `position`, where one begins, on, except in a hole.

        CRCs aren't checked. Errors: StorageError.
        """
        size = self.size
        position = max(position, self.floor)
        file = self.file if position < size else None
        while file is not None and position < size:
            chunk = self._read(file, min(_WALK_BYTES, size - position), position)
            at = 0
            while at + RECORD_BATCH_OVERHEAD <= len(chunk):
                try:
                    header = read_batch_header(chunk, at)
                except ProtocolError as error:
                    raise DamagedSegmentError(
                        self.path, f"no record batch begins at byte {position + at}: {error}"
                    ) from error
                batch_size = header.size_bytes
                fits = (
                    0 <= header.base_offset - self.base_offset <= MAX_RELATIVE_OFFSET - max(header.last_offset_delta, 0)
                )
                if batch_size < RECORD_BATCH_OVERHEAD or position + at + batch_size > size or not fits:
                    raise DamagedSegmentError(self.path, f"no record batch begins at byte {position + at}")
                yield position + at, header
                at += batch_size
            if at == 0:
                raise DamagedSegmentError(self.path, f"the last {size - position} bytes are no record batch")
            position += at

    def read_batch(self, position: FilePosition, size: int) -> bytes:
        """Returns the bytes of the batch at `position`. Errors: StorageError."""
        return self._read(self.file, size, position)

    def read_control(self, position: FilePosition, header: BatchHeader) -> ControlRecord | None:
        """Returns the content of the control batch at `position`; None for an ordinary batch. Errors: StorageError."""
        if not header.is_control:
            return None
        try:
            return read_control_record(self.read_batch(position, header.size_bytes), max_bytes=CONTROL_BYTES_MAX)
        except ProtocolError as error:
            raise DamagedSegmentError(
                self.path, f"the control batch at byte {position} can't be read: {error}"
            ) from error

    def _read(self, file: File, size: int, position: FilePosition) -> bytes:
        try:
            return file.pread(size, position)
        except OSError as error:
            raise storage_error(self.path, error) from error

    # Places that are known

    def remember_start(self, offset: Offset, position: FilePosition) -> None:
        """Remembers that the batch at `position` begins with `offset`, so that the next reader needs no search."""
        if len(self._known) >= KNOWN_STARTS:
            self._known, self._known_before = {}, self._known
        self._known[offset] = position

    def known_start(self, offset: Offset) -> FilePosition | None:
        """Returns the byte place of the batch that begins with `offset`, if remembered."""
        position = self._known.get(offset)
        return self._known_before.get(offset) if position is None else position

    def forget_starts(self) -> None:
        """Forgets the places of batches."""
        self._known, self._known_before = {}, {}
