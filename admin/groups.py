"""Groups of consumers: listed, described and deleted.

Classic ones, those of KIP-848 and share groups come in one form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.anywhere import to_a_broker
from lowtide.admin.attempts import Attempts, Done, Outcome
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.group_offsets import coordinator_locator, final_or_retry
from lowtide.admin.share_groups import described_share_groups
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.consumer_protocol import parse_assignment
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from lowtide.protocol.messages.delete_groups import DeleteGroupsRequest
from lowtide.protocol.messages.describe_groups import DescribeGroupsRequest
from lowtide.protocol.messages.list_groups import ListGroupsRequest
from lowtide.protocol.types import BrokerId, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.cluster import BrokerHandle, Cluster
    from lowtide.admin.patience import Deadline

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of groups whose assignments are partitions of topics."""

SHARE: Final = "share"
"""The kind of share groups, and their protocol type."""

_STATES_SINCE: Final = 4
_TYPES_SINCE: Final = 5
_DEAD: Final = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group, as its coordinator lists it. What an old broker doesn't tell is empty."""

    group_id: str
    protocol_type: str
    state: str
    kind: str
    """`classic`, `consumer` (KIP-848), `share` (KIP-932), or another of Kafka's."""
    coordinator: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroups:
    """The groups of all brokers that answered, by name, and the brokers that didn't: with one of those the list isn't whole."""

    groups: Mapping[str, GroupListing]
    errors: Mapping[BrokerId, AdminError]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member and what it has to read.

    `target` is what a group of KIP-848 wants it to have; for classic ones it is the same.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...]
    epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group and its members."""

    group_id: str
    kind: str
    """`classic`, `consumer` (KIP-848) or `share` (KIP-932)."""
    state: str
    protocol_type: str
    assignor: str
    members: tuple[GroupMember, ...]
    coordinator: BrokerId
    epoch: int = -1
    """Of a group of KIP-848, or a share group."""


async def list_groups(
    cluster: Cluster, deadline: Deadline, *, states: Iterable[str] = (), kinds: Iterable[str] = ()
) -> ListedGroups:
    """See `AdminClient.list_groups`."""
    wanted_states, wanted_kinds = list(states), list(kinds)

    async def send(
        broker_id: BrokerId, asked: list[BrokerId], _: int
    ) -> Mapping[BrokerId, Outcome[list[GroupListing]]]:
        async with cluster.broker(broker_id, deadline) as handle:
            needed = _TYPES_SINCE if wanted_kinds else _STATES_SINCE if wanted_states else 0
            request = ListGroupsRequest(states_filter=wanted_states, types_filter=wanted_kinds)
            response = await handle.ask(request, at_least=needed)
        if response.error_code:
            return dict.fromkeys(asked, final_or_retry(response.error_code, f"the groups of broker {broker_id}"))
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

    locate = to_a_broker(cluster, deadline, lambda broker_id: broker_id)
    attempts = Attempts[BrokerId, list[GroupListing]](cluster, deadline, locate, send)
    await attempts.run(list(await cluster.brokers(deadline)))
    groups: dict[str, GroupListing] = {}
    errors: dict[BrokerId, AdminError] = {}
    for broker_id, outcome in attempts.results(lambda broker_id: f"the groups of broker {broker_id}").items():
        if isinstance(outcome, AdminError):
            errors[broker_id] = outcome
        else:
            groups |= {listing.group_id: listing for listing in outcome}
    return ListedGroups(groups=dict(sorted(groups.items())), errors=errors)


async def describe_groups(
    cluster: Cluster, groups: Iterable[str], deadline: Deadline
) -> dict[str, GroupDescription | AdminError]:
    """See `AdminClient.describe_groups`: as groups of KIP-848, then as share groups, then as classic ones."""

    async def send(broker_id: BrokerId, asked: list[str], _: int) -> Mapping[str, Outcome[GroupDescription]]:
        async with cluster.broker(broker_id, deadline) as handle:
            found: dict[str, Outcome[GroupDescription]] = {}
            left = asked
            for kind, describe in _DESCRIBED.items():
                if left and handle.versions.highest(kind) >= 0:
                    found |= await describe(handle, broker_id, left)
                    left = [group for group in asked if group not in found]
            return found

    attempts = Attempts[str, GroupDescription](cluster, deadline, coordinator_locator(cluster, deadline), send)
    await attempts.run(list(dict.fromkeys(groups)))
    return attempts.results(lambda group: f"group {group}")


async def delete_groups(cluster: Cluster, groups: Iterable[str], deadline: Deadline) -> dict[str, AdminError | None]:
    """See `AdminClient.delete_groups`."""
    maybe_done: set[str] = set()

    async def send(broker_id: BrokerId, asked: list[str], number: int) -> Mapping[str, Outcome[None]]:
        if number > 1:
            maybe_done.update(asked)
        async with cluster.broker(broker_id, deadline) as handle:
            response = await handle.ask(DeleteGroupsRequest(groups_names=asked))
        found: dict[str, Outcome[None]] = {}
        for row in response.results:
            gone = row.error_code == ErrorCode.GROUP_ID_NOT_FOUND and row.group_id in maybe_done
            if row.error_code == ErrorCode.NONE or gone:
                found[row.group_id] = Done(None)
            else:
                found[row.group_id] = final_or_retry(row.error_code, f"group {row.group_id}", row.error_message)
        return found

    attempts = Attempts[str, None](cluster, deadline, coordinator_locator(cluster, deadline), send)
    await attempts.run(list(dict.fromkeys(groups)))
    return attempts.results(lambda group: f"group {group}")


async def _describe_consumer(
    handle: BrokerHandle, broker_id: BrokerId, asked: list[str]
) -> dict[str, Outcome[GroupDescription]]:
    """The groups of KIP-848 among those asked for; others aren't in the answer."""
    request = ConsumerGroupDescribeRequest(group_ids=asked, include_authorized_operations=False)
    response = await handle.ask(request)
    found: dict[str, Outcome[GroupDescription]] = {}
    for row in response.groups:
        if row.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            continue
        if row.error_code:
            found[row.group_id] = final_or_retry(row.error_code, f"group {row.group_id}", row.error_message)
            continue
        members = tuple(
            GroupMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host,
                assignment=_partitions(
                    (topic.topic_name, topic.partitions) for topic in member.assignment.topic_partitions
                ),
                target=_partitions(
                    (topic.topic_name, topic.partitions) for topic in member.target_assignment.topic_partitions
                ),
                epoch=member.member_epoch,
            )
            for member in row.members
        )
        found[row.group_id] = Done(
            GroupDescription(
                group_id=row.group_id,
                kind="consumer",
                state=row.group_state,
                protocol_type=CONSUMER_PROTOCOL,
                assignor=row.assignor_name,
                members=members,
                coordinator=broker_id,
                epoch=row.group_epoch,
            )
        )
    return found


async def _describe_share(
    handle: BrokerHandle, broker_id: BrokerId, asked: list[str]
) -> dict[str, Outcome[GroupDescription]]:
    """The share groups among those asked for; others aren't in the answer."""
    found: dict[str, Outcome[GroupDescription]] = {}
    for row in await described_share_groups(handle, asked):
        if row.error_code:
            found[row.group_id] = final_or_retry(row.error_code, f"group {row.group_id}", row.error_message)
            continue
        members = []
        for member in row.members:
            partitions = _partitions(
                (topic.topic_name, topic.partitions) for topic in member.assignment.topic_partitions
            )
            members.append(
                GroupMember(
                    member_id=member.member_id,
                    instance_id=None,
                    client_id=member.client_id,
                    host=member.client_host,
                    assignment=partitions,
                    target=partitions,
                    epoch=member.member_epoch,
                )
            )
        found[row.group_id] = Done(
            GroupDescription(
                group_id=row.group_id,
                kind=SHARE,
                state=row.group_state,
                protocol_type=SHARE,
                assignor=row.assignor_name,
                members=tuple(members),
                coordinator=broker_id,
                epoch=row.group_epoch,
            )
        )
    return found


async def _describe_classic(
    handle: BrokerHandle, broker_id: BrokerId, asked: list[str]
) -> dict[str, Outcome[GroupDescription]]:
    response = await handle.ask(DescribeGroupsRequest(groups=asked))
    found: dict[str, Outcome[GroupDescription]] = {}
    for row in response.groups:
        if row.error_code:
            found[row.group_id] = final_or_retry(row.error_code, f"group {row.group_id}", row.error_message)
        elif (
            row.group_state == _DEAD and not row.members
        ):  # How brokers before version 6 say that there is no such group.
            found[row.group_id] = BrokerAnsweredError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {row.group_id}")
        else:
            found[row.group_id] = Done(
                GroupDescription(
                    group_id=row.group_id,
                    kind="classic",
                    state=row.group_state,
                    protocol_type=row.protocol_type,
                    assignor=row.protocol_data,
                    members=tuple(_classic_member(member, row.protocol_type) for member in row.members),
                    coordinator=broker_id,
                )
            )
    return found


_DESCRIBED: Final = {
    ApiKey.CONSUMER_GROUP_DESCRIBE: _describe_consumer,
    ApiKey.SHARE_GROUP_DESCRIBE: _describe_share,
    ApiKey.DESCRIBE_GROUPS: _describe_classic,
}
"""In this order, each of them about what the ones before don't know; the last one answers about every group."""


def _classic_member(row: Any, protocol_type: str) -> GroupMember:
    """A member; its assignment is bytes that only clients define, so what can't be read counts as empty."""
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


def _partitions(rows: Iterable[tuple[str, Iterable[int]]]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(topic, partition) for topic, partitions in rows for partition in partitions))
