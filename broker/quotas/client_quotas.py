"""Counts what clients use of their quotas, and computes how long a client must wait.

Guards: the memory is limited, even if clients invent client ids: above `RATES_MAX` the least recently used rate is
dropped. Pure except for the image, which it reads for each request, so that a change of quotas applies at once. Source:
Kafka's `ClientQuotaManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from lowtide.broker.quotas.creation_rates import CREATION_RATE, CreationRates
from lowtide.broker.quotas.quota_entity import (
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    NAME_LENGTH_MAX,
    REQUEST_PERCENTAGE,
)
from lowtide.broker.quotas.quota_limits import QuotaLimits, QuotaShare
from lowtide.broker.quotas.sampled_rate import SampledRate, Window
from lowtide.broker.token_bucket import TokenBucket
from lowtide.metadata.config_image import ConfigImage

RATES_MAX: Final = 10_000
"""The most remembered rates, about five megabytes."""

SHARES_MAX: Final = 10_000
"""The most clients whose quotas are remembered, to save a search per request."""

REQUEST_THROTTLE_MAX_MS: Final = 1_000
"""The longest wait for request time. Source: KIP-124."""


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class QuotaUse(NamedTuple):
    """The present use of a shared quota. A name that doesn't matter is empty."""

    user: str
    client_id: str
    per_second: float
    wait_ms: float
    """The mean of the waits asked of clients, or 0 if there were none."""


class _Metered(SampledRate):
    """A rate, and the waits that it caused."""

    __slots__ = ("asked", "waits_ms")

    def __init__(self) -> None:
        super().__init__()
        self.asked: SampledRate | None = None
        """How many waits there were, or None before the first one, like `waits_ms`."""
        self.waits_ms: SampledRate | None = None

    def note_wait(self, wait_ms: int, now_ms: int, window: Window) -> None:
        """Counts a wait asked of a client."""
        if self.asked is None or self.waits_ms is None:
            self.asked, self.waits_ms = SampledRate(), SampledRate()
        self.asked.record(1, now_ms, window)
        self.waits_ms.record(wait_ms, now_ms, window)

    def mean_wait_ms(self, now_ms: int, window: Window) -> float:
        """Returns the mean wait of the window, or 0."""
        count = 0.0 if self.asked is None else self.asked.total(now_ms, window)
        return self.waits_ms.total(now_ms, window) / count if count and self.waits_ms is not None else 0.0


class RecentlyUsed(Generic[K, V]):
    """At most `most` values by key. Beyond that, the least recently used one is dropped."""

    __slots__ = ("_by_key", "_most")

    def __init__(self, most: int) -> None:
        self._by_key: dict[K, V] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._by_key)

    def latest(self) -> Iterator[tuple[K, V]]:
        """Yields all keys and values, the most recently used first."""
        return reversed(self._by_key.items())

    def of(self, key: K, make: Callable[[], V]) -> V:
        """Returns the value of a key, or makes it, as the most recently used one."""
        value = self._by_key.pop(key, None)
        if value is None:
            value = make()
            if len(self._by_key) >= self._most:
                del self._by_key[next(iter(self._by_key))]
        self._by_key[key] = value
        return value


class ClientQuotas:
    """Counts the use of quotas on this broker. Called from the event loop only."""

    def __init__(
        self,
        configs: Callable[[], Mapping[str, ConfigImage]],
        window: Callable[[], Window],
        mutation_window: Callable[[], Window],
        rates: Callable[[], CreationRates] = CreationRates,
    ) -> None:
        """Reads the quotas from `configs`, the metadata image's present ones.

        `window` is used by all quotas except the one of changed partitions, which uses `mutation_window`. `rates`
        returns the configured rates of new connections.
        """
        self._configs = configs
        self._window = window
        self._mutation_window = mutation_window
        self._creation_rates = rates
        self._buckets: RecentlyUsed[tuple[str | None, str | None], TokenBucket] = RecentlyUsed(RATES_MAX)
        self._seen: Mapping[str, ConfigImage] = {}
        self._limits = QuotaLimits({})
        self._shares: dict[tuple[str, str, str], QuotaShare | None] = {}
        self._rates: RecentlyUsed[tuple[str, str | None, str | None], _Metered] = RecentlyUsed(RATES_MAX)

    @property
    def has_clients(self) -> bool:
        """Whether any user or client id has a quota now."""
        return self._current().has_clients

    def limit(self, key: str, user: str, client_id: str) -> float | None:
        """Returns what a client may use of this quota per second, or None without a limit."""
        share = self._share(key, user, client_id)
        return None if share is None else share.limit

    def use(self, key: str, user: str, client_id: str, amount: float, now_ms: int) -> int:
        """Counts what a client used. Returns how many milliseconds it must wait, 0 within its quota."""
        share = self._share(key, user, client_id)
        if share is None:
            return 0
        rate, window = self._rates.of((key, share.user, share.client_id), _Metered), self._window()
        rate.record(amount, now_ms, window)
        throttle_ms = rate.throttle_ms(share.limit, now_ms, window)
        if throttle_ms:
            if key == REQUEST_PERCENTAGE:
                throttle_ms = min(throttle_ms, REQUEST_THROTTLE_MAX_MS)
            rate.note_wait(throttle_ms, now_ms, window)
        return throttle_ms

    def used(self, key: str, now_ms: int, most: int) -> list[QuotaUse]:
        """Returns how much of this quota the `most` latest clients use within its window, one row per pair of names."""
        window, found = self._window(), dict[tuple[str, str], QuotaUse]()
        latest = ((names, rate) for names, rate in self._rates.latest() if names[0] == key)
        for (_, user, client_id), rate in islice(latest, most):
            names = user or "", client_id or ""
            if names not in found and rate.total(now_ms, window):
                found[names] = QuotaUse(*names, rate.per_second(now_ms, window), rate.mean_wait_ms(now_ms, window))
        return list(found.values())

    def change_partitions(self, user: str, client_id: str, count: int, now_ms: int, *, force: bool) -> int:
        """Lets a client change so many partitions, as described in `mutation_quota`."""
        share = self._share(CONTROLLER_MUTATION_RATE, user, client_id)
        if share is None:
            return 0
        window = self._mutation_window()
        burst_s = window.samples * window.sample_ms / 1000
        bucket = self._buckets.of((share.user, share.client_id), lambda: TokenBucket(now_ms, share.limit, burst_s))
        return bucket.spend(count, now_ms, share.limit) if force else bucket.take(count, now_ms, share.limit)

    def connect(self, address: str, listener: str, now_ms: int) -> int:
        """Counts a connection from an address. Returns how many milliseconds it waits until it is served."""
        limit, rates = self._current().connection_rate(address), self._creation_rates()
        waits = [0] if limit is None else [self._connect((CONNECTION_CREATION_RATE, address, None), limit, now_ms)]
        for name, most in rates.limits_at(listener):
            wait_ms = self._connect((CREATION_RATE, name, None), most, now_ms)
            if name is not None or listener != rates.brokers_listener:
                waits.append(wait_ms)
        return max(waits)

    def _connect(self, name: tuple[str, str | None, str | None], limit: float, now_ms: int) -> int:
        rate, window = self._rates.of(name, _Metered), self._window()
        rate.record(1, now_ms, window)
        return rate.throttle_ms(limit, now_ms, window)

    def _current(self) -> QuotaLimits:
        """Returns the limits of the newest image."""
        configs = self._configs()
        if configs is not self._seen:
            self._seen = configs
            self._limits = QuotaLimits.of(configs)
            self._shares.clear()
        return self._limits

    def _share(self, key: str, user: str, client_id: str) -> QuotaShare | None:
        # Ids may have 32 KiB. No quota can be set for a name above the limit, so what is cut off never matters.
        client_id = client_id[: NAME_LENGTH_MAX + 1]
        limits, name = self._current(), (key, user, client_id)
        try:
            return self._shares[name]
        except KeyError:
            if len(self._shares) >= SHARES_MAX:
                self._shares.clear()
            share = self._shares[name] = limits.share(key, user, client_id)
            return share
