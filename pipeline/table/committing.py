"""Commits files to a table, on exactly the snapshot that the caller has read, and says for certain what became of it.

PyIceberg's own retries commit again on any newer snapshot. That would add files twice, or rows that an erasure has just
removed. So nothing here is tried again on another snapshot: the caller reads the table again and decides (`judge`).

A commit whose answer is lost may still arrive. It asserts the snapshot that it is based on. So it is repeated as it is,
until a snapshot with its id is found, or until the branch has moved on without it.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from lowtide.pipeline.table.progress import (
    COMMIT,
    ERASURE,
    MAIN,
    TableProgress,
    ancestry,
    head_id,
    progress_of,
    properties_of,
)

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

log = logging.getLogger(__name__)

ATTEMPTS: Final = 8
"""How often a commit is sent whose outcome is unknown, or that lost against a change without a snapshot."""

FIRST_PAUSE_S: Final = 0.1
"""The pause after the first attempt; it doubles with each one."""


class HeadMovedError(Exception):
    """Another commit came first. Nothing was committed, and nothing will be."""


class CommitUnknownError(Exception):
    """The catalog did not say whether the commit is done, and it may still be done. Its files must stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """The files that one snapshot adds and removes."""

    added: Sequence[DataFile] = ()
    """Written for the table's present partition spec."""

    removed: Sequence[DataFile] = ()
    """Files of the present snapshot. Nothing of them stays in the new manifests, not even their bounds."""

    properties: Mapping[str, str] = field(default_factory=dict)
    """Of the snapshot: those of a round, or `carried` and what the commit says of itself."""


def commit_change(table: Table, change: TableChange) -> Snapshot:
    """Commits on the snapshot that `table` was loaded with, and returns the new snapshot, which `table` has then.

    Errors: HeadMovedError, CommitUnknownError; those of the catalog that no repetition helps against, and of storage
    while manifests are written. After each of them but CommitUnknownError nothing was committed.
    """
    from pyiceberg.table import Transaction  # noqa: PLC0415 - an extra
    from pyiceberg.table.update import AssertDefaultSpecId, AssertRefSnapshotId, AssertTableUUID  # noqa: PLC0415

    commit_id = uuid.uuid4().hex
    metadata = table.metadata
    producer = _producer(Transaction(table), change, commit_id)
    try:
        updates, _ = producer._commit()  # noqa: SLF001 - it writes the manifests; `commit` is the call with retries
    except BaseException as error:
        producer._clean_all_uncommitted()  # noqa: SLF001 as above
        check_moved(error, table)
        raise
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId(snapshot_id=head_id(metadata), ref=MAIN),
        AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
    )
    try:
        return _sent(table, updates, requirements, commit_id)
    except CommitUnknownError:
        raise
    except BaseException:
        producer._clean_all_uncommitted()  # noqa: SLF001 as above
        raise


def check_moved(error: BaseException, table: Table) -> None:
    """Raises HeadMovedError after an error of storage, if another commit came first.

    An erasure deletes the manifests of older snapshots at once.
    """
    base = head_id(table.metadata)
    if isinstance(error, OSError) and _error_of(table.refresh) is None and head_id(table.metadata) != base:
        raise HeadMovedError(f"another commit to table {'.'.join(table.name())} came first ({error})") from error


def _producer(transaction: Any, change: TableChange, commit_id: str) -> Any:
    """Returns PyIceberg's writer of manifests for a change."""
    properties = {**change.properties, COMMIT: commit_id}
    update = transaction.update_snapshot(snapshot_properties=properties, branch=MAIN)
    # Without merged manifests, a manifest list has one entry for each round that ever was.
    producer = _forgetting(update.overwrite()) if change.removed else update.merge_append()
    for one in change.added:
        producer.append_data_file(one)
    for one in change.removed:
        producer.delete_data_file(one)
    return producer


def _forgetting(producer: Any) -> Any:
    """Lets a producer write no entries for removed files: such an entry has the bounds of the file's columns."""
    required = producer._deleted_entries  # noqa: SLF001 - PyIceberg has no other way

    def no_entries() -> list[Any]:
        required()  # It fails if a file that should be removed is not in the table.
        return []

    producer._deleted_entries = no_entries  # noqa: SLF001 as above
    return producer


def _sent(table: Table, updates: Any, requirements: Any, commit_id: str) -> Snapshot:
    """Sends a commit until it is certain whether it is done. Errors: those of `commit_change`."""
    from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 - an extra

    name, base, refusals = ".".join(table.name()), head_id(table.metadata), _refusals()
    may_arrive, why, pause_s = False, "", FIRST_PAUSE_S
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(pause_s)
            pause_s *= 2
        for call in (lambda: table._do_commit(updates, requirements), table.refresh):  # noqa: SLF001 - without retries
            error = _error_of(call)
            found = _with_id(table.metadata, commit_id)
            if found is not None:
                return found
            if isinstance(error, refusals) and not may_arrive:
                raise error
            if error is not None:
                why = f"{type(error).__name__}: {error}"
            # A metadata file that is gone was read before the commit: an erasure deletes older ones.
            if call != table.refresh and not isinstance(error, (CommitFailedException, FileNotFoundError, *refusals)):
                may_arrive = True
                log.warning("the answer to a commit to table %s is lost: %s", name, why)
        if head_id(table.metadata) != base:
            if may_arrive and not is_complete(table.metadata, base):
                break
            raise HeadMovedError(f"another commit to table {name} came first ({why})")
    if may_arrive:
        raise CommitUnknownError(f"it is not known whether a commit to table {name} is done: {why}")
    raise HeadMovedError(f"table {name} changes all the time ({why})")


def _error_of(call: Callable[[], object]) -> Exception | None:
    """Calls, and returns the error; None if there was none."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, the catalog may have done it
        return error
    return None


def _refusals() -> tuple[type[Exception], ...]:
    """Returns the errors by which a catalog says that it has done nothing, and never will."""
    from pyiceberg import exceptions  # noqa: PLC0415 - an extra

    return (
        exceptions.NoSuchTableError,
        exceptions.BadRequestError,
        exceptions.ForbiddenError,
        exceptions.UnauthorizedError,
    )


def _with_id(metadata: TableMetadata, commit_id: str) -> Snapshot | None:
    """Returns the snapshot of a commit. Others may have rolled the branch back since, so all snapshots are searched."""
    return next((one for one in metadata.snapshots if properties_of(one).get(COMMIT) == commit_id), None)


# ---------------------------------------------------------------------- a commit that came second
class RoundVerdict(Enum):
    """What is to be done with the files of a round after another commit."""

    COMMIT_AGAIN = "others have committed without making progress"
    TAKEN = "another job has written the same records"
    FENCED = "an erasure came between, which may have erased some of its records"
    REPARTITIONED = "the table is partitioned in another way now"
    UNCLEAR = "snapshots in between were expired, or the branch was rolled back"
    """Whether the files are in the table is not certain, so they stay."""


def judge(metadata: TableMetadata, base: int | None, before: TableProgress | None) -> RoundVerdict:
    """Decides about the files of a round that read the table at the snapshot `base`, with the progress `before`."""
    if any(ERASURE in properties_of(one) for one in ancestry(metadata, base)):  # An erasure also expires what is older.
        return RoundVerdict.FENCED
    if not is_complete(metadata, base):
        return RoundVerdict.UNCLEAR
    now = progress_of(metadata)
    if now is not None and (before is None or (now.positions, now.round_id) != (before.positions, before.round_id)):
        return RoundVerdict.TAKEN
    return RoundVerdict.COMMIT_AGAIN


def is_complete(metadata: TableMetadata, base: int | None) -> bool:
    """Returns whether all snapshots between `base` and the newest one are known."""
    if head_id(metadata) == base:
        return True
    between = list(ancestry(metadata, base))
    return bool(between) and between[-1].parent_snapshot_id == base


def delete_files(io: FileIO, paths: Iterable[str]) -> int:
    """Deletes files that no snapshot has, and returns how many of them could not be deleted. They stay as orphans."""
    left = 0
    for path in paths:
        try:
            io.delete(path)
        except FileNotFoundError:
            continue
        except Exception as error:  # noqa: BLE001 - storages have errors of their own
            left += 1
            log.warning("file %s is left behind: %s", path, error)
    return left
