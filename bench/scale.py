"""Measures the cost of many partitions and clients for real brokers.

The command is `python -m bench.scale cluster`, or `broker`, or `clients`.

*cluster*: three brokers and an etcd on loopback, every partition on all three: memory, idle CPU, the death of a broker,
its restart, one delete over all partitions, the size of the metadata in etcd before and after compaction.

*broker*: one broker with many partitions beside one with few, both alive: CPU of a request, the least of interleaved
rounds, memory, idle CPU, stop and restart, and each as a ratio.

*clients*: one broker with many groups, and then with many connections.

Each figure is printed at once. All started processes are ended, and their files removed. `simulation/scale.py`
measures larger clusters, in virtual time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

from .__main__ import circumstances, keep_bytecode
from .client import Address, Client, decode
from .cluster import ClusterTarget, Member
from .errors import BenchError
from .figures import percentile, ratio, show
from .frames import VERSIONS, batch, delete_frame, fetch_frame, metadata_frame, produce_error_position, produce_frame
from .loads import SMALL_RECORD_BYTES, now_ms
from .measure import Figures, cost_of, idle_percent
from .pump import Lane, pump
from .scale_clients import measure_clients
from .targets import LOWTIDE, LOWTIDE_OF_SEVERAL, Target, TargetSpec
from .topics import LATEST, Topic, by_leader, create_topic, produce_each, wait_until_serving
from .usage import cpu_seconds, resident_bytes

BROKERS = 3
PARTITIONS_OF_A_TOPIC = 1000
LIMIT_S = 600.0
ROUNDS = 6
SINGLE = "scale-single"
REQUESTS = 20_000
"""Requests of each kind in each round."""

_LOOK_S = 0.05


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command. Returns its exit code."""
    parser = argparse.ArgumentParser(description="measure brokers with many partitions, groups or connections")
    parser.add_argument("what", choices=("cluster", "broker", "clients"))
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--few", type=int, default=100, help="those of the broker that is compared with")
    parser.add_argument("--deaths", type=int, default=3, help="brokers that are killed, one after the other")
    parser.add_argument("--idle-s", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(words)
    scratch = Path(tempfile.mkdtemp(prefix="bench-scale-"))
    about = circumstances()
    print("\n".join(f"{name}: {value}" for name, value in about.items()))
    keep_bytecode(scratch)
    figures = PrintedFigures()
    try:
        if arguments.what == "cluster":
            measure_cluster(scratch, arguments, figures)
        elif arguments.what == "broker":
            compare_brokers(scratch, arguments, figures)
        else:
            measure_clients(scratch, arguments.idle_s, figures)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps({"about": about, "figures": figures}, indent=1))
    return 0


class PrintedFigures(dict[str, float]):
    """Figures that are printed as they come."""

    def __setitem__(self, name: str, value: float) -> None:
        super().__setitem__(name, value)
        print(f"{name}: {show(value)}", flush=True)


def topics_of(target: Target, partitions: int) -> list[Topic]:
    """Returns topics with this number of partitions, at most a thousand each."""
    sizes = [PARTITIONS_OF_A_TOPIC] * (partitions // PARTITIONS_OF_A_TOPIC)
    if rest := partitions % PARTITIONS_OF_A_TOPIC:
        sizes.append(rest)
    return [create_topic(target, f"scale-{number}", size, {}) for number, size in enumerate(sizes)]


def until(condition: Callable[[], bool], what: str) -> float:
    """Returns when a condition became true. Errors: BenchError."""
    limit = time.perf_counter() + LIMIT_S
    while True:
        with suppress(OSError, ProtocolError):
            if condition():
                return time.perf_counter()
        if time.perf_counter() > limit:
            raise BenchError(f"not within {LIMIT_S:.0f} s: {what}")
        time.sleep(_LOOK_S)


# A cluster


def measure_cluster(scratch: Path, arguments: argparse.Namespace, figures: Figures) -> None:
    """Measures three brokers with replicas of all partitions."""
    target = ClusterTarget(TargetSpec(name="lowtide", command=LOWTIDE_OF_SEVERAL, brokers=BROKERS), scratch)
    try:
        figures["start of three without partitions, s"] = target.start()
        time.sleep(2)
        tell_memory(target, "without partitions", figures)
        began = time.perf_counter()
        topics = topics_of(target, arguments.partitions)
        figures["partitions"] = arguments.partitions
        figures["created, all serve, s"] = time.perf_counter() - began
        until(lambda: all(replicas_in_sync(member, topics) for member in target.members), "all replicas are in sync")
        time.sleep(5)
        tell_memory(target, "idle", figures)
        tell_idle_cpu(target, arguments.idle_s, figures)
        tell_etcd(target, "after creation", figures)
        delete_all(topics, figures)
        for number in range(arguments.deaths):
            fail_over(target, topics, target.members[number % BROKERS], number, figures)
        tell_memory(target, "at the end", figures)
        tell_etcd(target, "at the end", figures)
        figures["stop of all three, s"] = target.stop()
        figures["start of all three, s"] = target.start()
        began = time.perf_counter()
        for topic in topics:
            wait_until_serving(target, topic.name, len(topic.leaders))
        figures["then all serve, s"] = time.perf_counter() - began
    finally:
        target.close()


def tell_memory(target: ClusterTarget, when: str, figures: Figures) -> None:
    """Notes the most and the least memory of a broker."""
    found = sorted(
        resident_bytes([member.process.pid]) / 1e6 for member in target.members if member.process is not None
    )
    figures[f"resident of a broker, {when}, MB (most)"] = found[-1]
    figures[f"resident of a broker, {when}, MB (least)"] = found[0]


def tell_idle_cpu(target: ClusterTarget, seconds: float, figures: Figures) -> None:
    """Prints the idle CPU of each broker, in percent of a core."""
    roots = [[member.process.pid] for member in target.members if member.process is not None]
    before, began = [cpu_seconds(root) for root in roots], time.perf_counter()
    time.sleep(seconds)
    passed = time.perf_counter() - began
    found = sorted((cpu_seconds(root) - cpu) / passed * 100 for root, cpu in zip(roots, before, strict=True))
    figures["idle CPU of a broker, % (most)"] = found[-1]
    figures["idle CPU of a broker, % (least)"] = found[0]


def tell_etcd(target: ClusterTarget, when: str, figures: Figures) -> None:
    """Returns the size of etcd's database before and after its history is compacted and the file is defragmented."""
    etcd = target.etcd
    assert etcd is not None
    size, used, revision = etcd.sizes()
    figures[f"etcd, {when}: revision"] = revision
    figures[f"etcd, {when}: database, MB"] = size / 1e6
    figures[f"etcd, {when}: in use, MB"] = used / 1e6
    etcd.compact(revision)
    began = time.perf_counter()
    etcd.defragment()
    figures[f"etcd, {when}: written again in, s"] = time.perf_counter() - began
    size, used, _ = etcd.sizes()
    figures[f"etcd, {when}: database after compaction, MB"] = size / 1e6


def rows_of(member: Member, topics: Sequence[Topic]) -> dict[tuple[str, int], Any]:
    """Returns all partitions according to a broker. Errors: OSError."""
    with Client(member.address, limit_s=30.0) as client:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic.name) for topic in topics], allow_auto_topic_creation=False
        )
        answer = client.ask(request)
    return {(topic.name, row.partition_index): row for topic in answer.topics for row in topic.partitions}


def replicas_in_sync(member: Member, topics: Sequence[Topic]) -> bool:
    """Returns whether a broker shows all replicas in sync. Errors: OSError."""
    rows = rows_of(member, topics)
    wanted = sum(len(topic.leaders) for topic in topics)
    return len(rows) == wanted and all(len(row.isr_nodes) == BROKERS and row.leader_id >= 0 for row in rows.values())


def delete_all(topics: Sequence[Topic], figures: Figures) -> None:
    """Writes a record to each partition, then sends each leader one DeleteRecords for all of them."""
    records = batch(1, SMALL_RECORD_BYTES, now_ms())
    began = time.perf_counter()
    for topic in topics:
        produce_each(topic, records)
    figures["a record produced to each, s"] = time.perf_counter() - began
    seconds: list[float] = []
    errors: list[str] = []

    def delete(leader: Address, topic: Topic, partitions: Sequence[int]) -> None:
        with Client(leader) as client:
            data = client.ask_bytes(delete_frame(topic.name, [(number, 1) for number in partitions]))
        answer = decode(ApiKey.DELETE_RECORDS, VERSIONS[ApiKey.DELETE_RECORDS], data)
        errors.extend(str(row.error_code) for row in answer.topics[0].partitions if row.error_code)
        seconds.append(time.perf_counter() - began)

    threads = [
        threading.Thread(target=delete, args=(leader, topic, partitions))
        for topic in topics
        for leader, partitions in by_leader(topic.leaders).items()
    ]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors or len(seconds) != len(threads):
        raise BenchError(f"deletes failed: {errors[:3]}")
    figures["delete over all of them, s"] = max(seconds)
    figures["delete, requests"] = len(threads)


def fail_over(target: ClusterTarget, topics: Sequence[Topic], victim: Member, number: int, figures: Figures) -> None:
    """Kills a broker until all partitions have a leader again, then starts it until all are in sync."""
    survivor = next(member for member in target.members if member is not victim)
    led = [key for key, row in rows_of(survivor, topics).items() if row.leader_id == victim.broker_id]
    others = [member.process.pid for member in target.members if member is not victim and member.process is not None]
    before_s = cpu_seconds(others)
    target.kill_member(victim)
    began = time.perf_counter()
    moved: dict[tuple[str, int], float] = {}

    def have_moved() -> bool:
        rows = rows_of(survivor, topics)
        leaders = {member.broker_id: member.address for member in target.members}
        for name in dict.fromkeys(topic for topic, _ in led):
            due = [
                key
                for key in led
                if key[0] == name and key not in moved and rows[key].leader_id not in {-1, victim.broker_id}
            ]
            for leader in {rows[key].leader_id for key in due}:
                answered = serving(leaders[leader], name, [key[1] for key in due if rows[key].leader_id == leader])
                moved.update(dict.fromkeys(((name, partition) for partition in answered), time.perf_counter() - began))
        return len(moved) == len(led)

    until(have_moved, "every partition has a leader again")
    figures[f"death {number + 1}: CPU of the two others until then, s"] = cpu_seconds(others) - before_s
    seconds = sorted(moved.values())
    figures[f"death {number + 1}: partitions led"] = len(led)
    figures[f"death {number + 1}: leader again, p50 s"] = percentile(seconds, 0.5)
    figures[f"death {number + 1}: leader again, p99 s"] = percentile(seconds, 0.99)
    figures[f"death {number + 1}: leader again, last s"] = seconds[-1]
    began = time.perf_counter()
    target.start_member(victim)
    figures[f"death {number + 1}: registered again, s"] = (
        until(lambda: target.registered() == BROKERS, "it is registered") - began
    )
    in_sync = until(lambda: replicas_in_sync(survivor, topics), "all replicas are in sync") - began
    figures[f"death {number + 1}: all replicas in sync, s"] = in_sync
    assert victim.process is not None
    figures[f"death {number + 1}: CPU of the start until then, s"] = cpu_seconds([victim.process.pid])


def serving(leader: Address, topic: str, partitions: Sequence[int]) -> list[int]:
    """Returns the partitions whose end offset this leader returns. Errors: OSError."""
    rows = [ListOffsetsPartition(partition_index=partition, timestamp=LATEST) for partition in partitions]
    with Client(leader) as client:
        answer = client.ask(ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=rows)]))
    return [row.partition_index for row in answer.topics[0].partitions if not row.error_code]


# One broker


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of one kind: their number in a round, and at once."""

    name: str
    frame: bytes
    count: int
    depth: int = 1
    error_position: int | None = None


def compare_brokers(scratch: Path, arguments: argparse.Namespace, figures: Figures) -> None:
    """Compares a broker with many partitions and one with few; both run, and get requests in turn."""
    sizes = {"few": arguments.few, "many": arguments.partitions}
    targets = {name: Target(TargetSpec(name=name, command=LOWTIDE), scratch) for name in sizes}
    found: dict[str, Figures] = {name: {} for name in sizes}
    try:
        topics = {name: prepare(targets[name], sizes[name], found[name]) for name in sizes}
        for name, least in least_cpu({name: (targets[name], kinds_of(topics[name])) for name in sizes}).items():
            found[name] |= least
        for name, target in targets.items():
            found[name]["idle CPU, %"] = idle_percent(target, arguments.idle_s)
            found[name]["stop, s"] = target.stop()
            found[name]["restart, first answer, s"] = target.start()
            began = time.perf_counter()
            for topic in topics[name]:
                wait_until_serving(target, topic.name, len(topic.leaders))
            found[name]["restart, then all serve, s"] = time.perf_counter() - began
            found[name]["restart, CPU s"] = target.cpu_s()
            found[name]["resident after restart, MB"] = target.resident_mb()
    finally:
        for target in targets.values():
            target.close()
    for figure, few in found["few"].items():
        many = found["many"][figure]
        figures[f"{figure}: {sizes['few']} partitions"] = few
        figures[f"{figure}: {sizes['many']} partitions"] = many
        figures[f"{figure}: ratio"] = ratio(many, few)


def prepare(target: Target, partitions: int, found: Figures) -> list[Topic]:
    """Prepares a broker with this number of partitions, the first of which has a record."""
    target.start_fresh()
    began = time.perf_counter()
    topics = topics_of(target, partitions)
    create_topic(target, SINGLE, 1, {})
    found["created, all serve, s"] = time.perf_counter() - began
    found["CPU s until then"] = target.cpu_s()
    found["resident, MB"] = target.resident_mb()
    pump(
        [Lane(topics[0].leaders[0], [produce_frame(topics[0].name, 0, batch(1, SMALL_RECORD_BYTES, now_ms()))])],
        count=1,
    )
    return topics


def kinds_of(topics: Sequence[Topic]) -> list[tuple[Address, Kind]]:
    """Returns the kinds of requests for a topic."""
    name, leader = topics[0].name, topics[0].leaders[0]
    records = batch(1, SMALL_RECORD_BYTES, now_ms())
    fetch = fetch_frame(name, 0)
    return [
        (
            leader,
            Kind("Produce of a record", produce_frame(name, 1, records), REQUESTS, 5, produce_error_position(name)),
        ),
        (leader, Kind("Fetch of a record", fetch.request, REQUESTS, 5, fetch.error_position)),
        (leader, Kind("Metadata of a topic of one partition", metadata_frame(SINGLE), REQUESTS, 5)),
    ]


def least_cpu(asked: dict[str, tuple[Target, list[tuple[Address, Kind]]]]) -> dict[str, Figures]:
    """Returns the least CPU of a request by kind and target, over interleaved rounds."""
    found: dict[str, Figures] = {name: {} for name in asked}
    for _ in range(ROUNDS):
        for name, (target, kinds) in asked.items():
            for address, kind in kinds:
                lane = Lane(address, itertools.repeat(kind.frame))
                with cost_of(target) as cost:
                    pump([lane], count=kind.count, depth=kind.depth, error_position=kind.error_position)
                title = f"{kind.name}, CPU us"
                cpu_us = cost.cpu_s / kind.count * 1e6
                found[name][title] = min(found[name].get(title, cpu_us), cpu_us)
    return found


if __name__ == "__main__":
    sys.exit(main())
