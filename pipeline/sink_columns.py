"""Checks the columns of a write, as Spark's Kafka sink does, and sorts the rows of Arrow batches by partition.

- `value` (string or binary) is required. Null is a tombstone of a compacted topic.
- `key` (string or binary). A row without one goes to any partition.
- `topic` (string) is required without the option `topic`, which overrides it.
- `partition` (int). A row without one goes to the partition of its key.
- `headers` (array<struct<key: string, value: binary>>).

Other columns are ignored. The timestamp of a row is the time of the write.

Source: Spark's `KafkaWriter.validateQuery`, `KafkaRowWriter`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lowtide.pipeline.partitioner import StickyPartition, partitions_of_keys
from lowtide.protocol.columns import BinaryInput, HeaderInput, RecordRows
from lowtide.protocol.types import TopicPartition

_TEXT: Final = ("string", "binary")
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_TYPES: Final = {"topic": ("string",), "key": _TEXT, "value": _TEXT, "headers": (_HEADERS,), "partition": ("int",)}


class SinkError(ValueError):
    """Rows cannot be written. The message names the column and what it must be."""


def check_columns(types: dict[str, str], topic: str | None) -> None:
    """Checks the names and the types of columns. Errors: SinkError."""
    if "value" not in types:
        raise SinkError(f"Required attribute 'value' not found: the columns are {', '.join(types) or 'none'}.")
    if topic is None and "topic" not in types:
        raise SinkError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    for name, allowed in _TYPES.items():
        if name in types and types[name] not in allowed:
            raise SinkError(f"{name} must be {' or '.join(allowed)}, but is {types[name]}: cast it.")


class PartitionRows(NamedTuple):
    """The rows of one partition: their numbers (int64, ascending), or None for all."""

    place: TopicPartition
    selected: NDArray[np.int64] | None


@dataclass(slots=True, kw_only=True)
class RowPlaces:
    """Chooses the partition of each row. It remembers the last partition of rows without a key."""

    topic: str | None
    batch_bytes: int
    turn: int
    _sticky: dict[str, StickyPartition] = field(default_factory=dict)

    def topics(self, rows: pa.RecordBatch) -> list[tuple[str, NDArray[np.int64] | None]]:
        """Returns each topic with its rows, None for all rows. Errors: SinkError for a row without a topic."""
        if self.topic is not None:
            return [(self.topic, None)]
        column = _column(rows, "topic")
        if column.null_count:
            row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
            raise SinkError(
                f"null topic present in the data (row {row} of its batch). Use the topic option for setting a topic."
            )
        encoded = column.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        if len(names) == 1:
            return [(names[0], None)]
        numbers = np.asarray(encoded.indices)
        return [(name, np.flatnonzero(numbers == number)) for number, name in enumerate(names)]

    def places(
        self, rows: pa.RecordBatch, topic: str, selected: NDArray[np.int64] | None, available: list[int], count: int
    ) -> Iterator[PartitionRows]:
        """Yields the rows of one topic by partition. It has `count` partitions, of which `available` have a leader.

        Errors: SinkError for a partition that the topic does not have.
        """
        partitions = self._partitions(rows, topic, selected, available, count)
        if not len(partitions):
            return
        if (partitions == partitions[0]).all():
            yield PartitionRows(TopicPartition(topic, int(partitions[0])), selected)
            return
        order = np.argsort(partitions, kind="stable")
        ordered = partitions[order]
        begins = np.flatnonzero(np.diff(ordered, prepend=-1))
        for begin, end in zip(begins, [*begins[1:], len(ordered)], strict=True):
            numbers = order[begin:end].astype(np.int64)
            yield PartitionRows(
                TopicPartition(topic, int(ordered[begin])), numbers if selected is None else selected[numbers]
            )

    def _partitions(
        self, rows: pa.RecordBatch, topic: str, selected: NDArray[np.int64] | None, available: list[int], count: int
    ) -> NDArray[np.int32]:
        """Returns the partition of each selected row."""
        total = rows.num_rows if selected is None else len(selected)
        chosen = np.full(total, -1, np.int32)
        asked = _column(rows, "partition")
        if asked is not None:
            numbers = np.asarray(asked.fill_null(-1)).astype(np.int32)
            given = np.asarray(asked.is_valid()) & ((numbers < 0) | (numbers >= count))
            if given.any():
                row = int(np.flatnonzero(given)[0])
                raise SinkError(
                    f"partition {asked[row].as_py()} of row {row}: topic {topic} has the partitions 0 to {count - 1}."
                )
            chosen = numbers if selected is None else numbers[selected]
        keys = _column(rows, "key")
        if keys is not None and len(keys) != keys.null_count:
            has_key = np.asarray(keys.is_valid())
            has_key = (has_key if selected is None else has_key[selected]) & (chosen < 0)
            if has_key.any():
                offsets, content = _offsets_and_content(keys)
                by_key = partitions_of_keys(offsets, content, count)
                chosen = np.where(has_key, by_key if selected is None else by_key[selected], chosen)
        free = np.flatnonzero(chosen < 0)
        if len(free):
            sizes = _sizes(rows)
            sizes = (sizes if selected is None else sizes[selected])[free]
            sticky = self._sticky.get(topic)
            if sticky is None:
                sticky = self._sticky[topic] = StickyPartition(batch_bytes=self.batch_bytes, turn=self.turn)
            chosen = chosen.copy()
            chosen[free] = sticky.partitions(sizes, available)
        return chosen


def record_rows(rows: pa.RecordBatch) -> RecordRows:
    """Returns the rows as buffers of `rows`, without a copy."""
    return RecordRows(
        row_count=rows.num_rows,
        values=_binary(_column(rows, "value")),
        keys=_binary(_column(rows, "key")),
        headers=_headers(_column(rows, "headers")),
    )


def _column(rows: pa.RecordBatch, name: str) -> Any:
    """Returns the column, with byte strings as Arrow's binary, or None if there is no such column."""
    place = rows.schema.get_field_index(name)
    if place < 0:
        return None
    column = rows.column(place)
    if name in ("key", "value") and column.type != pa.binary():
        return column.cast(pa.binary())
    if name == "topic" and column.type != pa.string():
        return column.cast(pa.string())
    return column


def _binary(column: Any) -> BinaryInput | None:
    if column is None or len(column) == 0:
        return None
    validity, offsets, content = column.buffers()
    return BinaryInput(
        offsets=offsets,
        values=content if content is not None else b"",
        validity=validity if column.null_count else None,
        first=column.offset,
    )


def _headers(column: Any) -> HeaderInput | None:
    if column is None or len(column) == column.null_count:
        return None
    if column.type != _HEADER_TYPE:
        column = column.cast(_HEADER_TYPE)
    validity, offsets = column.buffers()[:2]
    pairs = column.values
    names, contents = _binary(pairs.field(0)), _binary(pairs.field(1))
    if names is None or contents is None:
        return None
    if pairs.field(0).null_count:
        raise SinkError("headers must have a key each: one is null.")
    return HeaderInput(
        offsets=offsets,
        names=names,
        contents=contents,
        validity=validity if column.null_count else None,
        first=column.offset,
    )


_HEADER_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _offsets_and_content(column: Any) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    _, offsets, content = column.buffers()
    entries = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return entries, np.frombuffer(content if content is not None else b"", np.uint8)


def _sizes(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """Returns roughly the size of each row in a batch."""
    sizes = np.full(rows.num_rows, 10, np.int64)
    for name in ("key", "value"):
        column = _column(rows, name)
        if column is not None and len(column):
            sizes += np.diff(_offsets_and_content(column)[0])
    return sizes
