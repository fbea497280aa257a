"""The compiled form of the walk over record batches, and of small requests, if it was built: `compiled`, or None.

A hundred lines of Python are run for a record otherwise; here it is a few dozen instructions. The C sources lie beside
this file:
`records.h`, `head.h` and `produce.h` say what is there, `module.c` is what Python sees. `hatch_build.py` compiles them when Lowtide is
installed, where there is a compiler, and puts the module into the environment. `LOWTIDE_PURE=1`, then or now, does
without.

Guards: nothing depends on it. Each function answers None for whatever isn't exactly as Kafka's clients write it, and
its caller then lets the plain form decide: errors are found, and named, in Python. Tests hold the two forms against
each other.
"""

from __future__ import annotations

import importlib
import os  # noqa: TID251 - one variable, read once: there's no port that the protocol could have
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from lowtide.protocol.compression import Buffer

if TYPE_CHECKING:
    from array import array

    from lowtide.protocol.column_walk import BatchRecords

VERSION: Final = 12
"""That of the functions below. A module of another one is left from another version's sources, and isn't used."""

MODULE: Final = "_lowtide_walk"

PURE_VARIABLE: Final = "LOWTIDE_PURE"

BinaryBuffers = tuple[Buffer, Buffer, "Buffer | None", int]
"""Offsets, values, validity and the first entry of a `BinaryInput`."""

RowBuffers = tuple[
    int,
    "Buffer | None",
    "BinaryBuffers | None",
    "BinaryBuffers | None",
    "BinaryBuffers | None",
    "BinaryBuffers | None",
    "BinaryBuffers | None",
]
"""Rows, timestamps, keys, values, lists of headers, names, contents."""


SmallProduce = tuple[int, int, int, int, str | bytes, int, int, int, int, tuple[Any, ...], str | None]
"""Version, correlation id, acks, timeout in ms, topic (its name, or its id where the version has ids), partition, where the batch begins in
the buffer, its checksum, which has yet to be compared, the smallest timestamp of its records, the fields of a
`storage.log.validator.ValidatedBatch` with an empty tail, and the transactional id. With one the batch is of a producer's transaction, and
without one of none."""

_BatchesTogether = tuple[tuple[int, int, tuple[Any, ...]], ...]

ProduceRun = tuple[int, tuple[int, ...], int, int, str | bytes, int, int, int, int, int, _BatchesTogether, int]
"""Version, correlation ids, acks, where the run ends in the buffer, topic, partition, the smallest and the largest timestamp of its
records, the size of the largest batch and of all, of each batch where it begins, its checksum, and fields, as of a `SmallProduce`, and the
timeout in ms."""

ProduceGroup = tuple[
    int, tuple[int, ...], int, tuple[int, ...], str | bytes, int, int, int, int, int, _BatchesTogether, int
]
"""The same of requests that have come on several connections: instead of an end it has their places among all that were read, from 0 on."""


CommittedRow = tuple[int, int, int]
"""Partition, offset, leader epoch."""

SmallCommit = tuple[str, int, str, str | None, int, str | bytes, int, tuple[CommittedRow, ...], bytes]
"""Group, generation, member and group instance id, version, topic (its name, or its id where the version has ids), the largest partition,
the offsets, none of which has metadata, and the frame that answers where all were kept. Partitions aren't below 0."""

AddedPartitions = tuple[str, int, int, str, int, tuple[int, ...], bytes]
"""Transactional id, producer id and epoch, topic, the largest partition, the partitions, each once and none below 0, and the frame that
answers where all were added."""

AddedOffsets = tuple[str, int, int, str, bytes]
"""Transactional id, producer id and epoch, group, and the frame that answers where there is no error."""

EndOfTransaction = tuple[str, int, int, bool, bytes]
"""Transactional id, producer id and epoch, whether it commits, and the frame that answers where there is no error."""

TransactionalCommit = tuple[
    str, int, int, str, int, str, str | None, int, str | bytes, int, tuple[CommittedRow, ...], bytes
]
"""Transactional id, producer id and epoch, and then the fields of a `SmallCommit`."""

SmallHeartbeat = tuple[str, int, str, str | None, bytes]
"""Group, generation, member and group instance id, and the frame that answers where there is no error."""

FetchedRow = tuple["str | bytes", int, int, int, int, int, int]
"""Topic (its name, or its id where the version has ids), partition, leader epoch of the client, offset, last fetched epoch, the follower's
log start, and how many bytes it takes."""

SmallFetch = tuple[int, int, "str | None", int, int, int, int, int, bool, int, int, str, tuple[FetchedRow, ...]]
"""Version, correlation id, client id, replica id and its broker epoch (-1 of a consumer), how long to wait in ms, for how many bytes, how
many bytes it takes, whether of committed records only, session and its epoch, rack, and at most 64 rows; nothing leaves the session."""

AnsweredRow = tuple["str | bytes", int, int, int, int, int]
"""Topic (its name, or its id where the version has ids), partition, high watermark, last stable offset, log start, and how many bytes of
records; there is no error."""

NamedBytes = tuple[str, bytes]

SmallJoin = tuple[int, int, str | None, str, int, int, str, str | None, str, tuple[NamedBytes, ...]]
"""Version, correlation id, client id, group, session and rebalance timeout in ms, member, group instance id, protocol type, and name and
metadata of each protocol, of which there is one at least. Group and member aren't empty."""

SmallSync = tuple[int, int, str, int, str, str | None, str | None, str | None, tuple[NamedBytes, ...]]
"""Version, correlation id, group, generation, member, group instance id, protocol type and protocol (None where the version has none), and
member and assignment for each that is assigned something. Group and member aren't empty."""

SmallDelete = tuple[str | None, str, int, int, int, bool, bytes]
"""Client id, topic, partition, offset, timeout in ms, whether the leader's own log start is enough, and the frame that answers where the
offset is both the low watermark and the leader's log start. Partition and offset aren't below 0."""


class CompiledSyncs(Protocol):
    """Its functions for a thread that syncs files: see `runtime.quick_syncs`, which uses them."""

    def open_syncs(self) -> tuple[Any, int] | None:
        """None where the system has no such thread."""

    def submit_sync(self, syncs: Any, descriptor: int, /) -> bool: ...

    def take_synced(self, syncs: Any, /) -> tuple[tuple[int, int, int, int, int], ...]: ...

    def wait_synced(self, syncs: Any, /) -> None: ...

    def close_syncs(self, syncs: Any, /) -> None: ...


class CompiledProduce(Protocol):
    """Its functions for Produce requests. Where one answers None, the plain form decides."""

    def read_produce(self, buffer: Buffer, start: int, stop: int, /) -> SmallProduce | None:
        """The Produce request in `buffer[start:stop]`, header included: one small batch for one partition, sound but for its checksum.

        Not compressed; acks is 1 or -1.
        """

    def produce_answer(  # noqa: PLR0913  the compiled function's
        self,
        version: int,
        correlation_id: int,
        topic: str | bytes,
        partition: int,
        base_offset: int,
        log_append_time_ms: int,
        log_start_offset: int,
        /,
    ) -> bytes | None:
        """The frame that answers it where the batch was appended; never None for a topic that `read_produce` has returned."""

    def read_run(self, buffer: Buffer, start: int, end: int, frame_max: int, /) -> ProduceRun | None:
        """Requests as `read_produce` takes them, whose frames, lengths included, follow each other from `start` on: two at least.

        They have version, acks, timeout, topic, partition and producer of the first one, and no transactional id. Of an idempotent
        producer their sequences have no gap.
        """

    def read_round(self, buffer: Buffer, start: int, end: int, /) -> list[ProduceGroup] | None:
        """Requests of several connections, one of each, whose frames, lengths included, follow each other: at most the first 64.

        In a group are those that `read_produce` takes and that have version, acks, timeout, topic and partition in common, and no
        transactional id: two at least, and of an idempotent producer no more than one. None where there is no group.
        """

    def run_answer(  # noqa: PLR0913  the compiled function's
        self,
        version: int,
        correlation_ids: tuple[int, ...],
        topic: str | bytes,
        partition: int,
        base_offsets: tuple[int, ...],
        log_append_time_ms: int,
        log_start_offset: int,
        /,
    ) -> bytes | None:
        """The frames that answer a run or a group that was appended, all of the same size; never None for a topic that was read."""


class CompiledWalk(CompiledSyncs, CompiledProduce, Protocol):
    """The module. Where a function answers None, the plain form decides."""

    VERSION: int
    HEADERS: int
    """The version of Python whose headers it was built with, in the form of `sys.hexversion`."""

    def walk_records(self, records: Buffer, count: int, /) -> tuple[int, int, int, bool, bool] | None:
        """The fields of `storage.log.record_walk.RecordWalk`."""

    def find_record(
        self, records: Buffer, count: int, timestamp_delta: int, offset_delta: int, /
    ) -> tuple[int, int] | tuple[()] | None:
        """Offset and timestamp delta of the first of the records with at least these deltas; an empty tuple if there is none."""

    def append_records(
        self,
        batch: BatchRecords,
        row_count: int,
        columns: Sequence[bytearray],
        header_count: int,
        headers: Sequence[bytearray] | None,
        /,
    ) -> tuple[int, int, int, int, int, int] | None:
        """Appends to columns with `row_count` rows, and `header_count` headers.

        `columns` are those of offsets and timestamps, and the three buffers of keys and of values; `headers` are validity and offsets of
        the lists, and the three buffers of names and of contents. Returns the rows that were added, nulls among keys
        and values, headers, rows without headers, and nulls among contents.
        """

    def append_rows(
        self, out: bytearray, rows: RowBuffers, run: tuple[Buffer | None, int, int, int, int], /
    ) -> tuple[int, int, int] | None:
        """Appends records to `out`; `run` is selected rows, first, count, size, and timestamp.

        Returns the fields of `WrittenRows`.
        """

    def hash_key(self, secret: bytes, key: Buffer, /) -> tuple[int, int]:
        """Two hashes of a key, of 64 and of 24 bits, which only those know who know the secret's 16 bytes."""

    def note_keys(  # noqa: PLR0913  the compiled function's
        self,
        table: array[int],
        secret: bytes,
        records: Buffer,
        count: int,
        shift: int,
        first_delta: int,
        room: int,
        number: int,
        /,
    ) -> tuple[int, int, int] | None:
        """Notes the keys of a batch's records from `number` on in a table of `storage.compaction.offset_map` with room for `room` more.

        Returns up to which record it came, how many keys were new, and an offset delta: if it came to the end that of the last record,
        otherwise that of the last that it noted, or -1.
        """

    def copy_keys(self, table: array[int], larger: array[int], /) -> None:
        """Puts the keys of a table into one with more places, which is empty."""

    def plain_records(self, head: bytes, records: Sequence[tuple[bytes | None, bytes | None]], /) -> bytes | None:
        """`head`, and behind it keys and values as the records of a batch, all of its first timestamp.

        Only of a list.
        """

    def read_head(self, buffer: Buffer, start: int, stop: int, is_flexible: bool, /) -> tuple[str | None, int] | None:  # noqa: FBT001
        """The client id of the request in `buffer[start:stop]`, and where its body begins, as `protocol.headers.read_client_id`."""

    def read_commit(self, buffer: Buffer, start: int, stop: int, /) -> SmallCommit | None:
        """The OffsetCommit request in `buffer[start:stop]`, header included: of one topic, without metadata and a time to keep them."""

    def read_added_partitions(self, buffer: Buffer, start: int, stop: int, /) -> AddedPartitions | None:
        """The AddPartitionsToTxn request in `buffer[start:stop]`, header included: of one topic, in a version for producers."""

    def read_added_offsets(self, buffer: Buffer, start: int, stop: int, /) -> AddedOffsets | None:
        """The AddOffsetsToTxn request in `buffer[start:stop]`, header included."""

    def read_transactional_commit(self, buffer: Buffer, start: int, stop: int, /) -> TransactionalCommit | None:
        """The TxnOffsetCommit request in `buffer[start:stop]`, header included: of one topic, without metadata."""

    def read_end(self, buffer: Buffer, start: int, stop: int, /) -> EndOfTransaction | None:
        """The EndTxn request in `buffer[start:stop]`, header included, in a version whose answer has no identity."""

    def read_heartbeat(self, buffer: Buffer, start: int, stop: int, /) -> SmallHeartbeat | None:
        """The Heartbeat request in `buffer[start:stop]`, header included."""

    def read_fetch(self, buffer: Buffer, start: int, stop: int, /) -> SmallFetch | None:
        """The Fetch request in `buffer[start:stop]`, header included: of few partitions."""

    def fetch_answer(
        self,
        version: int,
        correlation_id: int,
        session_id: int,
        is_read_committed: bool,  # noqa: FBT001 - C has no names for arguments
        rows: tuple[AnsweredRow, ...],
        /,
    ) -> tuple[bytes, ...] | None:
        """The frame that answers a Fetch, in pieces: what is before the records of the first row that has any, between, and behind.

        Rows of one topic are to be behind each other.
        """

    def read_delete(self, buffer: Buffer, start: int, stop: int, /) -> SmallDelete | None:
        """The DeleteRecords request in `buffer[start:stop]`, header included: of one partition."""

    def read_join(self, buffer: Buffer, start: int, stop: int, /) -> SmallJoin | None:
        """The JoinGroup request in `buffer[start:stop]`, header included: of a member that has an id, from version 2 on."""

    def join_answer(  # noqa: PLR0913  the compiled function's
        self,
        version: int,
        correlation_id: int,
        generation_id: int,
        protocol_type: str | None,
        protocol_name: str | None,
        leader: str,
        skips_assignment: bool,  # noqa: FBT001 - C has no names for arguments
        member_id: str,
        members: tuple[tuple[str, str | None, bytes], ...],
        /,
    ) -> bytes | None:
        """The frame that answers a member that has joined; `members` has id, group instance id and metadata of each."""

    def read_sync(self, buffer: Buffer, start: int, stop: int, /) -> SmallSync | None:
        """The SyncGroup request in `buffer[start:stop]`, header included: with what its version must have."""

    def sync_answer(
        self,
        version: int,
        correlation_id: int,
        protocol_type: str | None,
        protocol_name: str | None,
        assignment: bytes,
        /,
    ) -> bytes | None:
        """The frame that answers a member with its assignment."""

    def offset_records(
        self, key_start: bytes, value_end: bytes, rows: tuple[CommittedRow, ...], /
    ) -> list[tuple[bytes, bytes | None]] | None:
        """Keys and values of the records of offsets: as `protocol.group_records.OffsetRecords`, which says what all have in common."""

    def retain(  # noqa: PLR0913  the compiled function's
        self,
        table: array[int],
        secret: bytes,
        records: Buffer,
        count: int,
        shift: int,
        latest_delta: int,
        drops_tombstones: bool,  # noqa: FBT001 - C has no names for arguments
        timestamp_shift: int | None,
        /,
    ) -> tuple[int, bool, int, bytes | None] | None:
        """What compaction leaves of a batch's records.

        `timestamp_shift` is added to their timestamp deltas if a tombstone stays; None: never.
        Returns how many stay, whether a tombstone is among them, their largest timestamp delta (as it was), and their
        bytes; None for those if they are what they were.
        """


def _found() -> tuple[CompiledWalk | None, str | None]:
    """The module, or why there is none that may be used.

    A module that was built with the headers of a later Python isn't used. The stable interface promises that a later
    version runs what an earlier one built, and not the opposite: headers of 3.12 left out references that 3.11 counts
    (ADR 9).
    """
    try:
        module = cast("CompiledWalk", importlib.import_module(MODULE))
    except ModuleNotFoundError:
        return None, "it was not compiled when Lowtide was installed"
    except ImportError as error:
        return None, str(error)
    if module.VERSION != VERSION:
        return None, "it is left from another version of Lowtide"
    built, running = (_python(version) for version in (module.HEADERS, sys.hexversion))
    if built > running:
        return None, f"it was compiled for Python {built[0]}.{built[1]}, and this is Python {running[0]}.{running[1]}"
    return module, None


def _python(version_hex: int) -> tuple[int, int]:
    """The version in a number of the form of `sys.hexversion`, without the parts in which the stable interface doesn't change."""
    return version_hex >> 24, version_hex >> 16 & 0xFF


def _is_unwanted() -> bool:
    return os.environ.get(PURE_VARIABLE, "") not in ("", "0")


def _load() -> CompiledWalk | None:
    return None if _is_unwanted() else _found()[0]


compiled: Final[CompiledWalk | None] = _load()


def why_plain() -> str | None:
    """Why there is no compiled module though nothing asked for that; None where there is one, or `LOWTIDE_PURE` does without."""
    return None if compiled is not None or _is_unwanted() else _found()[1]
