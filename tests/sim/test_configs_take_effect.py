"""A changed configuration applies to every log once answered, and after a power cut: on virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import fields

from lowtide.broker.config.broker_config import BROKER_KEYS
from lowtide.broker.config.dynamic_config import CLUSTER_WIDE, DYNAMIC_KEYS
from lowtide.broker.config.keys_topics import TOPIC_KEYS
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.simulation.broker_simulation import Simulation
from lowtide.simulation.client import WireClient
from lowtide.storage.log.log_values import LogConfig

PARTITIONS = 3
TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
TEXTS = {
    "compression.type": "zstd",
    "message.timestamp.type": "LogAppendTime",
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": "0.25",
    "preallocate": "true",
    "lowtide.delete.erase": "true",
    "lowtide.erasure.key.filter": "none",
}
FIELDS = [field.name for field in fields(LogConfig)]


async def alter(client: WireClient, kind: ConfigResourceType, name: str, *changes: tuple[str, str | None]) -> None:
    configs = [
        AlterableConfig(name=key, config_operation=1 if text is None else 0, value=text) for key, text in changes
    ]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    answer = await client.request(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
    assert (answer.responses[0].error_code, answer.responses[0].error_message) == (0, None)


def log_configs(simulation: Simulation) -> set[LogConfig]:
    """Returns the configurations of all logs."""
    assert simulation.broker is not None
    logs = simulation.broker.log_manager.logs
    assert len(logs) == PARTITIONS
    return {log.config for log in logs.values()}


def play(scenario: Callable[[Simulation, WireClient], Coroutine[Any, Any, None]]) -> None:
    async def begin(loop: SimulatedLoop) -> None:
        simulation = Simulation(loop, 1, flush_each_append=False)
        await simulation.start()
        client = await simulation.connect()
        topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1, assignments=[], configs=[])
        await client.request(CreateTopicsRequest(topics=[topic]), 7)
        assert log_configs(simulation) == {LogConfig()}
        await scenario(simulation, client)

    run_simulation(begin, 1)


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_of_a_log_follows_at_once(field: str) -> None:
    """The topic's key, the value on all brokers, and the value on this one, if it has one; then the default again."""
    key = next(key for key in TOPIC_KEYS if key.name == field.replace("_", "."))
    broker_key = key.broker_key
    text = TEXTS.get(key.name, "12345678")
    value = key.parse(text)
    expected = type(getattr(LogConfig(), field))(value) if isinstance(value, tuple) else value

    async def scenario(simulation: Simulation, client: WireClient) -> None:
        places = [(TOPIC, "t", key.name)]
        if broker_key is not None:
            places += [(BROKER, "", broker_key), (BROKER, "0", broker_key)]
        if broker_key == CLUSTER_WIDE:
            places.pop()
        for kind, resource, name in places:
            await alter(client, kind, resource, (name, text))
            (config,) = log_configs(simulation)
            assert getattr(config, field) == expected
            assert {other for other in FIELDS if getattr(config, other) != getattr(LogConfig(), other)} == {field}
            await alter(client, kind, resource, (name, None))
            assert log_configs(simulation) == {LogConfig()}

    play(scenario)


def test_the_wanted_number_of_replicas_in_sync_is_set_on_all_brokers_together() -> None:
    """A single broker refuses it while there are eligible leaders, and ignores earlier values (KIP-966)."""

    async def scenario(simulation: Simulation, client: WireClient) -> None:
        change = AlterableConfig(name=CLUSTER_WIDE, config_operation=0, value="2")
        of_one = AlterConfigsResource(resource_type=BROKER, resource_name="0", configs=[change])
        answer = await client.request(IncrementalAlterConfigsRequest(resources=[of_one], validate_only=False), 1)
        refused = answer.responses[0]
        assert (refused.error_code, "while ELR is enabled" in refused.error_message) == (ErrorCode.INVALID_CONFIG, True)
        await alter(client, BROKER, "", (CLUSTER_WIDE, "3"))
        assert log_configs(simulation) == {LogConfig(min_insync_replicas=3)}
        simulation.end_life(power=True)
        await simulation.start()
        assert log_configs(simulation) == {LogConfig(min_insync_replicas=3)}

    play(scenario)


def test_the_more_specific_value_wins() -> None:
    async def scenario(simulation: Simulation, client: WireClient) -> None:
        await alter(client, TOPIC, "t", ("max.message.bytes", "1"))
        await alter(client, BROKER, "0", ("message.max.bytes", "2"))
        await alter(client, BROKER, "", ("message.max.bytes", "3"))
        for kind, name, key, left in ((TOPIC, "t", "max.message.bytes", 2), (BROKER, "0", "message.max.bytes", 3)):
            await alter(client, kind, name, (key, None))
            assert {config.max_message_bytes for config in log_configs(simulation)} == {left}

    play(scenario)


def test_what_was_answered_survives_a_power_cut() -> None:
    """Also for logs that are created later."""

    async def scenario(simulation: Simulation, client: WireClient) -> None:
        await alter(client, TOPIC, "t", ("segment.bytes", "1048576"), ("retention.ms", "5"))
        await alter(client, BROKER, "", ("log.flush.interval.messages", "7"))
        await alter(client, TOPIC, "t", ("retention.ms", None))
        simulation.end_life(power=True)
        await simulation.start()
        assert log_configs(simulation) == {LogConfig(segment_bytes=1 << 20, flush_messages=7)}

    play(scenario)


def test_silent_producers_are_remembered_as_long_as_is_set_now() -> None:
    async def scenario(simulation: Simulation, client: WireClient) -> None:
        def remembered_ms() -> set[int]:
            assert simulation.broker is not None
            return {log.producer_state.expiration_ms for log in simulation.broker.log_manager.logs.values()}

        default = {int(BROKER_KEYS["producer.id.expiration.ms"].default or 0)}
        assert remembered_ms() == default
        await alter(client, BROKER, "0", ("producer.id.expiration.ms", "1234"))
        topic = CreatableTopic(name="later", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        await client.request(CreateTopicsRequest(topics=[topic]), 7)
        assert remembered_ms() == {1234}
        await alter(client, BROKER, "0", ("producer.id.expiration.ms", None))
        assert remembered_ms() == default

    play(scenario)


def test_addresses_have_the_number_of_connections_that_is_set_now() -> None:
    async def scenario(simulation: Simulation, client: WireClient) -> None:
        assert simulation.broker is not None
        host = simulation.broker.serving.host
        assert host is not None
        await alter(client, BROKER, "0", ("max.connections.per.ip.overrides", "10.0.0.9:3"))
        assert host.admission.limits.overrides == {"10.0.0.9": 3}
        await alter(client, BROKER, "0", ("max.connections.per.ip.overrides", None))
        assert host.admission.limits.overrides == {}

    play(scenario)


def test_connections_wait_above_the_rate_that_is_set_now() -> None:
    async def scenario(simulation: Simulation, client: WireClient) -> None:
        assert simulation.broker is not None
        assert simulation.broker.serving is not None
        wait_ms = simulation.broker.serving.host._connection_wait_ms
        await alter(client, BROKER, "", ("max.connection.creation.rate", "1"))
        assert max(wait_ms("10.0.0.9", "PLAINTEXT") for _ in range(30)) > 0
        await alter(client, BROKER, "", ("max.connection.creation.rate", None))
        assert wait_ms("10.0.0.9", "PLAINTEXT") == 0

    play(scenario)


def test_no_key_that_can_be_set_is_left_out() -> None:
    """A new key that can be set while a broker runs needs a test that it takes effect."""
    of_logs = {key.broker_key for key in TOPIC_KEYS if key.broker_key and key.name.replace(".", "_") in FIELDS}
    elsewhere = {
        "max.connections",
        "max.connections.per.ip",
        "producer.id.expiration.ms",
        "log.retention.commitoffset.enable",
    }
    elsewhere |= {
        "max.connections.per.ip.overrides",
        "max.connection.creation.rate",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
    }
    elsewhere |= {"lowtide.erasure.io.max.bytes.per.second", "lowtide.erasure.standing.interval.ms"}
    elsewhere |= {"replica.alter.log.dirs.io.max.bytes.per.second", "cordoned.log.dirs"}
    elsewhere |= {"errors.deadletterqueue.auto.create.topics.enable", "errors.deadletterqueue.topic.name.prefix"}
    elsewhere |= {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "unclean.leader.election.enable",
    }
    without_effect = {name for name in DYNAMIC_KEYS if not BROKER_KEYS[name].enforced}
    assert DYNAMIC_KEYS - without_effect == (of_logs | elsewhere) - without_effect
