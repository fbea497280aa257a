"""`lowtide table compact`, `expire` and `orphans`: keep a table in good order, beside the job that writes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lowtide.admin.retained import size
from lowtide.cli.call import Call, local
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, plural, print_json
from lowtide.cli.table_catalog import Catalog, CatalogProperties, ExistingTable, opened_tables
from lowtide.cli.tokens import duration_ms_of
from lowtide.runtime.clock import SystemClock

if TYPE_CHECKING:
    from lowtide.pipeline.table.maintenance import Deletion

ORPHAN_AGE_MS_MIN: Final = 3_600_000
"""A file that nothing names may be one that a writer has not committed yet."""

COMPACT_COLUMNS: Final = ("table", "merges", "files before", "files after", "bytes before", "bytes after", "skipped")

DryRun = Annotated[bool, typer.Option("--dry-run", help="show what would be removed, and remove nothing")]


@contextmanager
def _maintained() -> Iterator[None]:
    from lowtide.pipeline.table.maintenance import TableMaintenanceError  # noqa: PLC0415 - an extra

    try:
        yield
    except TableMaintenanceError as error:
        raise CommandError(f"{error}.") from error


@local
def compact(
    call: Call,
    *,
    catalog: Catalog,
    table: ExistingTable,
    catalog_property: CatalogProperties = None,
    file_size: Annotated[
        int | None, typer.Option("--file-size", metavar="BYTES", min=1 << 16, help="of a data file; default 128 MiB")
    ] = None,
) -> ExitCode:
    """Merge the small files of a table, and of its table of dead letters. The rows do not change.

    It is safe beside the job that writes the table, and beside an erasure. The exit code is 1 if files were skipped
    because another writer had changed them: run it again.
    """
    tables = opened_tables(catalog, catalog_property or (), table)
    from lowtide.pipeline.table import maintenance, rewriting  # noqa: PLC0415 - an extra

    with _maintained():
        results = [
            (".".join(each.name()), maintenance.compact(each, file_size or rewriting.TARGET_BYTES)) for each in tables
        ]
    rows = [
        (name, done.bins, done.merged, done.written, size(done.merged_bytes), size(done.written_bytes), done.skipped)
        for name, done in results
    ]
    names = ("table", "merges", "files_before", "files_after", "bytes_before", "bytes_after", "skipped")
    numbers = [
        (name, done.bins, done.merged, done.written, done.merged_bytes, done.written_bytes, done.skipped)
        for name, done in results
    ]
    call.show({"tables": [dict(zip(names, each, strict=True)) for each in numbers]}, COMPACT_COLUMNS, rows)
    return ExitCode.FAILED if any(done.skipped for _, done in results) else ExitCode.DONE


@local
def expire(
    call: Call,
    *,
    catalog: Catalog,
    table: ExistingTable,
    catalog_property: CatalogProperties = None,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="the age of snapshots to remove: 12h, 7d")
    ] = "5d",
    keep: Annotated[int, typer.Option("--keep", min=1, help="the newest snapshots, which stay at any age")] = 1,
    dry_run: DryRun = False,
) -> ExitCode:
    """Remove old snapshots of a table and of its table of dead letters, and the files that only they have.

    Snapshots that a tag or a branch holds stay, and the newest one with the progress of the job.
    """
    before_ms = SystemClock().wall_ms() - duration_ms_of(older_than)
    tables = opened_tables(catalog, catalog_property or (), table)
    from lowtide.pipeline.table import maintenance  # noqa: PLC0415 - an extra

    with _maintained():
        results = [
            (".".join(each.name()), maintenance.expire(each, before_ms, keep, dry_run=dry_run)) for each in tables
        ]
    return _shown(call, results, dry_run=dry_run)


@local
def orphans(
    call: Call,
    *,
    catalog: Catalog,
    table: ExistingTable,
    catalog_property: CatalogProperties = None,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="the age of files to delete, at least 1h")
    ] = "3d",
    dry_run: DryRun = False,
) -> ExitCode:
    """Delete files of a table, and of its table of dead letters, that no snapshot has: what failed work left behind.

    Give an age that no work exceeds: a file that is not committed yet looks the same.
    """
    age_ms = duration_ms_of(older_than)
    if age_ms < ORPHAN_AGE_MS_MIN:
        raise misused(f"--older-than {older_than} is less than 1h: the file may be one that is not committed yet.")
    tables = opened_tables(catalog, catalog_property or (), table)
    from lowtide.pipeline.table import maintenance  # noqa: PLC0415 - an extra

    now_ns = SystemClock().wall_ms() * 1_000_000
    with _maintained():
        results = [
            (".".join(each.name()), maintenance.delete_orphans(each, now_ns, age_ms * 1_000_000, dry_run=dry_run))
            for each in tables
        ]
    return _shown(call, results, dry_run=dry_run)


def _shown(call: Call, results: list[tuple[str, Deletion]], *, dry_run: bool) -> ExitCode:
    if call.output is Output.JSON:
        values = [{"table": name, "snapshots": done.snapshots, "files": done.files} for name, done in results]
        print_json({"dry_run": dry_run, "tables": values})
        return ExitCode.DONE
    what = "would be removed" if dry_run else "removed"
    for name, done in results:
        if dry_run:
            for path in done.files:
                print(path)
        print(f"{name}: {plural(len(done.snapshots), 'snapshot')} and {plural(len(done.files), 'file')} {what}.")
    return ExitCode.DONE
