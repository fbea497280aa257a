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

BY_DURATION: Final = "by_duration:"
READ_COMMITTED: Final = "read_committed"


def _group(name: str, default: str, least: int, doc: str) -> ConfigKey:
    return ConfigKey(name, Type.INT, default, at_least(least), doc, scope=Scope.GROUP, broker_key=f"group.{name}")


# fmt: off
KEYS_OF_GROUPS: Final[tuple[ConfigKey, ...]] = (
    _group(ASSIGNMENT_INTERVAL, "1000", 0, "The minimum time between two assignments of the group."),
    _group(HEARTBEAT_INTERVAL, "5000", 1, "The heartbeat interval of members."),
    _group(SESSION_TIMEOUT, "45000", 1, "The time without a heartbeat after which a member leaves the group."),
    ConfigKey(DEAD_LETTER_COPIES, Type.BOOLEAN, "false", None,
              "Whether a dead letter of a share group has the key and the value of its record.", scope=Scope.GROUP),
    ConfigKey(DEAD_LETTER_TOPIC, Type.STRING, "", None,
              "The topic for dead letters about records that a share group gives up; none if empty.", scope=Scope.GROUP),
    _group(SHARE_ASSIGNMENT_INTERVAL, "1000", 0, "The minimum time between two assignments of the share group."),
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
)
# fmt: on

NOT_SERVED: Final = {
    "streams": frozenset({
        "assignment.interval.ms", "heartbeat.interval.ms", "initial.rebalance.delay.ms", "num.standby.replicas", "session.timeout.ms",
    }),
}  # fmt: skip
"""The key suffixes of group types that this broker does not support."""
