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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from lowtide.protocol.compression import Buffer

if TYPE_CHECKING:
    from array import array

    from lowtide.protocol.column_walk import BatchRecords

VERSION: Final = 13
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


class CompiledSyncs(Protocol):
    """Its functions for a thread that syncs files: see `runtime.quick_syncs`, which uses them."""

    def open_syncs(self) -> tuple[Any, int] | None:
        """None where the system has no such thread."""

    def submit_sync(self, syncs: Any, descriptor: int, /) -> bool: ...

    def take_synced(self, syncs: Any, /) -> tuple[tuple[int, int, int, int, int], ...]: ...

    def wait_synced(self, syncs: Any, /) -> None: ...

    def close_syncs(self, syncs: Any, /) -> None: ...


class CompiledProduce(Protocol):
    """Its functions for Produce: see `broker.partitions.produce.joint_produce`, which has the classes."""

    def read_produce(
        self,
        types: tuple[type, type, type],
        buffer: Buffer,
        start: int,
        end: int,
        frame_max: int,
        is_one: bool,  # noqa: FBT001 - C has no names for arguments
        /,
    ) -> list[Any] | None:
        """Returns the groups of small requests in `buffer[start:end]`, each frame of at most `frame_max` bytes.

        A small request has one sound batch, not compressed, for one partition, and acks 1 or -1. `is_one`: they came on
        one connection. Then there is at most the group of the first one, without a gap; otherwise each came on another
        connection, and what is in no group is left out. The classes of a group, of a batch in it, and of a validated batch
        are `types`.
        """

    def produce_answers(  # noqa: PLR0913  the compiled function's
        self,
        version: int,
        correlation_ids: tuple[int, ...],
        topic: str | bytes,
        partition: int,
        base_offsets: tuple[int, ...],
        log_append_time_ms: int,
        log_start_offset: int,
        /,
    ) -> list[bytes] | None:
        """Returns the frames that answer a group that was appended; never None for a topic that was read."""


class CompiledCodec(Protocol):
    """A message at one version: see `compiler.Codec`."""

    def __init__(self, shape: tuple[Any, ...], plain: Callable[[str], Callable[..., Any]], /) -> None:
        """`plain` returns the function of a name in generated Python, for what the shape doesn't take."""

    def decode(self, buffer: Buffer, start: int, end: int, rows_max: int = ..., /) -> Any: ...

    def encode(self, message: Any, /) -> bytes: ...

    def encode_parts(self, message: Any, /) -> list[Any]: ...

    def encode_frame(self, correlation_id: int, message: Any, is_flexible: bool, /) -> list[Any]: ...  # noqa: FBT001

    def read_request(
        self,
        buffer: Buffer,
        start: int,
        stop: int,
        rows_max: int,
        is_flexible: bool,  # noqa: FBT001 - C has no names for arguments
        /,
    ) -> tuple[Any, str | None]: ...


class CompiledWalk(CompiledSyncs, CompiledProduce, Protocol):
    """The module. Where a function answers None, the plain form decides."""

    VERSION: int
    Codec: type[CompiledCodec]
    HEADERS: int
    """The version of Python whose headers it was built with, in the form of `sys.hexversion`."""

    def walk_records(self, records: Buffer, count: int, /) -> tuple[int, int, int, bool, bool] | None:
        """The fields of `storage.log.validation.record_runs.RecordWalk`."""

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
