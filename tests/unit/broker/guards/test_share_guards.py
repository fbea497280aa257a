"""Who may ask about share groups: members READ the group and DESCRIBE its topics, brokers have CLUSTER_ACTION."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lowtide.broker.authorizer.authorizer import Audit, Requester
from lowtide.broker.authorizer.resources import CLUSTER, Operation, Resource
from lowtide.broker.guards import share_groups
from lowtide.broker.guards.guard import Asker
from lowtide.broker.security.principal import ANONYMOUS
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from lowtide.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareOffsetsTopic,
)
from lowtide.protocol.messages.describe_share_group_offsets import (
    DescribedShareOffset,
    DescribedShareOffsetsGroup,
    DescribedShareOffsetsTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    DescribeShareOffsetsGroup,
    DescribeShareOffsetsTopic,
)
from lowtide.protocol.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadStatePartition,
    ReadStateTopic,
)
from lowtide.protocol.messages.share_group_describe import (
    DescribedShareAssignment,
    DescribedShareGroup,
    DescribedShareMember,
    DescribedShareTopicPartitions,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from lowtide.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.unit.broker.declared import SPECS

from .asking import Only


class Named(Only):
    """Allows operations on resources of these names, whatever their types."""

    def authorize(
        self, requester: Requester, operation: Operation, resource: Resource, audit: Audit = Audit.BOTH
    ) -> bool:
        return (operation, resource.name) in self.allowed


def asker(*allowed: tuple[Operation, Any]) -> Asker:
    context: Any = SimpleNamespace(principal=ANONYMOUS, api_version=0)
    nothing: Any = None
    return Asker(Named(*allowed), context, nothing, nothing)


def heartbeat(*allowed: tuple[Operation, str]) -> ErrorCode | None:
    request = ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=["t", "u"])
    verdict = share_groups.share_group_heartbeat(request, asker(*allowed))
    return None if verdict.request is request else ErrorCode(verdict.answer.error_code)


def test_a_member_reads_the_group_and_sees_its_topics() -> None:
    group, topics = (Operation.READ, "g"), [(Operation.DESCRIBE, "t"), (Operation.DESCRIBE, "u")]
    assert heartbeat(group, *topics) is None
    assert heartbeat(*topics) == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert heartbeat(group, topics[0]) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_only_what_may_be_seen_is_described() -> None:
    request = ShareGroupDescribeRequest(group_ids=["a", "b", "c"], include_authorized_operations=True)
    client = asker((Operation.DESCRIBE, "a"), (Operation.DESCRIBE, "b"), (Operation.DESCRIBE, "seen"))
    verdict = share_groups.share_group_describe(request, client)
    assert verdict.request.group_ids == ["a", "b"]

    def described(group_id: str, topic: str) -> DescribedShareGroup:
        rows = [DescribedShareTopicPartitions(topic_id=bytes(16), topic_name=topic, partitions=[0])]
        member = DescribedShareMember(
            member_id="m",
            member_epoch=1,
            client_id="",
            client_host="",
            subscribed_topic_names=[topic],
            assignment=DescribedShareAssignment(topic_partitions=rows),
        )
        return DescribedShareGroup(group_id=group_id, members=[member], authorized_operations=1)

    answer = verdict.merge(ShareGroupDescribeResponse(groups=[described("a", "seen"), described("b", "hidden")]))  # type: ignore[misc]
    assert [(row.group_id, row.error_code, len(row.members)) for row in answer.groups] == [
        ("c", ErrorCode.GROUP_AUTHORIZATION_FAILED, 0),
        ("a", 0, 1),
        ("b", ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0),
    ]
    assert answer.groups[1].authorized_operations == 1 << Operation.DESCRIBE


def test_states_are_for_brokers() -> None:
    topics = [ReadStateTopic(topic_id=bytes(16), partitions=[ReadStatePartition(partition=3, leader_epoch=0)])]
    request = ReadShareGroupStateRequest(group_id="g", topics=topics)
    guard = SPECS[ApiKey.READ_SHARE_GROUP_STATE].guard
    assert guard(request, asker((Operation.CLUSTER_ACTION, CLUSTER.name))).request is request
    [row] = guard(request, asker()).answer.results[0].partitions
    assert (row.partition, row.error_code) == (3, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def test_offsets_are_described_as_far_as_topics_are_visible() -> None:
    """A topic that wasn't named is left out; one that was gets an error, and its id isn't shown."""
    groups = [
        DescribeShareOffsetsGroup(group_id="a", topics=None),
        DescribeShareOffsetsGroup(
            group_id="b", topics=[DescribeShareOffsetsTopic(topic_name="hidden", partitions=[0])]
        ),
        DescribeShareOffsetsGroup(group_id="c", topics=None),
    ]
    client = asker((Operation.DESCRIBE, "a"), (Operation.DESCRIBE, "b"), (Operation.DESCRIBE, "seen"))
    verdict = share_groups.describe_share_group_offsets(DescribeShareGroupOffsetsRequest(groups=groups), client)
    assert [group.group_id for group in verdict.request.groups] == ["a", "b"]

    def topic(name: str) -> DescribedShareOffsetsTopic:
        rows = [DescribedShareOffset(partition_index=0, start_offset=7)]
        return DescribedShareOffsetsTopic(topic_name=name, topic_id=b"1" * 16, partitions=rows)

    rows = [
        DescribedShareOffsetsGroup(group_id="a", topics=[topic("seen"), topic("hidden")]),
        DescribedShareOffsetsGroup(group_id="b", topics=[topic("hidden")]),
    ]
    answer = verdict.merge(DescribeShareGroupOffsetsResponse(groups=rows))  # type: ignore[misc]
    denied, first, second = answer.groups
    assert (denied.group_id, denied.error_code) == ("c", ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert [each.topic_name for each in first.topics] == ["seen"]
    [row] = second.topics[0].partitions
    assert (second.topics[0].topic_id, row.start_offset, row.error_code) == (
        bytes(16),
        -1,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    )


def test_offsets_are_altered_and_deleted_with_rights_on_group_and_topic() -> None:
    topics = [
        AlterShareOffsetsTopic(
            topic_name=name, partitions=[AlterShareOffsetsPartition(partition_index=0, start_offset=0)]
        )
        for name in "tu"
    ]
    alter = AlterShareGroupOffsetsRequest(group_id="g", topics=topics)
    refused = share_groups.alter_share_group_offsets(alter, asker((Operation.READ, "t")))
    assert refused.answer.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    verdict = share_groups.alter_share_group_offsets(alter, asker((Operation.READ, "g"), (Operation.READ, "t")))
    assert [each.topic_name for each in verdict.request.topics] == ["t"]
    [row] = verdict.merge(AlterShareGroupOffsetsResponse()).responses  # type: ignore[misc]
    assert (row.topic_name, row.partitions[0].error_code) == ("u", ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    delete = DeleteShareGroupOffsetsRequest(
        group_id="g", topics=[DeleteShareOffsetsTopic(topic_name=name) for name in "tu"]
    )
    refused = share_groups.delete_share_group_offsets(delete, asker((Operation.READ, "g"), (Operation.READ, "t")))
    assert refused.answer.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    verdict = share_groups.delete_share_group_offsets(delete, asker((Operation.DELETE, "g"), (Operation.READ, "u")))
    assert [each.topic_name for each in verdict.request.topics] == ["u"]
    [gone] = verdict.merge(DeleteShareGroupOffsetsResponse()).responses  # type: ignore[misc]
    assert (gone.topic_name, gone.error_code) == ("t", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
