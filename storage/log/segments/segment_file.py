"""The `.log` file of a segment: open while it is used, within the bound of `OpenFiles`; its batches, places and slices.

A slice is bytes that are promised to a reader and read later, when its socket takes them.

Guards: a file that a slice or a barrier holds stays open for them when the segment releases or unlinks it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol, final

import msgspec

from lowtide.protocol.control_records import ControlRecord, read_control_record
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, BatchHeader, check_crc, read_batch_header
from lowtide.protocol.types import FilePosition, Offset
from lowtide.runtime.filesystem import File, FileSystem, FileToSync, Syncable
from lowtide.storage.errors import DamagedSegmentError, storage_error
from lowtide.storage.log.segments.hole import HOLE_HEADER_BYTES, Hole, decode_hole
from lowtide.storage.log.segments.index import MAX_RELATIVE_OFFSET
from lowtide.storage.log.segments.open_files import OpenFiles
from lowtide.storage.log.segments.segment_life import WRITTEN, SegmentEvent, SegmentLife, next_life

if TYPE_CHECKING:
    from lowtide.storage.log.segments.hole import PendingHole

KNOWN_STARTS: Final = 32
"""Batch starts remembered in each of two generations. A tail reader lags the writer by fewer batches."""

CONTROL_BYTES_MAX: Final = 1 << 16
"""A control batch holds one record of a few bytes."""

SCAN_BYTES: Final = 4096
"""The size of a read when looking for a batch: about what lies between two index entries."""
_WALK_BYTES: Final = 1 << 16
_SLICE_BYTES: Final = 1 << 14

# Base offset, batch length and, after epoch, magic, CRC and attributes, the last offset's delta.
_PLACE: Final = Struct(">qi11xi")
_LENGTH_END: Final = 12


class SliceSource(Protocol):
    """What a slice reads: an open `File`, or bytes in memory."""

    @property
    def path(self) -> str: ...

    def pread(self, size: int, position: int) -> bytes: ...

    def preadv(self, buffers: Sequence[bytearray | memoryview], position: int, *, nowait: bool = False) -> int: ...


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

    file: SliceSource
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


class KnownStarts:
    """The places of batches that were read or written last, by first offset, in two generations of `KNOWN_STARTS`."""

    __slots__ = ("older", "recent")

    def __init__(self) -> None:
        self.recent: dict[Offset, FilePosition] = {}
        self.older: dict[Offset, FilePosition] = {}

    def note(self, offset: Offset, position: FilePosition) -> None:
        """Remembers that the batch at `position` begins with `offset`, so that the next reader needs no search."""
        if len(self.recent) >= KNOWN_STARTS:
            self.recent, self.older = {}, self.recent
        self.recent[offset] = position

    def find(self, offset: Offset) -> FilePosition | None:
        """Returns the byte place of the batch that begins with `offset`, if remembered."""
        position = self.recent.get(offset)
        return self.older.get(offset) if position is None else position

    def clear(self) -> None:
        """Forgets all places."""
        self.recent, self.older = {}, {}


class SegmentFile:
    """The `.log` file of a segment. `size` is where the last whole batch ends."""

    __slots__ = (
        "_filesystem",
        "_let_go",
        "base_offset",
        "create_file",
        "files",
        "first_offset",
        "floor",
        "gone_offset",
        "hole",
        "life",
        "opened",
        "path",
        "punched",
        "size",
        "starts",
        "used",
    )

    def __init__(self, filesystem: FileSystem, path: str, base_offset: Offset, size: int) -> None:
        self._filesystem = filesystem
        self.opened: File | None = None
        """The open file. `file` opens it if necessary."""
        self.life = SegmentLife.CLOSED
        self.starts = KnownStarts()
        self._let_go: tuple[weakref.ref[File], ...] = ()
        """Open files that it has released while others held them."""
        self.files: OpenFiles | None = None
        """Bounds the open files; None while no log has the segment yet."""
        self.create_file: Callable[[str], File] | None = None  # For the first use, if there is no file yet.
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
        if self.opened is not None:
            file = weakref.ref(self.opened)
            self.opened = None
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
        if self.opened is None:
            return True
        file = weakref.ref(self.opened)
        self.opened = None
        self.opened = file()
        return self.opened is None

    @property
    def file(self) -> File:
        """The open file, opened now if necessary. Errors: StorageError."""
        file = self.opened
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
        if self.create_file is None:
            file = self.opened = self._filesystem.open(self.path, write=self.life in WRITTEN)
        else:
            file = self.opened = self.create_file(self.path)
            self.create_file = None
        if files is not None:
            files.opened(self)
        return file

    def to_sync(self) -> Syncable:
        """Returns the file for a barrier to sync: the open one, or one that the barrier opens."""
        return self.opened or FileToSync(self._filesystem, self.path)

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
        return self.opened is not None

    def abandon_hole(self) -> None:
        """Gives up a hole that was begun: the file will soon be another's, or its name."""
        hole, self.hole = self.hole, None
        if hole is not None:
            hole.abandon()

    # Batches

    def scan(self, offset: Offset, position: FilePosition, entry_offset: Offset | None) -> BatchPlace | None:
        """Returns the first batch from byte `position` on that ends at or after `offset`; None if all end before.

        `position` is that of the index entry for the batch with `entry_offset`, or another one if that is None. Errors:
        StorageError.
        """
        file, size = self.file, self.size
        if position < self.floor:
            position, entry_offset = self.floor, None
        unpack, place_bytes, reached = _PLACE.unpack_from, _PLACE.size, self.base_offset
        while position < size:
            chunk = _pread(file, self.path, min(SCAN_BYTES, size - position), position)
            at, limit = 0, len(chunk) - place_bytes
            while at <= limit:
                base_offset, length, delta = unpack(chunk, at)
                batch_size = length + _LENGTH_END
                if (
                    batch_size < RECORD_BATCH_OVERHEAD
                    or position + at + batch_size > size
                    or base_offset < reached  # No CRC contains it.
                    or delta < 0
                    or (entry_offset is not None and position and base_offset > entry_offset)
                ):
                    raise DamagedSegmentError(self.path, f"no record batch begins at byte {position + at}")
                entry_offset = None
                if base_offset + delta >= offset:
                    return BatchPlace(base_offset, base_offset + delta, position + at, batch_size)
                at += batch_size
                reached = base_offset + delta + 1
            if at == 0:
                raise DamagedSegmentError(self.path, f"the last {size - position} bytes are no record batch")
            position += at
        return None

    def batches(self, position: FilePosition) -> Iterator[tuple[FilePosition, BatchHeader]]:
        """Yields the headers of the batches from byte `position`, where one begins, on, except in a hole.

        CRCs aren't checked. Errors: StorageError.
        """
        size, reached, position = self.size, self.base_offset, max(position, self.floor)
        file = self.file if position < size else None
        while file is not None and position < size:
            chunk = _pread(file, self.path, min(_WALK_BYTES, size - position), position)
            at = 0
            while at + RECORD_BATCH_OVERHEAD <= len(chunk):
                try:
                    header = read_batch_header(chunk, at)
                except ProtocolError as error:
                    raise DamagedSegmentError(
                        self.path, f"no record batch begins at byte {position + at}: {error}"
                    ) from error
                batch_size = header.size_bytes
                limit = self.base_offset + MAX_RELATIVE_OFFSET - max(header.last_offset_delta, 0)
                has_place = reached <= header.base_offset <= limit and position + at + batch_size <= size
                if batch_size < RECORD_BATCH_OVERHEAD or not has_place:
                    raise DamagedSegmentError(self.path, f"no record batch begins at byte {position + at}")
                yield position + at, header
                at += batch_size
                reached = header.next_offset
            if at == 0:
                raise DamagedSegmentError(self.path, f"the last {size - position} bytes are no record batch")
            position += at

    def read_batch(self, position: FilePosition, size: int) -> bytes:
        """Returns the bytes of the batch at `position`. Errors: StorageError."""
        return _pread(self.file, self.path, size, position)


def _pread(file: File, path: str, size: int, position: FilePosition) -> bytes:
    try:
        return file.pread(size, position)
    except OSError as error:
        raise storage_error(path, error) from error


def is_slice_of(segment: SegmentFile, read: FileSlice) -> bool:
    """Returns whether a slice is one of the segment's open file."""
    file: SliceSource | None = segment.opened
    return file is read.file


def fill_hole(segment: SegmentFile) -> None:
    """Gives up the hole: the file is about to be emptied, and is then read from byte 0 again."""
    segment.abandon_hole()
    segment.floor = segment.punched = 0
    segment.first_offset = segment.gone_offset = segment.base_offset


def read_hole(segment: SegmentFile) -> Hole | None:
    """Returns the hole at the beginning of the file, if there is one. Errors: StorageError."""
    if segment.size < HOLE_HEADER_BYTES:
        return None
    return decode_hole(segment.read_batch(0, HOLE_HEADER_BYTES), segment.base_offset)


def place_at(segment: SegmentFile, position: FilePosition) -> BatchPlace | None:
    """Returns the batch at `position`, an index entry; None if none begins there."""
    head = segment.read_batch(position, _PLACE.size)
    if len(head) < _PLACE.size:
        return None
    base_offset, length, delta = _PLACE.unpack(head)
    size = length + _LENGTH_END
    if size < RECORD_BATCH_OVERHEAD or position + size > segment.size or base_offset < segment.base_offset or delta < 0:
        return None
    return BatchPlace(base_offset, base_offset + delta, position, size)


def size_at(segment: SegmentFile, position: FilePosition) -> int:
    """Returns the size of the batch at `position`. Errors: StorageError."""
    head = segment.read_batch(position, _LENGTH_END)
    size = int.from_bytes(head[8:12], "big") + _LENGTH_END if len(head) == _LENGTH_END else 0
    if not RECORD_BATCH_OVERHEAD <= size <= segment.size - position:
        raise DamagedSegmentError(segment.path, f"no record batch begins at byte {position}")
    return size


def read_control(segment: SegmentFile, position: FilePosition, header: BatchHeader) -> ControlRecord | None:
    """Returns the content of the control batch at `position`; None for an ordinary batch. Errors: StorageError."""
    if not header.is_control:
        return None
    batch = segment.read_batch(position, header.size_bytes)
    if not check_crc(batch, 0, header):
        raise DamagedSegmentError(segment.path, f"the CRC of the control batch at byte {position} is wrong")
    try:
        return read_control_record(batch, max_bytes=CONTROL_BYTES_MAX)
    except ProtocolError as error:
        raise DamagedSegmentError(segment.path, f"the control batch at byte {position}: {error}") from error


def batches_of(read: FileSlice, name: str) -> Iterator[tuple[FilePosition, BatchHeader]]:
    """Yields the headers of the whole batches of a slice, with their byte places.

    Leaves out a batch that is cut at the end. CRCs aren't checked. `name` is what an error calls the log. Errors:
    StorageError.
    """
    position, end = read.position, read.position + read.size
    while position + RECORD_BATCH_OVERHEAD <= end:
        try:
            chunk = read.file.pread(min(_SLICE_BYTES, end - position), position)
        except OSError as error:
            raise storage_error(name, error) from error
        at = 0
        while at + RECORD_BATCH_OVERHEAD <= len(chunk):
            try:
                header = read_batch_header(chunk, at)
            except ProtocolError as error:
                raise DamagedSegmentError(name, f"no record batch begins at byte {position + at}: {error}") from error
            if header.size_bytes < RECORD_BATCH_OVERHEAD:
                raise DamagedSegmentError(name, f"no record batch begins at byte {position + at}")
            if position + at + header.size_bytes > end:
                return
            yield position + at, header
            at += header.size_bytes
        if at == 0:
            raise DamagedSegmentError(name, f"byte {position} can't be read")
        position += at
