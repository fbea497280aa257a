"""Reads the metrics that clients push: the numeric sums and gauges of OTLP's `MetricsData`, as Kafka's clients write.

It is our own decoder of eight Protocol Buffers messages. A library would parse a hostile megabyte in one piece, which
blocks the event loop or the GIL, and would be another dependency of every broker. This decoder reads fields in steps,
keeps only what it needs, and stops after a number of points. It ignores unknown fields, as Protocol Buffers requires,
such as histograms.

Sources: opentelemetry-proto 1.3 (`metrics.proto`, `common.proto`, `resource.proto`), the wire format of Protocol
Buffers, KIP-714.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from lowtide.protocol.errors import ProtocolError

POINTS_MAX: Final = 500
"""The maximum number of points in a push. Clients have some 40 metrics, with points per broker and partition."""

ATTRIBUTES_MAX: Final = 8
"""The maximum number of attributes of a point; others are omitted."""

TEXT_MAX: Final = 200
"""The maximum length of a name, an attribute's name or its value."""

FIELDS_A_STEP: Final = 200

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED_BYTES: Final = {_FIXED64: 8, 5: 4}
_VARINT_MASK: Final = 0x7F
_UINT64: Final = 0xFFFF_FFFF_FFFF_FFFF
_VARINT_BYTES_MAX: Final = 10
_DOUBLE: Final = struct.Struct("<d")
_SIGNED: Final = struct.Struct("<q")

# Field numbers of Metric, of Gauge and Sum, of NumberDataPoint, of KeyValue and AnyValue.
_NAME, _UNIT, _GAUGE, _SUM = 1, 3, 5, 7
_POINTS, _TEMPORALITY, _MONOTONIC = 1, 2, 3
_AS_DOUBLE, _AS_INT, _ATTRIBUTES = 4, 6, 7
_KEY, _VALUE, _AS_TEXT = 1, 2, 1

DELTA: Final = 1
"""The aggregation temporality of values that were added since the last push."""

Attributes = tuple[tuple[str, str], ...]


class Point(NamedTuple):
    """A number of a metric."""

    name: str
    unit: str
    is_counter: bool
    is_delta: bool
    attributes: Attributes
    value: float


class _Field(NamedTuple):
    number: int
    kind: int
    start: int
    stop: int
    value: int
    """The value of a varint."""


Steps = Generator[None, None, list[Point]]

_Fields = Iterator[_Field | None]
"""Fields, and after each `FIELDS_A_STEP` of them a None, at which others get a turn."""


class _Reading:
    """One push: the points and the number of fields read so far."""

    __slots__ = ("content", "fields", "points")

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.fields = 0
        self.points: list[Point] = []

    @property
    def is_full(self) -> bool:
        return len(self.points) >= POINTS_MAX


def read_metrics(content: bytes) -> Steps:
    """Reads the first `POINTS_MAX` points of a push, in steps. Errors: ProtocolError for invalid bytes."""
    reading = _Reading(content)
    yield from _each(reading, 0, len(content), (1, 2, 2))
    return reading.points


def _each(reading: _Reading, start: int, stop: int, path: tuple[int, ...]) -> Generator[None, None, None]:
    """Adds the metrics of nested messages, which are in the fields of these numbers."""
    for field in _fields(reading, start, stop):
        if reading.is_full:
            return
        if field is None:
            yield
        elif field.number == path[0] and field.kind == _BYTES:
            yield from _each(reading, field.start, field.stop, path[1:]) if len(path) > 1 else _metric(reading, field)


def _metric(reading: _Reading, metric: _Field) -> Generator[None, None, None]:
    name = unit = ""
    values: _Field | None = None
    for field in _fields(reading, metric.start, metric.stop):
        if field is None:
            yield
        elif field.kind == _BYTES:
            if field.number == _NAME:
                name = _text(reading.content, field)
            elif field.number == _UNIT:
                unit = _text(reading.content, field)
            elif field.number in (_GAUGE, _SUM):
                values = field
    if values is not None:
        yield from _values(reading, values, name, unit)


def _values(reading: _Reading, values: _Field, name: str, unit: str) -> Generator[None, None, None]:
    """Adds the points of a gauge or sum. Its kind may follow them in the message."""
    is_delta = is_monotonic = False
    found: list[tuple[Attributes, float]] = []
    for field in _fields(reading, values.start, values.stop):
        if field is None:
            yield
        elif field.number == _POINTS and field.kind == _BYTES and len(reading.points) + len(found) < POINTS_MAX:
            point = yield from _point(reading, field)
            if point is not None:
                found.append(point)
        elif field.number == _TEMPORALITY and field.kind == _VARINT:
            is_delta = field.value == DELTA
        elif field.number == _MONOTONIC and field.kind == _VARINT:
            is_monotonic = bool(field.value)
    is_sum = values.number == _SUM
    reading.points += [Point(name, unit, is_sum and is_monotonic, is_sum and is_delta, *each) for each in found]


def _point(reading: _Reading, row: _Field) -> Generator[None, None, tuple[Attributes, float] | None]:
    """Returns the attributes and the value of a point, or None if it has no value."""
    value: float | None = None
    attributes: list[tuple[str, str]] = []
    for field in _fields(reading, row.start, row.stop):
        if field is None:
            yield
        elif field.kind == _FIXED64 and field.number == _AS_DOUBLE:
            value = _DOUBLE.unpack_from(reading.content, field.start)[0]
        elif field.kind == _FIXED64 and field.number == _AS_INT:
            value = float(_SIGNED.unpack_from(reading.content, field.start)[0])
        elif field.kind == _BYTES and field.number == _ATTRIBUTES and len(attributes) < ATTRIBUTES_MAX:
            attribute = yield from _attribute(reading, field)
            attributes.append(attribute)
    return None if value is None else (tuple(sorted(attributes)), value)


def _attribute(reading: _Reading, attribute: _Field) -> Generator[None, None, tuple[str, str]]:
    """Returns the name and value of an attribute as text. Values other than texts and integers are empty."""
    name = value = ""
    for field in _fields(reading, attribute.start, attribute.stop):
        if field is None:
            yield
        elif field.number == _KEY and field.kind == _BYTES:
            name = _text(reading.content, field)
        elif field.number == _VALUE and field.kind == _BYTES:
            for inner in _fields(reading, field.start, field.stop):
                if inner is None:
                    yield
                elif inner.number == _AS_TEXT and inner.kind == _BYTES:
                    value = _text(reading.content, inner)
                elif inner.kind == _VARINT:
                    value = str(inner.value if inner.value < 1 << 63 else inner.value - (1 << 64))
    return name, value


def _text(content: bytes, field: _Field) -> str:
    return content[field.start : min(field.stop, field.start + 4 * TEXT_MAX)].decode("utf-8", "replace")[:TEXT_MAX]


def _fields(reading: _Reading, start: int, stop: int) -> _Fields:
    """Yields the fields of a message. Errors: ProtocolError."""
    content, position = reading.content, start
    while position < stop:
        reading.fields += 1
        if reading.fields % FIELDS_A_STEP == 0:
            yield None
        tag, begin = _varint(content, position, stop)
        kind, value = tag & 7, 0
        if kind == _VARINT:
            value, position = _varint(content, begin, stop)
        elif kind == _BYTES:
            size, begin = _varint(content, begin, stop)
            position = begin + size
        elif kind in _FIXED_BYTES:
            position = begin + _FIXED_BYTES[kind]
        else:
            raise ProtocolError(f"a field of kind {kind} at byte {position} of the metrics")
        if position > stop:
            raise ProtocolError(f"the metrics end within a field that begins at byte {begin}")
        yield _Field(tag >> 3, kind, begin, position, value)


def _varint(content: bytes, position: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    for end in range(position, min(position + _VARINT_BYTES_MAX, stop)):
        byte = content[end]
        value |= (byte & _VARINT_MASK) << shift
        if byte <= _VARINT_MASK:
            return value & _UINT64, end + 1
        shift += 7
    raise ProtocolError(f"no number at byte {position} of the metrics")
