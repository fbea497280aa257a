"""UpdateFeatures: v0-v2.

Behaviour: changes the levels of features that clients can change (`broker/network/routing/features.py`), all of them or
none. The response is sent when the levels are in the metadata, from which every broker takes them. The current level of
a feature is accepted. With `validate_only` the request is only checked.

Version notes: v0 says whether a level may fall, v1 how (KIP-778); safe and unsafe downgrades are the same here, because
no level destroys data. v0 and v1 have a row for each feature if there is no error.

Errors: CLUSTER_AUTHORIZATION_FAILED, INVALID_UPDATE_VERSION for the first feature that can't have its level,
FEATURE_UPDATE_FAILED while a broker of an earlier version is alive, INVALID_REQUEST for more updates than
`UPDATES_MAX`, NOT_CONTROLLER, REQUEST_TIMED_OUT.

KIPs: 584, 778.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from lowtide.broker.administration.committing import check_timeout, decide_and_commit
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.audited_requests import CHANGED_FEATURES
from lowtide.broker.guards.guard import on_cluster
from lowtide.broker.network.routing.features import FEATURES, features_of
from lowtide.broker.network.routing.routes import Forwarding, HandlerSpec, VersionRange
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from lowtide.replication.feature_updates import FeatureUpdate, UpgradeType, plan_feature_updates
from lowtide.replication.refusal import Refusal

UPDATES_MAX: Final = 100
"""The number of updates in a request: many times the number of features."""

_FAILED: Final = "The update failed for all features since the following feature had an error: "
_KINDS_SINCE: Final = 1
_ROWS_UNTIL: Final = 1


def handler(broker: BrokerContext, advertised: Mapping[ApiKey, VersionRange]) -> HandlerSpec:
    """Returns the handler."""

    async def handle(request: UpdateFeaturesRequest, context: RequestContext) -> UpdateFeaturesResponse:
        version, metadata = context.api_version, broker.metadata
        refusal = check_timeout(request.timeout_ms) or _too_many(request)
        if refusal is not None:
            return refused(request, version, refusal)
        updates = [_update(each, version) for each in request.feature_updates]

        def decide() -> ChangePlan | Refusal:
            return plan_feature_updates(metadata.image, updates, features_of(metadata.image, advertised))

        planned = decide()
        if not request.validate_only and isinstance(planned, ChangePlan) and not planned.is_empty:
            deadline = asyncio.get_running_loop().time() + request.timeout_ms / 1000
            planned = await decide_and_commit(metadata, decide, deadline)
            if not isinstance(planned, Refusal):
                broker.log.info("levels of features are changed", levels=metadata.image.features.levels)
        return refused(request, version, planned) if isinstance(planned, Refusal) else _done(request, version)

    return HandlerSpec(
        key=ApiKey.UPDATE_FEATURES,
        guard=on_cluster(Operation.ALTER, refused),
        handle_later=handle,
        forwarding=Forwarding(refused, shows),
        audit=CHANGED_FEATURES,
    )


def refused(_request: UpdateFeaturesRequest, _version: int, refusal: Refusal) -> UpdateFeaturesResponse:
    """Returns the answer to a request that is refused."""
    prefix = _FAILED if refusal.error_code == ErrorCode.INVALID_UPDATE_VERSION else ""
    return UpdateFeaturesResponse(error_code=refusal.error_code, error_message=prefix + refusal.message)


def shows(request: UpdateFeaturesRequest, answer: UpdateFeaturesResponse, image: MetadataImage) -> bool:
    """Returns whether an image shows the requested levels."""
    if answer.error_code != ErrorCode.NONE or request.validate_only:
        return True
    highest = {feature.name: feature.level for feature in FEATURES}
    return all(
        image.features.level(each.feature, highest[each.feature]) == each.max_version_level
        for each in request.feature_updates
        if each.feature in highest
    )


def _update(asked: FeatureUpdateKey, version: int) -> FeatureUpdate:
    kind = asked.upgrade_type
    if version < _KINDS_SINCE:
        kind = UpgradeType.SAFE_DOWNGRADE if asked.allow_downgrade else UpgradeType.UPGRADE
    return FeatureUpdate(asked.feature, asked.max_version_level, kind)


def _too_many(request: UpdateFeaturesRequest) -> Refusal | None:
    if len(request.feature_updates) <= UPDATES_MAX:
        return None
    return Refusal(ErrorCode.INVALID_REQUEST, f"A request changes at most {UPDATES_MAX} features.")


def _done(request: UpdateFeaturesRequest, version: int) -> UpdateFeaturesResponse:
    rows = (
        [UpdatableFeatureResult(feature=each.feature) for each in request.feature_updates]
        if version <= _ROWS_UNTIL
        else []
    )
    return UpdateFeaturesResponse(results=rows)
