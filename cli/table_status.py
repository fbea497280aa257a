"""Up to where a table has its topic, for `lowtide table status` and `lowtide topics explain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lowtide.admin.settings import ClientSettings
from lowtide.cli.outcome import CommandError, misused
from lowtide.cli.printing import plural
from lowtide.protocol.types import ZERO_TOPIC_ID, topic_id_text

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lowtide.pipeline.table.progress import TableProgress
    from lowtide.protocol.messages.describe_retention import RetainedPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition of the topic."""

    partition: int
    log_start: int | None
    """None if the topic does not exist any more."""
    table_until: int
    """The first offset that the table lacks."""
    log_end: int | None

    @property
    def waiting(self) -> int | None:
        """How many offsets the table lacks."""
        return None if self.log_end is None else max(self.log_end - self.table_until, 0)

    @property
    def trimmable(self) -> int | None:
        """How many offsets of the log the table has."""
        return None if self.log_start is None else max(self.table_until - self.log_start, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """A table and its topic."""

    table: str
    topic: str
    topic_id: str
    is_same_topic: bool
    """Whether the topic is still the one that the table has."""
    schema: str
    snapshot_id: int
    committed_ms: int
    rows: int
    files: int
    file_bytes: int
    dead_letters: int
    partitions: tuple[PartitionStatus, ...]


def load_progress(catalog: Catalog, name: str) -> tuple[Any, TableProgress]:
    """Returns a table and its progress. Errors: CommandError."""
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - an extra

    from lowtide.pipeline.table.progress import ProgressError, progress_of  # noqa: PLC0415

    try:
        table = catalog.load_table(name)
        found = progress_of(table.metadata)
    except NoSuchTableError as error:
        raise misused(f"there is no table {name}.") from error
    except ProgressError as error:
        raise CommandError(f"table {name}: {error}.") from error
    if found is None:
        raise CommandError(f"table {name} has no snapshot that says up to where it has a topic.")
    return table, found


def table_status(client: ClientSettings, catalog: Catalog, name: str) -> TableStatus:
    """Asks the catalog and the brokers. Errors: CommandError, ClusterError."""
    from lowtide.pipeline.cluster import (  # noqa: PLC0415 - slow
        EARLIEST_TIMESTAMP,
        LATEST_TIMESTAMP,
        BlockingCluster,
        MissingTopicsError,
    )
    from lowtide.pipeline.table.options import DEAD_SUFFIX  # noqa: PLC0415
    from lowtide.pipeline.table.progress import SCHEMA, properties_of  # noqa: PLC0415
    from lowtide.protocol.types import TopicPartition  # noqa: PLC0415

    table, progress = load_progress(catalog, name)
    cluster = BlockingCluster(client)
    starts, ends, topic_id = {}, {}, ZERO_TOPIC_ID
    try:
        topic = cluster.find_topics([progress.topic], cluster.deadline())[progress.topic]
        places = [TopicPartition(progress.topic, number) for number in topic.leaders]
        starts = cluster.list_offsets(dict.fromkeys(places, EARLIEST_TIMESTAMP), read_committed=True)
        ends = cluster.list_offsets(dict.fromkeys(places, LATEST_TIMESTAMP), read_committed=True)
        topic_id = topic.topic_id
    except MissingTopicsError:
        places = []
    finally:
        cluster.close()
    is_known = ZERO_TOPIC_ID not in (progress.topic_id, topic_id)
    is_same = bool(places) and (topic_id == progress.topic_id or not is_known)
    summary = properties_of(table.current_snapshot())
    letters = 0
    if catalog.table_exists(name + DEAD_SUFFIX):
        newest = catalog.load_table(name + DEAD_SUFFIX).current_snapshot()
        letters = 0 if newest is None else int(properties_of(newest).get("total-records", "0"))
    return TableStatus(
        table=name,
        topic=progress.topic,
        topic_id=topic_id_text(progress.topic_id),
        is_same_topic=is_same,
        schema=table.properties.get(SCHEMA, ""),
        snapshot_id=progress.snapshot_id,
        committed_ms=progress.committed_ms,
        rows=int(summary.get("total-records", "0")),
        files=int(summary.get("total-data-files", "0")),
        file_bytes=int(summary.get("total-files-size", "0")),
        dead_letters=letters,
        partitions=tuple(
            PartitionStatus(
                partition=place.partition,
                log_start=starts[place].offset if place in starts else None,
                table_until=progress.positions.get(place, 0),
                log_end=ends[place].offset if place in ends else None,
            )
            for place in sorted({*progress.positions, *places})
        ),
    )


def table_positions(catalog: str, properties: Sequence[str] | None, name: str, topic: str) -> dict[int, int]:
    """Returns the next offset of each partition, which a table lacks. Errors: CommandError."""
    from lowtide.pipeline.options import OptionError  # noqa: PLC0415 - slow
    from lowtide.pipeline.table import check_packages  # noqa: PLC0415

    try:
        check_packages(with_spark=False)
        from lowtide.pipeline.table.options import catalog_settings, check_table_name, load_catalog  # noqa: PLC0415

        opened = load_catalog(catalog_settings(catalog, properties or ()))
        _, progress = load_progress(opened, check_table_name(name))
    except ImportError as error:
        raise CommandError(f"{error}.") from error
    except OptionError as error:
        raise misused(f"{error}.") from error
    if progress.topic != topic:
        raise misused(f"table {name} has the topic {progress.topic}, not {topic}.")
    return {place.partition: offset for place, offset in progress.positions.items()}


def kept_line(name: str, row: RetainedPartition, until: int) -> str:
    """Returns what a table has of the records that a partition keeps."""
    number, start, end = row.partition_index, row.log_start_offset, row.log_end_offset
    if row.error_code or start < 0 or end < 0:
        return f"{number}: the table {name} has up to offset {until}."
    both, waiting = max(min(until, end) - start, 0), max(end - max(until, start), 0)
    parts = [f"{number}: kept: the table {name} has up to offset {until}"]
    if both:
        parts.append(f"{plural(both, 'offset')} from {start} on {'is' if both == 1 else 'are'} also there")
    if waiting:
        parts.append(f"{plural(waiting, 'offset')} {'waits' if waiting == 1 else 'wait'} for its next round")
    return "; ".join(parts) + "."
