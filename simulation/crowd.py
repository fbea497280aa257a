"""Producers that send at the same moment, each over its own connection.

If the network delivers their requests together (`arrival_step_ms`), the broker executes together what it can
(`broker/network/gathering.py`).
"""

from __future__ import annotations

import asyncio
from typing import Final

from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.loaded_partition import Actor, LoadedPartition
from lowtide.simulation.partition_actors import IdempotentProducer, Producer

SIZE: Final = 5
"""The number of producers; every second one is idempotent."""


class CrowdedProducer(Producer):
    """One producer of a crowd."""

    share_of_all = 0.2


class Crowd(Actor):
    """Several producers that send when all are answered."""

    def __init__(self, load: LoadedPartition, client: ClusterClient, random: Random) -> None:
        super().__init__(load, client, random)
        self._producers = [
            (CrowdedProducer, IdempotentProducer)[number % 2](
                load, load.make_client(f"crowd {load.partition}.{number}"), Random(random.getrandbits(64))
            )
            for number in range(SIZE)
        ]

    async def step(self) -> None:
        outcomes = await asyncio.gather(*(producer.step() for producer in self._producers), return_exceptions=True)
        errors = [outcome for outcome in outcomes if outcome is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, OSError)):
            raise error
