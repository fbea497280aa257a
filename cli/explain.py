"""`lowtide topics explain`: what keeps the oldest segment of each partition of a topic, and when it will go.

The leaders are asked, with a request that only Lowtide has (docs/adr/0008-requests-of-our-own.md).
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
import typer

from lowtide.admin.client import AdminClient
from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.errors import AdminError, BrokerAnsweredError, ConnectionFailedError, code_name
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.cluster_questions import asked
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, plural, print_json
from lowtide.cli.retained import as_value, duration, line
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_retention import (
    UNKNOWN,
    DescribeRetentionRequest,
    DescribeRetentionResponse,
    DescribeRetentionTopic,
    RetainedPartition,
)
from lowtide.protocol.types import BrokerId

PARTITIONS_PER_REQUEST: Final = 1_000
"""As many as a broker answers for at once."""

_DESCRIBE_VERSION: Final = 0


class Explanation(msgspec.Struct):
    """What the leaders said. Times are the brokers' own, in milliseconds."""

    rows: list[RetainedPartition]
    checked_at_ms: int
    next_check_at_ms: int


@network
async def explain(call: NetworkCall, topic: Annotated[str, typer.Argument(metavar="TOPIC")]) -> ExitCode:
    """Show what keeps the oldest segment of each partition of a topic, and when it will go, by which rule. Lowtide's brokers know that."""
    explanation = await explained(call.client, topic, call.timeout_ms)
    if call.output is Output.JSON:
        print_json(_value(topic, explanation))
    else:
        _print(topic, explanation)
    return ExitCode.FAILED if any(row.error_code != ErrorCode.NONE for row in explanation.rows) else ExitCode.DONE


async def explained(client: AdminClient, topic: str, timeout_ms: int) -> Explanation:
    """Ask the leaders of a topic. Errors: CommandError, AdminError."""
    described = (await client.describe_topics([topic], timeout=timeout_ms / 1000))[topic]
    if not isinstance(described, TopicDescription):
        unknown = isinstance(described, BrokerAnsweredError) and described.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise misused(f"there is no topic {topic}.") if unknown else CommandError(f"{described}.")
    leaders: dict[BrokerId | None, list[int]] = {}
    for number, partition in described.partitions.items():
        leaders.setdefault(partition.leader, []).append(number)
    explanation = Explanation([], UNKNOWN, UNKNOWN)
    for number in leaders.pop(None, ()):
        explanation.rows.append(RetainedPartition(partition_index=number, error_code=ErrorCode.LEADER_NOT_AVAILABLE))
    for leader, numbers in leaders.items():
        assert leader is not None
        for start in range(0, len(numbers), PARTITIONS_PER_REQUEST):
            some = DescribeRetentionTopic(name=topic, partitions=numbers[start : start + PARTITIONS_PER_REQUEST])
            await _ask(client, leader, some, timeout_ms, explanation)
    explanation.rows.sort(key=lambda row: row.partition_index)
    return explanation


async def _ask(client: AdminClient, leader: BrokerId, topic: DescribeRetentionTopic, timeout_ms: int, explanation: Explanation) -> None:
    """Add what the leader of some partitions says. Errors: CommandError."""
    try:
        request = DescribeRetentionRequest(topics=[topic])
        answer: DescribeRetentionResponse = await asked(client, leader, request, timeout_ms, version=_DESCRIBE_VERSION)
    except AdminError as error:
        hint = (
            " Is it Lowtide, and new enough to explain its retention?"
            if isinstance(error, ConnectionFailedError) and error.was_sent
            else ""
        )
        message = f"broker {leader} did not answer: {error}.{hint}"
        raise CommandError(message) from error
    if answer.error_code != ErrorCode.NONE:
        message = f"broker {leader} answers {code_name(answer.error_code)}."
        raise CommandError(message)
    explanation.rows += [row for each in answer.topics for row in each.partitions]
    explanation.checked_at_ms = answer.checked_at_ms
    times = [each for each in (explanation.next_check_at_ms, answer.next_check_at_ms) if each != UNKNOWN]
    explanation.next_check_at_ms = min(times, default=UNKNOWN)


def _print(topic: str, explanation: Explanation) -> None:
    now_ms, next_ms = explanation.checked_at_ms, explanation.next_check_at_ms
    when = f"; the next check is in {duration(next_ms - now_ms)}" if next_ms != UNKNOWN else ""
    print(f"Topic {topic}, {plural(len(explanation.rows), 'partition')}{when}.")
    for row in explanation.rows:
        print(line(row, now_ms))


def _value(topic: str, explanation: Explanation) -> dict[str, Any]:
    def known(number: int) -> int | None:
        return None if number == UNKNOWN else number

    return {
        "topic": topic,
        "checked_at_ms": known(explanation.checked_at_ms),
        "next_check_at_ms": known(explanation.next_check_at_ms),
        "partitions": [as_value(row, explanation.checked_at_ms) for row in explanation.rows],
    }
