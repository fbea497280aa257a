"""Acknowledged configurations of topics and brokers survive SIGKILL; and deleted ones stay deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from lowtide.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from lowtide.simulation.client import WireClient

from .serving import ServeProcess

LIVES = 3
TOPIC, BROKER = 2, 4
RESOURCES = ((TOPIC, "a"), (BROKER, "0"), (BROKER, ""))
KEYS = {TOPIC: "max.message.bytes", BROKER: "message.max.bytes"}
SET, DELETE = 0, 1


async def alter(client: WireClient, *changes: tuple[int, str, int, str | None]) -> None:
    """(type, name, operation, value) of each resource's key."""
    resources = [
        AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[AlterableConfig(name=KEYS[kind], config_operation=operation, value=value)],
        )
        for kind, name, operation, value in changes
    ]
    answer = await client.request(IncrementalAlterConfigsRequest(resources=resources, validate_only=False), 1)
    assert [row.error_code for row in answer.responses] == [0] * len(changes)


async def told(client: WireClient) -> list[list[tuple[str | None, int]]]:
    """Values and sources of the keys in order of precedence, for the topic and the broker."""
    resources = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=[KEYS[kind]])
        for kind, name in RESOURCES[:2]
    ]
    answer = await client.request(DescribeConfigsRequest(resources=resources, include_synonyms=True), 4)
    return [[(synonym.value, synonym.source) for synonym in row.configs[0].synonyms] for row in answer.results]


async def survive(directory: Path) -> None:
    default = ("1048588", 5)
    for life in range(LIVES):
        async with ServeProcess(directory) as process:
            client = await process.connect()
            if life == 0:
                topic = CreatableTopic(name="a", num_partitions=1, replication_factor=1, assignments=[], configs=[])
                await client.request(CreateTopicsRequest(topics=[topic]), 7)
            else:
                of_broker = [(f"{life}2", 2), (f"{life}3", 3), default]
                assert await told(client) == [[(f"{life}1", 1), *of_broker], of_broker]
            values = [f"{life + 1}{number}" for number in (1, 2, 3)]
            await alter(
                client, *((kind, name, SET, value) for (kind, name), value in zip(RESOURCES, values, strict=True))
            )
            await process.kill()
    async with ServeProcess(directory) as process:
        await alter(await process.connect(), *((kind, name, DELETE, None) for kind, name in RESOURCES))
        await process.kill()
    async with ServeProcess(directory) as process:
        assert await told(await process.connect()) == [[default], [default]]
        assert process.faults == []


@pytest.mark.slow
def test_what_is_set_survives_sigkill(tmp_path: Path) -> None:
    asyncio.run(survive(tmp_path))
