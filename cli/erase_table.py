"""`lowtide records erase --table`: an erasure that also reaches an Iceberg table, and its table of dead letters."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from lowtide.admin.finding import RecordQuery
from lowtide.admin.receipts.statement import TableStatement
from lowtide.cli.call import Call, OptionGroup
from lowtide.cli.confirmation import confirm
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, plural, print_json, print_table, remark
from lowtide.cli.table_catalog import opened_tables
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.clock import SystemClock

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from lowtide.pipeline.table.erasing import TableErasure
    from lowtide.pipeline.table.selecting import RowSelector

TABLE_COLUMNS: Final = (
    "table", "rows erased", "files searched", "files replaced", "files deleted", "snapshots removed",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReachOptions(OptionGroup):
    """Which table is erased too."""

    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            metavar="NAMESPACE.NAME",
            help="an Iceberg table that the erasure reaches too: its rows, its files and its history",
        ),
    ] = None
    catalog: Annotated[
        str | None,
        typer.Option("--catalog", metavar="URI|NAME", help="the table's catalog, as of `lowtide table run`"),
    ] = None
    catalog_property: Annotated[
        list[str] | None, typer.Option("--catalog-property", metavar="KEY=VALUE", help="may be repeated")
    ] = None


class ErasedTables:
    """A table and its table of dead letters, from which rows are erased; or none."""

    def __init__(self, tables: Sequence[Table], query: RecordQuery) -> None:
        """Errors: CommandError if nothing can be erased from them."""
        self._tables = tables
        self._query = query
        self._found: list[tuple[str, int]] | None = None
        self._results: list[TableErasure | Exception] = []
        for each in tables:
            with _nothing_erased():
                erasing().check_erasable(each, self._selector())

    def _selector(self) -> RowSelector:
        from lowtide.pipeline.table.selecting import RowSelector  # noqa: PLC0415 - an extra

        return RowSelector(self._query)

    def check_topics(self, topics: Collection[str]) -> None:
        """Errors: CommandError if the table has another topic than those that are erased."""
        for each in self._tables[:1]:
            from lowtide.pipeline.table.progress import ProgressError, progress_of  # noqa: PLC0415 - an extra

            try:
                progress = progress_of(each.metadata)
            except ProgressError as error:
                raise CommandError(f"{error}. Nothing was erased.") from error
            if progress is not None and progress.topic not in topics:
                name = ".".join(each.name())
                raise misused(f"table {name} has the topic {progress.topic}, which is not among those to erase from.")

    def question(self) -> str:
        """Returns what a question says about the tables; nothing without any. Errors: CommandError."""
        found = self._counted()
        names = " and ".join(name for name, _ in found)
        return f", and {plural(sum(count for _, count in found), 'row')} of {names}" if found else ""

    def _counted(self) -> list[tuple[str, int]]:
        if self._found is None:
            with _nothing_erased():
                self._found = [
                    (".".join(each.name()), erasing().count_rows(each, self._selector())) for each in self._tables
                ]
        return self._found

    def run(self, erasure_id: UUID | None) -> None:
        """Erases from all tables, also if one fails. Without an id it counts the rows. Errors: CommandError if so."""
        if erasure_id is None:
            self._counted()
            return
        for each in self._tables:
            from lowtide.pipeline.table.erased import remember, statement_of  # noqa: PLC0415 - an extra

            try:
                done = erasing().erase_rows(each, self._selector(), erasure_id)
                self._results.append(done)
                if not done.not_reached:
                    remember(each, statement_of(done, SystemClock().wall_ms()))
            except erasing().TableEraseError as error:
                self._results.append(error)

    def document(self) -> dict[str, Any]:
        """Returns the results for JSON; nothing without tables."""
        if not self._tables:
            return {}
        if not self._results:
            return {"tables": [{"table": name, "rows": count} for name, count in self._found or ()]}
        return {"tables": [_value(each) for each in self._results]}

    def shown(self, output: Output) -> bool:
        """Prints the results for people, and what is missing. Returns whether anything is."""
        missing: list[str] = []
        rows: list[tuple[object, ...]] = []
        for each in self._results:
            if isinstance(each, Exception):
                missing.append(str(each))
                continue
            missing.extend(each.not_reached)
            numbers = (each.rows, each.searched, len(each.rewritten), len(each.deleted), len(each.expired))
            rows.append((each.table, *numbers))
        if output is Output.TEXT and rows:
            print_table(TABLE_COLUMNS, rows)
        if output is Output.TEXT and not self._results:
            for name, count in self._found or ():
                print(f"{name}: {plural(count, 'row')} would be erased.")
        for sentence in missing:
            remark(f"Not erased yet: {sentence}.")
        return bool(missing)


def erasing() -> Any:
    """Imports what erases rows: PyIceberg is an extra."""
    from lowtide.pipeline.table import erasing as module  # noqa: PLC0415

    return module


@contextmanager
def _nothing_erased() -> Iterator[None]:
    """Turns the errors of a search into those of a command."""
    try:
        yield
    except erasing().TableEraseError as error:
        raise CommandError(f"{error}. Nothing was erased.") from error


def erased_from_tables(call: Call, tables: ErasedTables, erasure_id: UUID | None, *, asks: bool) -> ExitCode:
    """Erases from tables only, and shows the results; without an id it counts the rows. Errors: CommandError."""
    if erasure_id is not None and asks:
        confirm(f"Erase no record of a topic{tables.question()}?", None)
    tables.run(erasure_id)
    if call.output is Output.JSON:
        is_dry = erasure_id is None
        print_json({"dry_run": is_dry, "erasure_id": None if is_dry else str(erasure_id)} | tables.document())
    left = tables.shown(call.output)
    if erasure_id is not None and call.output is Output.TEXT:
        remark(f"No topic was searched. Keep for a receipt (lowtide erasures receipt): {erasure_id}")
    return ExitCode.FAILED if left else ExitCode.DONE


def _value(result: TableErasure | Exception) -> dict[str, Any]:
    if isinstance(result, Exception):
        return {"error": {"message": str(result)}}
    return {
        "table": result.table,
        "table_uuid": result.table_uuid,
        "location": result.location,
        "fence": result.fence.snapshot_id,
        "rows": result.rows,
        "files_searched": result.searched,
        "files_replaced": list(result.rewritten),
        "files_written": list(result.written),
        "files_deleted": list(result.deleted),
        "snapshots_removed": list(result.expired),
        "not_reached": list(result.not_reached),
        "error": None,
    }


def opened_for_erasure(options: TableReachOptions, texts: Sequence[str]) -> list[Table]:
    """Opens what `--table` names; nothing without it. Errors: CommandError."""
    if options.table is None:
        if options.catalog or options.catalog_property:
            raise misused("--catalog needs --table.")
        return []
    if not options.catalog:
        raise misused("--table needs --catalog.")
    if any(":" in text for text in texts):
        raise misused("--table covers whole topics: give them without partitions.")
    return opened_tables(options.catalog, options.catalog_property or (), options.table)


def query_without_topic(offsets: dict[int, OffsetRanges]) -> RecordQuery:
    """Returns the selector of offsets of a table's rows, whatever their topic."""
    return RecordQuery(offsets={TopicPartition("", partition): ranges for partition, ranges in offsets.items()})


def table_statements(options: TableReachOptions, erasure_id: UUID) -> list[TableStatement]:
    """Returns what tables have about an erasure, for a receipt; nothing without `--table`. Errors: CommandError."""
    tables = opened_for_erasure(options, ())
    if not tables:
        return []
    from lowtide.pipeline.table.erased import statements_of  # noqa: PLC0415 - an extra

    found = [each for table in tables for each in statements_of(table, erasure_id)]
    if not found:
        raise CommandError(f"table {options.table} has nothing about a complete erasure {erasure_id}.")
    return found
