"""`lowtide topics`: what a cluster says of its topics. `explain`: what keeps the oldest segment of each partition, and when it will go.

The leaders are asked, with a request that only Lowtide has (docs/adr/0008-requests-of-our-own.md).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec

from lowtide.broker.logs import quiet_logger
from lowtide.broker.peer_client import PeerClients, PeerError
from lowtide.cli.retained import as_value, duration, line
from lowtide.metadata.records import NO_LEADER, Listener
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_retention import (
    UNKNOWN,
    DescribeRetentionRequest,
    DescribeRetentionResponse,
    DescribeRetentionTopic,
    RetainedPartition,
)
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from lowtide.protocol.types import BrokerId
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.tasks import TaskRegistry

PARTITIONS_PER_REQUEST: Final = 1_000
"""As many as a broker answers for at once."""

_METADATA_VERSION: Final = 12
_DESCRIBE_VERSION: Final = 0


class Explanation(msgspec.Struct):
    """What the leaders said. Times are the brokers' own, in milliseconds."""

    rows: list[RetainedPartition]
    checked_at_ms: int
    next_check_at_ms: int


class ExplainError(Exception):
    """Why a topic can't be explained, in a sentence."""


def topics(arguments: Sequence[str]) -> int:
    """Run the subcommand; returns the exit code: 0 all is explained, 1 something isn't, 2 called wrongly."""
    options = _parser().parse_args(arguments)
    try:
        addresses = [_address(text) for text in options.bootstrap_server.split(",")]
    except ValueError as error:
        print(f"lowtide topics: {error}.", file=sys.stderr)
        return 2
    try:
        explanation = asyncio.run(explain(addresses, options.topic, options.timeout * 1000))
    except ExplainError as error:
        print(f"lowtide topics: {error}", file=sys.stderr)
        return 1
    if options.output == "json":
        print(_json(options.topic, explanation))
    else:
        _print(options.topic, explanation)
    return 1 if any(row.error_code != ErrorCode.NONE for row in explanation.rows) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lowtide topics", description="What a cluster says of its topics.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verb = verbs.add_parser(
        "explain",
        help="what keeps the oldest segment of each partition, and when it will go",
        description="What keeps the oldest segment of each partition of a topic, and when it will go, by which rule.",
    )
    verb.add_argument("topic", metavar="TOPIC")
    verb.add_argument("--bootstrap-server", default="127.0.0.1:9092", metavar="HOST:PORT,…", help="brokers to ask; default 127.0.0.1:9092")
    verb.add_argument("--output", choices=("text", "json"), default="text", help="default text")
    verb.add_argument("--timeout", type=_seconds, default=60, metavar="SECONDS", help="how long each broker may take; default 60")
    return parser


def _seconds(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= 3600:  # noqa: PLR2004 - an hour
        message = f"{text!r} is not possible: allowed is a number from 1 to 3600"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _address(text: str) -> Listener:
    """Errors: ValueError."""
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65_535:  # noqa: PLR2004 - the last port
        message = f"{text.strip()!r} is no address: it has the form HOST:PORT"
        raise ValueError(message)
    return Listener("", host.removeprefix("[").removesuffix("]"), int(port))


async def explain(addresses: Sequence[Listener], topic: str, timeout_ms: int) -> Explanation:
    """Ask the leaders of a topic. Errors: ExplainError."""
    async with AsyncExitStack() as stack:
        tasks = TaskRegistry(lambda _name, _error: None)
        peers = PeerClients(SystemClock(), tasks, quiet_logger(logging.CRITICAL), client_id="lowtide")
        stack.push_async_callback(tasks.cancel_all)
        stack.callback(peers.close)
        metadata = await _metadata(peers, addresses, topic, timeout_ms)
        brokers = {broker.node_id: Listener("", broker.host, broker.port) for broker in metadata.brokers}
        leaders: dict[BrokerId, list[int]] = {}
        for partition in sorted(metadata.topics[0].partitions, key=lambda row: row.partition_index):
            leader = partition.leader_id if partition.leader_id in brokers else NO_LEADER
            leaders.setdefault(leader, []).append(partition.partition_index)
        explanation = Explanation([], UNKNOWN, UNKNOWN)
        for number in leaders.pop(NO_LEADER, ()):
            explanation.rows.append(RetainedPartition(partition_index=number, error_code=ErrorCode.LEADER_NOT_AVAILABLE))
        for leader, numbers in sorted(leaders.items()):
            for start in range(0, len(numbers), PARTITIONS_PER_REQUEST):
                some = DescribeRetentionTopic(name=topic, partitions=numbers[start : start + PARTITIONS_PER_REQUEST])
                await _ask(peers, leader, brokers[leader], some, timeout_ms, explanation)
        explanation.rows.sort(key=lambda row: row.partition_index)
        return explanation


async def _metadata(peers: PeerClients, addresses: Sequence[Listener], topic: str, timeout_ms: int) -> MetadataResponse:
    """What the first broker that answers knows of a topic."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    reason = ""
    for number, address in enumerate(addresses):
        client = peers.client(-1 - number, address, "topics")
        try:
            answer: MetadataResponse = await client.request(ApiKey.METADATA, _METADATA_VERSION, request, timeout_ms)
        except PeerError as error:
            reason = f"{address.host}:{address.port} does not answer as a broker: {error.__cause__ or error}."
            continue
        error_code = ErrorCode(answer.topics[0].error_code)
        if error_code == ErrorCode.NONE:
            return answer
        message = (
            f"there is no topic {topic}." if error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else f"topic {topic}: {error_code.name}."
        )
        raise ExplainError(message)
    raise ExplainError(reason)


async def _ask(
    peers: PeerClients, leader: BrokerId, address: Listener, topic: DescribeRetentionTopic, timeout_ms: int, explanation: Explanation
) -> None:
    """Add what the leader of some partitions says."""
    client = peers.client(leader, address, "topics")
    try:
        answer: DescribeRetentionResponse = await client.request(
            ApiKey.DESCRIBE_RETENTION, _DESCRIBE_VERSION, DescribeRetentionRequest(topics=[topic]), timeout_ms
        )
    except PeerError as error:
        hint = " Is it Lowtide, and new enough to explain its retention?" if error.was_sent else ""
        message = f"broker {leader} at {address.host}:{address.port} did not answer: {error.__cause__ or error}.{hint}"
        raise ExplainError(message) from error
    if answer.error_code != ErrorCode.NONE:
        message = f"broker {leader} at {address.host}:{address.port} answers {ErrorCode(answer.error_code).name}."
        raise ExplainError(message)
    explanation.rows += [row for each in answer.topics for row in each.partitions]
    explanation.checked_at_ms = answer.checked_at_ms
    times = [each for each in (explanation.next_check_at_ms, answer.next_check_at_ms) if each != UNKNOWN]
    explanation.next_check_at_ms = min(times, default=UNKNOWN)


def _print(topic: str, explanation: Explanation) -> None:
    now_ms, next_ms = explanation.checked_at_ms, explanation.next_check_at_ms
    count = len(explanation.rows)
    when = f"; the next check is in {duration(next_ms - now_ms)}" if next_ms != UNKNOWN else ""
    print(f"Topic {topic}, {count} partition{'' if count == 1 else 's'}{when}.")
    for row in explanation.rows:
        print(line(row, now_ms))


def _json(topic: str, explanation: Explanation) -> str:
    def known(number: int) -> int | None:
        return None if number == UNKNOWN else number

    value: dict[str, Any] = {
        "topic": topic,
        "checked_at_ms": known(explanation.checked_at_ms),
        "next_check_at_ms": known(explanation.next_check_at_ms),
        "partitions": [as_value(row, explanation.checked_at_ms) for row in explanation.rows],
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
