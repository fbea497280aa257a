"""Erases records by key in the partitions of a simulated cluster, and checks what brokers and their disks have then.

E1 after an erasure was acknowledged, no read that begins later returns one of its records, from any replica; E2 no
other record is missing on any replica; E3 no file of a broker that has confirmed has one, no crash brings one back, and
in the end no file of any replica has one. The records of an erasure are those that a client has read, or that were
acknowledged, before it was requested. `erased_history` judges reads.

An offset tells a key only where a replica still has its record. If every replica in sync had compacted the record away
before it copied or searched the log, nothing is erased, and older versions of the key may stay on some of them (E10).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Final, NamedTuple

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.erase_records import EraseRecordsPartition, EraseRecordsRequest, EraseRecordsTopic
from lowtide.protocol.messages.find_records import (
    FindRecordsPartition,
    FindRecordsRequest,
    FindRecordsTopic,
    FoundPartition,
    RecordOffsets,
)
from lowtide.protocol.records import iterate_batches
from lowtide.protocol.types import BrokerId, Offset, TopicPartition
from lowtide.runtime.filesystem.nodes import Folder
from lowtide.runtime.random import Random
from lowtide.simulation import cluster_end
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.cluster_load import PartitionLoad
from lowtide.simulation.cluster_world import ClusterWorld
from lowtide.simulation.erased_history import ErasedHistory
from lowtide.simulation.erasing_work import Life, files_of, lives_with_record, log_of, records_of
from lowtide.simulation.history import HistoryError
from lowtide.simulation.keyed_load import KeyedAuditor, KeyedLoad
from lowtide.simulation.machines import Machine
from lowtide.simulation.replica_watch import content_of
from lowtide.simulation.standing_work import NEVER, StandingWork
from lowtide.storage.log.log import Log

WITHIN_S: Final = 8.0
"""The time that an erasure may take; then it isn't acknowledged."""

CLEAN_WITHIN_S: Final = 40.0
"""The time in which files are clean in the end: two passes of rewriting, and the longest rest between them."""

CLIENTS: Final = 3
"""Others ask while one waits for a replica that is away."""

TOGETHER_MAX: Final = 4
"""The most keys of one erasure."""

FORGETTING_ACTORS: Final = ("producer", "idempotent producer", "reader", "reader")
"""The clients of each partition in runs with only erasures."""

OFFSETS_SHARE: Final = 0.4
"""The share of erasures that name an offset, in compacted logs."""

_TIMEOUT_MS: Final = 1000
_RETRY_S: Final = 0.1
_READ_BYTES: Final = 1 << 20


class Wanted(NamedTuple):
    """What one erasure is to erase."""

    search_id: bytes
    ends: dict[bytes, Offset]
    """Keys, each with the last offset (inclusive)."""
    offset: Offset | None
    """The one that names the key, if the request does not."""
    force: bool

    def has(self, key: bytes, offset: Offset) -> bool:
        return offset <= self.ends.get(key, -1)

    def __str__(self) -> str:
        named = list(self.ends) if self.offset is None else f"{self.offset} of {list(self.ends)}"
        return f"{named}{' by force' if self.force else ''}"


def newer_versions(load: PartitionLoad, wanted: Wanted) -> list[Offset]:
    """Returns the acknowledged records of the keys above the ends."""
    return [
        offset
        for offset, text in load.history.acknowledged.items()
        if offset > wanted.ends.get(load.key_of(text), NEVER)
    ]


class ForgettingWork:
    """Erases keys, one after the other. Does nothing if erasures are not part of the run."""

    key = "forgetter"

    def __init__(
        self, cluster: ClusterWorld, loads: list[PartitionLoad], random: Random, standing: Random | None
    ) -> None:
        """With `standing` one erasure stands."""
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._loads = loads
        self._random = random
        self._clients: list[ClusterClient] = []
        self._begun = 0
        self._cleaned: dict[tuple[BrokerId, str], tuple[Folder, frozenset[bytes]]] = {}
        """What each broker has confirmed for the disk that it had, by the partition's name."""
        keyed = [load for load in loads if isinstance(load, KeyedLoad)]
        self._auditors = [KeyedAuditor(cluster, [load], Random(random.getrandbits(64))) for load in keyed]
        for load in loads:
            load.history.erasures = ErasedHistory(load.history.name, load.key_of)
        self._standing = StandingWork(
            cluster, loads if standing else [], self.counts, self._is_clean_everywhere, standing or random
        )

    def actors(self) -> list[ForgettingWork | KeyedAuditor | StandingWork]:
        return [*[self] * len(self._clients), *self._auditors, *self._standing.actors()]

    def begin(self) -> None:
        """Connects. Nothing is erased while brokers are too old."""
        if self._loads:
            count = 1 if self._auditors else CLIENTS  # A compacted log has one erasure at a time.
            self._clients = [self._cluster.client(f"{self.key} {number}") for number in range(count)]

    async def run(self, *, until: asyncio.Event, pause_s: float) -> None:
        client = self._clients[self._begun]
        self._begun += 1
        while not until.is_set():
            await asyncio.sleep(self._random.random() * 2 * pause_s)
            load = self._random.choice(self._loads)
            values = list(load.history.places)
            if values:
                # Mostly what was written last: it may not be flushed, or committed on all replicas.
                some = values[-8:] if self._random.random() < 0.6 else values  # noqa: PLR2004
                texts = [self._random.choice(some) for _ in range(self._random.randint(1, TOGETHER_MAX))]
                try:
                    await self._erase(client, load, self._wanted(load, texts), until)
                except HistoryError as error:
                    self._cluster.chronicle.violate(str(error))
                    break
        client.close()

    def _wanted(self, load: PartitionLoad, texts: list[bytes]) -> Wanted:
        """Returns an erasure of the keys of records; in a compacted log sometimes of one by its offset."""
        search_id = self._random.getrandbits(128).to_bytes(16, "big")
        if isinstance(load, KeyedLoad) and self._random.random() < OFFSETS_SHARE:
            offset = load.history.places[texts[0]]
            return Wanted(search_id, {load.key_of(texts[0]): offset}, offset, self._random.random() < 0.5)  # noqa: PLR2004
        return Wanted(search_id, {load.key_of(text): NEVER for text in sorted(texts)}, None, False)

    async def _erase(self, client: ClusterClient, load: PartitionLoad, wanted: Wanted, until: asyncio.Event) -> None:
        """Erases the records that are there now. Errors: HistoryError."""
        history, erasures = load.history, load.history.erasures
        assert erasures is not None
        texts = frozenset(text for text, offset in history.places.items() if wanted.has(load.key_of(text), offset))
        erasures.wanted[wanted.search_id] = wanted.ends
        voids, deadline = history.voids, self._cluster.loop.time() + WITHIN_S
        newer = newer_versions(load, wanted)
        self._note(f"erases {wanted} of {history.name}: {len(texts)} known records")
        found: FoundPartition | None = None
        had_named: frozenset[Life] = frozenset()
        while found is None:
            if until.is_set() or self._cluster.loop.time() > deadline:
                self.counts["not found in time"] += 1
                return
            had_named = self._lives_with_named(load, wanted.offset)
            found = await self._find(client, load, wanted)
        if found.error_code:
            self.counts["newest version"] += 1
            newer = [each for each in newer if not erasures.may_lack(each)]
            if newer and history.voids == voids:
                history.fail(f"{wanted} is called the newest version, and {newer} were acknowledged before")
            return
        texts = texts if self._tells_keys(load, wanted, found, had_named) else frozenset()
        log_start, end = max(found.log_start_offset, 0), found.erasures_end
        if history.voids == voids:
            erasures.check_end(wanted.search_id, found.searched_to)
        if end < 0:
            self.counts["nothing found"] += 1
            return
        confirmed: dict[BrokerId, Folder] = {}
        while missing := self._replicas(load) - set(confirmed):
            if until.is_set() or self._cluster.loop.time() > deadline or history.voids != voids:
                self.counts["not confirmed in time"] += 1
                return
            for broker_id in sorted(missing):
                machine = self._machine(broker_id)
                disk = machine.filesystem.root
                if await self._confirms(client, load, broker_id, log_start, end):
                    confirmed[broker_id] = disk
                    self._look_at(load, machine, disk, texts)
            await asyncio.sleep(_RETRY_S / 4)
        if history.voids == voids:
            self.counts["acknowledged"] += 1
            self._note(f"erased {wanted} of {history.name} by {end}")
            erasures.erased |= texts
            erasures.clean |= texts
            for broker_id, disk in confirmed.items():
                before = self._cleaned.get((broker_id, history.name))
                known = before[1] if before is not None and before[0] is disk else frozenset()
                self._cleaned[broker_id, history.name] = disk, known | texts

    def _tells_keys(
        self, load: PartitionLoad, wanted: Wanted, found: FoundPartition, had_named: frozenset[Life]
    ) -> bool:
        """Returns whether the keys were given, or a replica must have told the key of the named record.

        `had_named` are the lives that had this record when the leader was asked. Who still has it was searched in that
        life, and told its key: all replicas in sync are searched, and no others join them meanwhile. A replica that was
        away needn't tell it, because it starts over. One that was killed meanwhile may have got back a disk from before
        the record was compacted away.
        """
        assert load.history.erasures is not None
        if (
            wanted.offset is None
            or found.record_count
            or load.history.erasures.may_lack(wanted.offset)
            or had_named & self._lives_with_named(load, wanted.offset)
        ):
            return True
        self.counts["named record is gone"] += 1
        return False

    def _lives_with_named(self, load: PartitionLoad, offset: Offset | None) -> frozenset[Life]:
        """Returns which replicas in sync have the record that an erasure names by its offset."""
        if offset is None:
            return frozenset()
        return lives_with_record(self._cluster, TopicPartition(load.topic, load.partition), offset)

    def _replicas(self, load: PartitionLoad) -> set[BrokerId]:
        state = self._cluster.partition(load.topic, load.partition)
        return set() if state is None else set(state.replicas)

    async def _find(self, client: ClusterClient, load: PartitionLoad, wanted: Wanted) -> FoundPartition | None:
        """Returns what the leader has erased, or its refusal; None if it has to be asked again."""
        offset = wanted.offset
        offsets = [] if offset is None else [RecordOffsets(first_offset=offset, last_offset=offset)]
        rows = [FindRecordsPartition(partition_index=load.partition, offsets=offsets)]
        request = FindRecordsRequest(
            search_id=wanted.search_id,
            topics=[FindRecordsTopic(name=load.topic, partitions=rows)],
            keys=list(wanted.ends) if offset is None else [],
            timeout_ms=_TIMEOUT_MS,
            ranges_max=0,
            erase=True,
            force=wanted.force,
        )
        try:
            leader = await client.leader(load.topic, load.partition)
            answer = await client.ask(leader, request, 0, timeout_ms=_TIMEOUT_MS, must_answer=False)
        except OSError:
            client.forget(load.topic, load.partition)
            await asyncio.sleep(_RETRY_S)
            return None
        row: FoundPartition | None = None if answer.error_code else answer.topics[0].partitions[0]
        code = answer.error_code if row is None else row.error_code
        self.counts[f"FindRecords {ErrorCode(code).name}"] += 1
        if row is None or (code and code != ErrorCode.POLICY_VIOLATION):
            client.forget(load.topic, load.partition)
            await asyncio.sleep(_RETRY_S)
            return None
        self._note(f"broker {leader} found {row.record_count} of {load.history.name}, erased by {row.erasures_end}")
        return row

    async def _confirms(
        self, client: ClusterClient, load: PartitionLoad, broker_id: BrokerId, log_start: Offset, end: Offset
    ) -> bool:
        rows = [EraseRecordsPartition(partition_index=load.partition, offset=log_start, erasures_end=end)]
        topics = [EraseRecordsTopic(name=load.topic, partitions=rows)]
        request = EraseRecordsRequest(topics=topics, timeout_ms=_TIMEOUT_MS)
        try:
            answer = await client.ask(broker_id, request, 1, timeout_ms=_TIMEOUT_MS, must_answer=False)
        except OSError:
            return False
        code = answer.error_code or answer.topics[0].partitions[0].error_code
        self.counts[f"EraseRecords {ErrorCode(code).name}"] += 1
        return bool(code == ErrorCode.NONE)

    def _look_at(self, load: PartitionLoad, machine: Machine, disk: Folder, texts: frozenset[bytes]) -> None:
        """Checks that no file of a broker has the records that it has just confirmed to be erased (E3).

        `disk` is the one that it had when it was asked: it may have got an old one back since it answered.
        """
        log = _log_of(machine, load)
        if log is None or load.history.records_are_void or machine.filesystem.root is not disk:
            return
        self.counts["looked at"] += 1
        for path, left in self._left_in(load, machine, log, texts):
            self._cluster.chronicle.violate(f"E3: {machine.host} has confirmed an erasure, and {path} has {left[:3]}")

    def _left_in(
        self, load: PartitionLoad, machine: Machine, log: Log, texts: frozenset[bytes]
    ) -> list[tuple[str, list[bytes]]]:
        """Returns the files of a replica with one of the records."""
        found = []
        for path, content in files_of(self._cluster, machine, log):
            left = sorted(texts & {load.text_in_file(each) for _, each in records_of(content)})
            if left:
                found.append((path, left))
        return found

    def on_death(self, machine: Machine) -> None:
        """Checks the files after a crash, before anything changes them (E3)."""
        for load in self._loads:
            log = self._last_log(machine, load)
            disk, texts = self._cleaned.get((machine.broker_id, load.history.name), (None, frozenset()))
            assert load.history.erasures is not None
            texts &= load.history.erasures.clean  # Without those of before an unclean election.
            if log is None or not texts or disk is not machine.filesystem.root:
                continue
            self.counts["looked at after a death"] += 1
            for path, left in self._left_in(load, machine, log, texts):
                self._cluster.chronicle.violate(
                    f"E3: {machine.host} had confirmed an erasure when its broker died, and {path} has {left[:3]}"
                )

    def _last_log(self, machine: Machine, load: PartitionLoad) -> Log | None:
        """Returns a log of the partition: files are found by its name and its topic's id."""
        machines = [machine, *self._cluster.machines]
        return next((log for each in machines if (log := _log_of(each, load)) is not None), None)

    async def check_end(self) -> None:
        """Checks each replica of partitions that have a leader again. Errors: HistoryError."""
        for auditor in self._auditors:
            auditor.look_at_all()
        for load in self._loads:
            if not cluster_end.can_be_led(self._cluster, load.topic, load.partition):
                continue
            erasures = load.history.erasures
            assert erasures is not None
            what = f"all replicas of {load.history.name} know that all is committed, the last erasure too"
            await cluster_end.until(self._cluster, partial(self._is_all_committed, load), what, CLEAN_WITHIN_S)
            logs = self._logs(load)
            start = max((log.log_start_offset for _, log in logs), default=0)
            first: set[Offset] | None = None
            for machine, log in logs:
                self._note(f"{machine.host} is read: {log.describe()}")
                offsets = {offset for offset in self.read_replica(load, log) if offset >= start}
                if first is not None and offsets != first and not isinstance(load, KeyedLoad):
                    load.history.fail(f"E2: {machine.host} has not the same records as others: {offsets ^ first}")
                first = offsets
            texts = erasures.erased_values(load.history.places) | erasures.clean
            await cluster_end.until(
                self._cluster,
                partial(self._are_clean, load, logs, texts),
                f"E3: no file of {load.history.name} has an erased record",
                CLEAN_WITHIN_S,
            )
        await self._standing.check_end()

    def _is_clean_everywhere(self, load: PartitionLoad, texts: frozenset[bytes]) -> bool:
        """Returns whether no file of any replica of a partition has one of the records."""
        return self._are_clean(load, self._logs(load), texts)

    def _logs(self, load: PartitionLoad) -> list[tuple[Machine, Log]]:
        return [(each, log) for each in self._cluster.machines if (log := _log_of(each, load)) is not None]

    def _is_all_committed(self, load: PartitionLoad) -> bool:
        return all(log.high_watermark == log.log_end_offset for _, log in self._logs(load))

    def _are_clean(self, load: PartitionLoad, logs: list[tuple[Machine, Log]], texts: frozenset[bytes]) -> bool:
        return not any(self._left_in(load, machine, log, texts) for machine, log in logs)

    def read_replica(self, load: PartitionLoad, log: Log) -> dict[Offset, bytes]:
        """Checks that a replica has all live records and no others (R1, E2). Returns them."""
        position, records = log.log_start_offset, dict[Offset, bytes]()
        while position < log.log_end_offset:
            read = log.read(position, _READ_BYTES, end_offset=log.log_end_offset).slice
            if read is None:
                break
            before, content = position, content_of(read)
            for batch_position, header in iterate_batches(content):
                position = max(position, header.next_offset)
                if not header.is_control:
                    batch = content[batch_position : batch_position + header.size_bytes]
                    records |= {
                        offset: load.text_in_file(found)
                        for offset, found in records_of(batch)
                        if offset >= log.log_start_offset
                    }
            if position == before:
                break
        load.history.check_gaps(records, log.log_start_offset, log.log_end_offset)
        for offset, value in records.items():
            load.history.check_place(offset, value)
        return records

    def _machine(self, broker_id: BrokerId) -> Machine:
        return next(each for each in self._cluster.machines if each.broker_id == broker_id)

    def _note(self, what: str) -> None:
        self._cluster.chronicle.note(self.key, what)


def _log_of(machine: Machine, load: PartitionLoad) -> Log | None:
    return log_of(machine, TopicPartition(load.topic, load.partition))
