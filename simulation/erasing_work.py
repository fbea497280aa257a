"""Asks replicas to erase deleted records, and checks that no file contains them.

D15: after a successful response to an erase request, no file of the replica has a record below the offset, nor a copy
in another log directory, nor a folder left by an earlier replica; and no crash restores one, until the replica is
truncated, or starts over: its leader's batches may contain such records again, in a batch that starts below the log
start offset. A replica that just started over may answer before that; it is not in sync, so `erased_by` does not name
it.

Checked at the response and after crashes. All files that can have records count, also replaced ones and those of
compactions. A record is found by its offset in readable batches, and everywhere by its text.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Final

import msgspec

from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.records import iterate_batches, iterate_records
from lowtide.protocol.types import BrokerId, Offset, TopicPartition, topic_id_text
from lowtide.runtime.filesystem.nodes import Folder
from lowtide.runtime.random import Random
from lowtide.simulation import cluster_end
from lowtide.simulation.cluster_world import ClusterWorld
from lowtide.simulation.machines import Machine, State, log_manager_of
from lowtide.storage.checkpoint import PARTITION_METADATA
from lowtide.storage.directory.directory_erasures import EraseFailedError
from lowtide.storage.directory.log_manager import LogManager
from lowtide.storage.log.log import Log

ERASED_WITHIN_S: Final = 20.0

_ALL_SHARE: Final = 0.7
"""The share of requests up to the log start offset; others have a lower offset."""

Life = tuple[BrokerId, int]
"""A broker and the number of its life. A restart begins a new life."""

_DECOMPRESSED_BYTES_MAX: Final = 1 << 24


class _Erasure(msgspec.Struct):
    """A successful erase request."""

    machine: Machine
    log: Log
    """The current or last log."""
    offset: Offset
    texts: frozenset[bytes]
    """The known texts of the records below the offset."""
    log_end_offset: Offset
    disk: Folder

    @property
    def is_on_this_disk(self) -> bool:
        """Returns whether the machine has the same disk."""
        return self.machine.filesystem.root is self.disk


class ErasingWork:
    """Sends erase requests and checks the files. Does nothing if erasing is not part of the run."""

    key = "eraser"

    def __init__(self, cluster: ClusterWorld, random: Random, kinds: tuple[str, ...]) -> None:
        self.is_active = "erasing" in kinds
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._random = random
        self._answered: list[_Erasure] = []

    def actors(self) -> list[ErasingWork]:
        return [self] if self.is_active else []

    async def run(self, *, until: asyncio.Event, pause_s: float) -> None:
        while not until.is_set():
            await asyncio.sleep(self._random.random() * pause_s)
            replicas = list(self._replicas())
            if replicas:
                machine, manager, log = self._random.choice(replicas)
                start = log.log_start_offset
                offset = start if self._random.random() < _ALL_SHARE else Offset(self._random.randint(0, start))
                self._ask(machine, manager, log, offset)

    def _replicas(self) -> Iterator[tuple[Machine, LogManager, Log]]:
        """Returns replicas with deleted records."""
        loads = self._cluster.invariants.promises.load_of
        for machine in self._cluster.machines:
            manager = log_manager_of(machine)
            if manager is None or machine.state is not State.UP or not machine.is_running:
                continue
            for key, log in manager.logs.items():
                if loads(*key) is not None and log.log_start_offset and not log.offline:
                    yield machine, manager, log

    def _ask(self, machine: Machine, manager: LogManager, log: Log, offset: Offset) -> None:
        assert machine.node is not None
        self._cluster.chronicle.note(self.key, f"{machine.host} is to erase {log.topic_partition} to {offset}")
        machine.node.run(manager.erase, log, EraseGoal(offset), partial(self._on_answer, machine, log, offset))

    def _on_answer(self, machine: Machine, log: Log, offset: Offset, error: EraseFailedError | None) -> None:
        self._cluster.chronicle.note(
            self.key, f"{machine.host} has erased {log.topic_partition} to {offset}: {error or 'done'}"
        )
        self.counts["refused" if error else "answered"] += 1
        if error is None:
            load = self._cluster.invariants.promises.load_of(*log.topic_partition)
            assert load is not None
            texts = frozenset(text for text, place in load.history.places.items() if place < offset)
            disk = machine.filesystem.root
            erasure = _Erasure(machine, log, offset, texts, log.log_end_offset, disk)
            if log.log_end_offset > log.log_start_offset:  # What an empty log takes first may begin below its start.
                self._answered.append(erasure)
            self._look_at(erasure, "when it answered")

    # What stays

    def check(self) -> None:
        """Drops promises of replicas that were truncated, started over or got another disk."""
        self._answered = [each for each in self._answered if self._holds(each)]

    def _holds(self, erasure: _Erasure) -> bool:
        if not erasure.is_on_this_disk:
            return False
        machine, key = erasure.machine, erasure.log.topic_partition
        manager = log_manager_of(machine)
        if manager is None or machine.state not in {State.UP, State.STOPPING}:
            return True  # It is looked at when it serves again.
        log = manager.logs.get(key)
        if log is None or log.topic_id != erasure.log.topic_id or log.log_end_offset < erasure.log_end_offset:
            return False
        erasure.log, erasure.log_end_offset = log, log.log_end_offset
        return True

    def on_death(self, machine: Machine) -> None:
        """Checks the files after a crash, before anything changes them."""
        for erasure in self._answered:
            if erasure.machine is machine and erasure.is_on_this_disk:
                self.counts["looked at after a death"] += 1
                self._look_at(erasure, "and its broker died")

    def _look_at(self, erasure: _Erasure, when: str) -> None:
        key, offset = erasure.log.topic_partition, erasure.offset
        for path, content in files_of(self._cluster, erasure.machine, erasure.log):
            records = dict(records_of(content))
            left = sorted(each for each in records if each < offset)
            again = {text for each, text in records.items() if each >= offset}
            texts = [each for each in erasure.texts if each in content and not any(each in text for text in again)]
            if left or texts:
                self._cluster.chronicle.violate(
                    f"D15: {erasure.machine.host} has erased {key} to {offset}, {when}, and {path} has {left[:5]}, "
                    f"{texts[:2]}"
                )

    async def check_end(self) -> None:
        """Checks that replicas erase all deleted records on request. Errors: HistoryError."""
        if not self.is_active:
            return
        before = self.counts["answered"]
        asked = list(self._replicas())
        for machine, manager, log in asked:
            self._ask(machine, manager, log, log.log_start_offset)
        what = "D15: everything that is deleted is erased"
        await cluster_end.until(
            self._cluster, lambda: self.counts["answered"] >= before + len(asked), what, ERASED_WITHIN_S
        )


def log_of(machine: Machine, key: TopicPartition) -> Log | None:
    """Returns the log that a broker serves."""
    manager = log_manager_of(machine)
    return None if manager is None else manager.logs.get(key)


def lives_with_record(cluster: ClusterWorld, key: TopicPartition, offset: Offset) -> frozenset[Life]:
    """Returns the lives of the brokers in sync, under their present registrations, whose logs have a record there."""
    state, image, found = cluster.partition(*key), cluster.shared.image, set[Life]()
    members = {} if state is None else dict(zip(state.isr, state.isr_epochs, strict=True))
    for machine in cluster.machines:
        log, epoch = log_of(machine, key), members.get(machine.broker_id)
        if log is None or epoch is None or epoch != image.broker_epoch(machine.broker_id):
            continue
        files = files_of(cluster, machine, log)
        served = (content for path, content in files if f"/{key}/" in path and path.endswith(".log"))
        if any(place == offset for content in served for place, _ in records_of(content)):
            found.add((machine.broker_id, machine.lives))
    return frozenset(found)


def files_of(cluster: ClusterWorld, machine: Machine, log: Log) -> Iterator[tuple[str, bytes]]:
    """Yields all files that can have records of a replica: served, copied, being removed, or set aside."""
    key, filesystem = str(log.topic_partition), machine.filesystem
    topic_id = topic_id_text(log.topic_id).encode()
    for directory in cluster.directories:
        for name in filesystem.listdir(directory):
            if name != key and not name.startswith(f"{key}."):
                continue
            files = filesystem.contents(f"{directory}/{name}")
            if name.endswith(("-delete", "-stray")) and topic_id not in files.get(PARTITION_METADATA, b""):
                continue  # Another topic of the name had it.
            for file, content in files.items():
                if ".log" in file:
                    yield f"{directory}/{name}/{file}", content


def records_of(content: bytes) -> Iterator[tuple[Offset, bytes]]:
    """Yields the readable records of a file."""
    try:
        for position, header in iterate_batches(content):
            if not header.is_control and header.record_count:
                batch = content[position : position + header.size_bytes]
                for record in iterate_records(batch, max_bytes=_DECOMPRESSED_BYTES_MAX):
                    yield (
                        record.offset,
                        bytes(record.value or b"") + b"".join(value or b"" for _, value in record.headers),
                    )
    except ProtocolError:
        return
