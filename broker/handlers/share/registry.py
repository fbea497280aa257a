"""The handlers of share groups, which are registered if `share_groups_enabled`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.config.key import number
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.share_state.dead_letter_writer import DeadLetterWriter
from lowtide.broker.coordinator.share_state.share_coordinator import ShareCoordinator
from lowtide.broker.coordinator.share_state.share_persister import SharePersister
from lowtide.broker.guards.guard import Verdict, judged
from lowtide.broker.network.peer_client import PeerClients
from lowtide.broker.network.routing.features import has_dead_letters, serves_share_groups
from lowtide.broker.network.routing.refusals import refusal_of_all
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.partitions.share.share_partitions import SharePartitions
from lowtide.broker.partitions.share.share_rules import ShareRules, share_rules
from lowtide.broker.partitions.share.share_values import ShareCounts
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


def make_share_parts(
    context: BrokerContext, administrator: TopicAdministrator, peers: PeerClients, loop: Any, *, is_alone: bool
) -> ShareParts:
    """Creates the parts. `is_alone`: the cluster has no other broker."""
    coordinator = ShareCoordinator(context, administrator, loop, is_alone=is_alone)
    persister = SharePersister(coordinator, peers)
    configs, counts = context.configs, ShareCounts()

    def rules_of(group_id: str) -> ShareRules:
        image = context.metadata.image
        own = image.group_configs.get(group_id)
        return share_rules(
            configs.current.values, {} if own is None else own.configs, has_dead_letters=has_dead_letters(image)
        )

    partitions = SharePartitions(
        replicas=context.replicas,
        keeper=persister,
        letters=DeadLetterWriter(context, administrator, peers, counts),
        counts=counts,
        rules_of=rules_of,
        sessions_max=lambda: number(configs.current.values["group.share.max.share.sessions"]),
        batch_lane=context.batch_lane,
        clock=context.clock,
        loop=loop,
        spawn=context.tasks.spawn,
        log=context.log,
    )
    return ShareParts(coordinator, persister, partitions)


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
