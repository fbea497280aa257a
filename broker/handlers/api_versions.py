"""ApiVersions: v0-v4.

Behaviour: lists every API that has a handler, with the versions that it serves; nothing else is advertised. May be
asked at any time and again. Those of clients' metrics are listed while any are wanted (`client-metrics` of
IncrementalAlterConfigs), and served at any time: a client that sees them asks for its subscription at once, and
librdkafka writes a line about it. Kafka lists them where a metrics reporter takes what clients push.

The epoch of the features is the revision of the metadata at which they changed last.

Version notes: the response header never has tagged fields (KIP-511), and an unknown version is answered in v0 by the
dispatcher. From v3 the client's name and version must be well-formed, and it gets the features; that one is supported
which may be off only from v4 on, for some older clients can't read that (KAFKA-17492).

Errors: INVALID_REQUEST for a malformed client name or version.

KIPs: 35, 511, 584, 714.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from lowtide.broker.network.features import features_of, finalized, supported
from lowtide.broker.network.kept_answers import KeptAnswer, KeptAnswers, kept_answer, key_of, read_again
from lowtide.broker.network.routes import HandlerSpec, QuickPath, VersionRange
from lowtide.broker.request_context import Client, RequestContext
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.headers import read_request_header
from lowtide.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE_SINCE = 3
_FEATURES_FROM_0_SINCE = 4
_OFFERS_KEPT = 8
_SOFTWARE_KEPT = 64
"""Characters of a name or version that are kept while the connection is open."""

_TELEMETRY: Final = frozenset({ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY})

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""KIP-511: letters, digits, dashes and dots, beginning and ending with a letter or digit."""


def handler(advertised: Mapping[ApiKey, VersionRange], seen: Callable[[], MetadataImage]) -> HandlerSpec:
    """The handler; `advertised` is the dispatcher's table, which is complete when the first request comes.

    `seen()`: the metadata, with the features, and with the subscriptions to clients' metrics.
    """

    @lru_cache(maxsize=_OFFERS_KEPT)
    def offer(epoch: int, *, from_0: bool, tells_telemetry: bool) -> ApiVersionsResponse:
        features = features_of(seen(), advertised)
        return ApiVersionsResponse(
            error_code=ErrorCode.NONE,
            api_keys=[
                ApiVersion(api_key=key, min_version=served.minimum, max_version=served.maximum)
                for key, served in advertised.items()
                if tells_telemetry or key not in _TELEMETRY
            ],
            supported_features=supported(features, from_0=from_0),
            finalized_features_epoch=epoch,
            finalized_features=finalized(features),
        )

    def handle(request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
        if context.api_version >= _SOFTWARE_SINCE:
            for text in (request.client_software_name, request.client_software_version):
                if _SOFTWARE.fullmatch(text) is None:
                    return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
            context.connection.software = (
                request.client_software_name[:_SOFTWARE_KEPT],
                request.client_software_version[:_SOFTWARE_KEPT],
            )
        image, from_0 = seen(), context.api_version >= _FEATURES_FROM_0_SINCE
        return offer(image.features_revision, from_0=from_0, tells_telemetry=bool(image.client_metrics))

    @lru_cache(maxsize=_OFFERS_KEPT)
    def encoded(version: int, epoch: int, *, tells_telemetry: bool) -> KeptAnswer:
        response = offer(epoch, from_0=version >= _FEATURES_FROM_0_SINCE, tells_telemetry=tells_telemetry)
        return kept_answer(ApiKey.API_VERSIONS, version, response)

    kept, valid_for = KeptAnswers(), (-1, False)

    def handle_quickly(asked: bytes, _buffer: memoryview, client: Client) -> bytes | None:
        """The answer that was given to the same request before; None for the first one, and for what is refused."""
        nonlocal valid_for
        image = seen()
        now = (image.features_revision, bool(image.client_metrics))
        if now != valid_for:
            kept.clear()
            valid_for = now
        key = key_of("", asked)
        answer = kept.found.get(key)
        if answer is None:
            answer = answer_to(asked, client)
            if answer is None:
                return None
            kept.keep(key, answer)
        if answer.beside is not None:
            client.software = answer.beside
        return answer.frame(asked)

    def answer_to(asked: bytes, client: Client) -> KeptAnswer | None:
        try:
            _, version, _, client_id, position = read_request_header(asked, 0, len(asked))
            request = codec_for(ApiVersionsRequest, version).decode(memoryview(asked), position, len(asked))
        except ProtocolError:
            return None
        if handle(request, RequestContext(version, client_id, client)).error_code != ErrorCode.NONE:
            return None
        image = seen()
        answer = encoded(version, image.features_revision, tells_telemetry=bool(image.client_metrics))
        return answer._replace(beside=client.software) if version >= _SOFTWARE_SINCE else answer

    return HandlerSpec(
        key=ApiKey.API_VERSIONS, handle=handle, answers_again=2, quick=QuickPath(read_again, handle_quickly)
    )
