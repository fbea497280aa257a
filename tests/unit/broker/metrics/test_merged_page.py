"""The pages of metrics of several brokers of a machine as one, read by Prometheus's own parsers."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from lowtide.broker.metrics.exposition import Format, Page
from lowtide.broker.metrics.merged_page import MergedPage
from lowtide.broker.metrics.metric import counter, gauge, histogram

SIZE = gauge("size", "One series.")
ROWS = counter("rows_total", "With labels.", "topic", "partition")
NODE = gauge("node", "Has the label.", "cluster", "node_id")
TIMES = histogram("times_seconds", "A histogram.", "api")
TIMES_OF_ALL = histogram("waits_seconds", "A histogram without labels.")
LATE = gauge("late", "Only the second broker has it.", "x")
ODD = '{a="b",node_id="9"} 1 }'


def page_of(form: Format, number: int) -> list[bytes]:
    page = Page(form)
    page.one(SIZE, number)
    page.rows(ROWS, [(("t", partition), number) for partition in range(700)] + [((ODD, 0), 5)])
    page.rows(NODE, [(("c", number), 1)])
    page.histogram(TIMES, [(("Fetch",), (0.1, 1.0), (1, 2, 2), 0.5)])
    page.histogram(TIMES_OF_ALL, [((), (0.1, 1.0), (1, 2, 2), 0.5)])
    if number == 2:
        page.rows(LATE, [(("y",), 3)])
    return page.finish()


@pytest.mark.parametrize("form", Format)
def test_each_broker_has_its_samples_in_whole_families(form: Format) -> None:
    merged = MergedPage(form)
    for number in (1, 2):
        for _ in merged.add(number, page_of(form, number)):
            pass
    text = b"".join(merged.finish()).decode()
    families = list((parse_text if form is Format.TEXT else parse_open_metrics)(text))
    assert [family.name for family in families] == ["size", "rows", "node", "times_seconds", "waits_seconds", "late"]
    samples = [sample for family in families for sample in family.samples]
    assert (
        len({(sample.name, frozenset(sample.labels.items())) for sample in samples})
        == len(samples)
        == 2 * (1 + 701 + 1 + 5 + 5) + 1
    )
    assert {sample.labels["node_id"] for sample in samples} == {"1", "2"}
    assert [(sample.labels, sample.value) for sample in samples if sample.name == "size"] == [
        ({"node_id": "1"}, 1),
        ({"node_id": "2"}, 2),
    ]
    odd = [sample.labels for sample in samples if sample.labels.get("topic") == ODD]
    assert odd == [{"node_id": number, "topic": ODD, "partition": "0"} for number in ("1", "2")]
    assert all(family.documentation for family in families)


@pytest.mark.parametrize("form", Format)
def test_a_page_of_one_broker_is_whole_too(form: Format) -> None:
    """The others may all be away."""
    merged = MergedPage(form)
    for _ in merged.add(2, page_of(form, 2)):
        pass
    families = list((parse_text if form is Format.TEXT else parse_open_metrics)(b"".join(merged.finish()).decode()))
    assert len(families) == 6
