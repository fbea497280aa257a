"""Asks leaders why each partition's oldest segment is kept, and when it will be deleted (DescribeRetention).

Only Lowtide has this request; ApiVersions does not list it (docs/adr/0008-requests-of-our-own.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.admin.call import AdminClientBase
from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.errors import AdminError, BrokerAnsweredError, UnsupportedVersionError
from lowtide.admin.observation import ask_lowtide
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_retention import (
    UNKNOWN,
    DescribeRetentionRequest,
    DescribeRetentionTopic,
    RetainedPartition,
)

if TYPE_CHECKING:
    from lowtide.protocol.types import BrokerId

PARTITIONS_PER_REQUEST: Final = 1_000
"""A broker answers about at most so many partitions at once."""


class Explanation(msgspec.Struct):
    """The leaders' answers. Times are the brokers' own, in milliseconds."""

    rows: list[RetainedPartition]
    checked_at_ms: int
    next_check_at_ms: int


class NotAnsweredError(AdminError):
    """A leader gave no answer."""


async def explain_retention(client: AdminClientBase, described: TopicDescription) -> Explanation:
    """Asks the leaders of a topic what retention keeps, and returns a row for each partition. Errors: AdminError."""
    leaders: dict[BrokerId | None, list[int]] = {}
    for number, partition in described.partitions.items():
        leaders.setdefault(partition.leader, []).append(number)
    explanation = Explanation([], UNKNOWN, UNKNOWN)
    for number in leaders.pop(None, ()):
        explanation.rows.append(RetainedPartition(partition_index=number, error_code=ErrorCode.LEADER_NOT_AVAILABLE))
    for leader, numbers in leaders.items():
        assert leader is not None
        for start in range(0, len(numbers), PARTITIONS_PER_REQUEST):
            some = numbers[start : start + PARTITIONS_PER_REQUEST]
            await _ask(client, leader, DescribeRetentionTopic(name=described.name, partitions=some), explanation)
    explanation.rows.sort(key=lambda row: row.partition_index)
    return explanation


async def _ask(
    client: AdminClientBase, leader: BrokerId, topic: DescribeRetentionTopic, explanation: Explanation
) -> None:
    """Adds a leader's answer. Errors: AdminError."""
    try:
        answer = await ask_lowtide(client.call(), leader, DescribeRetentionRequest(topics=[topic]))
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
