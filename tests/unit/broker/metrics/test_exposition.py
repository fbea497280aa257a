"""Protects the page: Prometheus's parsers read both formats, and find exactly the declared metrics."""

from __future__ import annotations

import pytest

from bench.request_path import World
from lowtide.broker.metrics.exposition import Format, Page, accepted_format, labelled
from lowtide.broker.metrics.metric import MetricKind, counter, gauge, histogram
from lowtide.broker.metrics.registry import METRICS, SUBJECTS
from lowtide.simulation.client import WireClient

from .scraping import PARSERS, page, parsed, simulate

ODD = 'a "b" \\ c\nd{e="f"} é'


def test_every_metric_that_is_declared_is_on_the_page_and_no_other() -> None:
    async def run(world: World, _client: WireClient) -> None:
        for form in Format:
            families = {family.name: family for family in PARSERS[form](await page(world.machines[0], form))}
            expected = {
                name.removesuffix("_total") if metric.kind is MetricKind.COUNTER else name
                for name, metric in METRICS.items()
            }
            assert {name.removesuffix("_total") for name in families} == expected
            for metric in METRICS.values():
                family = families.get(metric.name) or families[metric.name.removesuffix("_total")]
                assert family.documentation == metric.help
                for sample in family.samples:
                    assert set(sample.labels) - {"le"} <= set(metric.labels), sample

    simulate(run)


def test_names_are_declared_once_and_well() -> None:
    declared = [metric for subject in SUBJECTS for metric in subject.metrics]
    assert len(declared) == len(METRICS)
    for metric in declared:
        assert metric.help.endswith("."), metric
        assert not metric.name.endswith("_total") or metric.kind is MetricKind.COUNTER, metric


@pytest.mark.parametrize("form", Format)
def test_odd_names_are_escaped(form: Format) -> None:
    """A group's id may have any character: it must not end a label, or begin a series."""
    metric = gauge("g", "Help \\ with\na line.", "a", "b")
    written = Page(form)
    written.rows(metric, [((ODD, "y"), 1), (("", "y"), 2.5)])
    found = parsed(b"".join(written.finish()).decode(), form)
    assert found == {("g", frozenset({("a", ODD), ("b", "y")})): 1, ("g", frozenset({("a", ""), ("b", "y")})): 2.5}
    assert labelled(metric, ("x", 'q"')) == '{a="x",b="q\\""}'


@pytest.mark.parametrize("form", Format)
def test_a_histogram_has_buckets_a_sum_and_a_count(form: Format) -> None:
    written = Page(form)
    written.histogram(histogram("h", "Times."), [((), (0.001, 0.01, 1), (1, 1, 3, 4), 2.5)])
    written.histogram(histogram("i", "Times.", "api"), [(("x",), (1,), (0, 2), 3)])
    found = parsed(b"".join(written.finish()).decode(), form)
    assert found.of("h_bucket", le="0.001") == 1
    assert found.of("h_bucket", le="1.0") == 3
    assert found.of("h_bucket", le="+Inf") == found.of("h_count") == 4
    assert found.of("h_sum") == 2.5
    assert found.of("i_bucket", api="x", le="+Inf") == found.of("i_count", api="x") == 2


def test_a_counter_keeps_its_name_in_both_formats() -> None:
    for form in Format:
        written = Page(form)
        written.one(counter("a_total", "As."), 1)
        written.one(counter("kafka_b_persec", "Bs."), 2)
        assert parsed(b"".join(written.finish()).decode(), form) == {
            ("a_total", frozenset()): 1,
            ("kafka_b_persec", frozenset()): 2,
        }


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Format.TEXT),
        ("*/*", Format.TEXT),
        ("text/html,*/*;q=0.1", Format.TEXT),
        ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5",
         Format.OPEN_METRICS),
        ("application/openmetrics-text;q=0.3, text/plain;q=0.5", Format.TEXT),
        ("application/openmetrics-text;q=0", Format.TEXT),
        ("application/openmetrics-text; q=x, text/plain", Format.TEXT),
        ("application/openmetrics-text", Format.OPEN_METRICS),
    ],
)  # fmt: skip
def test_the_format_is_what_the_client_prefers(accept: str, form: Format) -> None:
    assert accepted_format(accept) is form
