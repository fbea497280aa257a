"""The throttle of replication on one side of a broker: what it serves to followers as leader, or what it fetches as follower (KIP-73).

Rates are set on brokers, `leader.replication.throttled.rate` and `follower.replication.throttled.rate`; the replicas that they hold for on
topics. Both are read when needed, so a change applies at once. A throttled follower continues to fetch, for nothing but what has
to arrive at once: log starts, high watermarks, that it is live.

Decisions are in `replication/replication_quota.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from lowtide.replication.replication_quota import ReplicationQuota, throttled_partitions

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.broker.config.broker_config import BrokerConfig
    from lowtide.broker.config.dynamic_config import BrokerConfigs
    from lowtide.metadata.image import MetadataImage
    from lowtide.protocol.types import BrokerId
    from lowtide.runtime.clock import Clock


class ReplicationThrottle:
    """The throttles of replication, of both sides."""

    __slots__ = ("_broker_id", "_clock", "_configs", "_image", "_rate_key", "_replicas_key", "quota")

    def __init__(
        self,
        side: Literal["leader", "follower"],
        configs: BrokerConfigs,
        clock: Clock,
        broker_id: BrokerId,
        image: Callable[[], MetadataImage | None],
    ) -> None:
        """`image()` gives the metadata in force."""
        self._rate_key = f"{side}.replication.throttled.rate"
        self._replicas_key = f"{side}.replication.throttled.replicas"
        self._configs = configs
        self._clock = clock
        self._broker_id = broker_id
        self._image = image
        config = configs.current
        self.quota = ReplicationQuota(
            windows=_number(config, "replication.quota.window.num"),
            window_ms=1000 * _number(config, "replication.quota.window.size.seconds"),
        )

    def is_throttled(self, topic: str, number: int) -> bool:
        """Whether this broker's replica of a partition is throttled on this side."""
        image = self._image()
        known = None if image is None else image.topics.get(topic)
        text = None if known is None else known.configs.get(self._replicas_key)
        return bool(text) and number in throttled_partitions(text, self._broker_id)

    def record(self, topic: str, number: int, size_bytes: int) -> None:
        """A replica has fetched so much, whether it is in sync or not."""
        if size_bytes and self.is_throttled(topic, number):
            self.quota.record(size_bytes, self._clock.monotonic_ms())

    def wait_ms(self, topic: str, number: int) -> int:
        """How long a replica that isn't in sync may not fetch records; 0 for not at all."""
        if not self.is_throttled(topic, number):
            return 0
        return self.quota.wait_ms(_number(self._configs.current, self._rate_key), self._clock.monotonic_ms())


def _number(config: BrokerConfig, name: str) -> int:
    value = config.values[name]
    assert isinstance(value, int), f"{name} is {value!r}"
    return value
