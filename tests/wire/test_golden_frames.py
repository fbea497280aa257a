"""Frames from other programs: captured from real clients, or written down by hand from a KIP.

A file in `golden/` is a JSON list of objects:

    source   the writer of the frame, with its version
    message  the class, for example "ProduceRequest"
    version  the API version
    hex      the frame without its size in front, header included; blanks are for readability
    header   {"correlation_id": 1, "client_id": "rdkafka"}, of a response without the client id
    value    the message as JSON: every field, bytes as hex, a view of records as hex

Add one whenever a client sends a form that no entry has.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lowtide.protocol.api_keys import API, ApiSpec, request_header_is_flexible, response_header_is_flexible
from lowtide.protocol.client.connection import NEVER_MS, ClientConnection
from lowtide.protocol.client.versions import exchange_of
from lowtide.protocol.compiler import codec_for, plain_codec
from lowtide.protocol.errors import ProtocolError, SurplusBytesError
from lowtide.protocol.headers import (
    frame,
    read_request_header,
    read_response_header,
    request_header,
    response_header,
)
from tests.each import each
from tests.reference_codec import reference_codec

MUTATIONS = 250
SPECS: dict[str, ApiSpec] = {
    message.__name__: spec for spec in API.values() for message in (spec.request, spec.response)
}


class Golden(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of a file; the module's docstring has its fields."""

    source: str
    message: str
    version: int
    hex: str
    header: dict[str, Any]
    value: dict[str, Any]

    @property
    def frame(self) -> bytes:
        """The bytes."""
        return bytes.fromhex(self.hex)

    @property
    def spec(self) -> ApiSpec:
        """The API."""
        return SPECS[self.message]

    @property
    def is_request(self) -> bool:
        """Whether a client sent it."""
        return self.spec.request.__name__ == self.message

    def codec(self, codec_of: Any = codec_for) -> Any:
        """Returns the codec of its message and version."""
        return codec_of(self.spec.request if self.is_request else self.spec.response, self.version)

    def read_header(self, buffer: bytes, end: int) -> tuple[dict[str, Any], int]:
        """Returns the header's values and the position of the body."""
        if self.is_request:
            key, version, correlation_id, client_id, position = read_request_header(buffer, 0, end)
            assert (key, version) == (self.spec.key, self.version)
            return {"correlation_id": correlation_id, "client_id": client_id}, position
        flexible = response_header_is_flexible(self.spec.key, self.version)
        correlation_id, position = read_response_header(buffer, 0, end, flexible=flexible)
        return {"correlation_id": correlation_id}, position

    def header_bytes(self) -> bytes:
        """Returns the header as we write it."""
        if self.is_request:
            return request_header(self.spec.key, self.version, self.header["correlation_id"], self.header["client_id"])
        return response_header(self.header["correlation_id"], response_header_is_flexible(self.spec.key, self.version))


def load() -> list[Golden]:
    """Returns all entries of all files, in the order of their names."""
    files = sorted((Path(__file__).parent / "golden").glob("*.json"))
    return [entry for file in files for entry in msgspec.json.decode(file.read_bytes(), type=list[Golden])]


GOLDEN = load()
every_frame = each(
    "golden", GOLDEN, lambda golden: f"{golden.source.split(' ')[0]}-{golden.message}-v{golden.version}: {golden.hex}"
)


def as_json(value: Any) -> Any:
    """Returns a message in the form of `value` in the files."""
    if isinstance(value, msgspec.Struct):
        return {name: as_json(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [as_json(element) for element in value]
    return bytes(value).hex() if isinstance(value, bytes | memoryview) else value


@every_frame
def test_the_frame_has_the_value_beside_it(golden: Golden) -> None:
    """Header and message, read by both codecs; written again they give the same bytes."""
    whole = golden.frame
    header, position = golden.read_header(whole, len(whole))
    assert header == golden.header
    for codec_of in (codec_for, reference_codec):
        codec = golden.codec(codec_of)
        message = codec.decode(whole, position, len(whole))
        assert as_json(message) == golden.value
        assert golden.header_bytes() + codec.encode(message) == whole


def client_of(golden: Golden) -> ClientConnection[str]:
    """Returns a client connection whose next request has the frame's correlation id."""
    client: ClientConnection[str] = ClientConnection(golden.header.get("client_id", "client"))
    client._correlation_id = golden.header["correlation_id"] - 1
    return client


@every_frame
def test_our_client_sends_and_receives_it(golden: Golden) -> None:
    """A request is sent as the same bytes. A response is returned when its last byte arrives, and not before."""
    stream, client = frame(golden.frame), client_of(golden)
    if golden.is_request:
        _, position = golden.read_header(golden.frame, len(golden.frame))
        message = golden.codec().decode(golden.frame, position, len(golden.frame))
        assert client.request(message, golden.version, "waiter") == stream
        return
    client._expect(exchange_of(golden.spec.request, golden.version), "waiter", NEVER_MS)
    answers = []
    for position in range(len(stream)):
        assert answers == []
        client.get_buffer()[0] = stream[position]
        answers = client.receive(1)
    assert [(waiter, as_json(answer)) for waiter, answer in answers] == [("waiter", golden.value)]


@every_frame
def test_truncated_and_trailing(golden: Golden) -> None:
    """The codec refuses every shorter frame and any longer one; of a longer one it tells what the whole message is."""
    whole = golden.frame
    codec = golden.codec()
    for end in range(len(whole)):
        with pytest.raises(ProtocolError):
            codec.decode(whole[:end], golden.read_header(whole[:end], end)[1], end)
    position = golden.read_header(whole, len(whole))[1]
    with pytest.raises(SurplusBytesError) as caught:
        codec.decode(whole + b"\x00", position, len(whole) + 1)
    assert (as_json(caught.value.value), caught.value.position) == (golden.value, len(whole))


@every_frame
def test_a_broker_passes_over_what_is_behind_a_request(golden: Golden) -> None:
    """As Kafka does, in each form in which a request is read; and it knows how many bytes that were.

    A client refuses such an answer.
    """
    whole = golden.frame
    for tail in (b"", b"\0", b"\1", b"\xff" * 40):
        stream = whole + tail
        if not golden.is_request:
            exchange = exchange_of(golden.spec.request, golden.version)
            position = golden.read_header(whole, len(whole))[1]
            if tail:
                with pytest.raises(ProtocolError):
                    exchange.decode(memoryview(stream), position, len(stream))
            continue
        flexible = request_header_is_flexible(golden.spec.key, golden.version)
        for codec in (golden.codec(), golden.codec(plain_codec)):
            end = len(stream)
            if tail:
                with pytest.raises(SurplusBytesError) as caught:
                    codec.read_request(memoryview(stream), 0, end, 10_000, flexible)
                end = caught.value.position
            message, client_id = codec.read_request(memoryview(stream), 0, end, 10_000, flexible)
            assert (as_json(message), client_id) == (golden.value, golden.header["client_id"])
            assert end == len(whole)


@every_frame
def test_mutations(golden: Golden) -> None:
    """A changed body is read as the reference reads it, or refused as the reference refuses it."""
    rng = random.Random(golden.hex)
    position = golden.read_header(golden.frame, len(golden.frame))[1]
    body = golden.frame[position:]
    codec, reference = golden.codec(), golden.codec(reference_codec)
    for _ in range(MUTATIONS):
        wrong = bytearray(body)
        for _ in range(rng.randint(1, 4)):
            where = rng.randrange(len(wrong) + 1)
            wrong[where : where + 1] = bytes([rng.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)))])
        results = []
        for reader in (codec, reference):
            try:
                results.append(reader.decode(bytes(wrong), 0, len(wrong)))
            except ProtocolError:
                results.append(None)
        assert results[0] == results[1], wrong.hex()


def test_there_is_a_frame_of_each_request() -> None:
    """The files cover every API that is declared."""
    assert sorted({golden.spec.key for golden in GOLDEN if golden.is_request}) == sorted(API)
