"""Whatever clients push, the page of metrics stays one that Prometheus reads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.metrics.clients import write
from lowtide.broker.metrics.exposition import Format, Page
from lowtide.broker.telemetry.client_instances import ClientSeries
from lowtide.runtime.clock import SystemClock

from .scraping import parsed

FACTS = {"client_id": 'a"\\\n', "client_instance_id": "i", "client_software_name": "librdkafka"}
PUSHED = [
    ClientSeries("plain", "ms", False, (("topic", "t"), ("partition", "0")), 1.5),
    ClientSeries('new\nline"}', "", False, (), 2.0),
    ClientSeries("same", "", False, (("a", "b,c=d"),), 3.0),
    ClientSeries("same", "", False, (("a", "b"), ("c", "d")), 4.0),
    ClientSeries("same", "", False, (("a", "b\\"), ("c", "d")), 5.0),
    ClientSeries("falls", "", True, (), -1.0),
    ClientSeries("none", "", True, (), math.nan),
    ClientSeries("endless", "", True, (), math.inf),
]


class Pushed:
    """In the place of the broker's clients."""

    pushes, refused = 3, 1

    def __len__(self) -> int:
        return 1

    def forget_silent(self, now_ms: int) -> None:
        pass

    def series(self) -> Iterator[tuple[dict[str, str], ClientSeries]]:
        return iter([(FACTS, series) for series in PUSHED])


@pytest.mark.parametrize("form", list(Format))
def test_hostile_names_and_values_are_series_like_others(form: Format) -> None:
    scrape: Any = SimpleNamespace(
        sources=SimpleNamespace(broker=SimpleNamespace(clients=Pushed(), clock=SystemClock()))
    )
    page = Page(form)
    for _ in write(scrape, page):
        pass
    found = parsed(b"".join(page.finish()).decode(), form)
    assert found.of("lowtide_telemetry_pushes_total") == 3
    values = [value for (name, _), value in found.items() if name == "lowtide_client_metric"]
    assert len(values) == len(PUSHED)
    labels = {"client_id": FACTS["client_id"], "client_instance_id": "i", "client_software_name": "librdkafka"}
    assert found.of("lowtide_client_metric", metric="plain", attributes="topic=t,partition=0", **labels) == 1.5
    assert found.of("lowtide_client_metric", metric='new\nline"}', attributes="", **labels) == 2
