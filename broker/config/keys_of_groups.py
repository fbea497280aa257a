"""The keys of a group's own configuration, as facts of Apache Kafka 4.3, and why the rest of Kafka's can't be set here.

A group that doesn't set a key follows the broker's key named beside it. A table: its order is that of the manual.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.config.key import ConfigKey, Scope, Type, at_least

ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"


def _group(name: str, default: str, least: int, doc: str) -> ConfigKey:
    return ConfigKey(name, Type.INT, default, at_least(least), doc, enforced=True, scope=Scope.GROUP, broker_key=f"group.{name}")


KEYS_OF_GROUPS: Final[tuple[ConfigKey, ...]] = (
    _group(ASSIGNMENT_INTERVAL, "1000", 0, "How much time lies between two assignments of the group."),
    _group(HEARTBEAT_INTERVAL, "5000", 1, "How often a member shows that it lives."),
    _group(SESSION_TIMEOUT, "45000", 1, "After how long without a sign a member is out."),
)

NOT_SERVED: Final = {
    "share": frozenset({
        "assignment.interval.ms", "auto.offset.reset", "delivery.count.limit", "heartbeat.interval.ms", "isolation.level",
        "partition.max.record.locks", "record.lock.duration.ms", "renew.acknowledge.enable", "session.timeout.ms",
    }),
    "streams": frozenset({
        "assignment.interval.ms", "heartbeat.interval.ms", "initial.rebalance.delay.ms", "num.standby.replicas", "session.timeout.ms",
    }),
}  # fmt: skip
"""The kinds of groups that this broker doesn't serve, with the rests of their keys' names."""
