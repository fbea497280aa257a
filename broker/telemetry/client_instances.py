"""Tracks clients that push metrics (KIP-714): what each should push and when, and the series that it pushed.

A client first asks for its subscription. The id that it gets stands for the metrics to push. A push after a change of
subscriptions is refused with UNKNOWN_SUBSCRIPTION_ID, and the client asks again. Requests before their time are refused
with THROTTLING_QUOTA_EXCEEDED.

The memory is limited to `CLIENTS_MAX` clients, `SERIES_PER_CLIENT_MAX` series each and `SERIES_MAX` in total. Above
that, the oldest client of the address with the most clients is dropped. So is a client that was silent for
`SILENT_INTERVALS` intervals. Pure: time is passed in. Source: Kafka's `ClientMetricsManager`, `ClientMetricsInstance`.
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
"""About 12 MB."""

SERIES_OF_SOURCE: Final = 15_000
"""The maximum number of series of clients at one address, to leave room for others."""

SILENT_INTERVALS: Final = 3

COMPRESSIONS: Final = (4, 3, 1, 2)
"""zstd, lz4, gzip, snappy, in order of preference. "None" isn't listed. Source: Kafka's
`SUPPORTED_COMPRESSION_TYPES`."""

_ASKS_AGAIN: Final = frozenset({ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})
"""Errors after which a client may ask for its subscription early."""

_NEVER_MS: Final = -(1 << 62)


class ClientSeries(msgspec.Struct, frozen=True):
    """The last number that a client pushed. For a counter it is the total since its start."""

    name: str
    unit: str
    is_counter: bool
    attributes: Attributes
    value: float


class PushSubscription(msgspec.Struct, frozen=True):
    """What a client should push."""

    subscription_id: int
    interval_ms: int
    metrics: tuple[str, ...]


class ClientInstance:
    """A client, by its assigned id."""

    __slots__ = ("asked_ms", "facts", "last_error", "pushed_ms", "series", "terminating", "version", "wanted")

    def __init__(self, facts: Mapping[str, str], wanted: PushSubscription, version: object) -> None:
        self.facts = facts
        self.wanted = wanted
        self.version = version
        """The subscriptions from which `wanted` was derived."""
        self.asked_ms = self.pushed_ms = _NEVER_MS
        self.last_error = ErrorCode.NONE
        self.terminating = False
        self.series: dict[tuple[str, Attributes], ClientSeries] = {}

    @property
    def seen_ms(self) -> int:
        """When it last sent anything, by monotonic time."""
        return max(self.asked_ms, self.pushed_ms)

    def is_silent(self, now_ms: int) -> bool:
        """Returns whether it was silent for so long that it is considered gone."""
        return self.seen_ms != _NEVER_MS and now_ms - self.seen_ms > SILENT_INTERVALS * self.wanted.interval_ms

    def may_push(self, now_ms: int) -> bool:
        """Returns whether it asked for its subscription since its last push, or an interval has passed."""
        return self.asked_ms > self.pushed_ms or now_ms - self.pushed_ms >= self.wanted.interval_ms

    def take(self, points: Sequence[Point], room: int) -> int:
        """Keeps pushed points, with at most `room` new series. Returns the number of new series."""
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
    """Tracks all clients of a broker."""

    def __init__(self) -> None:
        self._clients: OrderedDict[bytes, ClientInstance] = OrderedDict()
        """Ordered by when clients were last seen."""
        self._configs: Mapping[str, ConfigImage] = {}
        self._subscriptions: list[MetricsSubscription] = []
        self.series_count = 0
        """The number of series of all clients."""
        self.pushes = 0
        self.refused = 0
        """The number of requests refused for any reason."""

    def __len__(self) -> int:
        return len(self._clients)

    def series(self) -> Iterator[tuple[Mapping[str, str], ClientSeries]]:
        """Yields all series with the facts of their clients: `client_id`, `client_instance_id` and so on."""
        for client in list(self._clients.values()):
            for series in list(client.series.values()):
                yield client.facts, series

    def follow(self, configs: Mapping[str, ConfigImage]) -> None:
        if configs is self._configs:
            return
        self._configs = configs
        found = (subscription_of(each.configs) for each in configs.values())
        self._subscriptions = [each for each in found if not isinstance(each, Refusal)]

    def ask(self, instance_id: bytes, facts: Mapping[str, str], now_ms: int) -> PushSubscription | ErrorCode:
        """Returns what a client should push. Errors: THROTTLING_QUOTA_EXCEEDED before its time."""
        self._forget_silent(now_ms)
        client = self._client(instance_id, facts)
        if now_ms - client.seen_ms < client.wanted.interval_ms and client.last_error not in _ASKS_AGAIN:
            self.refused += 1
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        client.asked_ms = now_ms
        client.last_error = ErrorCode.NONE
        return client.wanted

    def begin_push(
        self, instance_id: bytes, facts: Mapping[str, str], push: Push, now_ms: int
    ) -> ClientInstance | ErrorCode:
        """Begins a push, and returns the client whose metrics to read, or why they are refused.

        Errors: INVALID_REQUEST after the client's last push, THROTTLING_QUOTA_EXCEEDED before its time,
        UNKNOWN_SUBSCRIPTION_ID, UNSUPPORTED_COMPRESSION_TYPE, TELEMETRY_TOO_LARGE, in this order.
        """
        client = self._client(instance_id, facts)
        error = check_push(client, push, now_ms)
        client.last_error = error
        if not client.terminating and client.may_push(now_ms):
            client.pushed_ms = now_ms
        if error != ErrorCode.NONE:
            self.refused += 1
            return error
        client.terminating = push.is_terminating
        self.pushes += 1
        return client

    def take(self, client: ClientInstance, points: Sequence[Point]) -> None:
        """Keeps what a client pushed. If the client was dropped in the meantime, this has no visible effect."""
        source = client.facts.get(SOURCE)
        of_source = sum(len(each.series) for each in self._clients.values() if each.facts.get(SOURCE) == source)
        new = client.take(points, min(SERIES_MAX - self.series_count, SERIES_OF_SOURCE - of_source))
        if any(each is client for each in self._clients.values()):
            self.series_count += new

    def _client(self, instance_id: bytes, facts: Mapping[str, str]) -> ClientInstance:
        """Returns the client of this id, with its present subscription."""
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
        """Returns the least recently seen client of the address with the most clients."""
        sources = Counter(each.facts.get(SOURCE) for each in self._clients.values())
        most, _ = sources.most_common(1)[0]
        return next(instance_id for instance_id, each in self._clients.items() if each.facts.get(SOURCE) == most)

    def _wanted(self, instance_id: bytes, facts: Mapping[str, str]) -> PushSubscription:
        meant = [each for each in self._subscriptions if each.means(facts)]
        metrics = tuple(dict.fromkeys(name for each in meant for name in each.metrics))
        if ALL_METRICS in metrics:
            metrics = (ALL_METRICS,)
        interval_ms = min((each.interval_ms for each in meant), default=INTERVAL_MS_DEFAULT)
        digest = zlib.crc32(repr((metrics, interval_ms)).encode(), zlib.crc32(instance_id))
        return PushSubscription(digest - (1 << 32) if digest >= 1 << 31 else digest, interval_ms, metrics)

    def _forget_silent(self, now_ms: int) -> None:
        while self._clients:
            instance_id, client = next(iter(self._clients.items()))
            if not client.is_silent(now_ms):
                return
            self._drop(instance_id)

    def forget_silent(self, now_ms: int) -> None:
        """Drops all silent clients, before their series are read.

        Requests of clients only check the oldest one.
        """
        for instance_id in [each for each, client in self._clients.items() if client.is_silent(now_ms)]:
            self._drop(instance_id)

    def _drop(self, instance_id: bytes) -> None:
        self.series_count -= len(self._clients.pop(instance_id).series)


class Push(msgspec.Struct, frozen=True):
    """The properties of a push that decide whether it is accepted."""

    subscription_id: int
    compression: int
    size_bytes: int
    is_terminating: bool
    bytes_max: int


def check_push(client: ClientInstance, push: Push, now_ms: int) -> ErrorCode:
    """Returns why a push is refused, or NONE."""
    if client.terminating:
        return ErrorCode.INVALID_REQUEST
    if not push.is_terminating and not client.may_push(now_ms):
        return ErrorCode.THROTTLING_QUOTA_EXCEEDED
    if push.subscription_id != client.wanted.subscription_id:
        return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    if push.compression and push.compression not in COMPRESSIONS:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return ErrorCode.TELEMETRY_TOO_LARGE if push.size_bytes > push.bytes_max else ErrorCode.NONE
