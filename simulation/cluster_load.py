"""The clients of one partition of a simulated cluster; `cluster_history` judges what they see."""

from __future__ import annotations

import asyncio
from typing import Final

from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.loaded_partition import Actor, LoadedPartition
from lowtide.simulation.partition_actors import Deleter, IdempotentProducer, Producer, Reader
from lowtide.simulation.pipelined_producer import PipelinedProducer


class PartitionLoad(LoadedPartition):
    """A partition with all kinds of clients."""

    def actors(self, kinds: tuple[str, ...]) -> list[Actor]:
        classes: dict[str, type[Actor]] = {
            "producer": Producer,
            "idempotent producer": IdempotentProducer,
            "pipelined producer": PipelinedProducer,
            "crowd": Crowd,
            "deleter": Deleter,
            "reader": Reader,
        }
        made = []
        for index, kind in enumerate(kinds):
            client = self._make_client(f"{kind.split()[0][:6]} {self.partition}.{index}")
            made.append(classes[kind](self, client, Random(self.random.getrandbits(64))))
        return made

    def make_reader(self, client: ClusterClient, random: Random) -> Reader:
        return Reader(self, client, random)


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
