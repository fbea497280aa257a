"""Keeps in a table what erasures have done to it, for receipts: a property of the table, which no expiry removes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Final
from uuid import UUID

import msgspec
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table
from pyiceberg.table.update import AssertTableUUID, RemovePropertiesUpdate, SetPropertiesUpdate, TableUpdate

from lowtide.admin.receipts.statement import NamedFiles, TableStatement, rfc3339
from lowtide.pipeline.table.committing import ATTEMPTS, FIRST_PAUSE_S
from lowtide.pipeline.table.erasing import TableEraseError, TableErasure
from lowtide.runtime.json_text import decode_json

PREFIX: Final = "lowtide.erased."
"""The name of the property, before the erasure's id."""
ERASURES_KEPT: Final = 20
"""The newest erasures that a table remembers."""
RUNS_KEPT: Final = 5
"""The first and the newest runs of one erasure that a table remembers."""
NAMES_KEPT: Final = 40
"""The most names of files, and ids of snapshots, in a statement."""


def statement_of(erasure: TableErasure, now_ms: int) -> TableStatement:
    """Returns what a receipt says about an erasure that is complete."""
    return TableStatement(
        table=erasure.table,
        table_uuid=erasure.table_uuid,
        location=erasure.location,
        erasure_id=str(erasure.erasure_id),
        fence=erasure.fence.snapshot_id,
        fenced_at=rfc3339(erasure.fence.timestamp_ms),
        rows=erasure.rows,
        files_searched=erasure.searched,
        replaced=_named(erasure.rewritten),
        written=_named(erasure.written),
        deleted=_named(erasure.deleted),
        snapshots_removed=list(erasure.expired[:NAMES_KEPT]),
        snapshots_count=len(erasure.expired),
        confirmed_at=rfc3339(now_ms),
    )


def _named(paths: Sequence[str]) -> NamedFiles:
    names = sorted(paths)
    digest = sha256("".join(f"{name}\n" for name in names).encode()).hexdigest()
    return NamedFiles(count=len(names), names=names[:NAMES_KEPT], digest=digest)


def remember(table: Table, statement: TableStatement) -> None:
    """Adds a statement to the table's properties, and forgets the oldest ones. Errors: TableEraseError."""
    name, why = PREFIX + statement.erasure_id, Exception()
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(FIRST_PAUSE_S * 2**attempt)
        metadata = table.refresh().metadata
        runs = [each for each in statements_of(table, UUID(statement.erasure_id)) if each != statement]
        text = msgspec.json.encode([*runs[:1], *runs[1:][2 - RUNS_KEPT :], statement]).decode()
        others = sorted(
            (each for each in metadata.properties if each.startswith(PREFIX) and each != name),
            key=lambda each: max((one.confirmed_at for one in _read(metadata.properties[each])), default=""),
        )
        updates: tuple[TableUpdate, ...] = (SetPropertiesUpdate(updates={name: text}),)
        if len(others) >= ERASURES_KEPT:
            updates += (RemovePropertiesUpdate(removals=others[: len(others) - ERASURES_KEPT + 1]),)
        try:
            table.catalog.commit_table(table, (AssertTableUUID(uuid=metadata.table_uuid),), updates)
        except (CommitFailedException, CommitStateUnknownException, KeyError, OSError) as error:
            why = error  # a KeyError: another erasure has removed a property
            continue
        return
    raise TableEraseError(f"table {statement.table}: the erasure is complete, but could not be noted: {why}") from why


def statements_of(table: Table, erasure_id: UUID) -> list[TableStatement]:
    """Returns what a table has about an erasure."""
    return _read(table.properties.get(f"{PREFIX}{erasure_id}", "[]"))


def _read(text: str) -> list[TableStatement]:
    try:
        return decode_json(text, list[TableStatement])
    except ValueError:  # others may write properties too
        return []
