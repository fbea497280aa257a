"""The end of a run with transactions: none stays open (T4), and all committed records are read back (T2, T6, T7)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from lowtide.broker.coordinator.runtime.offsets_topic import GROUP_TOPIC
from lowtide.broker.coordinator.transactions.marker_sender import TIMEOUT_MS as MARKER_TIMEOUT_MS
from lowtide.broker.coordinator.transactions.transaction_coordinator import TRANSACTION_TOPIC
from lowtide.protocol.types import Offset
from lowtide.runtime.random import Random
from lowtide.simulation import cluster_end
from lowtide.simulation.cluster_world import ClusterWorld
from lowtide.simulation.transaction_load import TRANSACTION_TIMEOUT_MS, TransactionLoad
from lowtide.simulation.transformer import StableOffsets, check_transformed, fetch_end

ENDED_WITHIN_S: Final = 10.0 + (TRANSACTION_TIMEOUT_MS + MARKER_TIMEOUT_MS) / 1000
"""As in Kafka, the next marker waits for a broker that lost power before it answered one."""

READ_WITHIN_S: Final = 15.0
_LOOK_S: Final = 0.05


async def check_end(cluster: ClusterWorld, load: TransactionLoad) -> None:
    """Checks that all transactions end, and what is committed, except what no broker has any more.

    Errors: HistoryError.
    """
    image = cluster.shared.image
    for topic in (load.topic, TRANSACTION_TOPIC, GROUP_TOPIC):
        if topic in image.topics and not all(
            cluster_end.can_be_led(cluster, topic, number) for number in range(len(image.topics[topic].partitions))
        ):
            return
    if not load.history.is_void:
        await cluster_end.until(
            cluster,
            lambda: all(_is_stable(cluster, load, number) for number in range(load.partitions)),
            "T4: no transaction is open",
            ENDED_WITHIN_S,
        )
    found = {}
    for number in range(load.partitions):
        found[number] = await _read_all(cluster, load, number)
    load.history.check_end(found)
    if not load.history.is_void:
        await _check_transformed(cluster, load, found)


async def _check_transformed(
    cluster: ClusterWorld, load: TransactionLoad, found: Mapping[int, tuple[Offset, Mapping[Offset, bytes]]]
) -> None:
    for source, topic in load.sources.items():
        client = load.make_client(f"source {source} at the end")
        offsets = StableOffsets(topic, client, Random(cluster.random.getrandbits(64)), load.counts)
        end = await fetch_end(offsets, source, within_s=READ_WITHIN_S)
        client.close()
        if end is None:
            cluster.chronicle.violate(f"T4: the offset of source {source} isn't stable within {READ_WITHIN_S} s")
            cluster.chronicle.raise_violation()
            return
        load.counts["transformed"] += end
        check_transformed(found, source, end)


def _is_stable(cluster: ClusterWorld, load: TransactionLoad, number: int) -> bool:
    """Returns whether the leader has committed everything, without open transactions."""
    state = cluster.partition(load.topic, number)
    machine = next(
        (machine for machine in cluster.machines if state is not None and machine.broker_id == state.leader), None
    )
    replicas = None if machine is None or machine.broker is None else machine.broker.replicas
    partition = None if replicas is None else replicas.partitions.get((load.topic, number))
    if partition is None:
        return False
    return partition.log.last_stable_offset == partition.log.log_end_offset


async def _read_all(cluster: ClusterWorld, load: TransactionLoad, number: int) -> tuple[Offset, Mapping[Offset, bytes]]:
    """Returns the log start offset, and all committed records."""
    reader = load.make_reader(number)
    give_up_s = cluster.loop.time() + READ_WITHIN_S
    found: dict[Offset, bytes] = {}
    while cluster.loop.time() < give_up_s:
        before = reader.position
        try:
            answer = await reader.read(is_committed=True)
        except OSError:
            answer = None
        if answer is not None:
            found |= answer[1]
            if reader.position == before:
                reader.client.close()
                return answer[0].log_start_offset, found
        await asyncio.sleep(_LOOK_S)
    cluster.chronicle.violate(f"L1: what is committed in {load.topic}-{number} can't be read within {READ_WITHIN_S} s")
    cluster.chronicle.raise_violation()
    return 0, found
