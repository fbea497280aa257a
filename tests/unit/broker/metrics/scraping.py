"""Brokers whose metrics are scraped: real ones over simulated ports, and Prometheus's own parsers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from bench.request_path import World
from lowtide.broker.metrics.collector import KEPT_MS, PageKind
from lowtide.broker.metrics.exposition import Format
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.simulation.client import WireClient
from lowtide.simulation.machines import Machine

PARSERS = {Format.TEXT: parse_text, Format.OPEN_METRICS: parse_open_metrics}


class Scraped(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    """The samples of one page."""

    def of(self, name: str, **labels: object) -> float:
        """The value of one series."""
        return self[name, frozenset((key, str(value)) for key, value in labels.items())]

    def has(self, name: str, **labels: object) -> bool:
        """Whether there is such a series."""
        return (name, frozenset((key, str(value)) for key, value in labels.items())) in self

    def names(self) -> set[str]:
        """Of the samples."""
        return {name for name, _ in self}

    def since(self, before: Scraped, name: str, **labels: object) -> float:
        """By how much a series has risen."""
        return self.of(name, **labels) - (before.of(name, **labels) if before.has(name, **labels) else 0)


def parsed(text: str, form: Format) -> Scraped:
    """The samples of a page, as Prometheus's own parser reads it; each series once."""
    found = Scraped()
    for family in PARSERS[form](text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, key
            found[key] = sample.value
    return found


async def scrape(machine: Machine, form: Format = Format.TEXT) -> Scraped:
    """What a broker shows now."""
    return parsed(await page(machine, form), form)


async def page(machine: Machine, form: Format = Format.TEXT) -> str:
    """The text of its page."""
    broker = machine.broker
    assert broker is not None
    assert broker.serving is not None
    await asyncio.sleep(KEPT_MS / 1000)  # Of virtual time: the page before isn't given out any more.
    return b"".join(await broker.serving.metrics.page(PageKind(form))).decode()


def simulate(run: Callable[[World, WireClient], Coroutine[Any, Any, None]], brokers: int = 1) -> None:
    """Run a test against brokers that serve one topic, `t`."""

    async def main(loop: SimulatedLoop) -> None:
        world = World(loop, brokers)
        client = await world.begin()
        await run(world, client)

    run_simulation(main, seed=1)
