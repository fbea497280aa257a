"""The keys of a group's own configuration, as facts of Apache Kafka 4.3, and why the rest of Kafka's can't be set here.

A group that doesn't set a key follows the broker's key named beside it. A table: its order is that of the manual.
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

BY_DURATION: Final = "by_duration:"
READ_COMMITTED: Final = "read_committed"


def _group(name: str, default: str, least: int, doc: str) -> ConfigKey:
    return ConfigKey(
        name, Type.INT, default, at_least(least), doc, enforced=True, scope=Scope.GROUP, broker_key=f"group.{name}"
    )


KEYS_OF_GROUPS: Final[tuple[ConfigKey, ...]] = (
    _group(ASSIGNMENT_INTERVAL, "1000", 0, "How much time lies between two assignments of the group."),
    _group(HEARTBEAT_INTERVAL, "5000", 1, "How often a member shows that it lives."),
    _group(SESSION_TIMEOUT, "45000", 1, "After how long without a sign a member is out."),
    _group(SHARE_ASSIGNMENT_INTERVAL, "1000", 0, "How much time lies between two assignments of a share group."),
    ConfigKey(
        OFFSET_RESET,
        Type.STRING,
        "latest",
        Matching(f"latest|earliest|{BY_DURATION}.+", f"latest, earliest or {BY_DURATION} with an ISO-8601 duration"),
        "Where a share group begins that has no start offset in a partition.",
        enforced=True,
        scope=Scope.GROUP,
    ),
    _group(DELIVERY_LIMIT, "5", 2, "How often a record is delivered before it is given up."),
    _group(SHARE_HEARTBEAT_INTERVAL, "5000", 1, "How often a member of a share group shows that it lives."),
    ConfigKey(
        ISOLATION_LEVEL,
        Type.STRING,
        "read_uncommitted",
        OneOf((READ_COMMITTED, "read_uncommitted")),
        "Whether a share group gets only the records of transactions that are committed.",
        enforced=True,
        scope=Scope.GROUP,
    ),
    _group(RECORD_LOCKS, "2000", 100, "How many records of a partition may be out at once."),
    _group(LOCK_DURATION, "30000", 1000, "How long a record is out before it is delivered again."),
    ConfigKey(
        RENEW,
        Type.BOOLEAN,
        "true",
        None,
        "Whether members may ask for more time for a record.",
        enforced=True,
        scope=Scope.GROUP,
    ),
    _group(SHARE_SESSION_TIMEOUT, "45000", 1, "After how long without a sign a member of a share group is out."),
)

NOT_SERVED: Final = {
    "streams": frozenset({
        "assignment.interval.ms", "heartbeat.interval.ms", "initial.rebalance.delay.ms", "num.standby.replicas", "session.timeout.ms",
    }),
}  # fmt: skip
"""The kinds of groups that this broker doesn't serve, with the rests of their keys' names."""
