"""What clients push (KIP-714): the numbers of each client as it sent them last, and how many clients and pushes there are.

Names, attributes and values are the clients' own choice, so one family has them all: a name is the value of a label, and counters are
shown as gauges, for a client may send one that falls or is no number, which OpenMetrics forbids. How many series there are is bounded by
`telemetry/client_instances.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from lowtide.broker.metrics.exposition import Page, labelled
from lowtide.broker.metrics.metric import counter, gauge
from lowtide.broker.metrics.sources import Scrape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.broker.telemetry.client_instances import ClientSeries
    from lowtide.broker.telemetry.otlp import Attributes

_ROWS_A_STEP: Final = 200
_ESCAPES: Final = str.maketrans({"\\": r"\\", ",": r"\,", "=": r"\="})

_CLIENTS: Final = gauge(
    "lowtide_telemetry_clients", "Clients that have asked which metrics to push, and are not silent."
)
_PUSHES: Final = counter("lowtide_telemetry_pushes_total", "Pushes that were taken.")
_REFUSED: Final = counter("lowtide_telemetry_refused_total", "Pushes, and questions what to push, that were refused.")
_SERIES: Final = gauge(
    "lowtide_client_metric",
    "A number that a client has pushed last. `attributes` are those of the client's metric, as `name=value,…`.",
    "metric",
    "attributes",
    "client_id",
    "client_instance_id",
    "client_software_name",
)

METRICS: Final = (_CLIENTS, _PUSHES, _REFUSED, _SERIES)


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Write them, some series at a time."""
    clients = scrape.sources.broker.clients
    clients.forget_silent(scrape.sources.broker.clock.monotonic_ms())
    page.one(_CLIENTS, len(clients))
    page.one(_PUSHES, clients.pushes)
    page.one(_REFUSED, clients.refused)
    name = page.begin(_SERIES)
    rest = clients.series()
    while some := list(islice(rest, _ROWS_A_STEP)):
        page.write([f"{name}{_labels(facts, series)} {series.value}\n" for facts, series in some])
        yield


def _labels(facts: Mapping[str, str], series: ClientSeries) -> str:
    facts_shown = (facts["client_id"], facts["client_instance_id"], facts["client_software_name"])
    return labelled(_SERIES, (series.name, joined(series.attributes), *facts_shown))


def joined(attributes: Attributes) -> str:
    """Attributes as one text, another one for others: two series with the same labels would make the page unreadable."""
    return ",".join(f"{name.translate(_ESCAPES)}={value.translate(_ESCAPES)}" for name, value in attributes)
