"""Encodes and decodes envelopes: a client's request with its sender, and the answer.

Source: KIP-590; Kafka's `ForwardingManager`, `EnvelopeUtils`, `DefaultKafkaPrincipalBuilder`.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Final, Self

import msgspec

from lowtide.broker.request_context import RequestContext
from lowtide.broker.security.principal import KafkaPrincipal
from lowtide.protocol.api_keys import API, ApiKey, response_header_is_flexible
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.headers import read_request_header, read_response_header, request_header, response_header
from lowtide.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse, PrincipalData
from lowtide.protocol.schema import ApiMessage
from lowtide.runtime.addresses import in_normal_form

_VERSION: Final = struct.Struct(">h")
_PRINCIPAL_VERSION: Final = 0
_FAMILIES: Final = {4: socket.AF_INET, 16: socket.AF_INET6}


class Origin(msgspec.Struct, frozen=True):
    """The sender of a request. Without a principal it is the broker itself."""

    principal: KafkaPrincipal | None
    client_address: str = ""
    client_id: str | None = None
    correlation_id: int = 0

    @classmethod
    def of(cls, context: RequestContext) -> Self:
        """Returns the client that sent a request."""
        return cls(context.principal, context.client_address, context.client_id, context.correlation_id)


class EnvelopeContent(msgspec.Struct, frozen=True):
    """The request inside an envelope."""

    key: ApiKey
    version: int
    origin: Origin
    body: ApiMessage


OF_THE_BROKER: Final = Origin(None)


def seal_envelope(key: ApiKey, version: int, body: ApiMessage, origin: Origin) -> EnvelopeRequest:
    """Puts a request into an envelope."""
    header = request_header(key, version, origin.correlation_id, origin.client_id)
    principal = origin.principal
    return EnvelopeRequest(
        request_data=header + codec_for(type(body), version).encode(body),
        request_principal=None if principal is None else _principal_bytes(principal),
        client_host_address=_address_bytes(origin.client_address),
    )


def open_envelope(envelope: EnvelopeRequest, allowed: frozenset[ApiKey]) -> EnvelopeContent:
    """Takes the request out of an envelope.

    Errors: ProtocolError for invalid bytes, and for a request that isn't among the `allowed`.
    """
    frame = envelope.request_data
    key, version, correlation_id, client_id, position = read_request_header(memoryview(frame), 0, len(frame))
    spec = API.get(key) if key in allowed else None  # type: ignore[call-overload]
    if spec is None or not spec.min_version <= version <= spec.max_version:
        message = f"an envelope with API {key} v{version}"
        raise ProtocolError(message)
    body = codec_for(spec.request, version).decode(memoryview(frame), position, len(frame))
    principal = None if envelope.request_principal is None else _principal_of(envelope.request_principal)
    return EnvelopeContent(
        spec.key, version, Origin(principal, _address_of(envelope.client_host_address), client_id, correlation_id), body
    )


def answered(request: EnvelopeContent, answer: ApiMessage) -> EnvelopeResponse:
    """Puts an answer into an envelope."""
    header = response_header(request.origin.correlation_id, response_header_is_flexible(request.key, request.version))
    return EnvelopeResponse(
        response_data=header + codec_for(type(answer), request.version).encode(answer), error_code=0
    )


def answer_in(key: ApiKey, version: int, data: bytes) -> Any:
    """Takes the answer out of an envelope. Errors: ProtocolError."""
    flexible = response_header_is_flexible(key, version)
    _, position = read_response_header(memoryview(data), 0, len(data), flexible=flexible)
    return codec_for(API[key].response, version).decode(memoryview(data), position, len(data))


def _principal_bytes(principal: KafkaPrincipal) -> bytes:
    value = PrincipalData(type=principal.type, name=principal.name)
    return _VERSION.pack(_PRINCIPAL_VERSION) + codec_for(PrincipalData, _PRINCIPAL_VERSION).encode(value)


def _principal_of(data: bytes) -> KafkaPrincipal:
    """Decodes a principal. Errors: ProtocolError."""
    if len(data) < _VERSION.size or _VERSION.unpack_from(data)[0] != _PRINCIPAL_VERSION:
        raise ProtocolError("an envelope whose principal is of another version")
    value = codec_for(PrincipalData, _PRINCIPAL_VERSION).decode(memoryview(data), _VERSION.size, len(data))
    return KafkaPrincipal(value.type, value.name)


def _address_bytes(address: str) -> bytes:
    """Returns four or sixteen bytes, or the text of a simulated network's address."""
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address.partition("%")[0])
    except OSError:
        return address.encode()


def _address_of(data: bytes) -> str:
    family = _FAMILIES.get(len(data))
    return data.decode(errors="replace") if family is None else in_normal_form(socket.inet_ntop(family, data))
