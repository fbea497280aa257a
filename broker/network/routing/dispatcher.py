"""The registry of handlers: makes the route of each API key and version.

ApiVersions answers from this registry, so only served versions are advertised. Codecs are compiled when a version is
first used. Handlers that write metadata are coroutines, which run in named tasks; all others answer in the callback
that received the request.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from lowtide.broker.network.routing.answer_errors import Errors, counting_errors
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
from lowtide.protocol.broker_frames import REQUEST_HEADER_BYTES_MIN
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.constructs import row_bytes_min
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.protocol.schema import wire_form

_API_VERSIONS_V0 = struct.Struct(">iihihhh")

CLIENT_ID_SHOWN_MAX = 64
"""The bytes of a client id in a log line."""

FRAME_BYTES_MAX = 1 << 31
"""More than any frame has."""

SURPLUS_SERIES_MAX: Final = 200
"""The most pairs of request and software that are counted separately."""

_PADDING = bytes(4)
_CLIENT_ID_LENGTH = struct.Struct(">h")


class SurplusBytes:
    """Counts requests with bytes behind their fields, which are ignored as in Kafka, by request and client software.

    Such bytes may mean that a client encodes another version. librdkafka (AlterUserScramCredentials) and kafka-go
    (DescribeAcls) write empty tagged fields twice. Responses, structs within a request, and files must end with their
    fields.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def note(self, request: str, software: str) -> bool:
        """Counts a request. Returns whether it is the first of its kind.

        The software is left out if there are too many kinds.
        """
        key = request, software
        if key not in self.counts and len(self.counts) >= SURPLUS_SERIES_MAX:
            key = request, ""
        self.counts[key] += 1
        return self.counts[key] == 1


class Routes(dict[tuple[int, int], Route | None]):
    """The routes by API key and version, made at first use; None for unserved versions."""

    def __init__(self, make: Callable[[int, int], Route | None]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: tuple[int, int]) -> Route | None:
        """Makes a route. Unserved versions are not kept: a client could ask for four billion of them."""
        route = self._make(*key)
        if route is not None:
            self[key] = route
        return route


class Dispatcher:
    """The registry. `maximum_versions` caps the served and advertised versions of APIs."""

    def __init__(
        self,
        *,
        spawn: Spawn,
        maximum_versions: Mapping[ApiKey, int],
        rows_max: int = ROWS_MAX,
        metered: Callable[[HandlerSpec], HandlerSpec] = lambda spec: spec,
    ) -> None:
        """`metered` wraps each handler for quotas. `rows_max` is the most rows of a request."""
        self._metered = metered
        self._rows_max = rows_max
        self._specs: dict[ApiKey, HandlerSpec] = {}
        self._spawn = spawn
        self._maximum_versions = maximum_versions
        self.advertised: dict[ApiKey, VersionRange] = {}
        """The versions that ApiVersions answers."""
        self._unadvertised: dict[ApiKey, VersionRange] = {}
        """The versions of requests between brokers."""
        self.routes = Routes(self._make_route)
        self.times = RequestTimes()
        self.surplus = SurplusBytes()
        self.errors: Errors = Counter()
        """The errors of answers, without Produce and Fetch."""

    def register(self, specs: list[HandlerSpec]) -> None:
        for spec in sorted(specs, key=lambda spec: spec.key):
            assert spec.key not in self._specs, f"{spec.key.name} has two handlers"
            self._specs[spec.key] = spec
            table = self._unadvertised if spec.key >= FIRST_OF_OURS or spec.key == ApiKey.ENVELOPE else self.advertised
            table[spec.key] = self._advertise(spec)

    def remake_routes(self) -> None:
        """Applies a change of `metered` to later requests."""
        self.routes.clear()

    def describe(self, api_key: int, api_version: int) -> str:
        """Returns a text for logs such as `FETCH v12`, also for unknown APIs."""
        name = ApiKey(api_key).name if api_key in ApiKey.__members__.values() else f"API {api_key}"
        return f"{name} v{api_version}"

    def answer_unsupported(
        self, api_key: int, api_version: int, correlation_id: int, client_id: memoryview
    ) -> list[Part]:
        """Answers an unknown version of ApiVersions in version 0 with the supported range (KIP-511).

        `client_id` is the frame from the client id on. Errors: ProtocolError for other APIs, with a remedy.
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
        """Returns the served versions, the client id, and the remedy."""
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
        form = wire_form(api.request, api_version)
        cut = spec.cut(api_version) if callable(spec.cut) else spec.cut
        if cut is not None and cut.fields[0] not in dict(form.fields):
            cut = None  # This version has a single row.
        row_bytes = row_bytes_min(form)
        return Route(
            name=f"{api.request.__name__.removesuffix('Request')} v{api_version}",
            is_produce=spec.key == ApiKey.PRODUCE,
            handle=handle,
            read=_reader(spec.key, api_version),
            rows_max=self._rows_max if cut is not None else min(self._rows_max, spec.bounds.whole_max),
            is_flexible=request_header_is_flexible(spec.key, api_version),
            write=self._writer(spec, api_version),
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

    def _writer(self, spec: HandlerSpec, version: int) -> Callable[[int, Any], list[Part]]:
        codec = codec_for(API[spec.key].response, version)
        encode_frame: Callable[[int, Any, bool], list[Part]] = codec.encode_frame
        if not spec.counts_errors:
            write: Callable[[int, Any], list[Part]] = counting_errors(spec.key, version, self.errors, encode_frame)
            return write if spec.answers is None else spec.answers.writer(version, write)
        is_flexible = response_header_is_flexible(spec.key, version)
        return lambda correlation_id, response: encode_frame(correlation_id, response, is_flexible)

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


def without_array_padding(buffer: Any, start: int, stop: int, plain_bytes: int) -> tuple[Any, int, int]:
    """Returns a Metadata request for all topics, and its bounds, without librdkafka's padding.

    In flexible versions its null array takes the four bytes reserved for a count instead of one. `plain_bytes` is the
    length of the correct body. Seen from librdkafka 2.16 (confluent-kafka, kcat).
    """
    position = stop - plain_bytes - len(_PADDING) + 1
    id_end = start + REQUEST_HEADER_BYTES_MIN
    if (
        position - id_end - 1 == max(_CLIENT_ID_LENGTH.unpack_from(buffer, id_end - _CLIENT_ID_LENGTH.size)[0], 0)
        and buffer[position : position + len(_PADDING)] == _PADDING
    ):
        plain = b"".join((buffer[start:position], b"\0", buffer[position + len(_PADDING) : stop]))
        return plain, 0, len(plain)
    return buffer, start, stop
