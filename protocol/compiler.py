"""Codecs: from a message class and a version to functions that decode and encode it.

`codec_for` gives the compiled codec, generated as straight-line Python from the construct tree of `schema.wire_form` on first use
(about a millisecond each) and kept. `reference_codec` gives the construct itself behind the same interface: slow,
obviously right, and the oracle of the property tests. Both accept the same bytes, give equal values, and write the same
bytes.

Not here: which API has which message (`api_keys.py`), headers (`headers.py`), the length before a frame (`framing.py`).
Why not construct's own `.compile()`: it is some four times slower and accepts truncated input.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import construct

from lowtide.protocol.decoder_source import DecoderForm, DecoderSource
from lowtide.protocol.encoder_source import EncoderForm, EncoderSource
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.schema import ApiMessage, wire_form
from lowtide.protocol.source_writer import SourceWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from lowtide.protocol.constructs import Entity
    from lowtide.protocol.primitives import Buffer, RecordsLike

M = TypeVar("M", bound=ApiMessage)

_FUNCTIONS = tuple(form.value for form in (*DecoderForm, *EncoderForm))


class Codec(Generic[M]):
    """One message at one version.

    Each function is compiled when it is first used, because a broker reads requests and writes responses, and seldom
    the reverse. It is then a plain attribute, so that a caller may keep it.
    """

    version: int

    decode: Callable[[Buffer, int, int], M]
    """`decode(buffer, start, end)`: the message in `buffer[start:end]`, which it must fill exactly. `end` is exclusive.

    Records in it are memoryviews into `buffer`. Errors: ProtocolError for everything that isn't this message; SurplusBytesError, which is
    one, where it ends before `end`.
    """

    decode_counted: Callable[[Buffer, int, int, int], M]
    """`decode_counted(buffer, start, end, rows_max)`: as `decode`. Errors: TooManyRowsError where the message has more than `rows_max`
    rows, which are the elements of its arrays at every level. Tagged fields that are there count too, 255 of one struct at most."""

    decode_sliced: Callable[[Buffer, int, int, int], Generator[None, None, tuple[M, int]]]
    """As `decode_counted`, a few rows at a time; returns the message and its rows. The buffer must stay as it is until then."""

    encode: Callable[[M], bytes]
    """The message as bytes. Fields that this version doesn't have are ignored. A value that doesn't fit is the caller's bug and raises
    whatever Python raises (`struct.error`, `AttributeError` for a null that isn't allowed, ...)."""

    encode_counted: Callable[[M], bytes]
    """As `encode`. Errors: TooManyRowsError for a message whose arrays have so many structs that it is to be encoded in slices."""

    encode_parts: Callable[[M], list[RecordsLike]]
    """As `encode`, in parts that follow each other; records that aren't empty are a part of their own, the very object given."""

    encode_parts_counted: Callable[[M], list[RecordsLike]]
    """As `encode_parts`, with the error of `encode_counted`."""

    encode_sliced: Callable[[M], Generator[None, None, list[RecordsLike]]]
    """As `encode_parts`, a few rows at a time. The message must stay as it is until then."""

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


def codec_for(message: type[M], version: int) -> Codec[M]:
    """The compiled codec, made on first use.

    Errors: ValueError for a version that Lowtide doesn't speak.
    """
    return _compiled(message, version)


@functools.cache
def _compiled(message: type[M], version: int) -> Codec[M]:
    entity = wire_form(message, version)
    label = f"{message.__name__} v{version}"

    makers = {function: functools.partial(_load, entity, function, label) for function in _FUNCTIONS}
    return Codec(version, makers)


def _load(entity: Entity, function: str, label: str) -> Any:
    writer = _written(entity, function, label)
    exec(compile(writer.source(), f"<{function} {label}>", "exec"), writer.names)  # noqa: S102 our own source, from our own declarations
    return writer.names[function]


def _written(entity: Entity, function: str, label: str) -> SourceWriter:
    writer = SourceWriter()
    if function.startswith("decode"):
        DecoderSource(writer, entity, label, DecoderForm(function))
    else:
        EncoderSource(writer, entity, EncoderForm(function))
    return writer


def generated_source(message: type[M], version: int) -> str:
    """The generated Python of all functions, for people."""
    entity, label = wire_form(message, version), f"{message.__name__} v{version}"
    return "\n".join(_written(entity, function, label).source() for function in _FUNCTIONS)


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
