"""Handlers of share groups that refuse what clients ask while `share.version` is 0, as Kafka's do: UNSUPPORTED_VERSION."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lowtide.broker.context import BrokerContext
from lowtide.broker.network.features import serves_share_groups
from lowtide.broker.network.refusals import refusal_of_all
from lowtide.broker.network.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_share_group_offsets import (
    DescribedShareOffsetsGroup,
    DescribeShareGroupOffsetsResponse,
)
from lowtide.protocol.messages.share_group_describe import DescribedShareGroup, ShareGroupDescribeResponse

_OFF: Final = ErrorCode.UNSUPPORTED_VERSION


def refused(key: ApiKey, request: Any, version: int) -> Any:
    """The answer while there are no share groups: for each group that is to be described, else for the whole."""
    if key == ApiKey.SHARE_GROUP_DESCRIBE:
        return ShareGroupDescribeResponse(
            groups=[DescribedShareGroup(error_code=_OFF, group_id=name) for name in request.group_ids]
        )
    if key == ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS:
        rows = [DescribedShareOffsetsGroup(group_id=each.group_id, error_code=_OFF) for each in request.groups]
        return DescribeShareGroupOffsetsResponse(groups=rows)
    return refusal_of_all(key, version, _OFF)


def switched(spec: HandlerSpec, broker: BrokerContext) -> HandlerSpec:
    """A handler that answers only while there are share groups."""
    handle, handle_later = spec.handle, spec.handle_later
    if handle is not None:

        def at_once(request: Any, context: RequestContext) -> Any:
            if not serves_share_groups(broker.metadata.image):
                return refused(spec.key, request, context.api_version)
            return handle(request, context)

        return msgspec.structs.replace(spec, handle=at_once)
    assert handle_later is not None, spec.key

    async def later(request: Any, context: RequestContext) -> Any:
        if not serves_share_groups(broker.metadata.image):
            return refused(spec.key, request, context.api_version)
        return await handle_later(request, context)

    return msgspec.structs.replace(spec, handle_later=later)
