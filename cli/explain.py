"""`lowtide topics explain`: shows why the oldest segment of each partition is kept, and when it will be deleted.

It asks the leaders, with a request that only Lowtide has (docs/adr/0008-requests-of-our-own.md).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.errors import BrokerAnsweredError
from lowtide.admin.retained import as_value, duration, known, line
from lowtide.admin.retention import Explanation, NotAnsweredError, explain_retention
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, plural, print_json
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_retention import UNKNOWN


@network
async def explain(call: NetworkCall, topic: Annotated[str, typer.Argument(metavar="TOPIC")]) -> ExitCode:
    """Show why the oldest segment of each partition of a topic is kept, and when which rule will delete it.

    Only Lowtide's brokers answer.
    """
    described = (await call.client.describe_topics([topic]))[topic]
    if not isinstance(described, TopicDescription):
        unknown = isinstance(described, BrokerAnsweredError) and described.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise misused(f"there is no topic {topic}.") if unknown else CommandError(f"{described}.")
    try:
        explanation = await explain_retention(call.client, described)
    except NotAnsweredError as error:
        raise CommandError(f"{error}.") from error
    if call.output is Output.JSON:
        print_json(_value(topic, explanation))
    else:
        _print(topic, explanation)
    return ExitCode.FAILED if any(row.error_code != ErrorCode.NONE for row in explanation.rows) else ExitCode.DONE


def _print(topic: str, explanation: Explanation) -> None:
    now_ms, next_ms = explanation.checked_at_ms, explanation.next_check_at_ms
    when = f"; the next check is in {duration(next_ms - now_ms)}" if next_ms != UNKNOWN else ""
    print(f"Topic {topic}, {plural(len(explanation.rows), 'partition')}{when}.")
    for row in explanation.rows:
        print(line(row, now_ms))


def _value(topic: str, explanation: Explanation) -> dict[str, Any]:
    return {
        "topic": topic,
        "checked_at_ms": known(explanation.checked_at_ms),
        "next_check_at_ms": known(explanation.next_check_at_ms),
        "partitions": [as_value(row, explanation.checked_at_ms) for row in explanation.rows],
    }
