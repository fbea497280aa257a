"""What clients have used of their quotas, and how long one that has used too much must wait.

Guards: the memory is bounded, also against clients that invent client ids: beyond `RATES_MAX` rates the least recently
used is forgotten.

Pure but for the image, which it looks at for each request: a change of quotas holds at once. Source: Kafka's
`ClientQuotaManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from lowtide.broker.quotas.creation_rates import CREATION_RATE, CreationRates
from lowtide.broker.quotas.quota_entity import CONNECTION_CREATION_RATE, CONTROLLER_MUTATION_RATE, REQUEST_PERCENTAGE
from lowtide.broker.quotas.quota_limits import QuotaLimits, Share
from lowtide.broker.quotas.recent import Recent
from lowtide.broker.quotas.sampled_rate import SampledRate, Window
from lowtide.broker.token_bucket import TokenBucket
from lowtide.metadata.config_image import ConfigImage

RATES_MAX: Final = 10_000
"""Rates that are remembered, of as many clients and quotas: some five megabytes."""

SHARES_MAX: Final = 10_000
"""Clients whose quotas are remembered, so that they are not looked up for each request."""

REQUEST_THROTTLE_MAX_MS: Final = 1_000
"""The longest wait for request time. Source: KIP-124."""


class Use(NamedTuple):
    """What those who share a quota use of it now. A name is empty where it doesn't matter."""

    user: str
    client_id: str
    per_second: float
    wait_ms: float
    """The mean of what they were asked to wait; 0 if they weren't."""


class _Metered(SampledRate):
    """A rate, and what was asked to be waited for it."""

    __slots__ = ("asked", "waits_ms")

    def __init__(self) -> None:
        super().__init__()
        self.asked: SampledRate | None = None
        """How often; None before the first time, as the next."""
        self.waits_ms: SampledRate | None = None

    def note_wait(self, wait_ms: int, now_ms: int, window: Window) -> None:
        """A client is asked to wait for so long."""
        if self.asked is None or self.waits_ms is None:
            self.asked, self.waits_ms = SampledRate(), SampledRate()
        self.asked.record(1, now_ms, window)
        self.waits_ms.record(wait_ms, now_ms, window)

    def mean_wait_ms(self, now_ms: int, window: Window) -> float:
        """Of the window; 0 where there was none."""
        count = 0.0 if self.asked is None else self.asked.total(now_ms, window)
        return self.waits_ms.total(now_ms, window) / count if count and self.waits_ms is not None else 0.0


class ClientQuotas:
    """The use of quotas on this broker. From the event loop only."""

    def __init__(
        self,
        configs: Callable[[], Mapping[str, ConfigImage]],
        window: Callable[[], Window],
        mutation_window: Callable[[], Window],
        rates: Callable[[], CreationRates] = CreationRates,
    ) -> None:
        """`configs` returns what the metadata image has now; the windows are those of all quotas, and of changed partitions.

        `rates` are those of new connections by configuration.
        """
        self._configs = configs
        self._window = window
        self._mutation_window = mutation_window
        self._creation_rates = rates
        self._buckets: Recent[tuple[str | None, str | None], TokenBucket] = Recent(RATES_MAX)
        self._seen: Mapping[str, ConfigImage] = {}
        self._limits = QuotaLimits({})
        self._shares: dict[tuple[str, str, str], Share | None] = {}
        self._rates: Recent[tuple[str, str | None, str | None], _Metered] = Recent(RATES_MAX)

    @property
    def has_clients(self) -> bool:
        """Whether any user or client id has a quota now."""
        return self._current().has_clients

    def limit(self, key: str, user: str, client_id: str) -> float | None:
        """What a client may use of this quota in a second; None where it is not limited."""
        share = self._share(key, user, client_id)
        return None if share is None else share.limit

    def use(self, key: str, user: str, client_id: str, amount: float, now_ms: int) -> int:
        """Count what a client has used; returns for how many milliseconds it must wait, 0 within its quota."""
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

    def used(self, key: str, now_ms: int, most: int) -> list[Use]:
        """What is used of this quota, by those `most` who used something in its window most recently; each pair of names once."""
        window, found = self._window(), dict[tuple[str, str], Use]()
        latest = ((names, rate) for names, rate in self._rates.latest() if names[0] == key)
        for (_, user, client_id), rate in islice(latest, most):
            names = user or "", client_id or ""
            if names not in found and rate.total(now_ms, window):
                found[names] = Use(*names, rate.per_second(now_ms, window), rate.mean_wait_ms(now_ms, window))
        return list(found.values())

    def change_partitions(self, user: str, client_id: str, count: int, now_ms: int, *, force: bool) -> int:
        """Let a client change so many partitions; see `mutation_quota.admit`."""
        share = self._share(CONTROLLER_MUTATION_RATE, user, client_id)
        if share is None:
            return 0
        window = self._mutation_window()
        burst_s = window.samples * window.sample_ms / 1000
        bucket = self._buckets.of((share.user, share.client_id), lambda: TokenBucket(now_ms, share.limit, burst_s))
        return bucket.spend(count, now_ms, share.limit) if force else bucket.take(count, now_ms, share.limit)

    def connect(self, address: str, listener: str, now_ms: int) -> int:
        """Count a connection of an address; returns for how many milliseconds it is to wait until it is served."""
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
        """The limits of the newest image."""
        configs = self._configs()
        if configs is not self._seen:
            self._seen = configs
            self._limits = QuotaLimits.of(configs)
            self._shares.clear()
        return self._limits

    def _share(self, key: str, user: str, client_id: str) -> Share | None:
        limits, name = self._current(), (key, user, client_id)
        try:
            return self._shares[name]
        except KeyError:
            if len(self._shares) >= SHARES_MAX:
                self._shares.clear()
            share = self._shares[name] = limits.share(key, user, client_id)
            return share
