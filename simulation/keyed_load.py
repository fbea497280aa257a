"""Compacted partitions: records with few keys, tombstones, transactions, and checks of what remains.

Producers are those of `cluster_load` and `transaction_load`, with keys. Some topics also delete by time. Whole logs,
also of followers, are read repeatedly, and `keyed_history` judges what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from lowtide.protocol.batch_building import UnplacedRecord
from lowtide.protocol.records import Record, iterate_batches, iterate_records
from lowtide.protocol.types import Offset
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_ports import SIMULATION_WALL_START_MS
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.cluster_load import PartitionLoad
from lowtide.simulation.cluster_world import TOPIC, ClusterWorld
from lowtide.simulation.history import HistoryError
from lowtide.simulation.kept_load import CLOCK_REMEMBERED_S
from lowtide.simulation.keyed_history import Identity, KeyedHistory
from lowtide.simulation.loaded_partition import Actor, DeleteObserver
from lowtide.simulation.machines import Machine, log_manager_of
from lowtide.simulation.partition_actors import IdempotentProducer, Producer, Reader
from lowtide.simulation.replica_watch import content_of
from lowtide.simulation.transaction_history import Attempt, TransactionHistory
from lowtide.simulation.transaction_load import TransactionLoad
from lowtide.storage.log.log import Log

KEYS: Final = 6
COMPACTED_WITHIN_S: Final = 15.0
"""Open transactions end before, and segments are flushed."""

SUPERSEDED_SHARE_MAX: Final = 0.6
SUPERSEDED_MAX: Final = 12
CLEANER_PAUSES_MS: Final = ("100", "500", "500", "4000")
"""How often a broker compacts. Some keep old versions for nearly a whole run."""

_HEADER: Final = b"text"
_VALUE: Final = b"v"
"""Texts begin with a digit."""
_DECOMPRESSED_BYTES_MAX: Final = 1 << 24
_CHUNK_BYTES: Final = 1 << 20


def compacted_configs(random: Random, *, with_transactions: bool) -> dict[str, str]:
    """Returns a topic's configuration.

    A replica that was down for longer than markers are kept misses the outcomes of transactions, as in Kafka: with
    transactions, that time is long.
    """
    configs = {
        "cleanup.policy": "compact" if random.random() < 0.7 else "compact,delete",  # noqa: PLR2004
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": "60000" if with_transactions else random.choice(("500", "2000")),
        "min.compaction.lag.ms": random.choice(("0", "0", "400")),
    }
    if "delete" in configs["cleanup.policy"]:
        configs["retention.ms"] = "3000"
    return configs


class KeyedLoad(PartitionLoad):
    """A compacted partition. `configs` are the topic's."""

    history: KeyedHistory
    has_deletes = False

    def __init__(
        self,
        topic: str,
        partition: int,
        make_client: Callable[[str], ClusterClient],
        random: Random,
        observer: DeleteObserver,
        configs: dict[str, str],
    ) -> None:
        super().__init__(topic, partition, make_client, random, observer)
        self.history = KeyedHistory(f"{topic}-{partition}", delete_retention_ms=int(configs["delete.retention.ms"]))
        self._retention_ms = int(configs.get("retention.ms", "-1"))

    def actors(self, kinds: tuple[str, ...]) -> list[Actor]:
        clients = [
            self.make_client(f"{name} {self.partition}") for name in ("keyed", "keyed idempotent", "keyed reader")
        ]
        sources = [Random(self.random.getrandbits(64)) for _ in clients]
        return [
            Producer(self, clients[0], sources[0]),
            IdempotentProducer(self, clients[1], sources[1]),
            KeyedReader(self, clients[2], sources[2]),
        ]

    def make_reader(self, client: ClusterClient, random: Random) -> Reader:
        return KeyedReader(self, client, random)

    def timestamp_ms(self, random: Random) -> int:
        return (
            SIMULATION_WALL_START_MS
            + int(asyncio.get_running_loop().time() * 1000)
            + random.choice((0, 0, 0, -1000, 1000))
        )

    def next_values(self, count: int, random: Random) -> list[bytes]:
        sent_ms = int(asyncio.get_running_loop().time() * 1000)
        return [self._text(serial, sent_ms, random) for serial in super().next_values(count, random)]

    def _text(self, serial: bytes, sent_ms: int, random: Random) -> bytes:
        key = b"k%d" % random.randrange(KEYS) if random.random() < 0.9 else b"own " + serial[:12]  # noqa: PLR2004
        kind = b"T" if random.random() < 0.15 else b"V"  # noqa: PLR2004
        return b"%s|%s|%s|%d|%s" % (serial[:12].replace(b"x", b""), key, kind, sent_ms, serial)

    def records(self, values: list[bytes], random: Random) -> list[UnplacedRecord]:
        found: list[UnplacedRecord] = []
        for text in values:
            identity = Identity.of(text)
            content = None if identity.is_tombstone else _VALUE
            found.append((self.timestamp_ms(random), identity.key, content, ((_HEADER, text),)))
        return found

    def text_of(self, record: Record) -> bytes:
        return next((bytes(value or b"") for name, value in record.headers if name == _HEADER), b"")

    def text_in_file(self, found: bytes) -> bytes:
        return found.removeprefix(_VALUE)

    def key_of(self, text: bytes) -> bytes:
        return Identity.of(text).key

    def on_committed(self, header: object) -> None:
        next_offset: Offset = header.next_offset  # type: ignore[attr-defined]
        self.history.committed_end = max(self.history.committed_end, next_offset)

    def why_not(self, start: Offset, log: Log, machine: Machine, *, knows_all: bool) -> str | None:
        """Returns why the log may not start at `start`.

        Time deletes all that is old, except what was superseded before.
        """
        if self._retention_ms < 0:
            return super().why_not(start, log, machine, knows_all=knows_all)
        latest_ms = machine.clock.latest_wall_ms(CLOCK_REMEMBERED_S) - SIMULATION_WALL_START_MS
        for offset, text in (self.history.seen | self.history.acknowledged).items():
            is_young = latest_ms - Identity.of(text).sent_ms + 1000 <= self._retention_ms
            if (
                self.history.requested_delete <= offset < start
                and is_young
                and not self.history.is_superseded(offset, text)
            ):
                return f"D14: starts at {start}, and {text[:60]!r} at {offset} is younger than {self._retention_ms} ms"
        self.history.requested_delete = start
        return None


class KeyedReader(Reader):
    """Reads from log start offset to high watermark, and judges what is missing; or like other readers."""

    load: KeyedLoad

    async def step(self) -> None:
        if self.random.random() < 0.3:  # noqa: PLR2004
            await self.read_all(await self.target())
        else:
            await super().step()

    async def read_all(self, broker_id: int) -> tuple[Offset, Offset] | None:
        found = await self.bounds(broker_id)
        if found is None:
            return None
        position, start = found[0], found[0]
        offsets: set[Offset] = set()
        while True:
            answer = await self.fetch(broker_id, position)
            if answer is None:
                return None
            start = max(start, answer[0].log_start_offset)
            offsets.update(answer[1])
            if self.next_offset <= position:
                break
            position = self.next_offset
        if position < answer[0].high_watermark:
            if self.load.history.erasures is not None:
                return None  # Readers wait where an erasure isn't committed yet.
            self.load.history.fail(
                f"R3: nothing is read at {position}, and the high watermark is {answer[0].high_watermark}"
            )
        self.load.counts["read whole"] += 1
        return found if position >= found[1] else None


class KeyedTransactions(TransactionHistory):
    """Transactions in compacted partitions."""

    def __init__(self, loads: list[KeyedLoad], random: Random) -> None:
        super().__init__()
        self._loads = loads
        self._random = random

    def void(self) -> None:
        super().void()
        for load in self._loads:
            load.history.outcomes_are_void = True

    def new_values(self, attempt: Attempt, partition: int, count: int, padding: bytes) -> list[bytes]:
        load = self._loads[partition]
        values = load.next_values(count, self._random)
        load.history.on_send(values, -1, 0, ordered=False)
        for value in values:
            attempt.values[value] = partition
            load.history.attempts[value] = attempt
        return values

    def on_acknowledged(self, attempt: Attempt, base_offset: Offset, values: list[bytes]) -> None:
        if base_offset >= 0:
            self._loads[attempt.values[values[0]]].history.on_acknowledged(base_offset, values)


class KeyedTransactionLoad(TransactionLoad):
    """The shared state of such transactions' producers."""

    def use(self, loads: list[KeyedLoad]) -> None:
        self._loads = loads
        self.history = KeyedTransactions(loads, self.random)

    def records(self, partition: int, values: list[bytes]) -> list[UnplacedRecord]:
        return self._loads[partition].records(values, self.random)


class KeyedAuditor:
    """Reads whole logs of leaders and followers directly."""

    key = "auditor"

    def __init__(self, cluster: ClusterWorld, loads: list[KeyedLoad], random: Random) -> None:
        self._cluster = cluster
        self._loads = loads
        self._random = random

    async def run(self, *, until: asyncio.Event, pause_s: float) -> None:
        while not until.is_set():
            await asyncio.sleep(self._random.random() * 2 * pause_s)
            try:
                self.look(self._random.choice(self._loads))
            except HistoryError as error:
                self._cluster.chronicle.violate(str(error))
                break

    def look_at_all(self) -> None:
        """Checks all replicas of all partitions. Errors: HistoryError."""
        for load in self._loads:
            self.look(load)

    def look(self, load: KeyedLoad) -> None:
        """Checks all replicas of a partition. Errors: HistoryError."""
        cluster = self._cluster
        topic = cluster.shared.image.topics[load.topic]
        for machine in cluster.machines:
            watch = cluster.invariants.watches.find(machine.broker_id, topic.topic_id, load.partition)
            manager = log_manager_of(machine)
            if manager is None or watch is None or watch.log is None or watch.log.offline or watch.has_holes:
                continue
            if (
                manager.logs.get(watch.log.topic_partition) is not watch.log
                or machine.filesystem.open_files_max is not None
            ):
                continue  # Where nothing can be opened, this reader can't look either.
            found = read_log(watch.log, load)
            now_ms = int(cluster.loop.time() * 1000)
            load.history.on_read(found, start=watch.log.log_start_offset, deleted_before=0)
            load.history.check_whole(
                found,
                start=watch.log.log_start_offset,
                end=watch.log.high_watermark,
                now_ms=now_ms,
                clocks_are_right=not cluster.chronicle.counts["wrong clock"],  # Also one of a machine that was down.
            )
            load.counts["looked at"] += 1

    def is_compacted(self, load: KeyedLoad) -> bool:
        """Returns whether every replica has removed most of what it could.

        By a clock that is behind, records may be too young for `min.compaction.lag.ms` until long after the run.
        """
        cluster = self._cluster
        topic = cluster.shared.image.topics[load.topic]
        if cluster.chronicle.counts["wrong clock"] and topic.configs.get("min.compaction.lag.ms", "0") != "0":
            return True
        for machine in cluster.machines:
            watch = cluster.invariants.watches.find(machine.broker_id, topic.topic_id, load.partition)
            if watch is not None and watch.log is not None and _is_much_superseded(watch.log, load):
                return False
        return True


def read_log(log: Log, load: KeyedLoad) -> dict[Offset, bytes]:
    """Returns all records below the high watermark, with their texts."""
    found: dict[Offset, bytes] = {}
    position = log.log_start_offset
    while position < log.high_watermark:
        part = log.read(position, _CHUNK_BYTES, end_offset=log.log_end_offset).slice
        if part is None:
            break
        data = content_of(part)
        before = position
        for place, header in iterate_batches(data):
            position = max(position, header.next_offset)
            if header.record_count and not header.is_control and header.base_offset < log.high_watermark:
                batch = data[place : place + header.size_bytes]
                for record in iterate_records(batch, max_bytes=_DECOMPRESSED_BYTES_MAX):
                    found[record.offset] = load.text_of(record)
        if position == before:
            break
    return found


def _is_much_superseded(log: Log, load: KeyedLoad) -> bool:
    """Returns whether most records in inactive segments are superseded there."""
    records = {
        offset: Identity.of(text).key
        for offset, text in read_log(log, load).items()
        if offset < log.segments[-1].base_offset
    }
    last = {key: offset for offset, key in sorted(records.items())}
    superseded = sum(last[key] != offset for offset, key in records.items())
    return superseded > SUPERSEDED_MAX and superseded > SUPERSEDED_SHARE_MAX * len(records)


def main_load(
    number: int,
    make_client: Callable[[str], ClusterClient],
    random: Random,
    observer: DeleteObserver,
    configs: dict[str, str],
) -> PartitionLoad:
    """Returns the load of a partition of the main topic, which is compacted if `configs` say how."""
    if configs:
        return KeyedLoad(TOPIC, number, make_client, random, observer, configs)
    return PartitionLoad(TOPIC, number, make_client, random, observer)


def cleaner_settings(random: Random) -> dict[str, str]:
    """Returns the settings of one broker's compaction."""
    return {"log.cleaner.backoff.ms": random.choice(CLEANER_PAUSES_MS)}


def forgotten_configs(random: Random) -> dict[str, str]:
    """Returns the configuration of the topic."""
    return {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "1200",
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": random.choice(("500", "2000", "60000")),
        "min.compaction.lag.ms": random.choice(("0", "0", "400")),
    }
