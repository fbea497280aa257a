"""Metrics of requests and their times: Kafka's `RequestMetrics` under Confluent's names, and one histogram per API.

Kafka's times are quantiles in milliseconds of the last minutes (`recent_times`). An API has series once it was
requested. `FetchConsumer` and `FetchFollower` are the kinds of Fetch, as in Kafka, and `Fetch` is both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lowtide.broker.metrics.exposition import Page
from lowtide.broker.metrics.metric import counter, gauge, histogram
from lowtide.broker.metrics.recent_times import quantile_ms
from lowtide.broker.metrics.sources import Scrape
from lowtide.protocol.errors import ErrorCode

_PREFIX: Final = "kafka_network_requestmetrics_"
QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)

_FIRST: Final = 14
_LAST: Final = 36
"""The bit lengths of the histogram's bounds: 16 µs to 69 s."""
_BOUNDS_S: Final = tuple((1 << length) / 1e9 for length in range(_FIRST, _LAST + 1))

_REQUESTS: Final = counter(f"{_PREFIX}requestspersec", "The number of answered requests.", "request")
_ERRORS: Final = counter(
    f"{_PREFIX}errorspersec",
    "The number of errors in responses, including those of topics, partitions and other rows.",
    "request",
    "error",
)
_PARTS: Final = {
    "total": gauge(f"{_PREFIX}totaltimems", "The total time, without the queue.", "request", "quantile", unit="ms"),
    "queue": gauge(
        f"{_PREFIX}requestqueuetimems",
        "The time in the queue, while other connections have their turn.",
        "request",
        "quantile",
        unit="ms",
    ),
    "local": gauge(f"{_PREFIX}localtimems", "The execution time.", "request", "quantile", unit="ms"),
    "remote": gauge(
        f"{_PREFIX}remotetimems",
        "The time waiting for followers, records, members or the disk.",
        "request",
        "quantile",
        unit="ms",
    ),
    "response_queue": gauge(
        f"{_PREFIX}responsequeuetimems",
        "The time waiting for the responses of earlier requests on the connection.",
        "request",
        "quantile",
        unit="ms",
    ),
    "send": gauge(
        f"{_PREFIX}responsesendtimems",
        "The time to write the response to the socket; 0 if it is written at once.",
        "request",
        "quantile",
        unit="ms",
    ),
}
_SECONDS: Final = histogram(
    "lowtide_request_seconds",
    "The time from the execution of a request until its response is written to the socket.",
    "request",
)

_SURPLUS: Final = counter(
    "lowtide_request_surplus_total",
    "The number of requests with surplus bytes, which are ignored: the client may encode another version.",
    "request",
    "client_software_name",
)


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Writes the metrics, in steps."""
    found = scrape.recent.look(scrape.sources.broker.clock.monotonic_ms())
    names = sorted(found)
    page.rows(_REQUESTS, [((name,), sum(found[name][0].total)) for name in names])
    errors = scrape.sources.host.dispatcher.errors | scrape.sources.broker.replicas.traffic.errors  # No API is in both.
    page.rows(_ERRORS, [((name, ErrorCode(code).name), count) for (name, code), count in sorted(errors.items())])
    page.rows(_SURPLUS, sorted(scrape.sources.host.dispatcher.surplus.counts.items()))
    yield
    for part, metric in _PARTS.items():
        rows: list[tuple[tuple[str, float], float]] = []
        for name in names:
            now, before = found[name]
            counts = now.parts[part]
            if before is not None:
                counts = [count - earlier for count, earlier in zip(counts, before.parts[part], strict=True)]
            rows += [((name, quantile), quantile_ms(counts, quantile)) for quantile in QUANTILES]
            yield
        page.rows(metric, [row for row in rows if row[1] == row[1]])
    page.histogram(
        _SECONDS,
        [((name,), _BOUNDS_S, _cumulative(found[name][0].total), found[name][0].total_ns / 1e9) for name in names],
    )
    yield


def _cumulative(counts: Sequence[int]) -> list[int]:
    """Returns cumulative counts for the bounds, and the total."""
    totals, total = list[int](), 0
    for count in counts:
        total += count
        totals.append(total)
    return [*totals[_FIRST : _LAST + 1], total]
