"""Codecs: from a message class and a version to functions that decode and encode it.

`codec_for` returns the codec of a message, made on first use and kept. The compiled module decodes and encodes by the
shape of the message, where it was built. What it doesn't take, and everything without it, is done by straight-line
Python generated from the construct tree of `schema.wire_form` (about a millisecond for each function): it names the
fault. `reference_codec` is the construct itself behind the same interface: slow, obviously right, and the oracle of the
property tests. All three accept the same bytes, give equal values, and write the same bytes.

Not here: which API has which message (`api_keys.py`), the length before a frame (`framing.py`).
Why not construct's own `.compile()`: it is some four times slower and accepts truncated input.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import construct

from lowtide.protocol import native
from lowtide.protocol.compiled_codec import shape_of
from lowtide.protocol.decoder_source import DecoderSource
from lowtide.protocol.encoder_source import EncoderSource
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.headers import frame_encoder, request_reader
from lowtide.protocol.schema import ApiMessage, wire_form
from lowtide.protocol.source_writer import SourceWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lowtide.protocol.constructs import Entity
    from lowtide.protocol.primitives import Buffer, RecordsLike

M = TypeVar("M", bound=ApiMessage)

_GENERATED = ("decode", "encode_parts")
_COMPILED = ("decode", "encode", "encode_frame", "encode_parts", "read_request")


class Codec(Generic[M]):
    """One message at one version.

    Each function is made when it is first used, because a broker reads requests and writes responses, and seldom the
    reverse. It is then a plain attribute, so that a caller may keep it.
    """

    version: int

    decode: Callable[..., M]
    """`decode(buffer, start, end, rows_max)`: the message in `buffer[start:end]`, which it must fill exactly. `end` is
    exclusive; without `rows_max` the number of rows has no limit.

    Records in it are memoryviews into `buffer`. Errors: ProtocolError for everything that isn't this message;
    SurplusBytesError, which is one, where it ends before `end`; TooManyRowsError where it has more than `rows_max`
    rows, which are the elements of its arrays at every level. Tagged fields that are there count too, 255 of one struct
    at most.
    """

    read_request: Callable[[Buffer, int, int, int, bool], tuple[M, str | None]]
    """`read_request(buffer, start, stop, rows_max, is_flexible)`: the request in `buffer[start:stop]`, header included,
    and
    its client id. `is_flexible` says whether tagged fields end the header. Errors: as of `decode`."""

    encode: Callable[[M], bytes]
    """The message as bytes. Fields that this version doesn't have are ignored. A value that doesn't fit is the caller's
    bug and raises whatever Python raises (`struct.error`, `AttributeError` for a null that isn't allowed, ...)."""

    encode_parts: Callable[[M], list[RecordsLike]]
    """As `encode`, in parts that follow each other; records that aren't empty are a part of their own, the very object
    given."""

    encode_frame: Callable[[int, M, bool], list[Any]]
    """`encode_frame(correlation_id, message, is_flexible)`: the frame of a response, its size and header included, in
    parts as of `encode_parts`. `is_flexible` says whether tagged fields end the header."""

    def __init__(self, version: int, makers: Mapping[str, Callable[[], Any]]) -> None:
        """`makers` make the functions, by their names."""
        self.version = version
        self._makers = makers

    def __getattr__(self, name: str) -> Any:
        maker = self.__dict__.get("_makers", {}).get(name)
        if maker is None:
            message = f"a codec has no {name}"
            raise AttributeError(message)
        function = self.__dict__[name] = maker()
        return function


@functools.cache
def codec_for(message: type[M], version: int) -> Codec[M]:
    """Returns the codec of a message at a version, made on first use.

    Errors: ValueError for a version that Lowtide doesn't speak.
    """
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
    """Returns the codec in generated Python alone.

    Errors: ValueError for a version that Lowtide doesn't speak.
    """
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
    writer = _written(entity, function, label)
    exec(compile(writer.source(), f"<{function} {label}>", "exec"), writer.names)  # noqa: S102 our own source, from our own declarations
    return writer.names[function]


def _written(entity: Entity, function: str, label: str) -> SourceWriter:
    writer = SourceWriter()
    if function == "decode":
        DecoderSource(writer, entity, label)
    else:
        EncoderSource(writer, entity)
    return writer


def generated_source(message: type[M], version: int) -> str:
    """Returns the generated Python of all functions, for people."""
    entity, label = wire_form(message, version), f"{message.__name__} v{version}"
    return "\n".join(_written(entity, function, label).source() for function in _GENERATED)


def reference_codec(message: type[M], version: int) -> Codec[M]:
    """The construct interpreter as a codec. Records are copied, and must be bytes-like to be encoded.

    Errors: ValueError for a version that Lowtide doesn't speak.
    """
    entity = wire_form(message, version)

    def decode(buffer: Buffer, start: int, end: int) -> M:
        if not 0 <= start <= end <= len(buffer):
            text = f"no frame from {start} to {end} in {len(buffer)} bytes"
            raise ProtocolError(text)
        whole = construct.Struct("message" / entity, construct.Terminated)
        try:
            decoded: M = whole.parse(bytes(buffer[start:end])).message
        except (construct.ConstructError, UnicodeDecodeError) as error:
            raise ProtocolError(str(error)) from error
        return decoded

    def encode(message: M) -> bytes:
        return entity.build(message)

    made = {"decode": decode, "encode": encode, "encode_parts": lambda message: [encode(message)]}
    return Codec(version, {name: functools.partial(_itself, function) for name, function in made.items()})


def _itself(function: Any) -> Any:
    return function
