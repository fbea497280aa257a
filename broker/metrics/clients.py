"""The metrics that clients push (KIP-714), and the number of clients and pushes.

Names, attributes and values are chosen by clients, so all are in one family: the name is a label, and counters are
gauges, because a client may send one that falls, which OpenMetrics forbids. `telemetry/client_instances.py` bounds the
series.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lowtide.broker.metrics.exposition import Page, labelled
from lowtide.broker.metrics.metric import counter, gauge
from lowtide.broker.metrics.sources import Scrape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.broker.telemetry.client_instances import ClientSeries
    from lowtide.broker.telemetry.otlp import Attributes

_ESCAPES: Final = str.maketrans({"\\": r"\\", ",": r"\,", "=": r"\="})

_CLIENTS: Final = gauge("lowtide_telemetry_clients", "The number of clients that push metrics.")
_PUSHES: Final = counter("lowtide_telemetry_pushes_total", "The number of accepted pushes.")
_REFUSED: Final = counter("lowtide_telemetry_refused_total", "The number of rejected pushes and subscription requests.")
_SERIES: Final = gauge(
    "lowtide_client_metric",
    "The last value that a client pushed. `attributes` has the attributes of the client's metric, as `name=value,…`.",
    "metric",
    "attributes",
    "client_id",
    "client_instance_id",
    "client_software_name",
)


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Writes the metrics, in steps."""
    clients = scrape.sources.broker.clients
    clients.forget_silent(scrape.sources.broker.clock.monotonic_ms())
    page.one(_CLIENTS, len(clients))
    page.one(_PUSHES, clients.pushes)
    page.one(_REFUSED, clients.refused)
    yield from page.series(_SERIES, (f"{_labels(facts, series)} {series.value}" for facts, series in clients.series()))


def _labels(facts: Mapping[str, str], series: ClientSeries) -> str:
    facts_shown = (facts["client_id"], facts["client_instance_id"], facts["client_software_name"])
    return labelled(_SERIES, (series.name, joined(series.attributes), *facts_shown))


def joined(attributes: Attributes) -> str:
    """Joins attributes into one unambiguous text: two series with equal labels would make the page invalid."""
    return ",".join(f"{name.translate(_ESCAPES)}={value.translate(_ESCAPES)}" for name, value in attributes)
