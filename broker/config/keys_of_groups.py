"""The keys of a group's own configuration, as in Apache Kafka 4.4, in the order of the manual.

A group that does not set a key uses the broker's key beside it.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.config.key import ConfigKey, Matching, OneOf, Scope, Type, at_least

ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"

SHARE_ASSIGNMENT_INTERVAL: Final = "share.assignment.interval.ms"
SHARE_HEARTBEAT_INTERVAL: Final = "share.heartbeat.interval.ms"
SHARE_SESSION_TIMEOUT: Final = "share.session.timeout.ms"
OFFSET_RESET: Final = "share.auto.offset.reset"
ISOLATION_LEVEL: Final = "share.isolation.level"
LOCK_DURATION: Final = "share.record.lock.duration.ms"
DELIVERY_LIMIT: Final = "share.delivery.count.limit"
RECORD_LOCKS: Final = "share.partition.max.record.locks"
RENEW: Final = "share.renew.acknowledge.enable"
DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
DEAD_LETTER_COPIES: Final = "errors.deadletterqueue.copy.record.enable"

STREAMS_ASSIGNMENT_INTERVAL: Final = "streams.assignment.interval.ms"
STREAMS_HEARTBEAT_INTERVAL: Final = "streams.heartbeat.interval.ms"
STREAMS_SESSION_TIMEOUT: Final = "streams.session.timeout.ms"
STREAMS_STANDBY_REPLICAS: Final = "streams.num.standby.replicas"
STREAMS_WARMUP_REPLICAS: Final = "streams.num.warmup.replicas"
STREAMS_OFFSET_INTERVAL: Final = "streams.task.offset.interval.ms"
STREAMS_RACK_TAGS: Final = "streams.rack.aware.assignment.tags"
STREAMS_ASSIGNOR: Final = "streams.assignor.name"

BY_DURATION: Final = "by_duration:"
READ_COMMITTED: Final = "read_committed"


def _group(name: str, default: str, least: int, doc: str, *, internal: bool = False) -> ConfigKey:
    allowed, broker_key = at_least(least), f"group.{name}"
    return ConfigKey(name, Type.INT, default, allowed, doc, internal=internal, scope=Scope.GROUP, broker_key=broker_key)


def _offload(kind: str) -> ConfigKey:
    """Returns the key that moves a group's assignments to another thread, which no broker of Lowtide has."""
    name, doc = f"{kind}.assignor.offload.enable", "Whether assignments are computed in a background thread."
    broker_key = f"group.{name}"
    return ConfigKey(
        name, Type.BOOLEAN, "true", None, doc, enforced=False, internal=True, scope=Scope.GROUP, broker_key=broker_key
    )


# fmt: off
KEYS_OF_GROUPS: Final[tuple[ConfigKey, ...]] = (
    _group(ASSIGNMENT_INTERVAL, "1000", 0, "The minimum time between two assignments of the group."),
    _offload("consumer"),
    _group(HEARTBEAT_INTERVAL, "5000", 1, "The heartbeat interval of members."),
    _group(SESSION_TIMEOUT, "45000", 1, "The time without a heartbeat after which a member leaves the group."),
    ConfigKey(DEAD_LETTER_COPIES, Type.BOOLEAN, "false", None,
              "Whether a dead letter of a share group has the key and the value of its record.", scope=Scope.GROUP),
    ConfigKey(DEAD_LETTER_TOPIC, Type.STRING, "", None,
              "The topic for dead letters about records that a share group gives up; none if empty.", scope=Scope.GROUP),
    _group(SHARE_ASSIGNMENT_INTERVAL, "1000", 0, "The minimum time between two assignments of the share group."),
    _offload("share"),
    ConfigKey(OFFSET_RESET, Type.STRING, "latest",
              Matching(f"latest|earliest|{BY_DURATION}.+", f"latest, earliest or {BY_DURATION} with an ISO-8601 duration"),
              "Where a share group starts in a partition without a start offset.", scope=Scope.GROUP),
    _group(DELIVERY_LIMIT, "5", 2, "The maximum number of delivery attempts for a record."),
    _group(SHARE_HEARTBEAT_INTERVAL, "5000", 1, "The heartbeat interval of members of the share group."),
    ConfigKey(ISOLATION_LEVEL, Type.STRING, "read_uncommitted", OneOf((READ_COMMITTED, "read_uncommitted")),
              "Whether a share group receives only records of committed transactions.", scope=Scope.GROUP),
    _group(RECORD_LOCKS, "2000", 100, "The maximum number of locked records in a share partition."),
    _group(LOCK_DURATION, "30000", 1000, "The time for which a delivered record stays locked before it is delivered again."),
    ConfigKey(RENEW, Type.BOOLEAN, "true", None, "Whether members can extend the lock of a record.", scope=Scope.GROUP),
    _group(SHARE_SESSION_TIMEOUT, "45000", 1, "The time without a heartbeat after which a member leaves the share group."),
    ConfigKey("streams.acceptable.recovery.lag", Type.LONG, "10000", at_least(0), "The lag in offsets at which a copy of a task counts as caught up.",
              internal=True, scope=Scope.GROUP, broker_key="group.streams.acceptable.recovery.lag"),
    _group(STREAMS_ASSIGNMENT_INTERVAL, "1000", 0, "The minimum time between two assignments of the streams group."),
    ConfigKey(STREAMS_ASSIGNOR, Type.STRING, "sticky", OneOf(("sticky",)), "The task assignor of the streams group.",
              scope=Scope.GROUP, broker_key="group.streams.assignors"),
    _offload("streams"),
    _group(STREAMS_HEARTBEAT_INTERVAL, "5000", 1, "The heartbeat interval of members of the streams group."),
    _group("streams.initial.rebalance.delay.ms", "3000", 0, "The time that the empty group waits for more members before its first rebalance."),
    _group(STREAMS_STANDBY_REPLICAS, "0", 0, "The number of standby replicas for each task."),
    _group(STREAMS_WARMUP_REPLICAS, "2", 0, "The maximum number of warm-up tasks of the group.", internal=True),
    ConfigKey(STREAMS_RACK_TAGS, Type.LIST, "", None, "The client tags over which standby tasks are distributed.",
              scope=Scope.GROUP, broker_key="group.streams.rack.aware.assignment.tags"),
    _group(STREAMS_SESSION_TIMEOUT, "45000", 1, "The time without a heartbeat after which a member leaves the streams group."),
    _group(STREAMS_OFFSET_INTERVAL, "60000", 1, "The interval at which members report the offsets of their tasks.", internal=True),
)
# fmt: on
