"""How long consumed records are kept (KIP-68), and that longer retention than that of all records is refused."""

from __future__ import annotations

import pytest

from lowtide.broker.config.broker_config import ConfigError, Setting, load_config
from lowtide.broker.config.dynamic_config import BrokerConfigs
from lowtide.broker.config.sources import DYNAMIC_BROKER
from lowtide.broker.config.topic_config import TopicConfigFault, log_config, validate_topic_configs

WEEK_MS = 604_800_000
MS, MINUTES, HOURS = "retention.commitoffset.ms", "retention.commitoffset.minutes", "retention.commitoffset.hours"


@pytest.mark.parametrize(
    ("broker", "topic", "consumed_ms"),
    [
        ({}, {}, -1),
        ({"log." + HOURS: "2"}, {}, 7_200_000),
        ({"log." + HOURS: "2", "log." + MINUTES: "3"}, {}, 180_000),
        ({"log." + HOURS: "2", "log." + MINUTES: "3", "log." + MS: "4"}, {}, 4),
        ({"log." + MS: "-1", "log." + MINUTES: "3"}, {}, 180_000),
        ({"log." + MS: "4"}, {HOURS: "2"}, 7_200_000),
        ({"log." + MS: "4"}, {HOURS: "2", MINUTES: "1"}, 60_000),
        ({"log." + MS: "4"}, {HOURS: "2", MINUTES: "1", MS: "0"}, 0),
        ({"log." + MS: "4"}, {MS: "-1"}, -1),
        ({"log." + MS: str(WEEK_MS)}, {}, WEEK_MS),
        ({"log." + MS: "5000"}, {"retention.ms": "4000"}, 4000),
        ({"log." + MS: "5000"}, {"retention.ms": "-1"}, 5000),
        ({"log.retention.ms": "-1", "log." + HOURS: "2147483647"}, {}, 2147483647 * 3_600_000),
    ],
)
def test_the_strongest_key_counts_and_none_is_longer_than_retention(
    broker: dict[str, str], topic: dict[str, str], consumed_ms: int
):
    config = load_config(settings=broker)
    assert validate_topic_configs(config, topic) == topic
    assert log_config(config, topic).retention_commitoffset_ms == consumed_ms


@pytest.mark.parametrize(
    ("topic", "named"),
    [
        ({MS: str(WEEK_MS + 1)}, (f"{MS}={WEEK_MS + 1}", f"retention.ms={WEEK_MS}")),
        ({HOURS: "169"}, (f"{HOURS}=169 (608400000 ms)", f"retention.ms={WEEK_MS}")),
        ({"retention.ms": "59999", MINUTES: "1"}, (f"{MINUTES}=1 (60000 ms)", "retention.ms=59999")),
    ],
)
def test_a_topic_that_asks_for_longer_is_refused_with_both_values(topic: dict[str, str], named: tuple[str, str]):
    """For either order of setting them: both are checked together."""
    fault = validate_topic_configs(load_config(), topic)
    assert isinstance(fault, TopicConfigFault)
    assert all(each in fault.message for each in named)


def test_a_lowered_default_shortens_what_a_topic_asked_for():
    config = load_config(settings={"log.retention.ms": "1000"})
    assert log_config(config, {MS: "5000"}).retention_commitoffset_ms == 1000


def test_a_broker_that_asks_for_longer_does_not_start_and_cannot_be_set_so_later():
    with pytest.raises(
        ConfigError, match=r"log.retention.commitoffset.hours=3 \(10800000 ms\).*log.retention.hours=2 \(7200000 ms\)"
    ):
        load_config(settings={"log." + HOURS: "3", "log.retention.hours": "2"})
    configs = BrokerConfigs(load_config())
    configs.check({"log." + MS: str(WEEK_MS)}, of_all=True)
    with pytest.raises(ConfigError, match=rf"log.retention.commitoffset.ms={WEEK_MS + 1}"):
        configs.check({"log." + MS: str(WEEK_MS + 1)}, of_all=True)
    with pytest.raises(ConfigError, match=r"log.retention.commitoffset.ms=5 is invalid.*log.retention.ms=4"):
        BrokerConfigs(load_config(settings={"log." + MS: "5"})).check({"log.retention.ms": "4"}, of_all=False)


def test_a_broker_that_starts_with_a_shorter_limit_shortens_it():
    """The dynamic value was valid with the earlier static configuration."""
    given = {"log.retention.ms": Setting("4", DYNAMIC_BROKER), "log." + MS: Setting("5", "server.properties")}
    assert log_config(load_config(given=given), {}).retention_commitoffset_ms == 4
