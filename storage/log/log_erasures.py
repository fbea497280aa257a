"""The erasures of one log that this replica has, and which of their records are still in its files.

An erasure is a control batch that names offsets below its own. It takes effect once the high watermark has passed it:
then no read returns a record that it names, and segments are rewritten without these. docs/adr/0023.

The file `lowtide-erasures` has the state, one line for each erasure, and one for each search in which this replica has
taken part (docs/adr/0024). Its last line is the CRC-32C of all others. It is staged for the next flush if `dirty`, like
the leader epochs: a flush that raises the recovery point above an erasure makes the file durable before. So erasures
below the recovery point are in the file, and a start finds those above it in the batches.

Guards: an erasure leaves only by truncation, or once it is finished; a range leaves an erasure only when a segment
without its records is in the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from operator import attrgetter
from typing import Final
from uuid import UUID

import msgspec

from lowtide.protocol.compression import Buffer
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.erasure_record import ErasureRecord, read_erasure
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.offset_ranges import NO_OFFSETS, OffsetRanges
from lowtide.protocol.records import check_crc, read_batch_header
from lowtide.protocol.types import NO_LEADER_EPOCH, BrokerId, LeaderEpoch, Offset
from lowtide.storage.checkpoint import CheckpointError
from lowtide.storage.errors import DamagedSegmentError

ERASURES_FILE: Final = "lowtide-erasures"

KEPT_MAX: Final = 1_000
"""The number of finished erasures that a log remembers, to count the records of earlier requests with the same id."""

SEARCHES_KEPT: Final = 16
"""The number of searches that a log remembers. A leader searches for one erasure at a time; the next one ends above it.
"""

_VERSION: Final = 2
"""The version of earlier brokers."""
_CRC_LINE_BYTES: Final = 9

_LOADED: Final = 1
"""The number of the change that a start found in the file."""


REWRITTEN_BYTES_MAX: Final = 1 << 20
"""The bytes of batches without erased records that a log keeps in memory."""


class NotSearchedError(Exception):
    """This replica has met an erasure of a compacted log for which it was not searched, so it starts over."""

    def __init__(self, record: ErasureRecord, offset: Offset) -> None:
        super().__init__(f"the erasure {record.erasure_id} at offset {offset} came without a search of this replica")
        self.offset = offset


class RewrittenBatches:
    """Batches without their erased records, by base offset, so that a reader who returns costs no decompression."""

    __slots__ = ("_batches", "_size")

    def __init__(self) -> None:
        self._batches: dict[Offset, bytes] = {}
        self._size = 0

    def get(self, base_offset: Offset) -> bytes | None:
        return self._batches.get(base_offset)

    def add(self, base_offset: Offset, batch: bytes) -> bytes:
        """Keeps a batch and drops the oldest ones beyond the limit. Returns the batch."""
        self._batches[base_offset] = batch
        self._size += len(batch)
        while self._size > REWRITTEN_BYTES_MAX:
            self._size -= len(self._batches.pop(next(iter(self._batches))))
        return batch


class KnownErasure(msgspec.Struct):
    """An erasure in the log."""

    offset: Offset
    """Of its batch."""
    leader_epoch: LeaderEpoch
    erasure_id: UUID
    count: int
    """The number of offsets that it names."""
    left: OffsetRanges
    """The offsets whose records may still be in a file of the log."""
    has_search: bool = False
    """Whether the replicas have searched, because the log was compacted."""
    begun: int = 0
    """The change with which it was noted that rewriting may have begun; 0 if it hasn't."""

    @classmethod
    def of(cls, record: ErasureRecord, offset: Offset, leader_epoch: LeaderEpoch) -> KnownErasure:
        """Returns an erasure that was found in the log."""
        ranges = OffsetRanges(record.ranges)
        return cls(offset, leader_epoch, record.erasure_id, ranges.count, ranges, has_search=record.search is not None)

    @property
    def end_offset(self) -> Offset:
        """The offset after its batch: it takes effect when the high watermark reaches it."""
        return self.offset + 1


def stored_erasure(path: str, batch: Buffer) -> ErasureRecord | None:
    """Returns the erasure in a control batch of the file at `path`; None for another control batch.

    Errors: DamagedSegmentError, also for an erasure of an unknown version: its records would be served.
    """
    try:
        if not check_crc(batch, 0, read_batch_header(batch)):
            raise DamagedSegmentError(path, "the CRC of a control batch is wrong")
        return read_erasure(batch, max_bytes=len(batch))
    except ProtocolError as error:
        raise DamagedSegmentError(path, str(error)) from error


class LogErasures:
    """The erasures of one log, in the order of their offsets."""

    __slots__ = (
        "_durable_changes",
        "_hidden",
        "_in_effect",
        "acknowledged",
        "changes",
        "copied_at",
        "deleted_to",
        "dirty",
        "filters_reads",
        "known",
        "pending",
        "rewritten",
        "searches",
        "withheld",
    )

    def __init__(
        self, known: Iterable[KnownErasure] = (), searches: Iterable[UUID] = (), *, dirty: bool = False
    ) -> None:
        """`known` and `searches` are from a file that is on the disk, unless it is `dirty`."""
        self.known: list[KnownErasure] = list(known)
        self.searches: list[UUID] = list(searches)
        """The searches for erasures in which this replica has taken part, the oldest first."""
        self.copied_at: Offset = 0
        """The leader's high watermark when the copying of this log began, if it was empty since the start; else 0."""
        self.changes = _LOADED
        """Counts the changes of what the file has."""
        self._durable_changes = 0 if dirty else _LOADED
        self.pending: list[KnownErasure] = []
        """Those whose records may still be in a file."""
        self.dirty = dirty
        """Whether the file lacks a change."""
        self.deleted_to: Offset = 0
        """Records below it are not stored again: they were deleted and erased, or may have been before the last stop.
        """
        self.acknowledged: tuple[Offset, LeaderEpoch] = (0, NO_LEADER_EPOCH)
        """Where the partition's last acknowledged erasure ends (exclusive), and its leader epoch."""
        self.filters_reads = False
        """Whether reads differ from what is in the files."""
        self.withheld = False
        """Whether an acknowledged erasure may be missing in the log, so that consumers may read nothing."""
        self.rewritten = RewrittenBatches()
        """Of what is hidden now."""
        self._hidden = NO_OFFSETS
        self._in_effect = 0
        """How many of `pending` are in effect, for `_hidden`; -1 if that must be computed again."""
        self._select()

    def note_deleted(self, end_offset: Offset) -> None:
        """Notes that no file has a deleted record below `end_offset`."""
        self.deleted_to = max(self.deleted_to, end_offset)

    def note(self, record: ErasureRecord, offset: Offset, leader_epoch: LeaderEpoch) -> None:
        """Adds the erasure at `offset`, the end of the log."""
        self.known.append(KnownErasure.of(record, offset, leader_epoch))
        self._changed()

    def cut(self, end_offset: Offset) -> None:
        """Forgets the erasures at or above `end_offset`, after a truncation."""
        if self.known and self.known[-1].offset >= end_offset:
            self.known = [each for each in self.known if each.offset < end_offset]
            self._changed()

    def start_over(self) -> None:
        """Forgets the erasures and the searches, because the log was emptied."""
        self.copied_at = Offset(0)
        if self.known or self.searches:
            self.known, self.searches = [], []
            self._changed()

    def take_over(self, source: LogErasures) -> None:
        """Takes over the noted searches of the log that this one replaces. Both have the same records."""
        self.copied_at = source.copied_at
        for search_id in source.searches:
            self.note_search(search_id)

    def note_search(self, search_id: UUID) -> int:
        """Notes that this replica takes part in a search. Returns the change that must be on the disk."""
        if search_id not in self.searches:
            self.searches = [*self.searches, search_id][-SEARCHES_KEPT:]
            self._changed()
        return self.changes

    def must_start_over(self, record: ErasureRecord, offset: Offset, broker_id: BrokerId) -> bool:
        """Returns whether this replica may have records that the erasure at `offset` should name, but doesn't.

        In a compacted log replicas differ. This one may have an old version of a record that all others have removed,
        unless it has taken part in the search, or copied its log from one in which the erasure was committed.
        """
        search = record.search
        if search is None or self.copied_at > offset:
            return False
        return search.search_id not in self.searches or broker_id not in search.brokers

    def check_searched(self, path: str, batch: Buffer, offset: Offset, broker_id: BrokerId) -> None:
        """Raises NotSearchedError if the replica must start over because of an erasure, the control batch at `offset`.

        It is to be written to the file at `path`. Errors: DamagedSegmentError.
        """
        record = stored_erasure(path, batch)
        if record is not None and self.must_start_over(record, offset, broker_id):
            raise NotSearchedError(record, offset)

    def is_durable(self, change: int) -> bool:
        """Returns whether the file has this change, and is on the disk."""
        return self._durable_changes >= change

    def note_durable(self, changes: int) -> None:
        """Notes that the file has this change, and is on the disk."""
        self._durable_changes = max(self._durable_changes, changes)

    def _changed(self) -> None:
        self.dirty = True
        self.changes += 1
        self._select()

    def _select(self) -> None:
        self.pending = [each for each in self.known if each.left]
        self.filters_reads = self.withheld or bool(self.pending)
        self._in_effect = -1

    def withhold(self, *, withheld: bool) -> None:
        """Hides everything from consumers, or no longer."""
        self.withheld = withheld
        self.filters_reads = withheld or bool(self.pending)

    # Reading

    def hidden(self, high_watermark: Offset) -> OffsetRanges:
        """Returns the offsets that no read may return: those named by erasures in effect and still in a file."""
        in_effect = bisect_left(self.pending, high_watermark, key=attrgetter("offset"))
        if in_effect != self._in_effect:
            self._in_effect = in_effect
            hidden = OffsetRanges.union_of(each.left for each in self.pending[:in_effect])
            if hidden != self._hidden:
                self._hidden, self.rewritten = hidden, RewrittenBatches()
        return self._hidden

    def readable_end(self, end_offset: Offset, high_watermark: Offset) -> Offset:
        """Returns the exclusive end of what a consumer may read, at most `end_offset`.

        An erasure above the high watermark may have been acknowledged by an earlier leader, or be truncated. Its
        records are neither served nor skipped until that is known.
        """
        if self.withheld:
            return 0
        for each in reversed(self.pending):
            if each.end_offset <= high_watermark:
                break
            end_offset = min(end_offset, each.left.first)
        return end_offset

    # Rewriting

    @property
    def first_offset(self) -> Offset:
        """The smallest offset whose record may still be in a file. Errors: ValueError if there is none."""
        return min(each.left.first for each in self.pending)

    def is_done(self, end_offset: Offset) -> bool:
        """Returns whether no record is left that erasures below `end_offset` name."""
        return not self.pending or self.pending[0].offset >= end_offset

    def begin(self, durable_end: Offset) -> None:
        """Notes that the records may be rewritten away that erasures below `durable_end` name.

        `durable_end` is at most the high watermark and the recovery point: what is erased can't be brought back, so its
        erasure must be committed, and on this disk.
        """
        beginning = [each for each in self.pending if not each.begun and each.end_offset <= durable_end]
        if beginning:
            self._changed()
            for each in beginning:
                each.begun = self.changes

    def has_begun_from(self, offset: Offset) -> bool:
        """Returns whether records may be gone that an erasure at or above `offset` names.

        A replica that truncates it starts over. Otherwise it could lead without these records, and answer a repeated
        request with success, while other replicas still have them.
        """
        return any(each.begun for each in self.known if each.offset >= offset)

    def to_erase(self) -> OffsetRanges:
        """Returns the offsets whose records may be rewritten away now: that this may begin is on the disk."""
        return OffsetRanges.union_of(each.left for each in self.pending if 0 < each.begun <= self._durable_changes)

    def on_rewritten(self, erased: OffsetRanges) -> None:
        """Notes that no file has a record at the `erased` offsets any more. Forgets the oldest finished erasures."""
        for each in self.pending:
            each.left = each.left.without(erased)
        finished = [each.offset for each in self.known if not each.left]
        if len(finished) > KEPT_MAX:
            oldest = set(finished[:-KEPT_MAX])
            self.known = [each for each in self.known if each.offset not in oldest]
        self._changed()

    # The file

    def encode(self) -> bytes:
        """Returns the content of the file."""
        lines = [str(_VERSION), str(len(self.known))]
        for each in self.known:
            ranges = ",".join(f"{first}-{last}" for first, last in each.left)
            lines.append(
                f"{each.offset} {each.leader_epoch} {each.erasure_id.hex} {int(each.has_search)} {each.count} "
                f"{int(each.begun > 0)} {ranges or '-'}"
            )
        lines += [str(len(self.searches)), *(each.hex for each in self.searches)]
        content = "\n".join([*lines, ""]).encode()
        return content + _crc_line(content)


def _crc_line(content: bytes) -> bytes:
    return b"%08x\n" % crc32c(content)


def decode_erasures(path: str, content: bytes) -> tuple[list[KnownErasure], list[UUID]]:
    """Returns the erasures and the searches in the file at `path`. Errors: CheckpointError if it is damaged."""
    try:
        content, crc = content[:-_CRC_LINE_BYTES], content[-_CRC_LINE_BYTES:]
        if crc != _crc_line(content):
            raise CheckpointError(path, "it is damaged: its CRC is wrong")
        version, count, *lines = content.decode("ascii").split("\n")
        own, (searched, *searches) = lines[: int(count)], lines[int(count) :]
        if int(version) != _VERSION or searches[int(searched) :] != [""]:
            raise CheckpointError(path, "it isn't whole, or its version is unknown")
        known, noted = [_decoded(line) for line in own], [UUID(hex=each) for each in searches[:-1]]
    except ValueError as error:
        raise CheckpointError(path, f"it is damaged: {error}") from error
    if any(later.offset <= earlier.offset for earlier, later in pairwise(known)):
        raise CheckpointError(path, "it is damaged: its offsets don't rise")
    return known, noted


def _decoded(line: str) -> KnownErasure:
    offset, epoch, erasure_id, has_search, count, begun, ranges = line.split(" ")
    pairs = [] if ranges == "-" else [pair.split("-") for pair in ranges.split(",")]
    left = OffsetRanges((int(first), int(last)) for first, last in pairs)
    return KnownErasure(
        int(offset),
        int(epoch),
        UUID(hex=erasure_id),
        int(count),
        left,
        has_search=bool(int(has_search)),
        begun=_LOADED if int(begun) else 0,
    )


def merged(stored: Iterable[KnownErasure], found: Iterable[KnownErasure], recovery_point: Offset) -> list[KnownErasure]:
    """Returns the erasures of a log after an unclean stop.

    Below the recovery point the file has them all. From there on the batches say which exist; the file still says what
    was rewritten, if it names the same erasure.
    """
    by_place = {(each.offset, each.leader_epoch, each.erasure_id): each for each in stored}
    below = [each for each in by_place.values() if each.offset < recovery_point]
    above = [
        by_place.get((each.offset, each.leader_epoch, each.erasure_id), each)
        for each in found
        if each.offset >= recovery_point
    ]
    return below + above
