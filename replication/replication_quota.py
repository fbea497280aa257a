"""The replication throttle: which replicas it limits, and whether they exceed their rate.

A rate is measured over sliding windows, from the oldest to now, as in Kafka's `SimpleRate`. Fetches of in-sync replicas
count, but only out-of-sync replicas are delayed: otherwise a throttle would drop replicas from the ISR. Each fetch
checks before it starts, so one fetch may exceed the rate, and the average is kept.

Time is passed in, on the monotonic clock. Sources: KIP-73; Kafka's `ReplicationQuotaManager` and
`ReplicaManager.shouldLeaderThrottle`.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Container

    from lowtide.protocol.types import BrokerId

ALL_REPLICAS: Final = "*"
_EVERY_NUMBER: Final = range(2**31)


@lru_cache(maxsize=1024)
def throttled_partitions(text: str, broker_id: BrokerId) -> Container[int]:
    """Returns the partitions throttled on a broker, by `*.replication.throttled.replicas` of a topic."""
    if text.strip() == ALL_REPLICAS:
        return _EVERY_NUMBER
    pairs = (entry.strip().partition(":") for entry in text.split(",") if ":" in entry)
    return frozenset(int(number) for number, _, broker in pairs if int(broker) == broker_id)


class ReplicationQuota:
    """The bytes fetched by or for throttled replicas."""

    __slots__ = ("_samples", "_window_ms", "_windows", "total_bytes")

    def __init__(self, *, windows: int = 11, window_ms: int = 1000) -> None:
        """`replication.quota.window.num` and `replication.quota.window.size.seconds`."""
        self.total_bytes = 0
        self._windows = windows
        self._window_ms = window_ms
        self._samples: deque[list[int]] = deque()
        """For each non-empty window, oldest first: its start and its bytes."""

    def record(self, size_bytes: int, now_ms: int) -> None:
        self.total_bytes += size_bytes
        if not self._samples or now_ms - self._samples[-1][0] >= self._window_ms:
            self._samples.append([now_ms, 0])
        self._samples[-1][1] += size_bytes

    def wait_ms(self, rate: int, now_ms: int) -> int:
        """Returns how long no fetch is allowed at `rate` bytes a second; 0 if a fetch is allowed.

        Even at a rate of 0, bytes that leave the windows are forgotten and then one fetch is allowed, as in Kafka.
        """
        samples = self._samples
        while samples and now_ms - samples[0][0] >= self._windows * self._window_ms:
            samples.popleft()
        total = sum(size for _, size in samples)
        if not total:
            return 0
        oldest_ms = samples[0][0]
        if total * 1000 <= rate * max(now_ms - oldest_ms, self._window_ms):
            return 0
        forgotten_ms = oldest_ms + self._windows * self._window_ms
        even_ms = oldest_ms - (-total * 1000 // rate) if rate > 0 else forgotten_ms
        return max(min(even_ms, forgotten_ms) - now_ms, 1)
