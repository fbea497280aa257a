"""From an API and a version to the way that its large requests go (`large_requests`): header, codec in slices, cut, refusal."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import Any

from lowtide.broker.network.answer_errors import AnswerErrors
from lowtide.broker.network.large_requests import LargeRoute
from lowtide.broker.network.outgoing import Part
from lowtide.broker.network.refusals import refuser
from lowtide.broker.network.request_parts import split_for
from lowtide.broker.network.routes import HandlerSpec
from lowtide.protocol.api_keys import API, ApiKey, request_header_is_flexible, response_header_is_flexible
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import SurplusBytesError
from lowtide.protocol.headers import read_client_id

_PLAIN_PREFIX = struct.Struct(">ii")
_FLEXIBLE_PREFIX = struct.Struct(">iiB")


def large_route(
    spec: HandlerSpec, version: int, name: str, handle: Callable[[Any, Any], Any], errors: AnswerErrors | None = None
) -> LargeRoute:
    """The route of a handler for requests with very many rows; its codecs are compiled when the first comes."""
    api = API[spec.key]
    request, response = codec_for(api.request, version), codec_for(api.response, version)
    flexible = response_header_is_flexible(spec.key, version)
    prefix, header_bytes = (
        (_FLEXIBLE_PREFIX.pack, _FLEXIBLE_PREFIX.size - 4) if flexible else (_PLAIN_PREFIX.pack, _PLAIN_PREFIX.size - 4)
    )

    def decode(buffer: Any, position: int, stop: int, rows_max: int) -> Generator[None, None, tuple[Any, int, bool]]:
        try:
            message, rows = yield from request.decode_sliced(buffer, position, stop, rows_max)
        except SurplusBytesError as surplus:
            return *surplus.value, True
        return message, rows, False

    def encode(correlation_id: int, answer: Any) -> Generator[None, None, list[Part]]:
        parts: list[Any] = yield from response.encode_sliced(answer)
        return framed(correlation_id, parts)

    def framed(correlation_id: int, parts: list[Part]) -> list[Part]:
        size = sum(map(len, parts)) + header_bytes
        parts.insert(0, prefix(size, correlation_id, 0) if flexible else prefix(size, correlation_id))
        return parts

    return LargeRoute(
        name=name,
        api_version=version,
        open=_opener(spec.key, version),
        decode=decode,
        handle=handle,
        steps=spec.handle_steps,
        split=split_for(spec.key, version),
        bounds=spec.bounds,
        refuse=refuser(spec.key, version),
        encode=encode,
        framed=framed,
        errors=errors,
    )


def _opener(key: ApiKey, version: int) -> Callable[[Any, int, int], tuple[str | None, Any, int, int]]:
    """Reads the header of a request that is known to be of this API and version: its client id, and where its body is."""
    flexible = request_header_is_flexible(key, version)

    def open_request(buffer: Any, start: int, stop: int) -> tuple[str | None, Any, int, int]:
        client_id, position = read_client_id(buffer, start, stop, flexible=flexible)
        return client_id, buffer, position, stop

    return open_request
