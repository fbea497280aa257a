"""Questions about a cluster that several commands have."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lowtide.admin.client import AdminClient
from lowtide.admin.cluster_view import ClusterView, TopicDescription
from lowtide.admin.wanted_offsets import parse_partitions
from lowtide.cli.outcome import misused
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from lowtide.protocol.schema import ApiMessage
    from lowtide.protocol.types import BrokerId


async def view_of_topics(client: AdminClient, topics: Sequence[str] | None, timeout_ms: int) -> ClusterView:
    """What a broker knows of topics, or of all (None), in one answer with the brokers. Errors: AdminError."""
    cluster = client.cluster
    return await cluster.view(topics, cluster.deadline(timeout_ms))


async def asked(client: AdminClient, broker_id: BrokerId, request: ApiMessage, timeout_ms: int, *, version: int) -> Any:
    """The answer of one broker to a request that has no method. Not tried again. Errors: AdminError."""
    cluster = client.cluster
    async with cluster.broker(broker_id, cluster.deadline(timeout_ms)) as handle:
        return await handle.ask_in(request, version)


def fitting(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """The names that fit one of the patterns (`*` and `?`), sorted.

    Errors: CommandError for a name without those that isn't there.
    """
    known, found = sorted(names), set[str]()
    for pattern in patterns:
        some = fnmatch.filter(known, pattern)
        if not some and not set(pattern) & set("*?["):
            raise misused(f"there is no {pattern!r}.")
        found.update(some)
    return sorted(found)


def chosen_partitions(texts: Iterable[str], topics: Mapping[str, TopicDescription]) -> list[TopicPartition]:
    """The partitions that texts such as `flights:0,2-4` name, each once. Errors: CommandError for what isn't there."""
    found: dict[TopicPartition, None] = {}
    for text in texts:
        try:
            topic, numbers = parse_partitions(text)
        except ValueError as error:
            raise misused(f"{error}.") from None
        if topic not in topics:
            raise misused(f"there is no topic {topic}.")
        for number in sorted(topics[topic].partitions) if numbers is None else numbers:
            if number not in topics[topic].partitions:
                raise misused(f"there is no partition {topic}-{number}.")
            found[TopicPartition(topic, number)] = None
    return list(found)


async def asked_controller(client: AdminClient, request: ApiMessage, timeout_ms: int) -> Any:
    """The answer of the controller to a request that has no method. Not tried again. Errors: AdminError."""
    cluster = client.cluster
    deadline = cluster.deadline(timeout_ms)
    async with cluster.broker(await cluster.controller(deadline), deadline) as handle:
        return await handle.ask(request)
