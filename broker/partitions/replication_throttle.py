"""The throttle of replication on one side of a broker: as leader to its followers, or as follower (KIP-73).

Rates are set on brokers (`leader.replication.throttled.rate`, `follower.replication.throttled.rate`), and the throttled
replicas on topics. Both are read when needed, so a change applies at once. A throttled follower still fetches, but no
records: log starts and high watermarks must arrive, and the leader must see that it is alive.

Decisions are in `replication/replication_quota.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from lowtide.broker.config.key import number
from lowtide.replication.replication_quota import ReplicationQuota, throttled_partitions

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.broker.config.dynamic_config import BrokerConfigs
    from lowtide.metadata.image import MetadataImage
    from lowtide.protocol.types import BrokerId
    from lowtide.runtime.clock import Clock


class ReplicationThrottle:
    """The throttle of one side."""

    __slots__ = ("_broker_id", "_clock", "_configs", "_image", "_rate_key", "_replicas_key", "quota")

    def __init__(
        self,
        side: Literal["leader", "follower"],
        configs: BrokerConfigs,
        clock: Clock,
        broker_id: BrokerId,
        image: Callable[[], MetadataImage | None],
    ) -> None:
        """`image()` returns the current metadata."""
        self._rate_key = f"{side}.replication.throttled.rate"
        self._replicas_key = f"{side}.replication.throttled.replicas"
        self._configs = configs
        self._clock = clock
        self._broker_id = broker_id
        self._image = image
        config = configs.current
        self.quota = ReplicationQuota(
            windows=number(config.values["replication.quota.window.num"]),
            window_ms=1000 * number(config.values["replication.quota.window.size.seconds"]),
        )

    def is_throttled(self, topic: str, partition: int) -> bool:
        """Returns whether this broker's replica of a partition is throttled on this side."""
        image = self._image()
        known = None if image is None else image.topics.get(topic)
        text = None if known is None else known.configs.get(self._replicas_key)
        return bool(text) and partition in throttled_partitions(text, self._broker_id)

    def record(self, topic: str, partition: int, size_bytes: int) -> None:
        """Counts bytes that a replica has fetched, whether it is in sync or not."""
        if size_bytes and self.is_throttled(topic, partition):
            self.quota.record(size_bytes, self._clock.monotonic_ms())

    def wait_ms(self, topic: str, partition: int) -> int:
        """Returns how long a replica that is not in sync must not fetch records, or 0."""
        if not self.is_throttled(topic, partition):
            return 0
        return self.quota.wait_ms(number(self._configs.current.values[self._rate_key]), self._clock.monotonic_ms())
