"""The tables of `lowtide top`: rows from two samples (pure), and tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowtide.admin.retained import duration, size
from lowtide.cli.printing import plural, printable
from lowtide.cli.top_sample import Sample
from lowtide.protocol.messages.describe_health import LoopLagHistogram

if TYPE_CHECKING:
    from rich.console import RenderableType

ROWS_LEAST: Final = 3
"""The least number of rows of each table."""

_LINES_BESIDES: Final = 3
"""Lines of a table besides its rows: an empty line, the title, the columns."""

_SHARE: Final = 0.99


class TopicOrder(Enum):
    """The order of topics."""

    RATE = "records/s"
    BYTES = "bytes"
    NAME = "name"


class TopicRow(NamedTuple):
    """A topic; unknown values are None."""

    topic: str
    partitions: int
    records_a_second: float | None
    bytes: int | None
    remark: str


class BrokerRow(NamedTuple):
    """A broker. `lag_ms` and `held_ms` are 99th percentiles since the last sample. Times are milliseconds."""

    broker: int
    address: str
    is_controller: bool
    up_ms: int | None
    connections: int | None
    lag_ms: float | None
    held_ms: float | None
    waiting_deletes: int | None


class DiskRow(NamedTuple):
    """A log directory. `other` is the used space of the volume outside of its logs."""

    broker: int
    path: str
    live: int | None
    deleted: int | None
    other: int | None
    free: int | None


class GroupLagRow(NamedTuple):
    """A group with its lag in all partitions, or None if an end is unknown."""

    group: str
    behind: int | None
    partitions: int
    worst: str


class PendingDeleteRow(NamedTuple):
    """A pending delete."""

    partition: str
    offset: int
    leader: int
    waits_ms: int
    waits_for: str
    principal: str | None


class View(NamedTuple):
    """The rows of all tables."""

    brokers: list[BrokerRow]
    disks: list[DiskRow]
    topics: list[TopicRow]
    deletes: list[PendingDeleteRow]
    groups: list[GroupLagRow]


def view_of(sample: Sample, before: Sample | None, order: TopicOrder) -> View:
    """Returns the rows of a sample; rates and percentiles are since the sample before."""
    return View(
        brokers=_brokers(sample, before),
        disks=_disks(sample),
        topics=_topics(sample, before, order),
        deletes=[
            PendingDeleteRow(
                partition=f"{row.topic}-{row.partition_index}",
                offset=row.offset,
                leader=leader,
                waits_ms=max(sample.deletes[leader].described_at_ms - row.asked_at_ms, 0),
                waits_for=_waits_for(row),
                principal=None if row.origin is None else row.origin.principal,
            )
            for leader, row in sample.waiting
        ],
        groups=_groups(sample),
    )


def _waits_for(row: Any) -> str:
    if row.log_start_offset < row.offset:
        return "the leader's disk"
    followers = [f"broker {each.broker_id} (at {each.log_start_offset})" for each in row.followers]
    return ", ".join(followers) or "the next check"


def _brokers(sample: Sample, before: Sample | None) -> list[BrokerRow]:
    if sample.cluster is None:
        return []
    rows = []
    for broker in sample.cluster.brokers:
        broker_id = broker.broker_id
        now = sample.health.get(broker_id)
        then = None if before is None else before.health.get(broker_id)
        rows.append(
            BrokerRow(
                broker=broker_id,
                address=str(broker.address),
                is_controller=broker_id == sample.cluster.controller_id,
                up_ms=None if now is None else now.up_ms,
                connections=None if now is None else now.connections,
                lag_ms=None if now is None else high_share(now.lag, None if then is None else then.lag),
                held_ms=None if now is None else high_share(now.held, None if then is None else then.held),
                waiting_deletes=None if now is None else now.waiting_deletes,
            )
        )
    return rows


def high_share(now: LoopLagHistogram | None, before: LoopLagHistogram | None) -> float | None:
    """Returns the 99th percentile between two histograms: a bucket's bound, or the largest sample."""
    if now is None or not now.count:
        return None
    counts = [each.count for each in now.buckets]
    if before is not None and now.count - before.count > 0:
        counts = [count - each.count for count, each in zip(counts, before.buckets, strict=True)]
    seen, all_of_them = 0, sum(counts)
    for bucket, count in zip(now.buckets, counts, strict=True):
        seen += count
        if seen >= all_of_them * _SHARE:
            return bucket.up_to_ms if bucket.up_to_ms >= 0 else now.max_ms
    return now.max_ms


def _disks(sample: Sample) -> list[DiskRow]:
    deleted = {
        (broker_id, row.path): row
        for broker_id, health in sample.health.items()
        for row in health.log_dirs
        if row.deleted_bytes >= 0
    }
    rows = []
    for broker_id, directories in sorted(sample.log_dirs.items()):
        for path, directory in sorted(directories.items()):
            live = None if directory.error is not None else sum(each.size_bytes for each in directory.replicas.values())
            known = deleted.get((broker_id, path))
            waiting = None if known is None else known.deleted_bytes
            live = live if live is None or known is None else known.live_bytes
            free = directory.usable_bytes if directory.usable_bytes >= 0 else None
            total = directory.total_bytes if directory.total_bytes >= 0 else None
            other = (
                None if live is None or free is None or total is None else max(total - free - live - (waiting or 0), 0)
            )
            rows.append(DiskRow(broker_id, path, live, waiting, other, free))
    return rows


def _topics(sample: Sample, before: Sample | None, order: TopicOrder) -> list[TopicRow]:
    sizes = sample.topic_bytes
    passed_s = 0.0 if before is None else (sample.at_ms - before.at_ms) / 1000
    rows = []
    for name, topic in sample.topics.items():
        then = None if before is None else before.topics.get(name)
        rate = None
        if then is not None and then.end is not None and topic.end is not None and passed_s > 0:
            rate = max(topic.end - then.end, 0) / passed_s
        remarks = [f"{topic.without_leader} without leader"] if topic.without_leader else []
        remarks += [f"{topic.under_replicated} under-replicated"] if topic.under_replicated else []
        rows.append(TopicRow(name, topic.partitions, rate, sizes.get(name), ", ".join(remarks)))
    keys: Mapping[TopicOrder, Callable[[TopicRow], Any]] = {
        TopicOrder.RATE: lambda row: (-(row.records_a_second or 0), row.topic),
        TopicOrder.BYTES: lambda row: (-(row.bytes or 0), row.topic),
        TopicOrder.NAME: lambda row: row.topic,
    }
    return sorted(rows, key=keys[order])


def _groups(sample: Sample) -> list[GroupLagRow]:
    rows = []
    for name, lags in sample.groups.items():
        known = [(each.records, each) for each in lags if each.records is not None]
        worst = max(known, key=lambda each: each[0], default=None)
        behind = sum(count for count, _ in known) if len(known) == len(lags) else None
        rows.append(
            GroupLagRow(
                name, behind, len(lags), "" if worst is None or not worst[0] else f"{worst[1].partition}: {worst[0]:,}"
            )
        )
    return sorted(rows, key=lambda row: (-(row.behind or 0), row.group))


def as_value(sample: Sample, view: View) -> dict[str, Any]:
    """Returns all rows for JSON; unknown values are null."""
    return {
        "cluster_id": None if sample.cluster is None else sample.cluster.cluster_id,
        "brokers": [row._asdict() for row in view.brokers],
        "disks": [row._asdict() for row in view.disks],
        "topics": [row._asdict() for row in view.topics],
        "deletes_waiting": [row._asdict() for row in view.deletes] if sample.has_lowtide else None,
        "groups": [row._asdict() for row in view.groups],
        "silent": list(sample.silent),
    }


# ------------------------------------------------------------------ tables
class Titled(NamedTuple):
    """A table: its title, its columns (a colon at the end aligns one to the right), and the texts of its rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(sample: Sample, view: View, order: TopicOrder) -> list[Titled]:
    """Returns the tables in order. Without a broker of Lowtide, columns and tables that need one are left out."""
    own = sample.has_lowtide
    brokers: dict[str, Callable[[Any], str]] = {
        "broker": lambda row: f"{row.broker}{' *' if row.is_controller else ''}",
        "address": lambda row: row.address,
        **(_BROKER_COLUMNS if own else {}),
    }
    disks = {name: column for name, column in _DISK_COLUMNS.items() if own or name != "deleted, not freed:"}
    found = [
        _titled("Brokers (* controller)", brokers, view.brokers),
        _titled("Disks", disks, view.disks),
        _titled(f"Topics, by {order.value}", _TOPIC_COLUMNS, view.topics),
    ]
    if own:
        found.append(_titled("Pending deletes", _DELETE_COLUMNS, view.deletes))
    return [*found, _titled("Groups, by lag", _GROUP_COLUMNS, view.groups)]


def _titled(title: str, columns: Columns, rows: Iterable[Any]) -> Titled:
    return Titled(title, list(columns), [[column(row) for column in columns.values()] for row in rows])


def _count(number: int | None) -> str:
    return "-" if number is None or number < 0 else f"{number:,}"


def _bytes(number: int | None) -> str:
    return "-" if number is None else size(number)


def _ms(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f} ms"


def _time(ms: int | None) -> str:
    return "-" if ms is None else duration(ms)


Columns = Mapping[str, Callable[[Any], str]]

_BROKER_COLUMNS: Final[Columns] = {
    "up:": lambda row: _time(row.up_ms),
    "connections:": lambda row: _count(row.connections),
    "lag p99:": lambda row: _ms(row.lag_ms),
    "held p99:": lambda row: _ms(row.held_ms),
    "deletes wait:": lambda row: _count(row.waiting_deletes),
}
_DISK_COLUMNS: Final[Columns] = {
    "broker": lambda row: str(row.broker),
    "log directory": lambda row: row.path,
    "live:": lambda row: _bytes(row.live),
    "deleted, not freed:": lambda row: _bytes(row.deleted),
    "other:": lambda row: _bytes(row.other),
    "free:": lambda row: _bytes(row.free),
}
_TOPIC_COLUMNS: Final[Columns] = {
    "topic": lambda row: row.topic,
    "partitions:": lambda row: _count(row.partitions),
    "records/s:": lambda row: "-" if row.records_a_second is None else f"{row.records_a_second:,.0f}",
    "bytes:": lambda row: _bytes(row.bytes),
    "": lambda row: row.remark,
}
_DELETE_COLUMNS: Final[Columns] = {
    "partition": lambda row: row.partition,
    "to offset:": lambda row: _count(row.offset),
    "leader:": lambda row: str(row.leader),
    "since:": lambda row: duration(row.waits_ms),
    "for": lambda row: row.waits_for,
    "of": lambda row: row.principal or "-",
}
_GROUP_COLUMNS: Final[Columns] = {
    "group": lambda row: row.group,
    "behind:": lambda row: _count(row.behind),
    "partitions:": lambda row: _count(row.partitions),
    "most behind": lambda row: row.worst,
}


def rows_of_each(counts: Sequence[int], height: int) -> list[int]:
    """Returns how many rows of each table fit `height` lines: all of small tables; large ones share the rest."""
    room = max(height - _LINES_BESIDES * len(counts), ROWS_LEAST * len(counts))
    shown = [min(count, ROWS_LEAST) for count in counts]
    room -= sum(shown)
    while room > 0 and any(count > some for count, some in zip(counts, shown, strict=True)):
        for place, count in enumerate(counts):
            if room > 0 and count > shown[place]:
                shown[place] += 1
                room -= 1
    return shown


def screen(found: Sequence[Titled], headline: str, silent: Sequence[str], height: int | None) -> RenderableType:
    """Draws the tables for a terminal of a height; without a height, all rows."""
    from rich.console import Group  # noqa: PLC0415 - slow
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    parts: list[RenderableType] = [Text(printable(headline), style="bold", no_wrap=True, overflow="ellipsis")]
    parts += [Text(printable(each), style="red", no_wrap=True, overflow="ellipsis") for each in silent[:ROWS_LEAST]]
    counts = [len(each.rows) for each in found]
    shown = counts if height is None else rows_of_each(counts, height - len(parts))
    for each, count in zip(found, shown, strict=True):
        more = f"; {plural(len(each.rows) - count, 'more row')}" if len(each.rows) > count else ""
        made = Table(box=None, pad_edge=False)
        for column in each.columns:
            title, is_number = column.removesuffix(":"), column.endswith(":")
            made.add_column(
                title, justify="right" if is_number else "left", no_wrap=True, overflow="ellipsis", header_style="dim"
            )
        for row in each.rows[:count]:
            made.add_row(*(Text(printable(cell)) for cell in row))
        parts += [Text(""), Text(f"{each.title}{more}", style="bold", no_wrap=True, overflow="ellipsis"), made]
    return Group(*parts)
