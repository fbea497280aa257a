"""ApiVersions: v0-v4.

Behaviour: lists every API that has a handler, with the versions that it serves; nothing else is advertised. May be asked at any time
and again. Those of clients' metrics are listed while any are wanted (`client-metrics` of IncrementalAlterConfigs), and served at any time:
a client that sees them asks for its subscription at once, and librdkafka writes a line about it. Kafka lists them where a metrics reporter
takes what clients push.

Version notes: the response header never has tagged fields (KIP-511), and an unknown version is answered in v0 by the dispatcher. From
v3 the client's name and version must be well-formed, and it gets the features; which ones are supported only from v4 on, for some older
clients can't read of one that may be off (KAFKA-17492).

Errors: INVALID_REQUEST for a malformed client name or version.

KIPs: 35, 511, 584, 714.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from lowtide.broker.network.features import FINALIZED_EPOCH, finalized, supported
from lowtide.broker.network.routes import HandlerSpec, VersionRange
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE_SINCE = 3
_FEATURES_FROM_0_SINCE = 4
_SOFTWARE_KEPT = 64
"""Characters of a name or version that are kept while the connection is open."""

_TELEMETRY: Final = frozenset({ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY})

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""KIP-511: letters, digits, dashes and dots, beginning and ending with a letter or digit."""


def handler(advertised: Mapping[ApiKey, VersionRange], wants_telemetry: Callable[[], bool]) -> HandlerSpec:
    """The handler; `advertised` is the dispatcher's table, which is complete when the first request comes.

    `wants_telemetry()`: whether there is a subscription to clients' metrics.
    """

    @cache
    def offer(*, tells_supported: bool, tells_telemetry: bool) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            error_code=ErrorCode.NONE,
            api_keys=[
                ApiVersion(api_key=key, min_version=served.minimum, max_version=served.maximum)
                for key, served in advertised.items()
                if tells_telemetry or key not in _TELEMETRY
            ],
            supported_features=supported(advertised) if tells_supported else [],
            finalized_features_epoch=FINALIZED_EPOCH,
            finalized_features=finalized(advertised),
        )

    def handle(request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
        if context.api_version >= _SOFTWARE_SINCE:
            for text in (request.client_software_name, request.client_software_version):
                if _SOFTWARE.fullmatch(text) is None:
                    return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
            context.connection.software = (request.client_software_name[:_SOFTWARE_KEPT], request.client_software_version[:_SOFTWARE_KEPT])
        return offer(tells_supported=context.api_version >= _FEATURES_FROM_0_SINCE, tells_telemetry=wants_telemetry())

    return HandlerSpec(key=ApiKey.API_VERSIONS, handle=handle, answers_again=2)
