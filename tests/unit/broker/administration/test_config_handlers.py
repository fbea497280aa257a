"""The four requests about configurations: the order of checks, and the rows of the responses.

Codes are as observed with Kafka 4.3.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.config.keys_own import OWN_KEYS
from lowtide.broker.config.log_levels import LOGGERS
from lowtide.broker.handlers import alter_configs, describe_configs, incremental_alter_configs, list_config_resources
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.messages import alter_configs as legacy
from lowtide.protocol.messages import incremental_alter_configs as incremental
from lowtide.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from lowtide.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.scenarios import played_by

from .test_config_administrator import World, play

NONE, UNKNOWN_TOPIC, INVALID_TOPIC, UNSUPPORTED_VERSION, INVALID_CONFIG, INVALID_REQUEST = 0, 3, 17, 35, 40, 42
POLICY_VIOLATION = 44
SET, DELETE, APPEND, SUBTRACT = range(4)
BROKER_LOGGER, CLIENT_METRICS = ConfigResourceType.BROKER_LOGGER, ConfigResourceType.CLIENT_METRICS
GROUP = ConfigResourceType.GROUP
TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER

Rows = list[tuple[int, str, list[tuple[Any, ...]]]]
CONTEXT: Any = SimpleNamespace(api_version=1)


async def alter(world: World, rows: Rows, *, validate_only: bool = False) -> list[tuple[int, str | None]]:
    resources = [
        incremental.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                incremental.AlterableConfig(name=key, config_operation=operation, value=value)
                for key, operation, value in changes
            ],
        )
        for kind, name, changes in rows
    ]
    handle = incremental_alter_configs.handler(world.brokers[0].administrator).handle_later
    assert handle is not None
    answer = await handle(
        incremental.IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only), CONTEXT
    )
    assert [(row.resource_type, row.resource_name) for row in answer.responses] == [
        (kind, name) for kind, name, _ in rows
    ]
    assert all((row.error_code == NONE) == (row.error_message is None) for row in answer.responses)
    return [(row.error_code, row.error_message) for row in answer.responses]


async def replace(world: World, rows: Rows) -> list[int]:
    resources = [
        legacy.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[legacy.AlterableConfig(name=key, value=value) for key, value in configs],
        )
        for kind, name, configs in rows
    ]
    handle = alter_configs.handler(world.brokers[0].administrator).handle_later
    assert handle is not None
    answer = await handle(legacy.AlterConfigsRequest(resources=resources, validate_only=False), CONTEXT)
    return [row.error_code for row in answer.responses]


async def describe(world: World, *rows: tuple[int, str, list[str] | None], **options: bool) -> DescribeConfigsResponse:
    resources = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        for kind, name, keys in rows
    ]
    handle = describe_configs.handler(world.brokers[0].administrator).handle
    assert handle is not None
    answer = handle(DescribeConfigsRequest(resources=resources, **options), CONTEXT)
    assert isinstance(answer, DescribeConfigsResponse)
    return answer


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (TOPIC, "a", [("retention.ms", SET, " 1000 ")], NONE),
        (TOPIC, "a", [], NONE),
        (TOPIC, "a", [("no.such", DELETE, None), ("retention.ms", DELETE, "ignored")], NONE),
        (TOPIC, "a", [("no.such", SET, "1")], INVALID_CONFIG),
        (TOPIC, "a", [("log.retention.ms", SET, "1")], INVALID_CONFIG),
        (TOPIC, "a", [("retention.ms", APPEND, "1")], INVALID_CONFIG),
        (TOPIC, "a", [("cleanup.policy", APPEND, "wrong")], INVALID_CONFIG),
        (TOPIC, "a", [("retention.ms", SET, None)], INVALID_REQUEST),
        (TOPIC, "a", [("cleanup.policy", APPEND, None)], INVALID_REQUEST),
        (TOPIC, "a", [("retention.ms", 9, "1")], INVALID_REQUEST),
        (TOPIC, "a", [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], INVALID_REQUEST),
        (TOPIC, "b", [("retention.ms", SET, "1")], UNKNOWN_TOPIC),
        (TOPIC, "b", [], UNKNOWN_TOPIC),
        (TOPIC, "b", [("retention.ms", SET, "bad")], INVALID_CONFIG),
        (TOPIC, "a b", [("retention.ms", SET, "bad")], INVALID_TOPIC),
        (TOPIC, "a b", [("retention.ms", SUBTRACT, "1")], INVALID_CONFIG),
        (TOPIC, "", [("retention.ms", SET, "1")], INVALID_REQUEST),
        (BROKER, "0", [("log.retention.ms", SET, "-2")], NONE),
        (BROKER, "+0", [("log.cleanup.policy", APPEND, "compact")], NONE),
        (BROKER, "", [("log.retention.ms", SET, "1"), ("no.such", DELETE, None)], NONE),
        (BROKER, "0", [("log.retention.ms", APPEND, "1")], INVALID_CONFIG),
        (BROKER, "0", [("no.such", SUBTRACT, "1")], INVALID_CONFIG),
        (BROKER, "0", [("num.partitions", SET, "1")], INVALID_REQUEST),
        (BROKER, "", [("log.segment.bytes", SET, "1")], INVALID_REQUEST),
        (BROKER, "1", [("log.retention.ms", SET, "1")], INVALID_REQUEST),
        (BROKER, "x", [], INVALID_REQUEST),
        (BROKER_LOGGER, "0", [("root", SET, "INFO"), ("lowtide.broker.network", SET, "TRACE")], NONE),
        (BROKER_LOGGER, "0", [("lowtide.broker.network", DELETE, None)], NONE),
        (BROKER_LOGGER, "0", [("root", SET, "WARNING")], INVALID_CONFIG),
        (BROKER_LOGGER, "0", [("kafka", SET, "INFO")], INVALID_CONFIG),
        (BROKER_LOGGER, "0", [("root", DELETE, None)], INVALID_REQUEST),
        (BROKER_LOGGER, "0", [("root", APPEND, "INFO")], INVALID_REQUEST),
        (BROKER_LOGGER, "", [], INVALID_REQUEST),
        (BROKER_LOGGER, "1", [("root", SET, "INFO")], INVALID_REQUEST),
        (
            CLIENT_METRICS,
            "s",
            [("interval.ms", SET, "1000"), ("match", SET, "client_id=a.*,client_software_name=.*")],
            NONE,
        ),
        (CLIENT_METRICS, "s", [("metrics", APPEND, "a")], NONE),
        (CLIENT_METRICS, "s", [("interval.ms", APPEND, "1000")], INVALID_CONFIG),
        (CLIENT_METRICS, "s", [("interval.ms", SET, "99")], INVALID_REQUEST),
        (CLIENT_METRICS, "s", [("no.such", SET, "99")], INVALID_REQUEST),
        (CLIENT_METRICS, "s", [("match", SET, "client_name=x")], INVALID_CONFIG),
        (CLIENT_METRICS, "s", [("match", SET, "client_id=(")], INVALID_CONFIG),
        (CLIENT_METRICS, "", [], INVALID_REQUEST),
        (CLIENT_METRICS, "s", [("interval.ms", DELETE, None)], NONE),
        (
            GROUP,
            "g",
            [("consumer.session.timeout.ms", SET, " 50000 "), ("consumer.heartbeat.interval.ms", SET, "15000")],
            NONE,
        ),
        (GROUP, "g/x", [("consumer.assignment.interval.ms", SET, "0"), ("no.such", DELETE, None)], NONE),
        (GROUP, "g", [("consumer.session.timeout.ms", SET, "1")], INVALID_CONFIG),
        (GROUP, "g", [("consumer.session.timeout.ms", APPEND, "50000")], INVALID_CONFIG),
        (GROUP, "g", [("consumer.session.timeout.ms", SET, None)], INVALID_REQUEST),
        (GROUP, "g", [("share.auto.offset.reset", SET, "earliest")], NONE),
        (GROUP, "g", [("share.auto.offset.reset", SET, "first")], INVALID_CONFIG),
        (GROUP, "g", [("streams.num.standby.replicas", SET, "3")], INVALID_CONFIG),
        (GROUP, "g", [("group.consumer.session.timeout.ms", SET, "50000")], INVALID_CONFIG),
        (GROUP, "", [("x", SET, "1")], INVALID_REQUEST),
        (GROUP, "g", [], NONE),
        (0, "x", [], INVALID_REQUEST),
        (3, "x", [("a", SET, "b")], INVALID_REQUEST),
        (77, "x", [("a", SET, None)], INVALID_REQUEST),
    ],
)
@played_by(play)
async def test_a_change_is_answered_as_by_kafka(
    world: World, /, kind: int, name: str, changes: list[tuple[Any, ...]], code: int
) -> None:
    """Also if it is only validated; and a refused change alters nothing."""
    before = world.brokers[0].session.image
    assert [answer[0] for answer in await alter(world, [(kind, name, changes)], validate_only=True)] == [code]
    assert world.brokers[0].session.image is before
    assert [answer[0] for answer in await alter(world, [(kind, name, changes)])] == [code]
    if code != NONE:
        assert world.brokers[0].session.image is before


@played_by(play)
async def test_of_a_resource_all_keys_are_changed_or_none(world: World, /) -> None:
    [(code, message)] = await alter(world, [(TOPIC, "a", [("retention.ms", SET, "777"), ("segment.bytes", SET, "1")])])
    assert code == INVALID_CONFIG
    assert "segment.bytes=1" in (message or "")
    assert world.topic_configs == {}


@played_by(play)
async def test_resources_are_answered_each_in_the_order_of_the_request(world: World, /) -> None:
    """A resource that is named twice is refused in both rows; an invalid one does not affect the others."""
    rows: Rows = [
        (TOPIC, "b", []),
        (77, "x", []),
        (TOPIC, "a", [("retention.ms", SET, "1")]),
        (BROKER, "77", []),
        (TOPIC, "b", []),
    ]
    assert [code for code, _ in await alter(world, rows)] == [
        INVALID_REQUEST,
        INVALID_REQUEST,
        NONE,
        INVALID_REQUEST,
        INVALID_REQUEST,
    ]
    assert world.topic_configs == {"retention.ms": "1"}


@played_by(play)
async def test_the_older_request_sets_all_keys(world: World, /) -> None:
    """It refuses as the newer one does, and does not support loggers."""
    assert await replace(
        world,
        [(TOPIC, "a", [("retention.ms", "1"), ("segment.ms", "2")]), (BROKER, "", [("log.retention.ms", "5")])],
    ) == [0, 0]
    assert await replace(world, [(TOPIC, "a", [("segment.ms", "3")]), (TOPIC, "b", []), (BROKER_LOGGER, "0", [])]) == [
        NONE,
        UNKNOWN_TOPIC,
        INVALID_REQUEST,
    ]
    assert world.topic_configs == {"segment.ms": "3"}
    twice = (TOPIC, "a", [("segment.ms", "3"), ("segment.ms", "4")])
    assert await replace(world, [twice, (GROUP, "g", [("segment.ms", None)])]) == [INVALID_REQUEST, INVALID_REQUEST]
    assert await replace(world, [twice, twice]) == [INVALID_REQUEST] * 2
    assert await replace(world, [(TOPIC, "a", []), (BROKER, "", [("num.partitions", "3")])]) == [
        NONE,
        INVALID_REQUEST,
    ]
    assert world.topic_configs == {}
    assert dict(world.brokers[0].configs.of_all) == {"log.retention.ms": "5"}


@played_by(play)
async def test_descriptions_by_kind(world: World, /) -> None:
    """What Lowtide does not have is empty; what is invalid is refused."""
    rows: list[tuple[int, str, list[str] | None]] = [
        (TOPIC, "a", None), (TOPIC, "a", ["retention.ms"]), (TOPIC, "b", None), (TOPIC, "", None),
        (TOPIC, "a b", None),
        (BROKER, "0", None), (BROKER, "", None), (BROKER, "1", None), (BROKER, "x", None),
        (BROKER_LOGGER, "0", None), (BROKER_LOGGER, "", None), (CLIENT_METRICS, "s", None),
        (CLIENT_METRICS, "", None),
        (GROUP, "g", None), (GROUP, "", None),
    ]  # fmt: skip
    answer = await describe(world, *rows)
    assert [(row.resource_type, row.resource_name) for row in answer.results] == [row[:2] for row in rows]
    assert [(row.error_code, len(row.configs)) for row in answer.results] == [
        (NONE, 46), (NONE, 1), (UNKNOWN_TOPIC, 0), (INVALID_TOPIC, 0), (INVALID_TOPIC, 0),
        (NONE, 363 + len(OWN_KEYS)), (NONE, 0), (INVALID_REQUEST, 0), (INVALID_REQUEST, 0),
        (NONE, len(LOGGERS)), (INVALID_REQUEST, 0), (NONE, 3), (INVALID_REQUEST, 0),
        (NONE, 21), (INVALID_REQUEST, 0),
    ]  # fmt: skip


@played_by(play)
async def test_one_unknown_type_refuses_a_whole_description(world: World, /) -> None:
    answer = await describe(world, (TOPIC, "a", None), (77, "x", None))
    assert [(row.error_code, row.configs) for row in answer.results] == [(INVALID_REQUEST, [])] * 2


@played_by(play)
async def test_synonyms_and_documentation_are_returned_on_request(world: World, /) -> None:
    for synonyms, documentation in ((False, False), (True, True)):
        answer = await describe(
            world, (TOPIC, "a", ["segment.bytes"]), include_synonyms=synonyms, include_documentation=documentation
        )
        (config,) = answer.results[0].configs
        assert bool(config.synonyms) is synonyms
        assert (config.documentation is not None) is documentation
        assert (config.value, config.config_source, config.config_type) == ("1073741824", 5, 3)


@pytest.mark.parametrize(
    ("version", "types", "code", "found"),
    [
        (0, [], NONE, []),
        (1, [], NONE, [("0", BROKER_LOGGER), ("1", BROKER_LOGGER), ("0", BROKER), ("1", BROKER), ("a", TOPIC)]),
        (1, [TOPIC, GROUP, TOPIC], NONE, [("a", TOPIC)]),
        (1, [CLIENT_METRICS], NONE, []),
        (1, [TOPIC, 77], UNSUPPORTED_VERSION, []),
        (1, [0], UNSUPPORTED_VERSION, []),
    ],
)
@played_by(play)
async def test_resources_are_listed_by_type(
    world: World, /, version: int, types: list[int], code: int, found: list[tuple[str, int]]
) -> None:
    """Version 0 has only clients' metrics."""
    await world.brokers[0].session.wait_for(world.brokers[1].session.broker_epoch)
    handle = list_config_resources.handler(world.brokers[0].administrator).handle
    assert handle is not None
    context: RequestContext = SimpleNamespace(api_version=version)
    answer = handle(ListConfigResourcesRequest(resource_types=types), context)
    assert (answer.error_code, [(row.resource_name, row.resource_type) for row in answer.config_resources]) == (
        code,
        found,
    )


@played_by(play)
async def test_what_is_set_on_a_group_is_described_and_listed_until_it_is_deleted(world: World, /) -> None:
    """Whether or not the group exists; all keys, single keys, and with the broker's values for the others."""
    list_resources: Any = list_config_resources.handler(world.brokers[0].administrator).handle

    def listed() -> list[str]:
        return [
            row.resource_name
            for row in list_resources(ListConfigResourcesRequest(resource_types=[GROUP]), CONTEXT).config_resources
        ]

    session, interval = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    assert await alter(world, [(GROUP, "g", [(session, SET, "50000"), (interval, SET, "6000")])]) == [(NONE, None)]
    assert await alter(world, [(GROUP, "g", [(interval, DELETE, None)])]) == [(NONE, None)]
    offload = "consumer.assignor.offload.enable"
    assert await alter(world, [(GROUP, "g", [(offload, SET, "false")])]) == [(NONE, None)]
    assert await replace(world, [(GROUP, "h", [(interval, "7000")])]) == [NONE]
    assert listed() == ["g", "h"]
    answer = await describe(world, (GROUP, "g", None), (GROUP, "h", [session, "no.such"]), include_synonyms=True)
    told = [
        [(each.name, each.value, each.config_source, each.config_type, each.read_only) for each in row.configs]
        for row in answer.results
    ]
    assert ("share.auto.offset.reset", "latest", 5, 2, False) in told[0], "a key that the broker has none of"
    assert ("streams.assignor.name", "sticky", 5, 2, False) in told[0], "the first of the broker's assignors"
    assert not [row for row in told[0] if row[0] == "share.assignor.offload.enable"], "internal, and not set"
    told[0] = [row for row in told[0] if row[0].startswith("consumer.")]
    assert told == [
        [
            ("consumer.assignment.interval.ms", "1000", 5, 3, False),
            (offload, "false", 8, 1, False),
            (interval, "5000", 5, 3, False),
            (session, "50000", 8, 3, False),
        ],
        [(session, "45000", 5, 3, False)],
    ]
    (synonyms,) = [each.synonyms for each in answer.results[0].configs if each.name == session]
    assert [(each.name, each.value, each.source) for each in synonyms] == [
        (session, "50000", 8),
        (f"group.{session}", "45000", 5),
    ]
    assert await replace(world, [(GROUP, "g", [])]) == [NONE]
    assert await alter(world, [(GROUP, "h", [(interval, DELETE, None), ("no.such", DELETE, None)])]) == [(NONE, None)]
    assert listed() == []


def test_the_number_of_groups_with_a_configuration_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowtide.replication.config_changes.GROUPS_SET_MAX", 1)

    async def scenario(world: World) -> None:
        change = [("consumer.heartbeat.interval.ms", SET, "6000")]
        assert [code for code, _ in await alter(world, [(GROUP, "g", change), (GROUP, "h", change)])] == [
            NONE,
            POLICY_VIOLATION,
        ]
        assert await replace(world, [(GROUP, "g", [("consumer.session.timeout.ms", "50000")]), (GROUP, "h", [])]) == [
            NONE,
            NONE,
        ]
        assert await replace(world, [(GROUP, "g", [])]) == [NONE]
        assert await alter(world, [(GROUP, "h", change)]) == [(NONE, None)]

    play(scenario)


LONG = "k" * 32_700


@pytest.mark.parametrize(
    "row",
    [
        (TOPIC, "a", [(LONG, SET, "1")]),
        (TOPIC, "a", [(LONG, APPEND, "1")]),
        (TOPIC, "a", [(f"{LONG}{number}", SET, None) for number in range(3)]),
        (TOPIC, "a", [("cleanup.policy", SET, LONG)]),
        (TOPIC, LONG, [("retention.ms", SET, "1")]),
        (BROKER, "0", [(LONG, SET, "1")]),
        (BROKER, LONG, []),
        (BROKER_LOGGER, "0", [(LONG, SET, "1")]),
        (GROUP, "g", [(LONG, SET, "1")]),
        (CLIENT_METRICS, "s", [(LONG, SET, "1")]),
    ],
)
@played_by(play)
async def test_a_long_name_is_refused_with_a_sentence_that_can_be_sent(
    world: World, /, row: tuple[int, str, list[tuple[Any, ...]]]
) -> None:
    """A text on the wire has at most 32,767 bytes."""
    [(code, message)] = await alter(world, [row])
    assert code != NONE
    answer = incremental.AlterConfigsResourceResponse(
        error_code=code, error_message=message, resource_type=2, resource_name="a"
    )
    assert codec_for(incremental.IncrementalAlterConfigsResponse, 0).encode(
        incremental.IncrementalAlterConfigsResponse(responses=[answer])
    )


@played_by(play)
async def test_others_are_served_while_a_long_request_is_refused(world: World, /) -> None:
    """One frame may have many rows that need no wait."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count_turns())
    rows: Rows = [(77, str(number), []) for number in range(1000)]
    assert {code for code, _ in await alter(world, rows)} == {INVALID_REQUEST}
    assert set(await replace(world, rows)) == {INVALID_REQUEST}
    counting.cancel()
    assert turns > 20
