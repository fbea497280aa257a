"""Reads a table's progress: the newest snapshot on the branch main that says up to where the topic is in the table.

This property of a snapshot is the only truth about progress. No consumer group and no checkpoint decides. It is
committed together with the files, so it can't be ahead of them or behind.

Every commit of ours that is no round carries the properties of the newest progress on (`carried`), so that expired
snapshots take none with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowtide.pipeline.ranges import Positions, positions_from_text, positions_to_json
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId, TopicPartition, parse_topic_id, topic_id_text

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

MAIN: Final = "main"
"""The branch that rounds commit to."""

OFFSETS: Final = "lowtide.offsets"
"""`{"topic": {"0": 15}}`: the next offset of each partition, which the table lacks."""
TOPIC_ID: Final = "lowtide.topic-id"
ROUND: Final = "lowtide.round"
"""The round that made the progress."""
COMMIT: Final = "lowtide.commit"
"""The id of the commit itself, which is never carried on."""
ERASURE: Final = "lowtide.erasure"
"""The erasure whose fence the snapshot is: rounds that began before it are thrown away. It is never carried on."""

CARRIED: Final = (OFFSETS, TOPIC_ID, ROUND)

SCHEMA: Final = "lowtide.schema"
"""The property of the table, not of a snapshot, with the schema of its values."""


class ProgressError(Exception):
    """The table can't be continued. The message says why, and what can be done."""


class ProgressMissingError(ProgressError):
    """The table has rows, but no snapshot with progress."""


class TableProgress(NamedTuple):
    """What a snapshot says about progress."""

    topic: str
    topic_id: TopicId
    """`ZERO_TOPIC_ID` if the brokers have no topic ids."""
    positions: Positions
    """The next offsets. All partitions are those of the topic."""
    round_id: str
    snapshot_id: int
    committed_ms: int
    """When the snapshot was committed, by the clock of the committing machine."""

    def positions_of(self, places: Iterable[TopicPartition]) -> Positions:
        """Returns the positions. Partitions among `places` that were added after the commit begin at 0."""
        return {**dict.fromkeys(places, 0), **self.positions}


def ancestry(metadata: TableMetadata, until: int | None = None) -> Iterator[Snapshot]:
    """Yields the snapshots of the branch main, the newest first, as far back as none was expired.

    Ends before the snapshot `until`.
    """
    snapshot = metadata.snapshot_by_name(MAIN)
    while snapshot is not None and snapshot.snapshot_id != until:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)


def head_id(metadata: TableMetadata) -> int | None:
    """Returns the newest snapshot of the branch main; None for a table without one."""
    head = metadata.snapshot_by_name(MAIN)
    return None if head is None else head.snapshot_id


def properties_of(snapshot: Snapshot) -> Mapping[str, str]:
    """Returns the properties in a snapshot's summary."""
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def progress_of(metadata: TableMetadata) -> TableProgress | None:
    """Returns the newest progress of a table. Errors: ProgressError if it can't be read."""
    for snapshot in ancestry(metadata):
        if OFFSETS in properties_of(snapshot):
            return _parsed(snapshot)
    return None


def progress_in(table: Table, topic: str) -> TableProgress | None:
    """Returns the newest progress of a table that has this topic. None for a table without rows that nobody wrote.

    Errors: ProgressError if the table has another topic; ProgressMissingError if it has rows without progress.
    """
    found, name = progress_of(table.metadata), ".".join(table.name())
    if found is not None:
        if found.topic != topic:
            raise ProgressError(
                f"table {name} has the topic {found.topic}, not {topic}: each topic needs a table of its own"
            )
        return found
    head = table.metadata.snapshot_by_name(MAIN)
    if head is None or properties_of(head).get("total-records") == "0":
        return None
    raise ProgressMissingError(
        f"table {name} has rows, but no snapshot of it says up to which offset of {topic} (property {OFFSETS}): the "
        "snapshot was expired, or others wrote the table. With --start-at table the job continues after the highest "
        "offset in the table"
    )


def history_of(metadata: TableMetadata) -> list[TableProgress]:
    """Returns the progress of all snapshots that have one and belong to the newest topic id; the oldest first.

    Errors: ProgressError.
    """
    found = [_parsed(snapshot) for snapshot in ancestry(metadata) if OFFSETS in properties_of(snapshot)]
    return [one for one in reversed(found) if one.topic_id == found[0].topic_id and one.topic == found[0].topic]


def carried(metadata: TableMetadata) -> dict[str, str]:
    """Returns the properties that a commit which is no round has to carry on."""
    for snapshot in ancestry(metadata):
        properties = properties_of(snapshot)
        if OFFSETS in properties:
            return {name: properties[name] for name in CARRIED if name in properties}
    return {}


def progress_properties(topic_id: TopicId, positions: Positions, round_id: str) -> dict[str, str]:
    """Returns the properties of a snapshot that a round commits."""
    offsets = json.dumps(positions_to_json(positions), separators=(",", ":"))
    return {OFFSETS: offsets, TOPIC_ID: topic_id_text(topic_id), ROUND: round_id}


def highest_positions(batches: Iterator[Any], topic: str) -> Positions:
    """Returns the offsets after the highest one of each partition, in Arrow batches of partitions and offsets."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    found: Positions = {}
    for batch in batches:
        rows = pa.Table.from_batches([batch]).rename_columns(["partition", "offset"])
        for row in rows.group_by("partition").aggregate([("offset", "max")]).to_pylist():
            place = TopicPartition(topic, row["partition"])
            found[place] = max(found.get(place, 0), row["offset_max"] + 1)
    return found


def _parsed(snapshot: Snapshot) -> TableProgress:
    """Reads the progress of a snapshot that has one. Errors: ProgressError."""
    properties = properties_of(snapshot)
    try:
        positions = positions_from_text(properties[OFFSETS])
        topics = {place.topic for place in positions}
        if len(topics) != 1:
            raise ValueError(f"it names {len(topics)} topics")  # noqa: TRY301 - one message for all
        text = properties.get(TOPIC_ID)
        topic_id = ZERO_TOPIC_ID if text is None else parse_topic_id(text)
    except ValueError as error:
        raise ProgressError(
            f"snapshot {snapshot.snapshot_id} has an unreadable property {OFFSETS} or {TOPIC_ID}: {error}"
        ) from None
    return TableProgress(
        topic=topics.pop(),
        topic_id=topic_id,
        positions=positions,
        round_id=properties.get(ROUND, ""),
        snapshot_id=snapshot.snapshot_id,
        committed_ms=snapshot.timestamp_ms,
    )
