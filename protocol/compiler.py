"""Codecs: functions that decode and encode a message class at a version.

`codec_for` creates the codec of a message on first use and caches it. The compiled module works by the shape of the
message. Without that module, and for what it refuses, straight-line Python is generated from the construct tree of
`schema.wire_form`, in about a millisecond per function; it also reports the errors. The property tests compare both
with the construct itself: all accept the same bytes, return equal values, and write the same bytes.

`api_keys` maps APIs to messages. Construct's own `.compile()` is four times slower and accepts truncated input.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lowtide.protocol import native
from lowtide.protocol.broker_frames import frame_encoder, request_reader
from lowtide.protocol.constructs import (
    Blob,
    CountedArray,
    Entity,
    NullableEntity,
    TaggedField,
    Text,
    fixed_format,
    size_min,
)
from lowtide.protocol.decoder_source import DecoderSource
from lowtide.protocol.encoder_source import EncoderSource
from lowtide.protocol.schema import ApiMessage, wire_form
from lowtide.protocol.source_writer import SourceWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lowtide.protocol.constructs import AnyConstruct
    from lowtide.protocol.primitives import Buffer, RecordsLike

M = TypeVar("M", bound=ApiMessage)

_GENERATED = ("decode", "encode_parts")
_COMPILED = ("decode", "encode", "encode_frame", "encode_parts", "read_request")


class Codec(Generic[M]):
    """One message at one version.

    Each function is created on first use, because a broker rarely encodes requests or decodes responses. It is then a
    plain attribute, which callers may keep.
    """

    version: int

    decode: Callable[..., M]
    """`decode(buffer, start, end, rows_max)` returns the message that fills `buffer[start:end]`.

    Its records are memoryviews into `buffer`. Rows are the elements of all arrays, and tagged fields (at most 255 per
    struct); without `rows_max` they are unlimited. Errors: ProtocolError for invalid bytes, SurplusBytesError if the
    message ends before `end`, TooManyRowsError above `rows_max`.
    """

    read_request: Callable[[Buffer, int, int, int, bool], tuple[M, str | None]]
    """`read_request(buffer, start, stop, rows_max, is_flexible)` returns the request in `buffer[start:stop]`, which
    includes its header, and its client id. `is_flexible`: the header has tagged fields. Errors: those of `decode`."""

    encode: Callable[[M], bytes]
    """Returns the message as bytes. Fields that this version lacks are ignored. An invalid value is a bug of the caller
    and raises any exception (`struct.error`, `AttributeError` for an invalid null, ...)."""

    encode_parts: Callable[[M], list[RecordsLike]]
    """Like `encode`, in parts; non-empty records are separate parts, without a copy."""

    encode_frame: Callable[[int, M, bool], list[Any]]
    """`encode_frame(correlation_id, message, is_flexible)` returns the frame of a response, with its size and header,
    in parts like `encode_parts`. `is_flexible`: the header has tagged fields."""

    def __init__(self, version: int, makers: Mapping[str, Callable[[], Any]]) -> None:
        """`makers` create the functions, by name."""
        self.version = version
        self._makers = makers

    def __getattr__(self, name: str) -> Any:
        maker = self.__dict__.get("_makers", {}).get(name)
        if maker is None:
            raise AttributeError(f"a codec has no {name}")
        function = self.__dict__[name] = maker()
        return function


@functools.cache
def codec_for(message: type[M], version: int) -> Codec[M]:
    """Returns the codec of a message. Errors: ValueError for an unsupported version."""
    plain = plain_codec(message, version)
    if native.compiled is None:
        return plain
    make, entity = native.compiled.Codec, wire_form(message, version)
    compiled = functools.cache(lambda: make(shape_of(entity), functools.partial(getattr, plain)))
    return Codec(version, {name: functools.partial(_method, compiled, name) for name in _COMPILED})


def _method(compiled: Callable[[], Any], name: str) -> Any:
    return getattr(compiled(), name)


@functools.cache
def plain_codec(message: type[M], version: int) -> Codec[M]:
    """Returns the codec in generated Python. Errors: ValueError for an unsupported version."""
    entity = wire_form(message, version)
    label = f"{message.__name__} v{version}"
    makers: dict[str, Callable[[], Any]]
    makers = {function: functools.partial(_load, entity, function, label) for function in _GENERATED}
    codec: Codec[M] = Codec(version, makers)

    def encode(message: M) -> bytes:
        return b"".join(codec.encode_parts(message))  # type: ignore[arg-type]  # a caller gives records as bytes

    makers["encode"] = lambda: encode
    makers["encode_frame"] = lambda: frame_encoder(codec.encode_parts)
    makers["read_request"] = lambda: request_reader(codec.decode)
    return codec


def _load(entity: Entity, function: str, label: str) -> Any:
    writer = SourceWriter()
    if function == "decode":
        DecoderSource(writer, entity, label)
    else:
        EncoderSource(writer, entity)
    exec(compile(writer.source(), f"<{function} {label}>", "exec"), writer.names)  # noqa: S102 our own source, from our own declarations
    return writer.names[function]


def _itself(function: Any) -> Any:
    return function


Shape = tuple[Any, ...]
"""The shape of a message as nested tuples, for the compiled module (`shapes.h`).

Each tuple begins with a letter: those of `struct` for numbers, `u` uuid, `s` text, `y` bytes, `v` records, `a` array,
`o` struct.
"""


def shape_of(content: AnyConstruct) -> Shape:
    """Returns the shape of a construct of `schema.wire_form`."""
    form = fixed_format(content)
    if form is not None:
        return ("u" if form == "16s" else form,)
    if isinstance(content, Text):
        return "s", content.nullable, content.compact
    if isinstance(content, Blob):
        return "v" if content.is_view else "y", content.nullable, content.compact
    if isinstance(content, CountedArray):
        element = content.element
        return "a", content.nullable, content.compact, (shape_of(element),), size_min(element)
    assert isinstance(content, Entity), f"no shape for {content!r}"
    names = tuple(sys.intern(name) for name, _ in content.fields)
    fields = tuple(shape_of(field) for _, field in content.fields)
    tags = None if content.tags is None else tuple(_tag(tag) for tag in content.tags.fields.values())
    return "o", isinstance(content, NullableEntity), content.make, names, fields, tags


def _tag(tag: TaggedField) -> Shape:
    is_struct = isinstance(tag.content, Entity) and not isinstance(tag.content, NullableEntity)
    absent = None if is_struct else tag.default
    return tag.tag, sys.intern(tag.name), absent, tag.is_absent if is_struct else None, shape_of(tag.content)
