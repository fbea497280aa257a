"""Measures the controller's decisions by number of partitions: `python -m lowtide.simulation.scale_controller`.

Only a cluster's image and the controller's decisions, without brokers: topics are created, a broker dies, then a rack.
Each number of partitions has its own process. Prints CPU time, resident memory, and what is written to the store.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.changes import Step
from lowtide.metadata.engine import Engine
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.image_change import apply_batch, load_image
from lowtide.metadata.records import BrokerRecord, Listener, encode
from lowtide.metadata.store import Delete, Operation, Put
from lowtide.protocol.types import BrokerId
from lowtide.replication.controller import plan_controller_work
from lowtide.replication.new_topics import TopicCreation, TopicSpec, plan_create_topic
from lowtide.runtime.process_figures import ProcessFiguresReader
from lowtide.runtime.random import Random

PARTITIONS: Final = (1_000, 3_000, 10_000, 30_000, 100_000)
BROKERS: Final = 30
RACKS: Final = 3
REPLICAS: Final = 3
PARTITIONS_PER_TOPIC: Final = 100


class Figures(msgspec.Struct, kw_only=True):
    """The figures of one number of partitions: CPU seconds, megabytes, and writes."""

    partitions: int
    create_plan_s: float = 0.0
    create_follow_s: float = 0.0
    image_mb: float = 0.0
    load_s: float = 0.0
    all_well_s: float = 0.0
    death_plan_s: float = 0.0
    death_follow_s: float = 0.0
    death_transactions: int = 0
    death_written: int = 0
    rack_plan_s: float = 0.0
    rack_transactions: int = 0
    rack_written: int = 0


class Cluster:
    """A store's keys, and the image that follows them."""

    def __init__(self) -> None:
        self.engine = Engine(boot=1, revision=0, keys=())
        self.image = MetadataImage()

    def change(self, operations: Sequence[Operation]) -> None:
        staged = self.engine.stage()
        self.engine.evaluate(staged, (), operations, ())
        self.engine.commit(staged)
        for batch in staged.batches:
            self.image, _ = apply_batch(self.image, batch, prefix=b"")

    def make(self, steps: Sequence[Step]) -> int:
        """Applies the steps of a plan. Returns the number of written keys."""
        for step in steps:
            self.change(step.operations)
        return sum(len(step.operations) for step in steps)

    def lose(self, *brokers: BrokerId) -> None:
        self.change([Delete(keys.broker(broker)) for broker in brokers])


def measure(partitions: int) -> Figures:
    """Measures one number of partitions."""
    read = ProcessFiguresReader()
    found = Figures(partitions=partitions)
    cluster = Cluster()
    for broker in range(1, BROKERS + 1):
        record = BrokerRecord("i", (Listener("PLAINTEXT", "host", 9092),), f"rack-{broker % RACKS}")
        cluster.change([Put(keys.broker(broker), encode(record))])
    before = read().resident_bytes
    random = Random(0)
    for number in range(partitions // PARTITIONS_PER_TOPIC):
        topic = TopicSpec(f"topic-{number}", PARTITIONS_PER_TOPIC, REPLICAS)
        with spent() as plan_s:
            planned = plan_create_topic(
                cluster.image, topic, default_partition_count=1, default_replication_factor=1, random=random
            )
        assert isinstance(planned, TopicCreation), planned
        with spent() as follow_s:
            cluster.make(planned.plan.steps)
        found.create_plan_s += plan_s[0]
        found.create_follow_s += follow_s[0]
    found.image_mb = (read().resident_bytes - before) / 1e6
    pairs = cluster.engine.range(b"")
    with spent() as load_s:
        load_image(pairs, cluster.engine.revision, prefix=b"")
    found.load_s = load_s[0]
    with spent() as well_s:
        assert plan_controller_work(cluster.image).is_empty
    found.all_well_s = well_s[0]
    cluster.lose(1)
    with spent() as plan_s:
        steps = plan_controller_work(cluster.image).steps
    with spent() as follow_s:
        found.death_written = cluster.make(steps)
    found.death_plan_s, found.death_follow_s, found.death_transactions = plan_s[0], follow_s[0], len(steps)
    cluster.lose(*(broker for broker in range(2, BROKERS + 1) if broker % RACKS == 0))
    with spent() as plan_s:
        steps = plan_controller_work(cluster.image).steps
    found.rack_written = cluster.make(steps)
    found.rack_plan_s, found.rack_transactions = plan_s[0], len(steps)
    return found


@contextmanager
def spent() -> Iterator[list[float]]:
    """Measures the CPU seconds of this thread within a `with`."""
    found = [0.0]
    began_ns = time.thread_time_ns()
    yield found
    found[0] = (time.thread_time_ns() - began_ns) / 1e9


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns its exit code."""
    parser = argparse.ArgumentParser(description="measure the controller's decisions")
    parser.add_argument("--partitions", help=f"numbers of partitions, {','.join(map(str, PARTITIONS))} without it")
    options = parser.parse_args(arguments)
    numbers = [int(each) for each in options.partitions.split(",")] if options.partitions else PARTITIONS
    sys.stdout.write(f"{' | '.join(Figures.__struct_fields__)}\n")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for found in pool.imap(measure, numbers, chunksize=1):
            row = msgspec.structs.astuple(found)
            sys.stdout.write(f"{' | '.join(f'{each:.4g}' if isinstance(each, float) else str(each) for each in row)}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
