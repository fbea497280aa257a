"""Limits the topics and partitions that clients create: in total, per second, and by asking for missing topics.

Guards: no client can fill everyone's memory and disk with partitions, or keep the controller busy for minutes with
one request.

| limit | key | above it |
|---|---|---|
| partitions that a broker hosts | `lowtide.partitions.max` | POLICY_VIOLATION |
| partitions created in a second | `lowtide.partitions.created.per.second` | THROTTLING_QUOTA_EXCEEDED, or a wait |
| topics a connection creates in a second | `lowtide.auto.created.topics.per.second` | the client asks again |
| concurrent automatic topic creations | `AUTOMATIC_MAX` | the client asks again |

Older request versions wait instead of getting the error. Metadata requests create topics automatically. Internal topics
don't count. Source: KIP-599 for the errors. Kafka has no limit of partitions, and neither rate by default.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from lowtide.broker.client_waits import client_wait
from lowtide.broker.token_bucket import TokenBucket
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal
from lowtide.replication.topic_names import INTERNAL_TOPICS

if TYPE_CHECKING:
    from lowtide.broker.context import BrokerContext

PARTITIONS_MAX: Final = "lowtide.partitions.max"
PARTITIONS_RATE: Final = "lowtide.partitions.created.per.second"
AUTOMATIC_RATE: Final = "lowtide.auto.created.topics.per.second"

AUTOMATIC_MAX: Final = 200
"""The most concurrent creations of topics that clients asked for. Each is a task with a turn at the metadata store."""


class CreationLimits:
    """Counts what clients create. Used from the event loop only."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._partitions = TokenBucket(self._now_ms(), self._number(PARTITIONS_RATE))
        self._quiet_until_ms = 0
        self._automatic: WeakKeyDictionary[Any, TokenBucket] = WeakKeyDictionary()

    def check_partitions(self, topic: str, replica_count: int) -> Refusal | None:
        """Refuses with POLICY_VIOLATION if brokers would host too many partitions.

        Replicas are spread evenly, so this broker's count stands for the others.
        """
        limit, hosted = self._number(PARTITIONS_MAX), len(self._broker.replicas.partitions)
        added = -(-replica_count // max(len(self._broker.metadata.image.brokers), 1))
        if hosted + added <= limit or topic in INTERNAL_TOPICS:
            return None
        message = (
            f"A broker may host {limit} partitions ({PARTITIONS_MAX}): it has {hosted}, and would get {added} more"
        )
        return Refusal(ErrorCode.POLICY_VIOLATION, message)

    def throttle_ms(self, partition_count: int) -> int:
        """Counts the partitions as created and returns 0, or returns the milliseconds until they may be created."""
        return self._partitions.take(max(partition_count, 1), self._now_ms(), self._number(PARTITIONS_RATE))

    def throttled(self, wait_ms: int) -> Refusal:
        """Returns the refusal for request versions that have an error code for it."""
        rate = self._number(PARTITIONS_RATE)
        message = f"More than {rate} partitions were created in a second ({PARTITIONS_RATE}): try again in {wait_ms} ms"
        return Refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)

    def may_create_automatically(self, connection: object, in_progress: int) -> bool:
        """Returns whether a topic may be created now because this connection asked for it. If so, it is counted."""
        if in_progress >= AUTOMATIC_MAX:
            return False
        now_ms, rate = self._now_ms(), self._number(AUTOMATIC_RATE)
        bucket = self._automatic.get(connection)
        if bucket is None:
            bucket = self._automatic[connection] = TokenBucket(now_ms, rate)
        return bucket.take(1, now_ms, rate) == 0 and self.throttle_ms(self._number("num.partitions")) == 0

    def may_log(self) -> bool:
        """Returns whether another refused automatic creation may be logged: one per second."""
        now_ms = self._now_ms()
        if now_ms < self._quiet_until_ms:
            return False
        self._quiet_until_ms = now_ms + 1000
        return True

    def _now_ms(self) -> int:
        return self._broker.clock.monotonic_ms()

    def _number(self, name: str) -> int:
        value = self._broker.config.values[name]
        assert isinstance(value, int), name
        return value


class Throttle:
    """Applies the rate of created partitions to one request."""

    def __init__(self, limits: CreationLimits, timeout_ms: int, *, tells: bool) -> None:
        """Refuses if `tells`: the request's version has an error code.

        Otherwise it waits within `timeout_ms`, as in Kafka.
        """
        self._limits = limits
        self._left_ms = timeout_ms
        self._tells = tells
        self.throttle_ms = 0
        """After how many milliseconds the client should try again."""

    async def before(self, partition_count: int) -> Refusal | None:
        """Waits or refuses before partitions are created.

        Refusals: THROTTLING_QUOTA_EXCEEDED, or REQUEST_TIMED_OUT if the wait would be too long.
        """
        while (wait_ms := self._limits.throttle_ms(partition_count)) > 0:
            if self._tells:
                self.throttle_ms = max(self.throttle_ms, wait_ms)
                return self._limits.throttled(wait_ms)
            self._left_ms -= wait_ms
            if self._left_ms < 0:
                return Refusal(ErrorCode.REQUEST_TIMED_OUT, self._limits.throttled(wait_ms).message)
            try:
                async with client_wait():
                    await asyncio.sleep(wait_ms / 1000)
            except TimeoutError:
                return Refusal(
                    ErrorCode.REQUEST_TIMED_OUT, "The client has gone before the partitions could be created"
                )
        return None
