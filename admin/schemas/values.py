"""Reads values that begin with the id of a schema in a registry: Avro, Protobuf and JSON, as plain Python values.

    values = SchemaValues((("url", "http://localhost:8081"),))
    found = values.decoded(record.value)   # after `prepare`, in a thread, for a schema that is not known yet

Guards: a schema whose values could be endless (arrays of items without bytes) is refused, and values of recursive
schemas are short, because the libraries recurse in C. What can't be read has a reason, as a sentence.
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.schemas.framing import HEAD_BYTES, Head, NotPreparedError, message_head, schema_id_of
from lowtide.admin.schemas.protobuf_files import message_class
from lowtide.admin.schemas.registry import Registry, RegistryError, UnknownReferenceError, UnsupportedSchemaError

if TYPE_CHECKING:
    from lowtide.admin.schemas.registry import RegisteredSchema
    from lowtide.runtime.clock import Clock

READERS_MAX: Final = 200
"""Schemas that are kept ready."""

FAULT_MS: Final = 30_000
"""How long a registry that gave no answer is not asked again."""

UNKNOWN_MAX: Final = 200
"""So many unknown ids are asked for in `FAULT_MS`. Other values may begin with 0 too, and look like ids."""

RECURSIVE_BYTES_MAX: Final = 4 << 10
"""The longest value of a recursive Avro schema: each level takes at least a byte, and some hundred bytes of stack."""

NAMES: Final = {"AVRO": "Avro", "PROTOBUF": "Protobuf", "JSON": "JSON Schema"}

_NAMED: Final = ("record", "error", "enum", "fixed")
DECODING_FAULTS: Final = (
    EOFError,
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    ArithmeticError,
    MemoryError,
    RecursionError,
    struct.error,
)
"""What fastavro raises for bytes that aren't of a schema."""


@dataclass(frozen=True, slots=True)
class _SchemaReader:
    """How to read the values of a schema; or why they can't be read."""

    kind: str = ""
    read: Callable[[bytes], Any] | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class SchemaValue:
    """A value, and the schema by which it was read."""

    schema_id: int
    kind: str
    """The name of the format."""
    value: Any
    """Of types that JSON has."""


class SchemaValues:
    """Decodes values by a registry. `prepare` may run in a thread, everything else in the caller's."""

    def __init__(self, settings: Iterable[tuple[str, str]], clock: Clock) -> None:
        """Reads the settings of the registry, by `registry.SETTINGS`. Errors: ValueError."""
        self._registry = Registry(settings)
        self._clock = clock
        self._readers: dict[Head, _SchemaReader] = {}
        self._silence = ""
        """Why the registry is not asked until `_silent_until_ms`."""
        self._silent_until_ms = 0
        self._unknown = 0

    def decoded(self, value: bytes) -> SchemaValue | None:
        """Returns a value that was read; None for one that does not begin with the id of a schema.

        Errors: ValueError with the reason; NotPreparedError.
        """
        schema_id = schema_id_of(value)
        if schema_id is None:
            return None
        reader = self._readers.get((schema_id,))
        begin = HEAD_BYTES
        if reader is not None and reader.kind == "PROTOBUF":
            head, begin = message_head(value)
            reader = self._readers.get(head)
        if reader is None and self._clock.monotonic_ms() < self._silent_until_ms:
            raise ValueError(self._silence)
        if reader is None:
            raise NotPreparedError
        if reader.read is None:
            raise ValueError(reader.fault)
        name = NAMES[reader.kind]
        try:
            return SchemaValue(schema_id, name, plain(reader.read(value[begin:])))
        except DECODING_FAULTS as error:
            raise ValueError(
                f"the value is not {name} of its schema {schema_id}: {str(error) or type(error).__name__}"
            ) from error

    def prepare(self, value: bytes) -> None:
        """Asks the registry for the schema of a value, and makes it ready. What fails is kept as the reason."""
        schema_id = schema_id_of(value)
        if schema_id is None:
            return
        head: Head = (schema_id,)
        try:
            registered = self._registry.schema(schema_id)
            if registered is None:
                self._on_unknown()
                reader = _SchemaReader(fault=f"the schema registry does not know the schema {schema_id}")
            elif registered.kind == "PROTOBUF":
                self._keep(head, _SchemaReader(registered.kind))
                head, _ = message_head(value)
                reader = self._reader(registered, head)
            else:
                reader = self._reader(registered, head)
        except RegistryError as error:
            self._be_silent(f"the schema registry does not answer: {error}")
            return
        except (UnsupportedSchemaError, UnknownReferenceError) as error:
            reader = _SchemaReader(fault=f"the schema {schema_id} can't be used: {error}")
        except (ImportError, ValueError) as error:
            reader = _SchemaReader(fault=str(error))
        self._keep(head, reader)

    def _on_unknown(self) -> None:
        self._unknown += 1
        if self._unknown >= UNKNOWN_MAX:
            self._unknown = 0
            self._be_silent(f"the schema registry does not know {UNKNOWN_MAX} ids: the values may have no schemas")

    def _be_silent(self, reason: str) -> None:
        self._silence, self._silent_until_ms = reason, self._clock.monotonic_ms() + FAULT_MS

    def _keep(self, head: Head, reader: _SchemaReader) -> None:
        while len(self._readers) >= READERS_MAX:
            del self._readers[next(iter(self._readers))]
        self._readers[head] = reader

    def _reader(self, registered: RegisteredSchema, head: Head) -> _SchemaReader:
        """Returns how to read values. Errors: RegistryError, ValueError, ImportError."""
        if registered.kind == "JSON":
            return _SchemaReader(registered.kind, json.loads)
        references = self._registry.references_of(registered)
        if registered.kind == "AVRO":
            return _SchemaReader(registered.kind, avro_reader(registered.text, references))
        if registered.kind == "PROTOBUF":
            return _SchemaReader(registered.kind, protobuf_reader(registered.text, references, head[1:]))
        return _SchemaReader(fault=f"the schema {head[0]} is of the type {registered.kind}, which is unknown here")


def avro_reader(text: str, references: Mapping[str, str]) -> Callable[[bytes], Any]:
    """Returns a function that reads Avro values. Errors: UnsupportedSchemaError, ImportError."""
    try:
        import fastavro  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ImportError(f"Avro needs fastavro: install Lowtide with its extra `table` ({error})") from error
    named: dict[str, Any] = {}
    try:
        for each in references.values():
            fastavro.parse_schema(json.loads(each), named)
        schema = fastavro.parse_schema(json.loads(text), named)
        is_recursive = _Shapes(named).check(schema)
    except UnsupportedSchemaError:
        raise
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, *DECODING_FAULTS) as error:
        raise UnsupportedSchemaError(f"fastavro refuses it: {error}") from error

    def read(value: bytes) -> Any:
        if is_recursive and len(value) > RECURSIVE_BYTES_MAX:
            raise ValueError(f"its schema is recursive, and it has more than {RECURSIVE_BYTES_MAX} bytes")
        stream = io.BytesIO(value)
        found = fastavro.schemaless_reader(stream, schema)
        if stream.tell() != len(value):
            raise ValueError(f"{len(value) - stream.tell()} bytes follow the last field")
        return found

    return read


class _Shapes:
    """Finds schemas whose values could be endless, and recursive ones."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._open: list[str] = []
        self._known: dict[str, bool] = {}
        self._is_recursive = False

    def check(self, schema: Any) -> bool:
        """Returns whether a schema is recursive. Errors: UnsupportedSchemaError for arrays of items without bytes."""
        self._can_be_empty(schema)
        return self._is_recursive

    def _can_be_empty(self, schema: Any) -> bool:
        """Returns whether a value may have no bytes at all."""
        if isinstance(schema, list):
            for each in schema:
                self._can_be_empty(each)
            return False  # The number of the member takes a byte.
        if isinstance(schema, str):
            return self._of_name(schema)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._of_record(schema)
        if kind in ("array", "map"):
            if self._can_be_empty(schema["items" if kind == "array" else "values"]) and kind == "array":
                raise UnsupportedSchemaError("it has an array of items without bytes, which could be endless")
            return False
        if kind == "fixed":
            return not schema["size"]
        return False if kind in _NAMED else self._can_be_empty(kind)

    def _of_name(self, name: str) -> bool:
        found = self._named.get(name)
        if found is None:
            return name == "null"
        return self._can_be_empty(found)

    def _of_record(self, schema: Mapping[str, Any]) -> bool:
        name = schema["name"]
        if name in self._open:
            self._is_recursive = True
            return False  # A field of its own type is behind an array, a map or a union, which take a byte.
        if name not in self._known:
            self._open.append(name)
            fields = [self._can_be_empty(each["type"]) for each in schema["fields"]]
            self._open.pop()
            self._known[name] = all(fields)
        return self._known[name]


def protobuf_reader(text: str, references: dict[str, str], indexes: tuple[int, ...]) -> Callable[[bytes], Any]:
    """Returns a function that reads messages. Errors: UnsupportedSchemaError, ImportError."""
    try:
        from google.protobuf import json_format, message  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ImportError(f"Protobuf needs protobuf: install Lowtide with its extra `table` ({error})") from error
    kind = message_class(text, references, indexes)

    def read(value: bytes) -> Any:
        try:
            found = kind.FromString(value)
            return json_format.MessageToDict(found, preserving_proto_field_name=True)
        except (message.DecodeError, json_format.Error) as error:
            raise ValueError(str(error)) from error

    return read


def plain(value: Any) -> Any:
    """Returns a value of types that JSON has: bytes in base64, numbers, times and other things as texts."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    is_json = value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value))
    return value if is_json else str(value)
