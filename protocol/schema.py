"""Declares messages, each once for all versions, as a class with annotated fields.

    @versions("0-3", flexible="2+")
    class DeleteRecordsRequest(ApiMessage, kw_only=True):
        topics: list[DeleteRecordsTopic]
        timeout_ms: Int32
        leader_only: Annotated[Bool, Versions("3+")] = False

The class is the msgspec struct that handlers use, so mypy checks its fields. The annotations describe the wire:

- The wire type: `Int32`, `String`, `Records`, ...; another `Message` for a nested struct; `list[...]` for an array.
- `Versions("3+")`: the versions with the field. In other versions it is not written, and a decoded message has its
  default.
- `X | None`: nullable, in all versions or in those of `Nullable("10+")`; numbers and uuids cannot be.
- `Tagged(0, "12+")`: a tagged field (KIP-482), which is not written if it has its default. A tagged struct is declared
  `| None`: None is Kafka's struct of defaults, so that no partition needs an object for it. With its own `Nullable`,
  None is Kafka's null.

`wire_form` turns a class and a version into a construct, which defines the codec and which `compiler` compiles.
"""

from __future__ import annotations

import functools
import types
import typing
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, TypeVar, Union

import construct
import msgspec

from lowtide.protocol.constructs import Blob, CountedArray, Entity, NullableEntity, TaggedField, TaggedFields, Text
from lowtide.protocol.primitives import RecordsLike

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lowtide.protocol.constructs import AnyConstruct

_VERSION_MAX = 32_767


NO_ROWS: Any = ()
"""The default of a rarely used array in rows of large responses. A list for each row would be one more object for the
garbage collector. Decoded messages have a list."""


class Versions:
    """A range of versions, both ends inclusive: "3+", "1-4", "7" or "none"."""

    def __init__(self, text: str) -> None:
        low, _, high = ("1-0" if text == "none" else text).rstrip("+").partition("-")
        self.low = int(low)
        self.high = _VERSION_MAX if text.endswith("+") else int(high or low)

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.low}-{self.high})"


class Nullable(Versions):
    """The versions in which a field declared `X | None` may be null on the wire."""


class Tagged(Versions):
    """A tagged field with this tag number, in these versions."""

    def __init__(self, tag: int, text: str) -> None:
        super().__init__(text)
        self.tag = tag


class _CountedType:
    """A wire type whose encoding depends on the version: compact in flexible ones, nullable in some."""

    def __init__(self, *, is_text: bool = False, is_view: bool = False) -> None:
        self.is_text = is_text
        self.is_view = is_view

    def form(self, *, compact: bool, nullable: bool) -> AnyConstruct:
        if self.is_text:
            return Text(compact=compact, nullable=nullable)
        return Blob(compact=compact, nullable=nullable, is_view=self.is_view)


Int8: TypeAlias = Annotated[int, construct.Int8sb]
Int16: TypeAlias = Annotated[int, construct.Int16sb]
UInt16: TypeAlias = Annotated[int, construct.Int16ub]
Int32: TypeAlias = Annotated[int, construct.Int32sb]
Int64: TypeAlias = Annotated[int, construct.Int64sb]
Float64: TypeAlias = Annotated[float, construct.Float64b]
Bool: TypeAlias = Annotated[bool, construct.FormatField(">", "?")]
Uuid: TypeAlias = Annotated[bytes, construct.Bytes(16)]
String: TypeAlias = Annotated[str, _CountedType(is_text=True)]
Bytes: TypeAlias = Annotated[bytes, _CountedType()]
Records: TypeAlias = Annotated[RecordsLike, _CountedType(is_view=True)]
"""Record batches. Decoded ones are a memoryview into the frame, which must not outlive it."""


class Message(msgspec.Struct, gc=False):
    """A struct on the wire. The garbage collector ignores it, because a message never contains a cycle.

    Each class sets `kw_only=True`, which msgspec does not inherit: fields are in wire order, and required ones may
    follow optional ones.
    """


class ApiMessage(Message):
    """A whole request or response."""

    VERSIONS: ClassVar[Versions]
    """The supported versions."""
    FLEXIBLE: ClassVar[Versions]
    """The versions with compact encodings and tagged fields (KIP-482)."""


A = TypeVar("A", bound=ApiMessage)


def versions(text: str, *, flexible: str) -> Callable[[type[A]], type[A]]:
    """Sets `VERSIONS` and `FLEXIBLE` of a message."""

    def declare(message: type[A]) -> type[A]:
        message.VERSIONS, message.FLEXIBLE = Versions(text), Versions(flexible)
        return message

    return declare


class _FieldForm:
    """A parsed annotation: the bare type, its marks, and whether None is allowed."""

    def __init__(self, hint: object) -> None:
        self.versions = Versions("0+")
        self.nullable: Versions | None = None
        self.tagged: Tagged | None = None
        self.is_null_when_absent = False
        self.wire: object = None
        self.bare: Any = hint
        self._take_apart()

    def _take_apart(self) -> None:
        while True:
            if typing.get_origin(self.bare) is Annotated:
                marks = self.bare.__metadata__
                self.bare = self.bare.__origin__
                for mark in marks:
                    self._take_mark(mark)
            elif typing.get_origin(self.bare) in {Union, types.UnionType} and self.wire is None:
                members = typing.get_args(self.bare)
                assert types.NoneType in members, f"{self.bare} is not `X | None`"
                self.nullable = self.nullable or Nullable("0+")
                rest = [member for member in members if member is not types.NoneType]
                # typing flattens nested unions, except those within Annotated, such as that of `Records`.
                assert len(rest) == 1, f"{self.bare} is not `X | None`"
                self.bare = rest[0]
            else:
                return

    def _take_mark(self, mark: object) -> None:
        if isinstance(mark, Nullable):
            self.nullable = mark
            self.is_null_when_absent = True
        elif isinstance(mark, Tagged):
            self.tagged = mark
        elif isinstance(mark, Versions):
            self.versions = mark
        else:
            assert self.wire is None, f"two wire types: {self.wire!r} and {mark!r}"
            self.wire = mark

    def form(self, version: int, *, flexible: bool) -> AnyConstruct:
        """Returns the construct of the field at `version`."""
        nullable = self.nullable is not None and version in self.nullable
        if isinstance(self.wire, _CountedType):
            return self.wire.form(compact=flexible, nullable=nullable)
        if isinstance(self.wire, construct.Construct):
            assert not nullable, f"{self.wire!r} cannot be null"
            return self.wire
        if typing.get_origin(self.bare) is list:
            element = _FieldForm(typing.get_args(self.bare)[0]).form(version, flexible=flexible)
            return CountedArray(element, compact=flexible, nullable=nullable)
        entity = _entity(self.bare, version, flexible=flexible)
        is_plain = not nullable or (self.tagged is not None and not self.is_null_when_absent)
        return entity if is_plain else NullableEntity(entity.make, entity.fields, entity.tags)


@functools.cache
def _defaults(message: type[Message]) -> Mapping[str, object]:
    """Returns the default of each optional field by name. All versions share the mapping."""
    defaults: dict[str, object] = {}
    for field in msgspec.structs.fields(message):
        if field.default is not msgspec.NODEFAULT:
            defaults[field.name] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            defaults[field.name] = field.default_factory()
    return defaults


@functools.cache
def _hints(message: type[Message]) -> Mapping[str, object]:
    return typing.get_type_hints(message, include_extras=True)


def _entity(message: type[Message], version: int, *, flexible: bool) -> Entity:
    hints = _hints(message)
    defaults = _defaults(message)
    fields: list[tuple[str, AnyConstruct]] = []
    tags: list[TaggedField] = []
    for name in message.__struct_fields__:
        field = _FieldForm(hints[name])
        if field.tagged is not None:
            if version in field.tagged:
                assert flexible, f"{message.__name__}.{name} is tagged in version {version}, which is not flexible"
                tags.append(TaggedField(field.tagged.tag, name, defaults[name], field.form(version, flexible=flexible)))
            continue
        if version in field.versions:
            fields.append((name, field.form(version, flexible=flexible)))
        else:
            assert name in defaults, f"{message.__name__}.{name} is absent in version {version} and has no default"
    return Entity(message, fields, TaggedFields(tags) if flexible else None)


def wire_form(message: type[ApiMessage], version: int) -> Entity:
    """Returns the construct of `message` at `version`. Errors: ValueError for an unsupported version."""
    if version not in message.VERSIONS:
        raise ValueError(
            f"{message.__name__} has the versions {message.VERSIONS.low} to {message.VERSIONS.high}, not {version}"
        )
    return _entity(message, version, flexible=version in message.FLEXIBLE)
