"""Keys about groups whose partitions the broker assigns: what is impossible together is refused at the start, with a sentence."""

from __future__ import annotations

import pytest

from lowtide.broker.config import load_config
from lowtide.broker.config_key import ConfigError
from lowtide.broker.coordinator.settings import group_settings


def test_what_is_set_is_what_groups_are_told():
    settings = group_settings(
        load_config(
            settings={
                "group.consumer.assignors": "range",
                "group.consumer.migration.policy": "UPGRADE",
                "group.consumer.max.session.timeout.ms": "90000",
                "group.consumer.session.timeout.ms": "80000",
                "group.coordinator.rebalance.protocols": "classic",
            }
        ).values
    )
    assert (settings.consumer_assignors, settings.consumer_session_timeout_ms) == (("range",), 80_000)
    assert (settings.may_upgrade, settings.may_downgrade, settings.serves_consumer_groups) == (True, False, False)
    defaults = group_settings(load_config().values)
    assert (defaults.may_upgrade, defaults.may_downgrade, defaults.serves_consumer_groups) == (True, True, True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"group.consumer.session.timeout.ms": "1000"}, "group.consumer.min.session.timeout.ms=45000"),
        ({"group.consumer.session.timeout.ms": "70000"}, "group.consumer.max.session.timeout.ms=60000"),
        ({"group.consumer.heartbeat.interval.ms": "100"}, "group.consumer.min.heartbeat.interval.ms=5000"),
        ({"group.consumer.assignment.interval.ms": "20000"}, "group.consumer.max.assignment.interval.ms=15000"),
        (
            {"group.consumer.max.heartbeat.interval.ms": "45000", "group.consumer.heartbeat.interval.ms": "45000"},
            "less than group.consumer.session.timeout.ms=45000",
        ),
        ({"group.consumer.assignors": ""}, "at least one of range, uniform"),
        ({"group.consumer.assignors": "org.example.Mine"}, "uniform"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_what_is_impossible_together(settings, words):
    with pytest.raises(ConfigError, match=words):
        load_config(settings=settings)
