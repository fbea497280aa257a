"""Batches that don't fit to a producer's open transaction, on the wire, as Apache Kafka answers them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lowtide.testing.cluster import LowtideCluster

from .open_transactions import EXPECTED, VERSIONS, ask_all


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    with LowtideCluster() as running:
        yield running


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_batch_without_the_bit_or_the_id_is_refused_as_by_kafka(cluster: LowtideCluster, version: int) -> None:
    assert await ask_all(cluster.bootstrap, version) == EXPECTED
