"""The load of one partition of a simulated cluster: which actors it has.

They keep the history that `cluster_history` judges.
"""

from __future__ import annotations

from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.crowd import Crowd
from lowtide.simulation.loaded_partition import Actor, LoadedPartition
from lowtide.simulation.partition_actors import Deleter, IdempotentProducer, Producer, Reader
from lowtide.simulation.pipelined_producer import PipelinedProducer


class PartitionLoad(LoadedPartition):
    """A partition that all kinds of actors load. Others have actors of their own."""

    def actors(self, kinds: tuple[str, ...]) -> list[Actor]:
        """One actor of each kind."""
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
        """One who reads whole logs."""
        return Reader(self, client, random)
