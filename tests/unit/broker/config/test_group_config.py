"""Keys of modern groups and of single groups: an impossible value is refused with a message."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.config.group_config import validate_group_configs
from lowtide.broker.config.key import ConfigError
from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.group_settings import group_settings
from lowtide.broker.coordinator.modern.group_times import GroupTimes
from lowtide.metadata.config_image import ConfigImage
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal


def test_groups_receive_what_is_set():
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
        ({"group.share.record.lock.duration.ms": "60001"}, "group.share.max.record.lock.duration.ms=60000"),
        (
            {"group.share.session.timeout.ms": "5000", "group.share.min.session.timeout.ms": "1"},
            "less than group.share.session.timeout.ms=5000",
        ),
        ({"group.share.assignors": "range"}, "simple"),
        ({"group.consumer.assignors": ""}, "at least one of range, uniform"),
        ({"group.consumer.assignors": "org.example.Mine"}, "uniform"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_what_is_impossible_together(settings, words):
    with pytest.raises(ConfigError, match=words):
        load_config(settings=settings)


DEFAULTS = load_config().values
SESSION, HEARTBEAT, ASSIGNMENT = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
)
NO_NUMBER = "Not a number of type INT"
NO_BOOLEAN = "Expected value to be either true or false"
LEVELS = "read_committed, read_uncommitted"
RESET = "share.auto.offset.reset"
NO_RESET = (
    f"Invalid value {{0}} for configuration {RESET}: Invalid value `{{0}}` for configuration {RESET}. "
    "The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("nope", "1", "Unknown group config name: nope"),
        (SESSION, "abc", f"Invalid value abc for configuration {SESSION}: {NO_NUMBER}"),
        (SESSION, "9999999999", f"Invalid value 9999999999 for configuration {SESSION}: {NO_NUMBER}"),
        (SESSION, "0", f"Invalid value 0 for configuration {SESSION}: Value must be at least 1"),
        (ASSIGNMENT, "-1", f"Invalid value -1 for configuration {ASSIGNMENT}: Value must be at least 0"),
        (SESSION, "1000", f"{SESSION} must be in the range 45000 to 60000 inclusive."),
        (SESSION, "60001", f"{SESSION} must be in the range 45000 to 60000 inclusive."),
        (HEARTBEAT, "4999", f"{HEARTBEAT} must be in the range 5000 to 15000 inclusive."),
        (HEARTBEAT, "99999", f"{HEARTBEAT} must be in the range 5000 to 15000 inclusive."),
        (ASSIGNMENT, "20000", f"{ASSIGNMENT} must be in the range 0 to 15000 inclusive."),
        (
            "share.isolation.level",
            "x",
            "Invalid value x for configuration share.isolation.level: String must be one of: " + LEVELS,
        ),
        (
            RESET,
            "by_duration:1h",
            NO_RESET.format("by_duration:1h"),
        ),
        (
            RESET,
            "x",
            NO_RESET.format("x"),
        ),
        (
            "share.renew.acknowledge.enable",
            "x",
            f"Invalid value x for configuration share.renew.acknowledge.enable: {NO_BOOLEAN}",
        ),
        (
            "streams.assignor.offload.enable",
            "x",
            f"Invalid value x for configuration streams.assignor.offload.enable: {NO_BOOLEAN}",
        ),
        (
            "share.record.lock.duration.ms",
            "1000",
            "share.record.lock.duration.ms must be in the range 15000 to 60000 inclusive.",
        ),
        (
            "share.delivery.count.limit",
            "11",
            "share.delivery.count.limit must be in the range 2 to 10 inclusive.",
        ),
        (
            "streams.num.standby.replicas",
            "3",
            "streams.num.standby.replicas must be less than or equal to 2",
        ),
        (
            "streams.task.offset.interval.ms",
            "14999",
            "streams.task.offset.interval.ms must be greater than or equal to 15000",
        ),
        (
            "streams.rack.aware.assignment.tags",
            "zone,row, zone",
            "streams.rack.aware.assignment.tags must not contain duplicate tag keys.",
        ),
        (
            "streams.rack.aware.assignment.tags",
            "zone,,row",
            "Configuration 'streams.rack.aware.assignment.tags' values must not be empty.",
        ),
        (
            "streams.acceptable.recovery.lag",
            "x",
            "Invalid value x for configuration streams.acceptable.recovery.lag: Not a number of type LONG",
        ),
        (
            "streams.assignor.name",
            "x",
            "streams.assignor.name 'x' is not a registered task assignor. Registered assignors are: [sticky].",
        ),
        (
            "streams.session.timeout.ms",
            "60001",
            "streams.session.timeout.ms must be in the range 45000 to 60000 inclusive.",
        ),
    ],
)
def test_what_can_not_be_set_on_a_group(name, text, words):
    """The messages are Kafka's."""
    refusal = validate_group_configs(DEFAULTS, {name: text})
    assert isinstance(refusal, Refusal)
    assert (refusal.error_code, refusal.message) == (ErrorCode.INVALID_CONFIG, words)


def test_a_group_must_fit_the_broker_s_other_values():
    values = load_config(settings={"group.consumer.max.heartbeat.interval.ms": "50000"}).values
    refusal = validate_group_configs(values, {"consumer.heartbeat.interval.ms": "45000"})
    assert isinstance(refusal, Refusal)
    assert refusal.message == "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms"
    both = {"consumer.heartbeat.interval.ms": " 45000", "consumer.session.timeout.ms": "+45001"}
    assert validate_group_configs(values, both) == {
        "consumer.heartbeat.interval.ms": "45000",
        "consumer.session.timeout.ms": "45001",
    }


def test_what_is_set_on_a_share_group_is_kept_as_it_is_said():
    wanted = {
        "share.auto.offset.reset": " by_duration:PT1H",
        "share.renew.acknowledge.enable": "FALSE",
        "share.isolation.level": "read_committed",
    }
    kept = {
        "share.auto.offset.reset": "by_duration:PT1H",
        "share.renew.acknowledge.enable": "false",
        "share.isolation.level": "read_committed",
    }
    assert validate_group_configs(DEFAULTS, wanted) == kept


def test_each_kind_of_group_has_the_key_of_offloaded_assignments():
    """It has no effect: the event loop computes assignments. Groups that set it for Kafka keep it."""
    names = [f"{kind}.assignor.offload.enable" for kind in ("consumer", "share", "streams")]
    assert validate_group_configs(DEFAULTS, dict.fromkeys(names, "false")) == dict.fromkeys(names, "false")


def test_a_group_s_time_is_limited_by_the_brokers_bounds():
    """Bounds that were tightened later apply; a stored value that is no number, from another version, is ignored."""
    values = load_config(settings={"group.consumer.max.session.timeout.ms": "50000"}).values
    set_on = {
        "g": {
            "consumer.session.timeout.ms": "48000",
            "consumer.heartbeat.interval.ms": "7000",
            "consumer.assignment.interval.ms": "0",
        },
        "far": {"consumer.session.timeout.ms": "60000", "consumer.heartbeat.interval.ms": "1"},
        "odd": {"consumer.session.timeout.ms": "soon"},
    }
    image = MetadataImage(group_configs={group_id: ConfigImage(configs) for group_id, configs in set_on.items()})
    times = GroupTimes(group_settings(values), SimpleNamespace(image=image), GroupType.CONSUMER)

    def of(group_id):
        return (
            times.session_timeout_ms(group_id),
            times.heartbeat_interval_ms(group_id),
            times.assignment_interval_ms(group_id),
        )

    assert {group_id: of(group_id) for group_id in (*set_on, "other")} == {
        "g": (48_000, 7_000, 0),
        "far": (50_000, 5_000, 1_000),
        "odd": (45_000, 5_000, 1_000),
        "other": (45_000, 5_000, 1_000),
    }
