"""The handlers of share groups, which are registered if `share_groups_enabled`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.share_state.share_coordinator import ShareCoordinator
from lowtide.broker.coordinator.share_state.share_persister import SharePersister
from lowtide.broker.guards.guard import Verdict, judged
from lowtide.broker.network.routing.features import serves_share_groups
from lowtide.broker.network.routing.refusals import refusal_of_all
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.partitions.share.share_partitions import SharePartitions
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_share_group_offsets import (
    DescribedShareOffsetsGroup,
    DescribeShareGroupOffsetsResponse,
)
from lowtide.protocol.messages.share_group_describe import DescribedShareGroup, ShareGroupDescribeResponse

_OFF: Final = ErrorCode.UNSUPPORTED_VERSION


class ShareParts(NamedTuple):
    """The parts of a broker that serve share groups."""

    coordinator: ShareCoordinator
    persister: SharePersister
    partitions: SharePartitions

    @property
    def ticks(self) -> tuple[Callable[[], None], ...]:
        """What is called once a second."""
        return self.coordinator.on_tick, self.partitions.on_tick

    def close(self) -> None:
        """Answers all waiting requests: the broker stops."""
        self.coordinator.close()
        self.partitions.close()


def _refused(key: ApiKey, request: Any, version: int) -> Any:
    """Returns UNSUPPORTED_VERSION, as Kafka does while `share.version` is 0: for each group, or as a whole."""
    if key == ApiKey.SHARE_GROUP_DESCRIBE:
        return ShareGroupDescribeResponse(
            groups=[DescribedShareGroup(error_code=_OFF, group_id=name) for name in request.group_ids]
        )
    if key == ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS:
        rows = [DescribedShareOffsetsGroup(group_id=each.group_id, error_code=_OFF) for each in request.groups]
        return DescribeShareGroupOffsetsResponse(groups=rows)
    return refusal_of_all(key, version, _OFF)


def switched(spec: HandlerSpec, broker: BrokerContext) -> HandlerSpec:
    """Returns a handler that refuses requests while `share.version` is 0; unchanged for requests between brokers."""
    if spec.between_brokers:
        return spec

    def judge(request: Any, context: RequestContext) -> Verdict:
        if serves_share_groups(broker.metadata.image):
            return Verdict(request)
        return Verdict(answer=_refused(spec.key, request, context.api_version))

    return judged(spec, judge)
