"""What ShareFetch and ShareAcknowledge have in common: session keys, access to share partitions, acknowledgements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from lowtide.broker.authorizer.resources import Operation, topic
from lowtide.broker.context import BrokerContext
from lowtide.broker.network.endpoints import endpoints_for
from lowtide.broker.partitions.share.leader_share_partition import LeaderSharePartition
from lowtide.broker.partitions.share.share_partitions import SharePartitions
from lowtide.broker.partitions.share.share_sessions import SessionKey
from lowtide.broker.partitions.share.share_values import AcknowledgedRange, AcknowledgeType
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.share_acknowledge import (
    ShareAcknowledgementBatch,
    ShareLeaderIdAndEpoch,
    ShareNodeEndpoint,
)
from lowtide.protocol.share_state_records import SharePlace
from lowtide.protocol.types import TopicId

MEMBER_ID_MAX: Final = 36
"""The most characters of a member id: those of a UUID."""

Batches = Sequence[ShareAcknowledgementBatch]


def session_key(group_id: str | None, member_id: str | None) -> SessionKey | ErrorCode:
    """Returns the key of a session.

    Errors: INVALID_REQUEST for an invalid group or member id. Source: Kafka's `KafkaApis`.
    """
    if not group_id or not member_id or len(member_id) > MEMBER_ID_MAX:
        return ErrorCode.INVALID_REQUEST
    return SessionKey(group_id, member_id)


def checked_ranges(batches: Batches, *, renews: bool) -> list[AcknowledgedRange] | ErrorCode:
    """Returns the acknowledgements of one partition. `renews`: the request may renew locks.

    Errors: INVALID_REQUEST for batches that overlap or aren't in order, and for types that are unknown or not as many
    as offsets. Source: Kafka's `KafkaApis.validateAcknowledgementBatches`.
    """
    ranges, last_offset = [], -1
    largest = AcknowledgeType.RENEW if renews else AcknowledgeType.REJECT
    for batch in batches:
        types, count = batch.acknowledge_types, batch.last_offset - batch.first_offset + 1
        if count <= 0 or batch.first_offset <= last_offset or not types or (len(types) > 1 and len(types) != count):
            return ErrorCode.INVALID_REQUEST
        if min(types) < 0 or max(types) > largest:
            return ErrorCode.INVALID_REQUEST
        last_offset = batch.last_offset
        ranges.append(AcknowledgedRange(batch.first_offset, batch.last_offset, tuple(types)))
    return ranges


class ShareAccess:
    """The share partitions of a broker, for clients."""

    def __init__(self, broker: BrokerContext, shares: SharePartitions) -> None:
        self.shares = shares
        self._broker = broker

    def find(self, place: SharePlace, context: RequestContext, *, begins: bool) -> LeaderSharePartition | ErrorCode:
        """Returns a share partition of a topic that the client may read.

        Errors: TOPIC_AUTHORIZATION_FAILED, those of `SharePartitions.find`.
        """
        broker = self._broker
        if not broker.authorizer.allows_all:
            name = broker.metadata.image.topic_names.get(place.topic_id)
            if name is not None and not broker.authorizer.authorize(context, Operation.READ, topic(name)):
                return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return self.shares.find(place, begins=begins)

    def acknowledge(
        self,
        key: SessionKey,
        wanted: Mapping[SharePlace, Batches],
        context: RequestContext,
        note: Callable[[SharePlace, ErrorCode], None],
        *,
        renews: bool,
    ) -> None:
        """Takes acknowledgements; `note` gets the outcome of each partition once, perhaps within this call."""
        for place, batches in wanted.items():
            ranges = checked_ranges(batches, renews=renews)
            share = ranges if isinstance(ranges, ErrorCode) else self.find(place, context, begins=False)
            if isinstance(share, ErrorCode):
                note(place, share)
            elif isinstance(ranges, list):
                share.acknowledge(key.member_id, ranges, partial(note, place))

    def leader_of(self, place: SharePlace, error: int) -> ShareLeaderIdAndEpoch:
        """Returns the leader of a partition if the client asked the wrong broker or in an old epoch (KIP-951)."""
        if error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            found = self._broker.metadata.image.topic_by_id(place.topic_id)
            if found is not None and 0 <= place.partition < len(found.partitions):
                state = found.partitions[place.partition]
                return ShareLeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)
        return ShareLeaderIdAndEpoch()

    def endpoints(self, leaders: Iterable[ShareLeaderIdAndEpoch], context: RequestContext) -> list[ShareNodeEndpoint]:
        """Returns the addresses of these leaders for the client."""
        wanted = {each.leader_id for each in leaders if each.leader_id >= 0}
        if not wanted:
            return []
        image = self._broker.metadata.image
        return [
            ShareNodeEndpoint(
                node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=image.brokers[broker_id].rack
            )
            for broker_id, endpoint in endpoints_for(image, context.connection.listener_name).items()
            if broker_id in wanted
        ]


def by_topic(places: Iterable[SharePlace]) -> dict[TopicId, list[SharePlace]]:
    """Returns places by topic, in their order."""
    topics: dict[TopicId, list[SharePlace]] = {}
    for place in places:
        topics.setdefault(place.topic_id, []).append(place)
    return topics
