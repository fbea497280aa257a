"""What keeps the oldest segment of each partition of a topic, and when it goes: the leaders' own words (DescribeRetention).

A request that only Lowtide has, and that ApiVersions doesn't list (docs/adr/0008-requests-of-our-own.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.errors import AdminError, BrokerAnsweredError, ConnectionFailedError
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

_DESCRIBE_VERSION: Final = 0


class Explanation(msgspec.Struct):
    """What the leaders said. Times are the brokers' own, in milliseconds."""

    rows: list[RetainedPartition]
    checked_at_ms: int
    next_check_at_ms: int


class NotAnsweredError(AdminError):
    """A leader gave no answer. `is_unknown`: it closed the connection, as a broker does that isn't Lowtide."""

    def __init__(self, reason: str, *, is_unknown: bool) -> None:
        super().__init__(reason)
        self.is_unknown = is_unknown


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
            some = DescribeRetentionTopic(name=described.name, partitions=numbers[start : start + PARTITIONS_PER_REQUEST])
            await _ask(client, leader, some, timeout_ms, explanation)
    explanation.rows.sort(key=lambda row: row.partition_index)
    return explanation


async def _ask(client: AdminClient, leader: BrokerId, topic: DescribeRetentionTopic, timeout_ms: int, explanation: Explanation) -> None:
    """Add what the leader of some partitions says. Errors: AdminError."""
    deadline = client.cluster.deadline(timeout_ms)
    try:
        # A broker that doesn't know the request closes the connection, so it gets one of its own.
        async with client.cluster.broker(leader, deadline, waits=True) as handle:
            request = DescribeRetentionRequest(topics=[topic])
            answer: DescribeRetentionResponse = await handle.ask_in(request, _DESCRIBE_VERSION)
    except AdminError as error:
        unknown = isinstance(error, ConnectionFailedError) and error.was_sent
        hint = ". Is it Lowtide, and new enough to explain its retention?" if unknown else ""
        message = f"broker {leader} did not answer: {error}{hint}"
        raise NotAnsweredError(message, is_unknown=unknown) from error
    if answer.error_code != ErrorCode.NONE:
        raise BrokerAnsweredError(answer.error_code, f"broker {leader}")
    explanation.rows += [row for each in answer.topics for row in each.partitions]
    explanation.checked_at_ms = answer.checked_at_ms
    times = [each for each in (explanation.next_check_at_ms, answer.next_check_at_ms) if each != UNKNOWN]
    explanation.next_check_at_ms = min(times, default=UNKNOWN)
