"""ApiVersions: v0-v5.

Behaviour: lists every API that has a handler, with the versions that it serves. Clients may send this request at any
time. The APIs of client metrics are always served, but listed only while there is a subscription (`client-metrics` of
IncrementalAlterConfigs): a client that sees them requests its subscription at once, and librdkafka logs that. Kafka
lists them if a metrics reporter accepts metrics of clients.

The epoch of the finalized features is the metadata revision at which they last changed.

Version notes: the response header never has tagged fields (KIP-511). The dispatcher answers an unknown version in v0.
From v3 on the client's name and version must be well-formed, and the response has the features. A feature that may be
disabled is listed from v4 on only, because some older clients can't read it (KAFKA-17492). From v5 on a client may
name the broker that it wants to reach, by cluster id and node id. If it reached another broker, for example because an
address was reused, it must bootstrap again.

Errors: INVALID_REQUEST for a malformed client name or version, and for one of cluster id and node id without the other;
REBOOTSTRAP_REQUIRED if the client wants to reach another broker. On a listener with SASL that is answered before the
login, so that no password is sent to the wrong broker; Kafka answers it only after the login.

KIPs: 35, 511, 584, 714, 1242.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import FOR_EVERYONE
from lowtide.broker.network.routing.answer_cache import AnswerCache
from lowtide.broker.network.routing.features import features_of, finalized, supported
from lowtide.broker.network.routing.routes import HandlerSpec, VersionRange
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.api_versions import NO_NODE, ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from lowtide.protocol.types import BrokerId

_SOFTWARE_SINCE = 3
_FEATURES_FROM_0_SINCE = 4
_OFFERS_KEPT = 8
_SOFTWARE_KEPT = 64
"""Characters of a name or version that are kept while the connection is open."""

_TELEMETRY: Final = frozenset({ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY})

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""KIP-511: letters, digits, dashes and dots, beginning and ending with a letter or digit."""


def handler(
    advertised: Mapping[ApiKey, VersionRange], seen: Callable[[], MetadataImage], broker: BrokerContext
) -> HandlerSpec:
    """Returns the handler.

    `advertised` is the dispatcher's table, which is complete before the first request. `seen()` returns the metadata.
    """
    broker_id = broker.replicas.broker_id
    answers = AnswerCache(_OFFERS_KEPT)

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
            software, connection = (request.client_software_name, request.client_software_version), context.connection
            if software != connection.software or not software[0]:
                if not all(map(_SOFTWARE.fullmatch, software)):
                    return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
                connection.software = software[0][:_SOFTWARE_KEPT], software[1][:_SOFTWARE_KEPT]
        image, from_0 = seen(), context.api_version >= _FEATURES_FROM_0_SINCE
        if request.cluster_id is not None or request.node_id != NO_NODE:
            error_code = _check_identity(request, image.cluster_id, broker_id)
            if error_code:
                return ApiVersionsResponse(error_code=error_code, api_keys=[])
        key = epoch, _, tells_telemetry = image.features_revision, from_0, bool(image.client_metrics)
        answer: ApiVersionsResponse | None = answers.find(key)
        if answer is None:
            answer = offer(epoch, from_0=from_0, tells_telemetry=tells_telemetry)
            answers.keep(key, answer)
        return answer

    return HandlerSpec(key=ApiKey.API_VERSIONS, guard=FOR_EVERYONE, handle=handle, answers=answers)


def _check_identity(request: ApiVersionsRequest, cluster_id: str, broker_id: BrokerId) -> ErrorCode:
    """Returns NONE if the broker that the request names is this one."""
    if request.cluster_id is None or request.node_id == NO_NODE:
        return ErrorCode.INVALID_REQUEST
    if (request.cluster_id, request.node_id) == (cluster_id, broker_id):
        return ErrorCode.NONE
    return ErrorCode.REBOOTSTRAP_REQUIRED
