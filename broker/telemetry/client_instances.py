"""Clients that push their metrics (KIP-714): what each is to push and when it may, and the series that it has pushed.

A client asks for its subscription first; the id that it is given stands for what it is to push, so that a push after a
change of subscriptions is refused with UNKNOWN_SUBSCRIPTION_ID, and the client asks again. Requests that come before
their time are refused with THROTTLING_QUOTA_EXCEEDED.

Bounds: `CLIENTS_MAX` clients, of which the one that was silent longest gives way; `SERIES_PER_CLIENT_MAX` series of
each, and `SERIES_MAX` of all. A client that has been silent for `SILENT_INTERVALS` of its intervals is forgotten. Pure:
time is passed in.

Source: Kafka's `ClientMetricsManager`, `ClientMetricsInstance`.
"""

from __future__ import annotations

import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.broker.config.client_metrics import ALL_METRICS, INTERVAL_MS_DEFAULT, MetricsSubscription, subscription_of
from lowtide.broker.telemetry.client_facts import SOURCE
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal

if TYPE_CHECKING:
    from lowtide.broker.telemetry.otlp import Attributes, Point
    from lowtide.metadata.config_image import ConfigImage

CLIENTS_MAX: Final = 1_000
SERIES_PER_CLIENT_MAX: Final = 500
SERIES_MAX: Final = 20_000
"""Some 12 megabytes."""

SERIES_OF_SOURCE: Final = 15_000
"""Of the clients at one address, so that they leave room for those of others."""

SILENT_INTERVALS: Final = 3

COMPRESSIONS: Final = (4, 3, 1, 2)
"""zstd, lz4, gzip, snappy: the preferred one first. None needs no mention. Source: Kafka's `SUPPORTED_COMPRESSION_TYPES`."""

_ASKS_AGAIN: Final = frozenset({ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})
"""Errors after which a client may ask for its subscription before its time."""

_NEVER_MS: Final = -(1 << 62)


class ClientSeries(msgspec.Struct, frozen=True):
    """A number that a client has pushed last; of a counter all that was counted since it began."""

    name: str
    unit: str
    is_counter: bool
    attributes: Attributes
    value: float


class Wanted(msgspec.Struct, frozen=True):
    """What a client is to push."""

    subscription_id: int
    interval_ms: int
    metrics: tuple[str, ...]


class ClientInstance:
    """One client, by the id that it was given."""

    __slots__ = ("asked_ms", "facts", "last_error", "pushed_ms", "series", "terminating", "version", "wanted")

    def __init__(self, facts: Mapping[str, str], wanted: Wanted, version: object) -> None:
        self.facts = facts
        self.wanted = wanted
        self.version = version
        """The subscriptions by which `wanted` was found."""
        self.asked_ms = self.pushed_ms = _NEVER_MS
        self.last_error = ErrorCode.NONE
        self.terminating = False
        self.series: dict[tuple[str, Attributes], ClientSeries] = {}

    @property
    def seen_ms(self) -> int:
        """When it sent anything last, on the monotonic clock."""
        return max(self.asked_ms, self.pushed_ms)

    def is_silent(self, now_ms: int) -> bool:
        """Whether it has sent nothing for so long that it is taken to be gone."""
        return self.seen_ms != _NEVER_MS and now_ms - self.seen_ms > SILENT_INTERVALS * self.wanted.interval_ms

    def take(self, points: Sequence[Point], room: int) -> int:
        """Keep what was pushed: at most `room` new series. Returns how many are new."""
        new = 0
        for point in points:
            key = (point.name, point.attributes)
            before = self.series.get(key)
            if before is None:
                if new >= room or len(self.series) >= SERIES_PER_CLIENT_MAX:
                    continue
                new += 1
            value = point.value + (before.value if before is not None and point.is_delta else 0.0)
            self.series[key] = ClientSeries(point.name, point.unit, point.is_counter, point.attributes, value)
        return new


class ClientInstances:
    """All clients of a broker."""

    def __init__(self) -> None:
        self._clients: OrderedDict[bytes, ClientInstance] = OrderedDict()
        """The one that was seen last comes last."""
        self._configs: Mapping[str, ConfigImage] = {}
        self._subscriptions: list[MetricsSubscription] = []
        self._series_count = 0
        self.pushes = 0
        self.refused = 0
        """Requests that were refused, whatever the reason."""

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def series_count(self) -> int:
        """Of all clients."""
        return self._series_count

    def series(self) -> Iterator[tuple[Mapping[str, str], ClientSeries]]:
        """All series that are kept, each with the facts of its client: `client_id`, `client_instance_id`, and so on."""
        for client in list(self._clients.values()):
            for series in list(client.series.values()):
                yield client.facts, series

    def follow(self, configs: Mapping[str, ConfigImage]) -> None:
        """Go by these subscriptions from now on."""
        if configs is self._configs:
            return
        self._configs = configs
        found = (subscription_of(each.configs) for each in configs.values())
        self._subscriptions = [each for each in found if not isinstance(each, Refusal)]

    def ask(self, instance_id: bytes, facts: Mapping[str, str], now_ms: int) -> Wanted | ErrorCode:
        """What a client is to push. Errors: THROTTLING_QUOTA_EXCEEDED before its time."""
        self._forget_silent(now_ms)
        client = self._client(instance_id, facts)
        if now_ms - client.seen_ms < client.wanted.interval_ms and client.last_error not in _ASKS_AGAIN:
            self.refused += 1
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        client.asked_ms = now_ms
        client.last_error = ErrorCode.NONE
        return client.wanted

    def check_push(
        self, instance_id: bytes, facts: Mapping[str, str], push: Push, now_ms: int
    ) -> ClientInstance | ErrorCode:
        """The client whose metrics are to be read, or why they are not taken.

        Errors: INVALID_REQUEST after its end, THROTTLING_QUOTA_EXCEEDED before its time, UNKNOWN_SUBSCRIPTION_ID,
        UNSUPPORTED_COMPRESSION_TYPE, TELEMETRY_TOO_LARGE, in this order.
        """
        client = self._client(instance_id, facts)
        error = _refusal(client, push, now_ms)
        client.last_error = error
        if error != ErrorCode.NONE:
            self.refused += 1
            return error
        client.terminating = push.is_terminating
        self.pushes += 1
        return client

    def take(self, client: ClientInstance, points: Sequence[Point]) -> None:
        """Keep what a client has pushed; one that was forgotten meanwhile changes nothing that is seen."""
        source = client.facts.get(SOURCE)
        of_source = sum(len(each.series) for each in self._clients.values() if each.facts.get(SOURCE) == source)
        new = client.take(points, min(SERIES_MAX - self._series_count, SERIES_OF_SOURCE - of_source))
        if any(each is client for each in self._clients.values()):
            self._series_count += new

    def _client(self, instance_id: bytes, facts: Mapping[str, str]) -> ClientInstance:
        """The client of this id, as the present subscriptions mean it."""
        client = self._clients.get(instance_id)
        if client is None:
            client = self._clients[instance_id] = ClientInstance(facts, self._wanted(instance_id, facts), self._configs)
            while len(self._clients) > CLIENTS_MAX:
                self._drop(self._giving_way())
        elif client.version is not self._configs:
            client.wanted, client.version = self._wanted(instance_id, client.facts), self._configs
        self._clients.move_to_end(instance_id)
        return client

    def _giving_way(self) -> bytes:
        """The client that was seen longest ago at the address that has the most."""
        sources = Counter(each.facts.get(SOURCE) for each in self._clients.values())
        most, _ = sources.most_common(1)[0]
        return next(instance_id for instance_id, each in self._clients.items() if each.facts.get(SOURCE) == most)

    def _wanted(self, instance_id: bytes, facts: Mapping[str, str]) -> Wanted:
        meant = [each for each in self._subscriptions if each.means(facts)]
        metrics = tuple(dict.fromkeys(name for each in meant for name in each.metrics))
        if ALL_METRICS in metrics:
            metrics = (ALL_METRICS,)
        interval_ms = min((each.interval_ms for each in meant), default=INTERVAL_MS_DEFAULT)
        digest = zlib.crc32(repr((metrics, interval_ms)).encode(), zlib.crc32(instance_id))
        return Wanted(digest - (1 << 32) if digest >= 1 << 31 else digest, interval_ms, metrics)

    def _forget_silent(self, now_ms: int) -> None:
        while self._clients:
            instance_id, client = next(iter(self._clients.items()))
            if not client.is_silent(now_ms):
                return
            self._drop(instance_id)

    def forget_silent(self, now_ms: int) -> None:
        """Forget all that are silent, for those who look at what they pushed.

        A client that asks looks at the oldest alone.
        """
        for instance_id in [each for each, client in self._clients.items() if client.is_silent(now_ms)]:
            self._drop(instance_id)

    def _drop(self, instance_id: bytes) -> None:
        self._series_count -= len(self._clients.pop(instance_id).series)


class Push(msgspec.Struct, frozen=True):
    """What of a push decides whether it is taken."""

    subscription_id: int
    compression: int
    size_bytes: int
    is_terminating: bool
    bytes_max: int


def _refusal(client: ClientInstance, push: Push, now_ms: int) -> ErrorCode:
    if client.terminating:
        return ErrorCode.INVALID_REQUEST
    may_push = client.asked_ms > client.pushed_ms or now_ms - client.pushed_ms >= client.wanted.interval_ms
    if may_push:
        client.pushed_ms = now_ms
    elif not push.is_terminating:
        return ErrorCode.THROTTLING_QUOTA_EXCEEDED
    if push.subscription_id != client.wanted.subscription_id:
        return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    if push.compression and push.compression not in COMPRESSIONS:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return ErrorCode.TELEMETRY_TOO_LARGE if push.size_bytes > push.bytes_max else ErrorCode.NONE
