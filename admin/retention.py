"""What keeps the oldest segment of each partition of a topic, and when it goes: the leaders' own words (DescribeRetention).

A request that only Lowtide has, and that ApiVersions doesn't list (docs/adr/0008-requests-of-our-own.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.errors import AdminError, BrokerAnsweredError, UnsupportedVersionError
from lowtide.admin.observation import ask_lowtide
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_retention import (
    UNKNOWN,
    DescribeRetentionRequest,
    DescribeRetentionResponse,
    DescribeRetentionTopic,
    RetainedPartition,
)

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.protocol.types import BrokerId

PARTITIONS_PER_REQUEST: Final = 1_000
"""As many as a broker answers for at once."""


class Explanation(msgspec.Struct):
    """What the leaders said. Times are the brokers' own, in milliseconds."""

    rows: list[RetainedPartition]
    checked_at_ms: int
    next_check_at_ms: int


class NotAnsweredError(AdminError):
    """A leader gave no answer."""


async def explain_retention(client: AdminClient, described: TopicDescription, timeout_ms: int) -> Explanation:
    """Ask the leaders of a topic. Errors: AdminError."""
    leaders: dict[BrokerId | None, list[int]] = {}
    for number, partition in described.partitions.items():
        leaders.setdefault(partition.leader, []).append(number)
    explanation = Explanation([], UNKNOWN, UNKNOWN)
    for number in leaders.pop(None, ()):
        explanation.rows.append(RetainedPartition(partition_index=number, error_code=ErrorCode.LEADER_NOT_AVAILABLE))
    for leader, numbers in leaders.items():
        assert leader is not None
        for start in range(0, len(numbers), PARTITIONS_PER_REQUEST):
            some = DescribeRetentionTopic(
                name=described.name, partitions=numbers[start : start + PARTITIONS_PER_REQUEST]
            )
            await _ask(client, leader, some, timeout_ms, explanation)
    explanation.rows.sort(key=lambda row: row.partition_index)
    return explanation


async def _ask(
    client: AdminClient, leader: BrokerId, topic: DescribeRetentionTopic, timeout_ms: int, explanation: Explanation
) -> None:
    """Add what the leader of some partitions says. Errors: AdminError."""
    deadline = client.cluster.deadline(timeout_ms)
    try:
        answer: DescribeRetentionResponse = await ask_lowtide(
            client.cluster, leader, DescribeRetentionRequest(topics=[topic]), deadline
        )
    except UnsupportedVersionError as error:
        raise NotAnsweredError(str(error)) from error
    except AdminError as error:
        raise NotAnsweredError(f"broker {leader} did not answer: {error}") from error
    if answer.error_code != ErrorCode.NONE:
        raise BrokerAnsweredError(answer.error_code, f"broker {leader}")
    explanation.rows += [row for each in answer.topics for row in each.partitions]
    explanation.checked_at_ms = answer.checked_at_ms
    times = [each for each in (explanation.next_check_at_ms, answer.next_check_at_ms) if each != UNKNOWN]
    explanation.next_check_at_ms = min(times, default=UNKNOWN)
