"""The compiled module: codecs, walks over records, and the quick form of Produce. `compiled` is None if it is missing.

The C sources are beside this file: `module.c` defines the module, and `records.h`, `head.h` and `produce.h` describe
its parts. `hatch_build.py` compiles them when Lowtide is installed, if there is a compiler. `LOWTIDE_PURE=1`, at the
installation or at run time, disables it.

Guards: nothing depends on it. Each function returns None for anything that Kafka's clients do not write, and the plain
Python form decides then, so only Python reports errors. Tests compare the two forms.
"""

from __future__ import annotations

import importlib
import os  # noqa: TID251 - reads one variable, once; the protocol has no ports
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from lowtide.protocol.compression import Buffer

if TYPE_CHECKING:
    from array import array

VERSION: Final = 16
"""The version of the functions below. A module with another version was built from other sources and is ignored."""

MODULE: Final = "_lowtide_walk"

PURE_VARIABLE: Final = "LOWTIDE_PURE"

BinaryBuffers = tuple[Buffer, Buffer, "Buffer | None", int]
"""Offsets, values, validity and the first entry of a `BinaryInput`."""

BatchTuple = tuple[Buffer, int, int, int, int, "int | None", int, int]
"""The fields of a `protocol.column_walk.BatchRecords`."""

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
    """The functions of a thread that syncs files, for `runtime.quick_syncs`."""

    def open_syncs(self) -> tuple[Any, int] | None:
        """Returns None if the system has no such thread."""

    def submit_sync(self, syncs: Any, descriptor: int, /) -> bool: ...

    def take_synced(self, syncs: Any, /) -> tuple[tuple[int, int, int, int, int], ...]: ...

    def wait_synced(self, syncs: Any, /) -> None: ...

    def close_syncs(self, syncs: Any, /) -> None: ...


class CompiledProduce(Protocol):
    """The functions for Produce, for `broker.partitions.produce.joint_produce`."""

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

        A small request has one valid, uncompressed batch for one partition, and acks 1 or -1. `is_one`: all came on one
        connection; only the group of the first one is returned, without a gap. Otherwise each came on another
        connection, and requests without a group are left out. `types` are the classes of a group, of its batches, and
        of a validated batch.
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
        """Returns the responses to an appended group; never None for a topic that was read."""


class CompiledCodec(Protocol):
    """A message at one version: see `compiler.Codec`."""

    def __init__(self, shape: tuple[Any, ...], plain: Callable[[str], Callable[..., Any]], /) -> None:
        """`plain` returns a function of the codec in generated Python, by name, for what the module refuses."""

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
    """The module. If a function returns None, the plain form decides."""

    VERSION: int
    Codec: type[CompiledCodec]
    HEADERS: int
    """Major and minor version of the Python headers it was built with, in the form of `sys.hexversion`."""

    crc32c: Callable[..., int] | None
    """`protocol.crc32c.crc32c`; None if the processor has no instruction for it."""

    def walk_records(self, records: Buffer, count: int, /) -> tuple[int, int, int, bool, bool] | None:
        """Returns the fields of a `RecordWalk` (`storage/log/validation/record_runs`)."""

    def find_record(
        self, records: Buffer, count: int, timestamp_delta: int, offset_delta: int, /
    ) -> tuple[int, int] | tuple[()] | None:
        """Returns offset and timestamp delta of the first record with at least these deltas, or an empty tuple."""

    def append_records(
        self,
        batch: BatchTuple,
        row_count: int,
        columns: Sequence[bytearray],
        header_count: int,
        headers: Sequence[bytearray] | None,
        /,
    ) -> tuple[int, int, int, int, int, int] | None:
        """Appends to columns with `row_count` rows and `header_count` headers.

        `columns` are offsets, timestamps, and the three buffers of keys and of values; `headers` are validity and
        offsets of the lists, and the three buffers of names and of contents. Returns the numbers of added rows, null
        keys, null values, headers, rows without headers, and null contents.
        """

    def match_keys(self, records: Buffer, count: int, keys: frozenset[bytes], lengths: int, /) -> list[int] | None:
        """Returns the offset delta and the timestamp delta of each record with one of the keys, one after the other.

        Bit n of `lengths`, an int64, is set if a key has n bytes, modulo 64.
        """

    def match_header(self, records: Buffer, count: int, name: bytes, value: bytes | None, /) -> list[int] | None:
        """Returns the offset delta and the timestamp delta of each record with that header, one after the other."""

    def add_hashes(self, hashes: bytearray, secret: bytes, records: Buffer, count: int, /) -> bool | None:
        """Appends the hash of each key, the lower 32 bits of `hash_key`, as the machine's integer of 4 bytes."""

    def sort_hashes(self, hashes: bytearray, /) -> int | None:
        """Sorts such hashes, and removes what is there twice. Returns how many are left."""

    def filter_pages(self, sections: tuple[Buffer, ...], entries_per_key: int, /) -> tuple[int, list[bytes]] | None:
        """Returns the number of buckets and the pages of a filter of `storage.erasures.key_filter`, without their CRC.

        `sections` are the sorted hashes of each, at most 64.
        """

    def append_rows(
        self, out: bytearray, rows: RowBuffers, run: tuple[Buffer | None, int, int, int, int], /
    ) -> tuple[int, int, int] | None:
        """Appends records to `out`; `run` is a `RowRun` without the rows. Returns the fields of a `WrittenRows`."""

    def hash_key(self, secret: bytes, key: Buffer, /) -> tuple[int, int]:
        """Returns two hashes of a key, of 64 and of 24 bits, which are unpredictable without the secret of 16 bytes."""

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
        """Adds the keys of a batch's records from `number` on to a table of `storage.compaction.offset_map`.

        The table has room for `room` keys. Returns the number of the first record that was not added, the number of new
        keys, and the offset delta of the last record (at the end of the batch) or of the last added one, or -1.
        """

    def copy_keys(self, table: array[int], larger: array[int], /) -> None:
        """Copies the keys of a table into a larger, empty one."""

    def plain_records(self, head: bytes, records: Sequence[tuple[bytes | None, bytes | None]], /) -> bytes | None:
        """Returns `head` and the records of these keys and values (a list), with timestamp delta 0."""

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
        """Returns the records of a batch that compaction keeps.

        `timestamp_shift` is added to their timestamp deltas if a tombstone stays; None: never. Returns the number of
        records, whether a tombstone is among them, their largest timestamp delta before the shift, and their bytes, or
        None for unchanged bytes.
        """


def _found() -> tuple[CompiledWalk | None, str | None]:
    """Returns the module, or why it is unusable.

    A module built with the headers of a later Python is refused: the stable interface only promises the opposite, and
    headers of 3.12 omit references that 3.11 counts (ADR 9).
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
    """Returns the major and minor version of a `sys.hexversion`."""
    return version_hex >> 24, version_hex >> 16 & 0xFF


def _is_unwanted() -> bool:
    return os.environ.get(PURE_VARIABLE, "") not in ("", "0")


def _load() -> CompiledWalk | None:
    return None if _is_unwanted() else _found()[0]


compiled: Final[CompiledWalk | None] = _load()


def why_plain() -> str | None:
    """Returns why the compiled module is missing; None if it is there or `LOWTIDE_PURE` disables it."""
    return None if compiled is not None or _is_unwanted() else _found()[1]
