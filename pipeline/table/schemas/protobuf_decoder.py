"""Reads Protobuf values by the schema of their writer, and turns the messages into columns, field by field.

| Protobuf | column |
|---|---|
| bool, float, double, string, bytes | the same; bytes is binary |
| int32, sint32, sfixed32 | int |
| uint32, fixed32, int64, sint64, sfixed64 | long |
| uint64, fixed64 | decimal(20, 0) |
| enum | string: the name of the value, or its number if it has none |
| message, repeated, map | struct, list, map |
| a field without presence | its value, which is 0 or empty by default |
| a field with presence, a member of a oneof | null unless it is set |
| google.protobuf.Timestamp | timestamp with time zone, in microseconds |
| google.protobuf.Int32Value and the other wrappers | the value, or null |
| google.protobuf.Struct, Value, ListValue | string, with JSON |
| a message without fields | no column |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from lowtide.admin.schemas.framing import Head, message_head
from lowtide.admin.schemas.protobuf_files import message_class
from lowtide.admin.schemas.registry import RegisteredSchema, Registry, UnsupportedSchemaError
from lowtide.pipeline.table.schemas.framed_decoder import FramedDecoder, ValueFormat, built
from lowtide.pipeline.table.schemas.names import MAX_COLUMNS, MAX_DEPTH
from lowtide.pipeline.table.schemas.tallies import list_of

Build = Callable[[Sequence[Any]], pa.Array]
"""Builds a column of messages' values, of which some are None."""

_PACKAGE: Final = "google.protobuf."
_TIMESTAMP: Final = f"{_PACKAGE}Timestamp"
_JSON: Final = frozenset(_PACKAGE + name for name in ("Struct", "Value", "ListValue"))
_WRAPPERS: Final = frozenset(
    f"{_PACKAGE}{name}Value" for name in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String")
) | {f"{_PACKAGE}BytesValue"}
_MICROS: Final = 1_000_000
_NANOS: Final = 1_000
_UINT64: Final = pa.decimal128(20, 0)

# Numbers of `FieldDescriptor.type`.
_DOUBLE, _FLOAT, _INT64, _UINT64_TYPE, _INT32, _FIXED64, _FIXED32, _BOOL, _STRING = range(1, 10)
_BYTES, _UINT32, _ENUM, _SFIXED32, _SFIXED64, _SINT32, _SINT64 = 12, 13, 14, 15, 16, 17, 18
_SINGLE: Final = {
    _DOUBLE: pa.float64(),
    _FLOAT: pa.float32(),
    _INT64: pa.int64(),
    _SINT64: pa.int64(),
    _SFIXED64: pa.int64(),
    _UINT32: pa.int64(),
    _FIXED32: pa.int64(),
    _INT32: pa.int32(),
    _SINT32: pa.int32(),
    _SFIXED32: pa.int32(),
    _BOOL: pa.bool_(),
    _STRING: pa.string(),
    _BYTES: pa.binary(),
}


class MessageColumns:
    """The columns of one type of messages."""

    def __init__(self, descriptor: Any) -> None:
        """Errors: UnsupportedSchemaError."""
        self._room = MAX_COLUMNS
        kind, self._build = self._message(descriptor, ())
        self.type: pa.DataType = kind if kind is not None else pa.struct([])

    def built(self, messages: Sequence[Any]) -> pa.Array:
        """Returns a struct array of messages."""
        return self._build(messages)

    def _message(self, descriptor: Any, around: tuple[str, ...]) -> tuple[pa.DataType | None, Build]:
        """Returns the type of a message and its builder. The type is None if the message has no columns."""
        name = descriptor.full_name
        if name in around:
            raise UnsupportedSchemaError(f"the message {name} contains itself, which no column can")
        if len(around) > MAX_DEPTH:
            raise UnsupportedSchemaError(f"it is nested deeper than {MAX_DEPTH} levels")
        fields, builds = [], []
        for one in descriptor.fields:
            kind, build = self._field(one, (*around, name))
            if kind is not None:
                fields.append(pa.field(one.name, kind))
                builds.append(build)
        if not fields:
            return None, lambda items: pa.array([None if one is None else {} for one in items], pa.struct([]))
        return pa.struct(fields), _struct_builder(fields, builds, descriptor)

    def _field(self, field: Any, around: tuple[str, ...]) -> tuple[pa.DataType | None, Build]:
        read = attrgetter(field.name)
        if _is_map(field):
            return self._map(field, around)
        kind, build = self._single(field, around)
        if kind is None:
            return None, build
        if field.is_repeated:
            return list_of(kind), _list_builder(read, kind, build)
        if field.has_presence:
            name = field.name
            return kind, lambda items: build([read(one) if one.HasField(name) else None for one in items])
        return kind, lambda items: build([read(one) for one in items])

    def _single(self, field: Any, around: tuple[str, ...]) -> tuple[pa.DataType | None, Build]:
        """Returns the type of a field's single values, and the builder of an array of them."""
        if field.message_type is None:
            self._take_room()
            return _scalar(field)
        name = field.message_type.full_name
        if name == _TIMESTAMP:
            self._take_room()
            return pa.timestamp("us", tz="UTC"), _timestamps
        if name in _JSON:
            self._take_room()
            return pa.string(), _texts
        if name in _WRAPPERS:
            self._take_room()
            kind, build = _scalar(field.message_type.fields_by_name["value"])
            return kind, lambda items: build([None if one is None else one.value for one in items])
        return self._message(field.message_type, around)

    def _map(self, field: Any, around: tuple[str, ...]) -> tuple[pa.DataType | None, Build]:
        keys, build_keys = self._single(field.message_type.fields_by_name["key"], around)
        values, build_values = self._single(field.message_type.fields_by_name["value"], around)
        read = attrgetter(field.name)
        if values is None:
            return None, build_values
        kind = pa.map_(keys, values)

        def build(items: Sequence[Any]) -> pa.Array:
            pairs = [list(read(one).items()) for one in items]
            flat = [pair for some in pairs for pair in some]
            entries = [build_keys([key for key, _ in flat]), build_values([value for _, value in flat])]
            return pa.MapArray.from_arrays(_ends(pairs), *entries).cast(kind)

        return kind, build

    def _take_room(self) -> None:
        self._room -= 1
        if self._room < 0:
            raise UnsupportedSchemaError(f"it makes more than {MAX_COLUMNS} columns")


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _scalar(field: Any) -> tuple[pa.DataType, Build]:
    if field.type in _SINGLE:
        kind = _SINGLE[field.type]
        return kind, lambda items: pa.array(items, kind)
    if field.type == _ENUM:
        names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        return pa.string(), lambda items: pa.array(
            [None if one is None else names.get(one, str(one)) for one in items], pa.string()
        )
    assert field.type in (_UINT64_TYPE, _FIXED64), field.type
    return _UINT64, lambda items: pa.array(items, pa.uint64()).cast(_UINT64)


def _struct_builder(fields: list[pa.Field], builds: list[Build], descriptor: Any) -> Build:
    def build(items: Sequence[Any]) -> pa.Array:
        absent = [one is None for one in items]
        mask = pa.array(absent, pa.bool_()) if any(absent) else None
        if mask is not None:
            empty = _class_of(descriptor)()
            items = [empty if one is None else one for one in items]
        return pa.StructArray.from_arrays([one(items) for one in builds], fields=fields, mask=mask)

    return build


def _list_builder(read: Callable[[Any], Any], kind: pa.DataType, build: Build) -> Build:
    def build_lists(items: Sequence[Any]) -> pa.Array:
        lists = [read(one) for one in items]
        return pa.ListArray.from_arrays(_ends(lists), build([one for some in lists for one in some])).cast(
            list_of(kind)
        )

    return build_lists


def _ends(lists: Sequence[Any]) -> pa.Array:
    """Returns where each list begins in all elements, and the end."""
    ends = [0]
    for one in lists:
        ends.append(ends[-1] + len(one))
    return pa.array(ends, pa.int32())


def _timestamps(items: Sequence[Any]) -> pa.Array:
    micros = [None if one is None else one.seconds * _MICROS + one.nanos // _NANOS for one in items]
    return pa.array(micros, pa.timestamp("us", tz="UTC"))


def _texts(items: Sequence[Any]) -> pa.Array:
    from google.protobuf.json_format import MessageToJson  # noqa: PLC0415 - an extra

    return pa.array([None if one is None else MessageToJson(one, indent=None) for one in items], pa.string())


def _class_of(descriptor: Any) -> Any:
    from google.protobuf import message_factory  # noqa: PLC0415 - an extra

    return message_factory.GetMessageClass(descriptor)


def protobuf_decoder(schema: pa.Schema, registry: Registry) -> FramedDecoder:
    """Returns the decoder. Errors: ValueError."""
    return FramedDecoder(schema, registry, ValueFormat(kind="PROTOBUF", translate=ProtobufWriter, head_of=message_head))


class ProtobufWriter:
    """Reads the messages of one type."""

    def __init__(self, registered: RegisteredSchema, references: dict[str, str], head: Head) -> None:
        """Errors: UnsupportedSchemaError; ImportError, which says what to install."""
        try:
            from google.protobuf import message  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ImportError(f"Protobuf needs protobuf: install Lowtide with its extra `table` ({error})") from error
        self._class = message_class(registered.text, references, head[1:])
        self._columns = MessageColumns(self._class.DESCRIPTOR)
        self._fault = message.DecodeError

    @property
    def column(self) -> pa.DataType:
        return self._columns.type

    def read(self, values: Sequence[bytes], dead: dict[int, str]) -> pa.Array:
        found: list[Any] = []
        parse = self._class.FromString
        for place, value in enumerate(values):
            try:
                found.append(parse(value))
            except self._fault as error:
                dead[place] = f"the value is not Protobuf of its schema: {error}"
        return built(found, self._columns.built, dead)
