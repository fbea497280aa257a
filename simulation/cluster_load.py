"""The clients of one partition of a simulated cluster; `cluster_history` judges what they see."""

from __future__ import annotations

from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.crowd import Crowd
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
