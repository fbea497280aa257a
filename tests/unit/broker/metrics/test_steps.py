"""A page of very many partitions is written in bounded steps, between which others have the loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.metrics import cluster, partitions
from lowtide.broker.metrics.exposition import Format, Page
from lowtide.broker.metrics.metric import Metric

LOOKED_AT_IN_A_STEP_MAX = 1_000
TOPICS, PARTITIONS = 3, 4_000


class Looks:
    """Counts how often a partition is looked at, or its line written."""

    def __init__(self) -> None:
        self.count = 0


class State:
    """A partition of the image."""

    replicas = isr = (2, 3)
    leader = 3

    def __init__(self, looks: Looks) -> None:
        self._looks = looks

    @property
    def has_leader(self) -> bool:
        self._looks.count += 1
        return True


class CountedPage(Page):
    """A page that counts its lines."""

    def __init__(self, looks: Looks) -> None:
        super().__init__(Format.TEXT)
        self._looks = looks

    def write(self, lines: list[str]) -> None:
        self._looks.count += len(lines)
        super().write(lines)


def row(topic: int, number: int) -> Any:
    """A partition that this broker leads, under-replicated and with too few in-sync replicas."""
    return SimpleNamespace(
        partition=SimpleNamespace(local_broker_id=1, leadership=None),
        topic=f"t{topic}",
        number=number,
        labels=f'{{topic="t{topic}",partition="{number}"}}',
        is_leader=True,
        log_start_offset=0,
        high_watermark=1,
        log_end_offset=1,
        size_bytes=1,
        segments=1,
        replicas=2,
        in_sync=1,
        min_in_sync=2,
        is_preferred=True,
        is_under_replicated=True,
    )


@pytest.mark.parametrize("subject", [cluster, partitions], ids=lambda subject: subject.__name__)
def test_no_step_looks_at_more_partitions_than_others_can_wait_for(subject: Any) -> None:
    """Also where a few topics have all partitions, on the controller."""
    looks = Looks()
    topics = {
        f"t{number}": SimpleNamespace(name=f"t{number}", partitions=[State(looks)] * PARTITIONS)
        for number in range(TOPICS)
    }
    image = SimpleNamespace(topics=topics, brokers={}, known_brokers={}, unreadable={})
    broker = SimpleNamespace(
        metadata=SimpleNamespace(image=image, is_controller=True),
        replicas=SimpleNamespace(offline=SimpleNamespace(keys=())),
    )
    sources = SimpleNamespace(
        broker=broker,
        unclean_elections=lambda: 0,
        leaders_given=lambda: 0,
        isr_changes=SimpleNamespace(shrinks=0, expands=0, failures=0),
        fetchers=SimpleNamespace(followed=list, totals=lambda: (0, 0)),
    )
    rows = [row(topic, number) for topic in range(TOPICS) for number in range(PARTITIONS)]
    scrape: Any = SimpleNamespace(sources=sources, has_partitions=True, rows=rows, led=iter(rows))
    page, most, before = CountedPage(looks), 0, 0
    for _ in subject.write(scrape, page):
        most, before = max(most, looks.count - before), looks.count
    assert looks.count >= TOPICS * PARTITIONS
    assert most <= LOOKED_AT_IN_A_STEP_MAX
    assert_counts(b"".join(page.finish()).decode(), subject)


def assert_counts(text: str, subject: Any) -> None:
    """That it has counted all of them."""
    everything = TOPICS * PARTITIONS
    names: dict[Any, tuple[Metric, ...]] = {
        cluster: (cluster._PARTITIONS, cluster._PREFERRED),
        partitions: (partitions._COUNT, partitions._LEADER_COUNT, partitions._UNDER_COUNT, partitions._UNDER_MIN_COUNT),
    }
    for metric in names[subject]:
        assert f"\n{metric.name} {everything}\n" in text, metric.name
