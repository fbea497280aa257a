"""The metadata store of a machine without etcd: one SQLite file in the first log directory, with its own thread.

SQLite handles torn writes, checksums, compaction and atomic changes of many keys, and a commit costs one fdatasync. The
file is opened in WAL mode with `synchronous=FULL`: what was answered survives a power cut. The event loop keeps all
keys in memory (`local`), so SQLite is read once, when it is opened, and from then on only written.

Format, `user_version` 1:

| table | columns |
|---|---|
| `keys` | `key` (primary), `value`, `create_revision`, `modify_revision`, `lease` |
| `state` | one row: `revision`, `boots` (how often the file was opened; the first part of every lease id) |

History isn't stored: a new process reads everything and watches from there. Leases aren't stored either. They end with
the process, and the next one deletes their keys in one revision while it opens, so a killed broker doesn't have to wait
for itself.

Guards: one owner (a lock beside the file), mode 0600 (it contains credentials), a newer format is refused. It serves
one process; several need etcd. Source: SQLite's documentation of WAL and of `PRAGMA synchronous`.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

from lowtide.metadata.engine import Engine
from lowtide.metadata.local import LocalStore, WriteFailedError
from lowtide.metadata.reserve import RESERVE_BYTES, Reserve
from lowtide.metadata.store import KeyValue, MetadataStoreError
from lowtide.runtime.filesystem.failures import FailureKind, failure_kind
from lowtide.runtime.worker import ThreadWorker, done_by

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from lowtide.metadata.store import Batch, Revision
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.filesystem import FileSystem, Lock

T = TypeVar("T")

METADATA_FILE: Final = "lowtide-metadata.sqlite"
LOCK_SUFFIX: Final = ".lock"
PROBE_SUFFIX: Final = ".probe"
PROBE_BYTES: Final = 2 << 20
"""The size of the test write after a failure: more than any transaction."""


FORMAT_VERSION: Final = 1
APPLICATION_ID: Final = 0x4C6F7764
"""Identifies the file for SQLite's own tools and for `file`: "Lowd"."""

BUSY_TIMEOUT_S: Final = 5.0
"""How long a write waits for another process that reads the file, such as SQLite's shell."""

MAX_FILE_BYTES: Final = 2 << 30
"""The file's maximum size. Beyond it, as on a full disk, only deleting transactions succeed. Source: etcd's default
quota."""

PAGE_BYTES: Final = 4096

_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE keys (
    key BLOB PRIMARY KEY, value BLOB NOT NULL,
    create_revision INTEGER NOT NULL, modify_revision INTEGER NOT NULL, lease INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL, boots INTEGER NOT NULL);
INSERT INTO state VALUES (1, 0, 0);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
COMMIT;
"""  # noqa: S608 - two constants of this module


class MetadataFileError(MetadataStoreError):
    """The metadata file can't be used: damaged, of a newer Lowtide, or another program's. Names the file."""


class FullMetadataFileError(MetadataFileError):
    """The disk had no room for opening the file; nothing was changed."""


class EmbeddedStore(LocalStore):
    """A `MetadataStore` on SQLite. Created by `open`."""

    @classmethod
    async def open(
        cls, path: str, *, filesystem: FileSystem, clock: Clock, max_bytes: int = MAX_FILE_BYTES
    ) -> EmbeddedStore:
        """Opens or creates the file, and ends the leases of the earlier process, in one commit.

        Errors: AlreadyLockedError if another broker has it open, MetadataFileError, OSError.
        """
        loop = asyncio.get_running_loop()
        lock = filesystem.lock(path + LOCK_SUFFIX)
        worker = ThreadWorker(loop, threads=1, name="metadata")
        try:
            if not filesystem.exists(path):
                # An empty file is an empty database. Created here for its mode, which SQLite applies to the files
                # beside it.
                filesystem.replace_file(path, b"")
            reserve = Reserve(filesystem, path)
            database = _Database(path, max_bytes, lambda: _lacks_room(filesystem, path), reserve)
            try:
                engine = await done_by(worker, database.open)
            except FullMetadataFileError:
                if not reserve.is_there:
                    raise
                reserve.give_up()
                engine = await done_by(worker, partial(database.open, folds=True))
                reserve.keep(RESERVE_BYTES // 2)
            else:
                reserve.keep(RESERVE_BYTES)
        except BaseException:
            worker.close()
            lock.release()
            raise
        return cls(engine=engine, journal=_SqliteJournal(database, worker, lock), clock=clock, loop=loop)


def _lacks_room(filesystem: FileSystem, path: str) -> bool:
    """Returns whether a write beside this file meets a full disk or an exhausted quota.

    SQLite reports ENOSPC as such, but not EDQUOT.
    """
    place = path + PROBE_SUFFIX
    try:
        filesystem.write_bytes(place, bytes(PROBE_BYTES))
    except OSError as error:
        return failure_kind(error.errno) is FailureKind.NO_ROOM
    finally:
        with contextlib.suppress(OSError):
            filesystem.unlink(place)
    return False


def read_embedded(path: str, filesystem: FileSystem) -> tuple[list[KeyValue], Revision]:
    """Reads the file of a stopped broker and its revision; nothing if there is no file. Changes nothing.

    Errors: AlreadyLockedError, MetadataFileError, OSError.
    """
    if not filesystem.exists(path):
        return [], 0
    lock = filesystem.lock(path + LOCK_SUFFIX)
    try:
        return read_embedded_in_use(path)
    finally:
        lock.release()


def read_embedded_in_use(path: str) -> tuple[list[KeyValue], Revision]:
    """Reads the file at one revision, even while a broker writes to it. Changes nothing.

    Errors: MetadataFileError, also if there is no file.
    """
    import sqlite3  # noqa: PLC0415 - see `_Database.open`.

    try:
        connection = sqlite3.connect(
            f"file:{quote(path)}?mode=ro", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S
        )
        try:
            connection.execute("BEGIN")  # Both queries see the same commit.
            if not _check_format(connection, path):
                return [], 0  # The process that created the file ended before it wrote.
            (revision,) = connection.execute("SELECT revision FROM state").fetchone()
            rows = connection.execute("SELECT key, value, create_revision, modify_revision, lease FROM keys").fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise MetadataFileError(f"metadata file {path}: {error}") from error
    return [KeyValue(*row) for row in rows], revision


def _check_format(connection: sqlite3.Connection, path: str) -> int:
    """Returns the number of tables.

    Errors: MetadataFileError for a newer format or another program's file; SQLite's.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if version > FORMAT_VERSION:
        raise MetadataFileError(f"metadata file {path} has format {version}; this Lowtide reads up to {FORMAT_VERSION}")
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise MetadataFileError(f"metadata file {path} is a database of some other program")
    return int(tables)


class _SqliteJournal:
    """Passes batches to the thread."""

    def __init__(self, database: _Database, worker: ThreadWorker, lock: Lock) -> None:
        self._database = database
        self._worker = worker
        self._lock = lock

    def write(self, batches: Sequence[Batch], on_done: Callable[[WriteFailedError | None], None]) -> None:
        def on_outcome(outcome: WriteFailedError | BaseException | None) -> None:
            if outcome is not None and not isinstance(outcome, WriteFailedError):
                outcome = WriteFailedError(repr(outcome), applied=None)
            on_done(outcome)

        self._worker.submit(lambda: self._database.write_or_borrow(batches), on_outcome)

    def close(self, on_closed: Callable[[], None]) -> None:
        def on_outcome(_: BaseException | None) -> None:
            self._worker.close()
            self._lock.release()
            on_closed()

        self._worker.submit(self._database.close, on_outcome)


_PRIMARY_CODE = 0xFF
"""The part of an extended SQLite result code with the kind of error."""


class _Database:
    """The connection, used only on the thread that opened it."""

    def __init__(self, path: str, max_bytes: int, lacks_room: Callable[[], bool], reserve: Reserve) -> None:
        """`lacks_room` returns whether a write beside the file fails for lack of room."""
        self._path = path
        self._reserve = reserve
        self._lacks_room = lacks_room
        self._max_pages = max_bytes // PAGE_BYTES
        self._connection: sqlite3.Connection | None = None

    def open(self, *, folds: bool = False) -> Engine:
        """Opens or creates the file. Returns its state, without the leased keys of the earlier process.

        `folds` first folds the write-ahead log into the file, which frees space. Errors: MetadataFileError.
        """
        import sqlite3  # noqa: PLC0415 - 4 ms, and only a broker without etcd needs it.

        try:
            connection = sqlite3.connect(self._path, isolation_level=None, timeout=BUSY_TIMEOUT_S)
        except sqlite3.Error as error:
            raise MetadataFileError(f"metadata file {self._path}: {error}") from error
        try:
            self._prepare(connection)
            if folds:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._connection = connection
            return self._begin_life(connection)
        except (sqlite3.Error, WriteFailedError) as error:
            self._connection = None
            connection.close()
            message = f"metadata file {self._path}: {error}"
            is_full = error.applied is False if isinstance(error, WriteFailedError) else self._lacked_room(error)
            raise (FullMetadataFileError if is_full else MetadataFileError)(message) from error
        except MetadataFileError:
            connection.close()
            raise

    def _prepare(self, connection: sqlite3.Connection) -> None:
        tables = _check_format(connection, self._path)
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")  # Of a standing erasure that has ended nothing stays.
        # A temporary file would need a descriptor in the middle of a transaction.
        connection.execute("PRAGMA temp_store = MEMORY")
        if not tables:
            connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA max_page_count = {self._max_pages}")

    def _begin_life(self, connection: sqlite3.Connection) -> Engine:
        revision, boots = connection.execute("SELECT revision, boots FROM state").fetchone()
        rows = connection.execute("SELECT key, value, create_revision, modify_revision, lease FROM keys")
        engine = Engine(boot=boots + 1, revision=revision, keys=[KeyValue(*row) for row in rows])
        staged = engine.stage()
        engine.stage_orphans(staged)
        failure = self.write(staged.batches, boots=boots + 1)
        if failure is not None:
            raise failure
        engine.commit(staged)
        return engine

    def write_or_borrow(self, batches: Sequence[Batch]) -> WriteFailedError | None:
        """Writes `batches`; deleting ones may use some of the reserve if there is no room."""
        failure = self.write(batches)
        if failure is None:
            self._reserve.restore()
        elif (
            failure.applied is False
            and any(event.value is None for batch in batches for event in batch.events)
            and self._reserve.lend()
        ):
            return self.write(batches)
        return failure

    def write(self, batches: Sequence[Batch], *, boots: int | None = None) -> WriteFailedError | None:
        """Commits `batches`, and the number of boots if given. Returns what failed."""
        import sqlite3  # noqa: PLC0415 - see `open`.

        connection = self._connection
        assert connection is not None, f"{self._path} is closed"
        try:
            connection.execute("BEGIN IMMEDIATE")
            for batch in batches:
                _write_batch(connection, batch)
            if batches:
                connection.execute("UPDATE state SET revision = ?", (batches[-1].revision,))
            if boots is not None:
                connection.execute("UPDATE state SET boots = ?", (boots,))
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            # A full disk, a lack of memory or descriptors, or another program's lock: the rollback leaves everything
            # unchanged.
            passing = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CANTOPEN}
            harmless = error.sqlite_errorcode & _PRIMARY_CODE in passing or self._met_quota(error)
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            except sqlite3.Error:
                harmless = False
            return WriteFailedError(f"{self._path}: {error}", applied=False if harmless else None)
        return None

    def _met_quota(self, error: sqlite3.Error) -> bool:
        """Returns whether a write met an exhausted quota, which SQLite doesn't distinguish from a broken disk.

        An incomplete record of its log is ignored.
        """
        import sqlite3  # noqa: PLC0415 - see `open`.

        return error.sqlite_errorcode == sqlite3.SQLITE_IOERR_WRITE and self._lacks_room()

    def _lacked_room(self, error: sqlite3.Error) -> bool:
        """Returns whether opening may have met a full disk: in the file, or in the shared memory beside it."""
        import sqlite3  # noqa: PLC0415 - see `open`.

        codes = {
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_IOERR_SHMSIZE,
            sqlite3.SQLITE_IOERR_SHMMAP,
        }
        return error.sqlite_errorcode in codes or self._met_quota(error)

    def close(self) -> None:
        """Folds the write-ahead log into the file and closes it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _write_batch(connection: sqlite3.Connection, batch: Batch) -> None:
    puts = [
        (e.key, e.value, e.create_revision, e.modify_revision, e.lease) for e in batch.events if e.value is not None
    ]
    deletions = [(event.key,) for event in batch.events if event.value is None]
    # A batch writes a key once, so the order of keys doesn't matter.
    if deletions:
        connection.executemany("DELETE FROM keys WHERE key = ?", deletions)
    if puts:
        connection.executemany("INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?)", puts)
