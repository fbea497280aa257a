"""From an API key and version to the code that reads, answers and writes it.

Every handler module registers itself here with the versions that it serves; ApiVersions answers from this registry, so
nothing is advertised that isn't built. Codecs are compiled when a version is first used. Handlers that write metadata
are coroutines: they are spawned by name and their answer is pending; all others answer in the callback that brought the
request.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lowtide.broker.network.routing.answer_errors import AnswerErrors, Errors
from lowtide.broker.network.routing.client_quirks import SurplusBytes, without_array_padding
from lowtide.broker.network.routing.large_requests import ROWS_MAX
from lowtide.broker.network.routing.request_times import RequestTimes
from lowtide.broker.network.routing.routes import Handle, HandlerSpec, Part, Route, VersionRange
from lowtide.broker.pending import Pending
from lowtide.broker.promises import Spawn, promised
from lowtide.protocol.api_keys import (
    API,
    FIRST_OF_OURS,
    ApiKey,
    request_header_is_flexible,
    response_header_is_flexible,
)
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.constructs import row_bytes_min
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.headers import REQUEST_HEADER_BYTES_MIN, frame_encoder
from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.protocol.schema import wire_form

_API_VERSIONS_V0 = struct.Struct(">iihihhh")

CLIENT_ID_SHOWN_MAX = 64
"""Bytes of a client id in a line of the log."""

FRAME_BYTES_MAX = 1 << 31
"""Above what any frame has."""

_KEPT_BODY_BYTES = 16 * 1024
_KEPT_BODIES_BYTES = 256 * 1024
"""Of responses that are given again: the largest body that is kept, and all of them in one version of an API."""


class Routes(dict[tuple[int, int], Route | None]):
    """`(api key, version)` → route; None for what is not served. Filled as versions are first asked for."""

    def __init__(self, make: Callable[[int, int], Route | None]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: tuple[int, int]) -> Route | None:
        """Make a served route once.

        What is not served isn't kept: a client could ask for four thousand million of them.
        """
        route = self._make(*key)
        if route is not None:
            self[key] = route
        return route


class Dispatcher:
    """The registry. `maximum_versions` caps what is served and advertised, by API."""

    def __init__(
        self,
        *,
        spawn: Spawn,
        maximum_versions: Mapping[ApiKey, int],
        rows_max: int = ROWS_MAX,
        metered: Callable[[HandlerSpec], HandlerSpec] = lambda spec: spec,
    ) -> None:
        """`metered` wraps each handler for quotas. `rows_max` is how many rows a request may have."""
        self._metered = metered
        self._rows_max = rows_max
        self._specs: dict[ApiKey, HandlerSpec] = {}
        self._spawn = spawn
        self._maximum_versions = maximum_versions
        self.advertised: dict[ApiKey, VersionRange] = {}
        """What ApiVersions answers, by key."""
        self._unadvertised: dict[ApiKey, VersionRange] = {}
        """What brokers ask each other: those who ask for it know it."""
        self.routes = Routes(self._make_route)
        self.times = RequestTimes()
        self.surplus = SurplusBytes()
        self.errors: Errors = Counter()
        """Those of answers, but for Produce and Fetch."""

    def register(self, specs: list[HandlerSpec]) -> None:
        """Add handlers, each API once."""
        for spec in sorted(specs, key=lambda spec: spec.key):
            assert spec.key not in self._specs, f"{spec.key.name} has two handlers"
            self._specs[spec.key] = spec
            table = self._unadvertised if spec.key >= FIRST_OF_OURS or spec.key == ApiKey.ENVELOPE else self.advertised
            table[spec.key] = self._advertise(spec)

    def remake_routes(self) -> None:
        """Handlers are to be called in another way (`metered`).

        What is being worked on is answered in the way that it came.
        """
        self.routes.clear()

    def describe(self, api_key: int, api_version: int) -> str:
        """For logs: `Fetch v12`, also of what doesn't exist."""
        name = ApiKey(api_key).name if api_key in ApiKey.__members__.values() else f"API {api_key}"
        return f"{name} v{api_version}"

    def answer_unsupported(
        self, api_key: int, api_version: int, correlation_id: int, client_id: memoryview
    ) -> list[Part]:
        """Answers an unknown version of ApiVersions in version 0 with the supported range (KIP-511).

        `client_id` is the frame from the client id on. Errors: ProtocolError for every other API, with what its user
        can set.
        """
        if api_key != ApiKey.API_VERSIONS:
            raise ProtocolError(self._unsupported(api_key, api_version, client_id))
        served = self.advertised[ApiKey.API_VERSIONS]
        body_bytes = _API_VERSIONS_V0.size - 4
        return [
            _API_VERSIONS_V0.pack(
                body_bytes,
                correlation_id,
                ErrorCode.UNSUPPORTED_VERSION,
                1,
                ApiKey.API_VERSIONS,
                served.minimum,
                served.maximum,
            )
        ]

    def _unsupported(self, api_key: int, api_version: int, client_id: memoryview) -> str:
        """Returns which versions are served, which client asked, and what to set in it."""
        length = int.from_bytes(client_id[:2], "big", signed=True)
        named = bytes(client_id[2 : 2 + max(0, min(length, CLIENT_ID_SHOWN_MAX))]).decode("utf-8", "replace")
        served = self.advertised.get(api_key)  # type: ignore[call-overload]
        if served is None:
            return f"there is no such API here; the client's id is {named!r}"
        later = api_version < served.minimum
        remedy = f"set the version of Kafka in its configuration to {'a later' if later else 'an earlier'} one"
        return f"v{served.minimum} to v{served.maximum} are served; the client's id is {named!r}: {remedy}"

    def _advertise(self, spec: HandlerSpec) -> VersionRange:
        api = API[spec.key]
        minimum = api.min_version if spec.advertised_minimum is None else spec.advertised_minimum
        return VersionRange(minimum, min(api.max_version, self._maximum_versions.get(spec.key, api.max_version)))

    def _make_route(self, api_key: int, api_version: int) -> Route | None:
        spec = self._specs.get(api_key)  # type: ignore[call-overload]
        if spec is None:
            return None
        spec, api = self._metered(spec), API[spec.key]
        offered = self.advertised.get(spec.key) or self._unadvertised[spec.key]
        if not api.min_version <= api_version <= offered.maximum:
            return None
        handle = spec.handle if spec.handle is not None else self._spawning(spec)
        counts = None if spec.counts_errors else AnswerErrors(spec.key, api_version, self.errors)
        write = _writer(spec, api_version)
        form = wire_form(api.request, api_version)
        cut = spec.cut(api_version) if callable(spec.cut) else spec.cut
        if cut is not None and cut.fields[0] not in dict(form.fields):
            cut = None  # This version asks for one.
        row_bytes = row_bytes_min(form)
        return Route(
            name=f"{api.request.__name__.removesuffix('Request')} v{api_version}",
            is_produce=spec.key == ApiKey.PRODUCE,
            handle=handle,
            read=_reader(spec.key, api_version),
            rows_max=self._rows_max if cut is not None else min(self._rows_max, spec.bounds.whole_max),
            is_flexible=request_header_is_flexible(spec.key, api_version),
            write=write if counts is None else counts.after(write),
            cut=cut,
            bounds=spec.bounds,
            undivided_bytes=FRAME_BYTES_MAX
            if cut is None or row_bytes is None
            else row_bytes * spec.bounds.undivided_max + REQUEST_HEADER_BYTES_MIN,
            times=self.times.of(spec.key),
            follower_times=self.times.of_followers(spec.key),
            joint=spec.joint,
            is_forwarded=spec.forwarding is not None,
        )

    def _spawning(self, spec: HandlerSpec) -> Handle:
        handle_later = spec.handle_later
        assert handle_later is not None, f"{spec.key.name} has no handler"

        def handle(request: Any, context: Any) -> Pending[Any]:
            return promised(
                partial(handle_later, request, context),
                self._spawn,
                name=f"{spec.key.name} of {context.connection.peer}",
            )

        return handle


def _reader(key: ApiKey, version: int) -> Callable[[Any, int, int, int, bool], tuple[Any, str | None]]:
    codec = codec_for(API[key].request, version)
    if key != ApiKey.METADATA or not request_header_is_flexible(key, version):
        return codec.read_request
    all_topics_bytes = len(codec_for(MetadataRequest, version).encode(MetadataRequest(topics=None)))

    def read(buffer: Any, start: int, stop: int, rows_max: int, is_flexible: bool) -> tuple[Any, str | None]:  # noqa: FBT001
        plain = without_array_padding(buffer, start, stop, all_topics_bytes)
        return codec.read_request(*plain, rows_max, is_flexible)

    return read


def _writer(spec: HandlerSpec, version: int) -> Callable[[int, Any], list[Part]]:
    """Writes a response."""
    codec = codec_for(API[spec.key].response, version)
    flexible = response_header_is_flexible(spec.key, version)
    if spec.answers_again:
        encode = _remembering(codec.encode, spec.answers_again)
        encode_frame = frame_encoder(lambda response: [encode(response)])
    else:
        encode_frame = codec.encode_frame
    return lambda correlation_id, response: encode_frame(correlation_id, response, flexible)


def _remembering(encode: Callable[[Any], bytes], maximum: int) -> Callable[[Any], bytes]:
    """`encode` that knows the last responses again, by their identity: each is held here, so no other object has it."""
    kept: dict[int, tuple[Any, bytes]] = {}
    kept_bytes = 0

    def encode_once(response: Any) -> bytes:
        nonlocal kept_bytes
        known = kept.get(id(response))
        if known is not None:
            return known[1]
        body = encode(response)
        if len(body) <= _KEPT_BODY_BYTES:
            if len(kept) >= maximum or kept_bytes + len(body) > _KEPT_BODIES_BYTES:
                kept.clear()
                kept_bytes = 0
            kept[id(response)] = response, body
            kept_bytes += len(body)
        return body

    return encode_once
