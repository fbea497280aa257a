"""Groups: lists, describes and deletes classic groups, consumer, share and streams groups.

Sources: KIP-848 (consumer groups), KIP-932 (share groups), KIP-1071 (streams groups).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.arguments import named
from lowtide.admin.attempts import Done, Outcome
from lowtide.admin.call import AdminClientBase, failure
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.share_groups import NO_SUCH_GROUP
from lowtide.admin.streams_groups import StreamsMemberDescription, StreamsTopology, member_of, topology_of
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.consumer_protocol import parse_assignment
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from lowtide.protocol.messages.delete_groups import DeleteGroupsRequest
from lowtide.protocol.messages.describe_groups import DescribeGroupsRequest
from lowtide.protocol.messages.list_groups import ListGroupsRequest
from lowtide.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from lowtide.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from lowtide.protocol.types import BrokerId, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.cluster import BrokerHandle

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of groups whose assignments are partitions; also the kind of KIP-848's groups."""

SHARE: Final = "share"
"""The kind and the protocol type of share groups."""

STREAMS: Final = "streams"
"""The kind and the protocol type of streams groups."""

_CLASSIC: Final = "classic"
_STATES_SINCE: Final = 4
_TYPES_SINCE: Final = 5
_DEAD: Final = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group as its coordinator lists it. Fields that an old broker lacks are empty."""

    group_id: str
    protocol_type: str
    state: str
    kind: str
    """`classic`, `consumer` (KIP-848), `share` (KIP-932), `streams` (KIP-1071), or a later kind of Kafka's."""
    coordinator: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroups:
    """The groups of the brokers that answered, by name, and the errors of the others.

    With errors the list is incomplete.
    """

    groups: Mapping[str, GroupListing]
    errors: Mapping[BrokerId, AdminError]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member and its partitions. `target` differs from `assignment` only while the group rebalances.

    The partitions of a member of a streams group are those that its active tasks read.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...]
    epoch: int = -1
    streams: StreamsMemberDescription | None = None
    """The process and the tasks of a member of a streams group; None in other groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group and its members."""

    group_id: str
    kind: str
    """`classic`, `consumer` (KIP-848), `share` (KIP-932) or `streams` (KIP-1071)."""
    state: str
    protocol_type: str
    assignor: str
    members: tuple[GroupMember, ...]
    coordinator: BrokerId
    epoch: int = -1
    """-1 for a classic group."""
    topology: StreamsTopology | None = None
    """What the members of a streams group run."""


async def list_groups(
    client: AdminClientBase,
    *,
    states: Iterable[str] = (),
    kinds: Iterable[str] = (),
    timeout: float | None = None,
) -> ListedGroups:
    """Returns all groups, or those in some states (`Stable`, ...) and of some kinds (`consumer`, ...)."""
    call = client.call(timeout)
    request = ListGroupsRequest(states_filter=named(states), types_filter=named(kinds))
    needed = _TYPES_SINCE if request.types_filter else _STATES_SINCE if request.states_filter else 0

    def what(broker_id: BrokerId) -> str:
        return f"the groups of broker {broker_id}"

    async def send(broker_id: BrokerId, asked: list[BrokerId]) -> Mapping[BrokerId, Outcome[list[GroupListing]]]:
        response = await call.ask(broker_id, request, at_least=needed)
        if response.error_code:
            return dict.fromkeys(asked, failure(what(broker_id), response.error_code))
        found = [
            GroupListing(
                group_id=row.group_id,
                protocol_type=row.protocol_type,
                state=row.group_state,
                kind=row.group_type.lower(),
                coordinator=broker_id,
            )
            for row in response.groups
        ]
        return {broker_id: Done(found)}

    answers, errors = await call.of_all_brokers(send, what)
    groups = {listing.group_id: listing for answer in answers for listing in answer}
    return ListedGroups(groups=dict(sorted(groups.items())), errors=errors)


async def describe_groups(
    client: AdminClientBase, group_ids: Iterable[str], *, timeout: float | None = None
) -> dict[str, GroupDescription | AdminError]:
    """Returns groups with their members and assignments; GROUP_ID_NOT_FOUND for unknown groups.

    Coordinators are asked about consumer groups of KIP-848 first, then about share, streams and classic groups.
    """
    call = client.call(timeout)

    async def send(broker_id: BrokerId, asked: list[str]) -> Mapping[str, Outcome[GroupDescription]]:
        async with call.cluster.broker(broker_id, call.deadline) as handle:
            found: dict[str, Outcome[GroupDescription]] = {}
            left = asked
            for kind, key in _KINDS.items():
                if left and handle.versions.highest(key) >= 0:
                    found |= await _describe(handle, broker_id, kind, left)
                    left = [group for group in asked if group not in found]
            return found

    return await call.each(named(group_ids), call.to_coordinators, send, lambda group: f"group {group}")


async def delete_groups(
    client: AdminClientBase, group_ids: Iterable[str], *, timeout: float | None = None
) -> dict[str, AdminError | None]:
    """Deletes groups and their committed offsets; NON_EMPTY_GROUP while a group has members."""
    call, sent = client.call(timeout), set[str]()

    async def send(broker_id: BrokerId, asked: list[str]) -> Mapping[str, Outcome[None]]:
        again = sent.intersection(asked)
        sent.update(asked)
        response = await call.ask(broker_id, DeleteGroupsRequest(groups_names=asked))
        found: dict[str, Outcome[None]] = {}
        for row in response.results:
            deleted_before = row.error_code == ErrorCode.GROUP_ID_NOT_FOUND and row.group_id in again
            if row.error_code == ErrorCode.NONE or deleted_before:
                found[row.group_id] = Done(None)
            else:
                found[row.group_id] = failure(f"group {row.group_id}", row.error_code, row.error_message)
        return found

    return await call.each(named(group_ids), call.to_coordinators, send, lambda group: f"group {group}")


_KINDS: Final = {
    CONSUMER_PROTOCOL: ApiKey.CONSUMER_GROUP_DESCRIBE,
    SHARE: ApiKey.SHARE_GROUP_DESCRIBE,
    STREAMS: ApiKey.STREAMS_GROUP_DESCRIBE,
    _CLASSIC: ApiKey.DESCRIBE_GROUPS,
}
"""The requests that describe groups of each kind, in the order of sending; the last one answers about all groups."""


_REQUESTS: Final[Mapping[str, Any]] = {
    CONSUMER_PROTOCOL: ConsumerGroupDescribeRequest,
    SHARE: ShareGroupDescribeRequest,
    STREAMS: StreamsGroupDescribeRequest,
}


async def _describe(
    handle: BrokerHandle, broker_id: BrokerId, kind: str, asked: list[str]
) -> dict[str, Outcome[GroupDescription]]:
    """Returns the groups of one kind; groups of other kinds are missing."""
    if kind == _CLASSIC:
        response = await handle.ask(DescribeGroupsRequest(groups=asked))
    else:
        request = _REQUESTS[kind]
        response = await handle.ask(request(group_ids=asked, include_authorized_operations=False))
    found: dict[str, Outcome[GroupDescription]] = {}
    for row in response.groups:
        if kind != _CLASSIC and row.error_code in NO_SUCH_GROUP:
            continue
        if row.error_code:
            found[row.group_id] = failure(f"group {row.group_id}", row.error_code, row.error_message)
        elif kind == STREAMS:
            found[row.group_id] = Done(_streams_group(row, broker_id))
        elif kind != _CLASSIC:
            found[row.group_id] = Done(_modern_group(row, kind, broker_id))
        elif row.group_state == _DEAD and not row.members:  # Before version 6: there is no such group.
            found[row.group_id] = BrokerAnsweredError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {row.group_id}")
        else:
            found[row.group_id] = Done(_classic_group(row, broker_id))
    return found


def _modern_group(row: Any, kind: str, broker_id: BrokerId) -> GroupDescription:
    """Reads a group of KIP-848 or a share group. Members of share groups have neither an instance id nor a target."""
    members = tuple(
        GroupMember(
            member_id=member.member_id,
            instance_id=getattr(member, "instance_id", None),
            client_id=member.client_id,
            host=member.client_host,
            assignment=_assigned(member.assignment),
            target=_assigned(getattr(member, "target_assignment", member.assignment)),
            epoch=member.member_epoch,
        )
        for member in row.members
    )
    return GroupDescription(
        group_id=row.group_id,
        kind=kind,
        state=row.group_state,
        protocol_type=kind,
        assignor=row.assignor_name,
        members=members,
        coordinator=broker_id,
        epoch=row.group_epoch,
    )


def _streams_group(row: Any, broker_id: BrokerId) -> GroupDescription:
    topology = topology_of(row.topology)
    members = []
    for member in row.members:
        streams = member_of(member)
        members.append(
            GroupMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host,
                assignment=tuple(sorted(topology.read_by(streams.tasks.active))),
                target=tuple(sorted(topology.read_by(streams.target.active))),
                epoch=member.member_epoch,
                streams=streams,
            )
        )
    return GroupDescription(
        group_id=row.group_id,
        kind=STREAMS,
        state=row.group_state,
        protocol_type=STREAMS,
        assignor=row.assignor_name or "",
        members=tuple(members),
        coordinator=broker_id,
        epoch=row.group_epoch,
        topology=topology,
    )


def _classic_group(row: Any, broker_id: BrokerId) -> GroupDescription:
    return GroupDescription(
        group_id=row.group_id,
        kind=_CLASSIC,
        state=row.group_state,
        protocol_type=row.protocol_type,
        assignor=row.protocol_data,
        members=tuple(_classic_member(member, row.protocol_type) for member in row.members),
        coordinator=broker_id,
    )


def _classic_member(row: Any, protocol_type: str) -> GroupMember:
    """Reads a member. Only clients define the bytes of its assignment: unreadable ones count as empty."""
    partitions: tuple[TopicPartition, ...] = ()
    if protocol_type == CONSUMER_PROTOCOL and row.member_assignment:
        try:
            partitions = _partitions(parse_assignment(row.member_assignment).topics)
        except ProtocolError:
            partitions = ()
    return GroupMember(
        member_id=row.member_id,
        instance_id=row.group_instance_id,
        client_id=row.client_id,
        host=row.client_host,
        assignment=partitions,
        target=partitions,
    )


def _assigned(assignment: Any) -> tuple[TopicPartition, ...]:
    return _partitions((topic.topic_name, topic.partitions) for topic in assignment.topic_partitions)


def _partitions(rows: Iterable[tuple[str, Iterable[int]]]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(topic, partition) for topic, partitions in rows for partition in partitions))
