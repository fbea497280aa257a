"""kafka-configs, and the configurations in kafka-topics, unmodified, against a running Lowtide."""

from __future__ import annotations

import re

import pytest

from .tools import Tools

pytestmark = pytest.mark.interop


def configs(tools: Tools, *entity: str, more: tuple[str, ...] = ()) -> dict[str, str]:
    """Returns the output of kafka-configs: the value and source of each key, in the tool's own format."""
    lines = tools.run("kafka-configs", "--describe", *entity, *more).lines
    found = [re.fullmatch(r"  ([\w.]+)=(.*) sensitive=(?:true|false) synonyms=\{(.*)\}", line) for line in lines[1:]]
    return {match[1]: f"{match[2]} {{{match[3]}}}" for match in found if match is not None}


def alter(tools: Tools, *arguments: str) -> None:
    assert tools.run("kafka-configs", "--alter", *arguments).lines[-1].startswith("Completed updating ")


def refused(tools: Tools, *arguments: str) -> str:
    """Returns the broker's error, as printed by kafka-configs."""
    ran = tools.call("kafka-configs", "--alter", *arguments)
    assert ran.exit_code == 1
    [cause] = [line for line in ran.err.splitlines() if line.startswith("Caused by: ")]
    return cause.removeprefix("Caused by: org.apache.kafka.common.errors.")


def test_topics_are_described_and_grow(tools: Tools) -> None:
    """Partition by partition, with the configuration that differs from the default."""
    tools.run("kafka-topics", "--create", "--topic", "grows", "--partitions", "2", "--config", "retention.ms=1000000")
    tools.run("kafka-topics", "--alter", "--topic", "grows", "--partitions", "4")
    head, *rows = tools.run("kafka-topics", "--describe", "--topic", "grows").lines
    assert re.match(r"Topic: grows\tTopicId: [\w-]{22}\tPartitionCount: 4\tReplicationFactor: 1\tConfigs: ", head)
    assert head.endswith("retention.ms=1000000")
    rest = "Leader: 0\tReplicas: 0\tIsr: 0\tElr: \tLastKnownElr: "
    assert rows == [f"\tTopic: grows\tPartition: {partition}\t{rest}" for partition in range(4)]
    assert len(tools.run("kafka-get-offsets", "--topic", "grows").lines) == 4
    fewer = tools.call("kafka-topics", "--alter", "--topic", "grows", "--partitions", "3")
    assert fewer.exit_code == 1
    assert "The topic grows currently has 4 partition(s); 3 would not be an increase." in fewer.out
    unknown = tools.call("kafka-topics", "--describe", "--topic", "unknown")
    assert (unknown.exit_code, "Topic 'unknown' does not exist as expected" in unknown.out) == (1, True)


def test_a_topics_configuration_is_set_and_reset(tools: Tools) -> None:
    tools.run("kafka-topics", "--create", "--topic", "configured", "--config", "retention.ms=1000000")
    topic = ("--entity-type", "topics", "--entity-name", "configured")
    assert configs(tools, *topic) == {"retention.ms": "1000000 {DYNAMIC_TOPIC_CONFIG:retention.ms=1000000}"}
    alter(tools, *topic, "--add-config", "retention.ms=5000,cleanup.policy=[compact,delete]")
    policy = (
        "compact,delete {DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, DEFAULT_CONFIG:log.cleanup.policy=delete}"
    )
    assert configs(tools, *topic) == {
        "retention.ms": "5000 {DYNAMIC_TOPIC_CONFIG:retention.ms=5000}",
        "cleanup.policy": policy,
    }
    alter(tools, *topic, "--delete-config", "retention.ms")
    everything = configs(tools, *topic, more=("--all",))
    assert everything["retention.ms"].startswith("604800000 {")
    assert everything["cleanup.policy"] == policy
    assert everything["segment.bytes"] == "1073741824 {DEFAULT_CONFIG:log.segment.bytes=1073741824}"
    assert refused(tools, *topic, "--add-config", "retention.ms=soon").startswith("InvalidConfigurationException: ")


def test_every_key_about_deletion_is_set_and_reset(tools: Tools) -> None:
    """Also those of KIP-47 and KIP-68, which the tool lacks; a refusal names contradicting keys."""
    tools.run("kafka-topics", "--create", "--topic", "deleted")
    topic = ("--entity-type", "topics", "--entity-name", "deleted")
    wanted = {
        "file.delete.delay.ms": "1000",
        "local.retention.ms": "-2",
        "log.retention.min.timestamp": "1000000000000",
        "retention.bytes": "1000000000",
        "retention.commitoffset.hours": "1",
        "retention.commitoffset.minutes": "30",
        "retention.commitoffset.ms": "1000",
        "retention.ms": "86400000",
        "segment.jitter.ms": "1000",
        "segment.ms": "3600000",
    }
    alter(tools, *topic, "--add-config", ",".join(f"{key}={value}" for key, value in wanted.items()))
    assert {key: value.split(" ")[0] for key, value in configs(tools, *topic).items()} == wanted
    longer = refused(tools, *topic, "--add-config", "retention.commitoffset.ms=86400001")
    assert "retention.commitoffset.ms=86400001" in longer
    assert "retention.ms=86400000" in longer
    assert "this broker has no tiered storage" in refused(tools, *topic, "--add-config", "remote.storage.enable=true")
    alter(tools, *topic, "--delete-config", ",".join(wanted))
    assert configs(tools, *topic) == {}


def test_brokers_are_configured_while_they_run(tools: Tools) -> None:
    """One broker's setting overrides that of all, and takes effect: a batch that is too large now is refused."""
    one, every = ("--entity-type", "brokers", "--entity-name", "0"), ("--entity-type", "brokers", "--entity-default")
    alter(tools, *every, "--add-config", "message.max.bytes=2000000")
    alter(tools, *one, "--add-config", "message.max.bytes=1000")
    assert (
        configs(tools, *every)["message.max.bytes"]
        == "2000000 {DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=2000000}"
    )
    both = "DYNAMIC_BROKER_CONFIG:message.max.bytes=1000, DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=2000000"
    assert configs(tools, *one)["message.max.bytes"] == f"1000 {{{both}, DEFAULT_CONFIG:message.max.bytes=1048588}}"
    tools.run("kafka-topics", "--create", "--topic", "limited")
    sent = tools.call("kafka-console-producer", "--topic", "limited", stdin="x" * 2000 + "\n")
    assert "RecordTooLargeException" in sent.err
    alter(tools, *one, "--delete-config", "message.max.bytes")
    tools.run("kafka-console-producer", "--topic", "limited", stdin="x" * 2000 + "\n")
    alter(tools, *every, "--delete-config", "message.max.bytes")
    fixed = refused(tools, *one, "--add-config", "node.id=9")
    assert fixed == "InvalidRequestException: Cannot update these configs dynamically: [node.id]"


def test_a_groups_times_are_set_and_reset(tools: Tools) -> None:
    """Before the group exists; it is then listed with its configuration."""
    group = ("--entity-type", "groups", "--entity-name", "pickers")
    session, interval = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    alter(tools, *group, "--add-config", f"{session}=50000,{interval}=6000")
    own = f"{{DYNAMIC_GROUP_CONFIG:{session}=50000, DEFAULT_CONFIG:group.{session}=45000}}"
    assert configs(tools, *group)[session] == f"50000 {own}"
    alter(tools, *group, "--delete-config", interval)
    everything = configs(tools, *group, more=("--all",))
    assert (everything[session], everything[interval]) == (
        f"50000 {own}",
        f"5000 {{DEFAULT_CONFIG:group.{interval}=5000}}",
    )
    assert (
        tools.run("kafka-configs", "--describe", "--entity-type", "groups").lines[0]
        == "Dynamic configs for group pickers are:"
    )
    too_short = refused(tools, *group, "--add-config", f"{session}=1000")
    assert too_short == f"InvalidConfigurationException: {session} must be in the range 45000 to 60000 inclusive."
    alter(tools, *group, "--add-config", "share.auto.offset.reset=earliest")
    assert configs(tools, *group)["share.auto.offset.reset"].startswith(
        "earliest {DYNAMIC_GROUP_CONFIG:share.auto.offset.reset=earliest"
    )
    assert "InvalidConfigurationException" in refused(tools, *group, "--add-config", "share.auto.offset.reset=newest")
    alter(tools, *group, "--delete-config", "share.auto.offset.reset")
    alter(tools, *group, "--delete-config", session)


def test_levels_of_loggers_are_set_and_reset(tools: Tools) -> None:
    """KIP-412."""
    loggers = ("--entity-type", "broker-loggers", "--entity-name", "0")
    before = configs(tools, *loggers)
    assert {"root", "lowtide.broker", "lowtide.storage"} <= set(before)
    assert {level.split()[0] for level in before.values()} == {"INFO"}
    alter(tools, *loggers, "--add-config", "lowtide.broker.network=WARN,lowtide.storage=ERROR")
    during = configs(tools, *loggers)
    assert {name: level.split()[0] for name, level in during.items() if level != before[name]} == {
        "lowtide.broker.network": "WARN",
        "lowtide.storage": "ERROR",
    }
    alter(tools, *loggers, "--delete-config", "lowtide.broker.network,lowtide.storage")
    assert configs(tools, *loggers) == before
    assert "InvalidConfigurationException" in refused(tools, *loggers, "--add-config", "lowtide.storage=LOUD")
