"""`lowtide table`: writes topics into Iceberg tables with Spark, and shows up to where a table has its topic."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lowtide.admin.blocking import BlockingAdminClient
from lowtide.admin.retained import size
from lowtide.admin.settings import ClientSettings
from lowtide.cli.call import OptionGroup, SettingsCall, unhurried
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, moment, plural, print_json, print_json_line, print_table, printable, remark
from lowtide.cli.registry_options import RegistryProperties, pairs, registry_settings
from lowtide.cli.table_catalog import Catalog, CatalogProperties
from lowtide.cli.table_maintenance import compact, expire, orphans
from lowtide.cli.table_status import table_status
from lowtide.cli.tokens import duration_ms_of
from lowtide.runtime.clock import SystemClock

if TYPE_CHECKING:
    from lowtide.pipeline.table.job import RoundReport, TableJob
    from lowtide.pipeline.table.loop import LoopPart
    from lowtide.pipeline.table.options import TableOptions
    from lowtide.pipeline.table.schemas import SchemaSettings

app = typer.Typer(add_completion=False, no_args_is_help=True)
app.command("compact")(compact)
app.command("expire")(expire)
app.command("orphans")(orphans)

SPARK: Final = {
    "spark.app.name": "lowtide table",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""Settings of Spark, unless --spark-conf says otherwise."""

TOPIC: Final = "{topic}"

TableName = Annotated[
    str,
    typer.Option("--table", metavar="NAMESPACE.NAME", help=f"may contain {TOPIC}; with several topics it must"),
]


@app.callback()
def table() -> None:
    """Write topics into Iceberg tables, and show up to where a table has its topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentOptions(OptionGroup):
    """What is written, and how."""

    schema: Annotated[
        str, typer.Option("--schema", metavar="KIND", help="how values become columns: auto, json, avro, protobuf, raw")
    ] = "auto"
    registry: Annotated[
        str | None,
        typer.Option("--registry", metavar="URL", help="the schema registry, for avro, protobuf and auto"),
    ] = None
    registry_property: RegistryProperties = None
    partition_by: Annotated[
        str, typer.Option("--partition-by", metavar="TIME", help="partitions of a new table: none, hour, day, month")
    ] = "none"
    start_at: Annotated[
        str,
        typer.Option(
            "--start-at",
            metavar="PLACE",
            help="earliest; or table: continue a table without recorded progress after its highest offsets",
        ),
    ] = "earliest"
    on_data_loss: Annotated[
        str,
        typer.Option(
            "--on-data-loss", metavar="WHAT", help="if records were deleted before they were read: fail, or skip them"
        ),
    ] = "fail"
    max_records_per_round: Annotated[
        int | None, typer.Option("--max-records-per-round", min=1, help="the most that one commit adds")
    ] = None
    file_size: Annotated[
        int | None, typer.Option("--file-size", metavar="BYTES", min=1 << 16, help="of a data file; default 128 MiB")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTrimOptions(OptionGroup):
    """What is deleted from the topic once the table has it."""

    trim: Annotated[bool, typer.Option("--trim", help="delete records from the topic that the table has")] = False
    trim_after: Annotated[
        str, typer.Option("--trim-after", metavar="TIME", help="how long after the commit, such as 30m")
    ] = "1h"
    trim_group: Annotated[
        list[str] | None,
        typer.Option("--trim-group", metavar="GROUP", help="delete only what this group has consumed; may be repeated"),
    ] = None
    trim_dry_run: Annotated[bool, typer.Option("--trim-dry-run", help="say what --trim would delete")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(OptionGroup):
    """When and where it runs."""

    every: Annotated[str, typer.Option("--every", metavar="TIME", help="the time from one round to the next")] = "60s"
    once: Annotated[bool, typer.Option("--once", help="write what is there now, and end")] = False
    master: Annotated[str, typer.Option("--master", help="Spark's master")] = "local[*]"
    spark_conf: Annotated[
        list[str] | None, typer.Option("--spark-conf", metavar="KEY=VALUE", help="may be repeated")
    ] = None


@app.command()
@unhurried
def run(
    call: SettingsCall,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC…")],
    *,
    catalog: Catalog,
    table_name: TableName,
    catalog_property: CatalogProperties = None,
    content: ContentOptions,
    trim: TableTrimOptions,
    running: RunOptions,
) -> ExitCode:
    """Write topics into Iceberg tables, round by round, and delete from the topics what the tables have.

    The progress is kept in the snapshots of a table only. Each record is in its table once, whatever is killed.
    """
    every_ms = None if running.once else duration_ms_of(running.every)
    trimming = _trimming(trim)
    named = _names(topics, table_name)
    with _explained(with_spark=True):
        from lowtide.pipeline.cluster import BlockingCluster  # noqa: PLC0415 - slow
        from lowtide.pipeline.table.job import TableJob  # noqa: PLC0415 - an extra
        from lowtide.pipeline.table.loop import TableLoop  # noqa: PLC0415
        from lowtide.pipeline.table.options import catalog_settings, load_catalog  # noqa: PLC0415
        from lowtide.pipeline.table.sampling import with_schema  # noqa: PLC0415
        from lowtide.pipeline.table.session import spark_workers  # noqa: PLC0415

        chosen = [_table_options(call.settings, topic, name, content) for topic, name in named]
        conf = SPARK | pairs("--spark-conf", running.spark_conf)
        opened = load_catalog(catalog_settings(catalog, catalog_property or ()))
        clusters = [BlockingCluster(options.client) for options in chosen]
        chosen = [with_schema(options, opened, cluster) for options, cluster in zip(chosen, clusters, strict=True)]
        with spark_workers(running.master, conf) as workers:
            parts = [
                _part(
                    opened, options, TableJob(options, opened, cluster, workers.run_all, workers.parallelism), trimming
                )
                for options, cluster in zip(chosen, clusters, strict=True)
            ]
            stop = threading.Event()
            loop = TableLoop(parts, SystemClock(), stop, lambda *what: _tell(call.output, *what))
            before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
            try:
                loop.run(every_ms=every_ms)
            finally:
                signal.signal(signal.SIGTERM, before)
    return ExitCode.DONE


@app.command()
@unhurried
def status(
    call: SettingsCall, *, catalog: Catalog, table_name: TableName, catalog_property: CatalogProperties = None
) -> ExitCode:
    """Show up to where a table has its topic, and what waits."""
    with _explained():
        from lowtide.pipeline.table.options import catalog_settings, check_table_name, load_catalog  # noqa: PLC0415

        opened = load_catalog(catalog_settings(catalog, catalog_property or ()))
        found = table_status(call.settings, opened, check_table_name(table_name))
    rows = [
        (one.partition, _shown(one.log_start), one.table_until, _shown(one.log_end), _shown(one.waiting))
        for one in found.partitions
    ]
    if call.output is Output.JSON:
        print_json(asdict(found))
        return ExitCode.DONE
    print(
        f"{printable(found.table)}: topic {printable(found.topic)}, id {found.topic_id}, schema {found.schema or '-'}, "
        f"snapshot {found.snapshot_id} of {moment(found.committed_ms)}, {plural(found.rows, 'row')} in "
        f"{plural(found.files, 'file')} ({size(found.file_bytes)}), {plural(found.dead_letters, 'dead letter')}"
    )
    if not found.is_same_topic:
        print(f"The topic {printable(found.topic)} was deleted, or created again, since the table was written.")
    print_table(("partition", "log start", "table has up to", "log end", "not in the table"), rows)
    return ExitCode.DONE


def _shown(offset: int | None) -> str:
    return "-" if offset is None else str(offset)


def _names(topics: list[str], name: str) -> list[tuple[str, str]]:
    """Returns each topic with the name of its table. Errors: CommandError."""
    found = [(topic, name.replace(TOPIC, topic)) for topic in dict.fromkeys(topics)]
    if len(found) > 1 and TOPIC not in name:
        raise misused(f"each topic needs a table of its own: with several topics, --table must contain {TOPIC}.")
    return found


def _one_of(option: str, text: str, allowed: Sequence[str]) -> str:
    """Returns one of the allowed words. Errors: CommandError."""
    if text not in allowed:
        raise misused(f"{option} {text!r} is invalid: it must be {', '.join(allowed[:-1])} or {allowed[-1]}.")
    return text


def _table_options(client: ClientSettings, topic: str, name: str, content: ContentOptions) -> TableOptions:
    """Returns the options of one job. Errors: CommandError, OptionError."""
    from lowtide.pipeline.table import options  # noqa: PLC0415 - an extra

    return options.TableOptions(
        client=client,
        topic=topic,
        table=options.check_table_name(name),
        schema=_schema(content),
        partition_by=_one_of("--partition-by", content.partition_by, options.PARTITIONINGS),
        start_at=_one_of("--start-at", content.start_at, options.STARTS),
        on_data_loss=_one_of("--on-data-loss", content.on_data_loss, options.ON_DATA_LOSS),
        rows_per_round_max=content.max_records_per_round or options.ROWS_PER_ROUND,
        file_bytes=content.file_size or options.FILE_BYTES,
    )


def _schema(content: ContentOptions) -> SchemaSettings:
    """Returns how values are decoded. Errors: CommandError."""
    from lowtide.pipeline.table.options import KINDS  # noqa: PLC0415 - an extra
    from lowtide.pipeline.table.schemas import SchemaSettings, check_settings  # noqa: PLC0415

    registry = registry_settings(content.registry, content.registry_property)
    settings = SchemaSettings(kind=_one_of("--schema", content.schema, KINDS), registry=registry)
    try:
        check_settings(settings)
    except ValueError as error:
        raise misused(f"--registry: {error}.") from error
    return settings


def _trimming(trim: TableTrimOptions) -> TableTrimOptions | None:
    """Returns the options if anything is to be trimmed. Errors: CommandError."""
    duration_ms_of(trim.trim_after)
    if trim.trim or trim.trim_dry_run:
        return trim
    if trim.trim_group:
        raise misused("--trim-group has no effect without --trim or --trim-dry-run.")
    return None


def _part(catalog: Any, options: TableOptions, job: TableJob, trim: TableTrimOptions | None) -> LoopPart:
    """Returns the job of one topic, with what trims behind it."""
    from lowtide.pipeline.table.loop import LoopPart  # noqa: PLC0415 - an extra
    from lowtide.pipeline.table.trimming import TableTrimmer, TableTrimSettings, groups_of_topic  # noqa: PLC0415

    trimmer = None
    if trim is not None:
        with BlockingAdminClient(options.client) as admin:
            groups = {*(trim.trim_group or ()), *groups_of_topic(admin, options.topic)}
        if groups:
            remark(f"{options.topic}: trimming waits for {', '.join(map(printable, sorted(groups)))}.")
        settings = TableTrimSettings(
            after_ms=duration_ms_of(trim.trim_after),
            groups=tuple(sorted(groups)),
            is_dry_run=trim.trim_dry_run,
        )
        trimmer = TableTrimmer(settings, lambda: BlockingAdminClient(options.client), SystemClock(), remark)
    return LoopPart(name=options.topic, job=job, trimmer=trimmer, load=lambda: catalog.load_table(options.table))


def _tell(output: Output, part: LoopPart, report: RoundReport, took_ms: int) -> None:
    """Prints what a round has done, unless it had nothing to do."""
    positions = {str(place.partition): offset for place, offset in sorted(report.positions.items())}
    if output is Output.JSON:
        print_json_line(
            {
                "topic": part.name,
                "outcome": report.outcome,
                "rows": report.rows,
                "dead_letters": report.dead,
                "files": report.files,
                "bytes": report.file_bytes,
                "snapshot": report.snapshot_id,
                "offsets": positions,
                "took_ms": took_ms,
            }
        )
    elif report.outcome == "committed":
        letters = f", {plural(report.dead, 'dead letter')}" if report.dead else ""
        print(
            f"{printable(part.name)}: {plural(report.rows, 'row')} in {plural(report.files, 'file')} "
            f"({size(report.file_bytes)}){letters}, snapshot {report.snapshot_id}, {took_ms / 1000:.1f} s",
            flush=True,
        )


@contextmanager
def _explained(*, with_spark: bool = False) -> Iterator[None]:
    """Turns the errors of the pipeline into those of a command; checks first that its packages are there."""
    from lowtide.pipeline.cluster import ClusterError, MissingTopicsError  # noqa: PLC0415 - slow
    from lowtide.pipeline.options import OptionError  # noqa: PLC0415
    from lowtide.pipeline.table import check_packages  # noqa: PLC0415

    try:
        check_packages(with_spark=with_spark)
        yield
    except CommandError:
        raise
    except ImportError as error:
        raise CommandError(f"{error}.") from error
    except (OptionError, MissingTopicsError) as error:
        raise misused(f"{error}.") from error
    except ClusterError as error:
        raise CommandError(f"{error}.", ExitCode.UNREACHABLE) from error
    except Exception as error:
        raise CommandError(f"{str(error).splitlines()[0] if str(error) else type(error).__name__}.") from error
