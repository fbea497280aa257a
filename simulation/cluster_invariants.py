"""The invariants of the replicas of a simulated cluster, checked whenever virtual time advances.

The checker reads the logs of all brokers, their knowledge of each other, and the metadata store. `cluster_history` has
the checks of clients, `parked_deletes` those of waiting deletes. An eligible leader (KIP-966) must have what a member
of the ISR has.

Checked (letters of the invariants): D5, D6, P6 and S1 of each log; D8 every member of the ISR has every acknowledged
delete; P1 committed batches are the same on all replicas, unless compacted or erased; P2 a member of the ISR under its
present registration has everything committed; P3 a leader epoch has one leader; S5 no segment above the log start
offset is missing; rule DR3 no live replica lacks an acknowledged delete. `cluster_promises` judges elections (P4, rule
DR8), `isr_changes` the ISR (L2).

Records may be lost where nothing was promised (`cluster_promises`). Then only deletes of that partition are checked,
and after an unclean election only later ones. At the end of a run, when all replicas are equal, everything is checked
again (`restore`), and P1 from the first byte.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import pairwise
from typing import Final

from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
from lowtide.metadata.store import Batch
from lowtide.protocol.records import iterate_batches
from lowtide.protocol.types import BrokerId, Offset, TopicId, TopicPartition
from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.cluster_promises import ClusterPromises, Committed, IsrChanges, Key
from lowtide.simulation.loaded_partition import LoadedPartition
from lowtide.simulation.machines import Machine, log_manager_of
from lowtide.simulation.parked_deletes import ParkedDeletes
from lowtide.simulation.replica_watch import ReplicaWatch, ReplicaWatches, content_of
from lowtide.simulation.shared_store import PREFIX, SharedStore
from lowtide.storage.directory.log_manager import LogManager
from lowtide.storage.log.log import Log

_CHUNK_BYTES: Final = 1 << 20


class ClusterInvariants:
    """Checks the invariants of all replicas, with the store and every log."""

    def __init__(
        self, machines: Sequence[Machine], shared: SharedStore, chronicle: Chronicle, *, flushes: bool, unclean: bool
    ) -> None:
        """`flushes`: each append is flushed before it counts. `unclean`: unclean elections are allowed."""
        self.machines = {machine.broker_id: machine for machine in machines}
        self.watches = ReplicaWatches(self.machines)
        self.promises = ClusterPromises(self.watches, shared, chronicle, flushes=flushes, unclean=unclean)
        self.checks = 0
        self.parked = ParkedDeletes(self.machines, chronicle)
        self._shared = shared
        self._chronicle = chronicle
        self._isr_changes = IsrChanges(chronicle)
        self._entries: dict[BrokerId, tuple[object, int, int, list[ReplicaWatch]]] = {}
        self._owners: dict[tuple[TopicId, int, int], tuple[BrokerId, int]] = {}
        self._images: dict[BrokerId, int] = {}
        self._looks_at_all = True
        self._follows_store = True
        self._last_image = shared.image
        self._dirty = True
        """Whether all members must be checked, or only those of these partitions:"""
        self._touched: dict[Key, None] = {}

    # Each moment

    def check(self, ran: Container[object]) -> None:
        """Checks everything that changed. Only brokers on the nodes `ran` can have changed."""
        self.checks += 1
        looks_at_all, self._looks_at_all = self._looks_at_all, False
        if self._follows_store:
            self._shared.follow(self._on_metadata)
        for machine in self.machines.values():
            manager = log_manager_of(machine)
            if manager is not None:
                self._look_at(machine, manager, may_have_changed=looks_at_all or machine.node in ran)
        if not self._follows_store:
            return
        self.parked.check()
        if self._dirty:
            self._dirty = False
            for topic in self._shared.image.topics.values():
                for number, state in enumerate(topic.partitions):
                    self._check_members(topic, number, state)
        else:
            for topic_id, number in self._touched:
                known = self._shared.image.topic_by_id(topic_id)
                if known is not None and number < len(known.partitions):
                    self._check_members(known, number, known.partitions[number])
        self._touched.clear()

    def _look_at(self, machine: Machine, manager: LogManager, *, may_have_changed: bool) -> None:
        entry = self._entries.get(machine.broker_id)
        logs, moved = manager.logs, manager.moves.done
        # As many logs may be others: one that went comes back when a replica was removed and is added again.
        if (
            entry is None
            or entry[:3] != (manager, len(logs), moved)
            or (may_have_changed and _is_replaced(entry[3], logs))
        ):
            entry = (manager, len(logs), moved, [self.watches.of(machine, log) for log in logs.values()])
            self._entries[machine.broker_id] = entry
        elif not may_have_changed:
            return
        for watch in entry[3]:
            log = watch.log
            assert log is not None
            if (log.log_start_offset, log.high_watermark, log.log_end_offset) != watch.seen:
                self._on_log(machine, watch, log)
        session = machine.broker._session  # type: ignore[union-attr]  # noqa: SLF001
        if session is not None and self._images.get(machine.broker_id) != session.image.revision:
            self._check_leaders(machine)

    def leave_store(self) -> None:
        """Handles a restored store, whose content is wrong until it is brought forward. Clients are still checked."""
        self._shared.follow(self._on_metadata)
        self._follows_store = False
        self._last_image = self._shared.image

    def follow_store(self) -> None:
        """Handles a store that was brought forward without running brokers: all is checked again."""
        self.promises.on_store_brought_forward(self._last_image)
        self._follows_store = self._looks_at_all = self._dirty = True
        self._images.clear()
        self._entries.clear()

    # Reported by others, and asked by them

    def leader_epoch(self, load: LoadedPartition) -> int:
        topic = self._topic_of(load)
        return (
            -1
            if topic is None or load.partition >= len(topic.partitions)
            else topic.partitions[load.partition].leader_epoch
        )

    def leads(self, load: LoadedPartition, broker_id: BrokerId) -> bool:
        """See `DeleteObserver`."""
        topic = self._topic_of(load)
        return (
            topic is not None
            and load.partition < len(topic.partitions)
            and topic.partitions[load.partition].leader == broker_id
        )

    def is_in_sync(self, load: LoadedPartition, broker_id: BrokerId) -> bool:
        """See `DeleteObserver`."""
        topic = self._topic_of(load)
        state = None if topic is None or load.partition >= len(topic.partitions) else topic.partitions[load.partition]
        return (
            state is not None
            and broker_id in state.isr
            and state.members[broker_id] == self._shared.image.broker_epoch(broker_id)
        )

    def has_deleted(self, load: LoadedPartition, crc: int) -> bool:
        """See `DeleteObserver`."""
        topic = self._topic_of(load)
        if topic is None:
            return False
        committed = self.promises.committed(topic.topic_id, load.partition)
        return any(crc == known and last < committed.start for _, known, last in committed.batches.values())

    def _topic_of(self, load: LoadedPartition) -> TopicImage | None:
        """Returns the store's topic, while the store is valid."""
        return self._shared.image.topics.get(load.topic) if self._follows_store else None

    def on_delete_acknowledged(self, load: LoadedPartition, broker_id: BrokerId, offset: Offset, sent_s: float) -> None:
        """See `DeleteObserver`."""
        self._dirty = True
        topic = self._topic_of(load)
        if topic is None or self.promises.is_void_since(topic, load.partition, sent_s):
            return
        if not self._shared.image.log_start_reporting:
            self._violate(
                f"rule DR3: a delete of {load.history.name} was acknowledged while followers don't tell their log "
                "starts"
            )
        for other, epoch, since_s in self.parked.live_since(broker_id, topic, load.partition, sent_s):
            watch = self.watches.find(other, topic.topic_id, load.partition)
            is_its_disk = self.promises.has_disk_since(other, epoch)  # And not that of a later registration.
            if watch is not None and watch.log_start < offset and is_its_disk:
                self._violate(
                    f"rule DR3: a delete of {load.history.name} to {offset} was acknowledged by broker {broker_id}, "
                    f"and broker {other} (broker epoch {epoch}, fetching since {since_s:.4f} s) starts at "
                    f"{watch.log_start}"
                )

    def on_leader_only_delete(self, load: LoadedPartition, broker_id: BrokerId, offset: Offset, sent_s: float) -> None:
        """See `DeleteObserver`. The answer may be older than the broker's disk."""
        topic = self._topic_of(load)
        if (
            topic is None
            or self.promises.is_void_since(topic, load.partition, sent_s)
            or not self.promises.had_disk_at(broker_id, sent_s)
        ):
            return
        watch = self.watches.find(broker_id, topic.topic_id, load.partition)
        if watch is not None and watch.log_start < offset:
            self._violate(
                f"D2: broker {broker_id} says that {load.history.name} is deleted to {offset}, and starts at "
                f"{watch.log_start}"
            )

    def on_disk_replaced(self, machine: Machine) -> None:
        """Handles a new disk: records and deletes may be gone."""
        self.promises.on_disk_replaced(machine)
        self._dirty = True

    def restore(self) -> None:
        """Restores all checks, because all replicas are equal."""
        self._looks_at_all = True
        self.promises.restore()

    # Metadata

    def _on_metadata(self, before: MetadataImage, batch: Batch) -> None:
        self._dirty = True
        for event in batch.events:
            name = event.key.removeprefix(PREFIX)
            if not name.startswith((b"config", b"producer", b"registrations", b"witnesses")):
                value = "gone" if event.value is None else event.value.decode(errors="replace")[:200]
                self._chronicle.note("store", f"{batch.revision} {name.decode(errors='replace')} = {value}")
        for topic in self._shared.image.topics.values():
            known = before.topic_by_id(topic.topic_id)
            for number, state in enumerate(topic.partitions):
                former = known.partitions[number] if known is not None and number < len(known.partitions) else None
                if former is not None and state.isr != former.isr:
                    self._isr_changes.note(topic.topic_id, topic.name, number)
                if former is not None and state.leader_epoch != former.leader_epoch and state.has_leader:
                    self.promises.on_election(topic, number, former, state)

    # One replica

    def _on_log(self, machine: Machine, watch: ReplicaWatch, log: Log) -> None:
        start, high_watermark, end = watch.seen = (log.log_start_offset, log.high_watermark, log.log_end_offset)
        self._touched[log.topic_id, log.topic_partition.partition] = None
        if not start <= high_watermark <= end:
            self._violate(f"D6: {watch.name}: {log.describe()}")
        if start < watch.log_start and start != end:
            self._violate(f"D5: the log start of {watch.name} fell from {watch.log_start}: {log.describe()}")
        if end < watch.kept_end and not (log.offline or machine.is_broken or machine.disk_faults):
            self._violate(
                f"S1: {watch.name} ends at {end}, and had up to {watch.kept_end} when its broker died: {log.describe()}"
            )
        watch.kept_end = 0
        watch.moved_synced_end = min(watch.moved_synced_end, end)
        first = log.segments[0]
        has_file = machine.filesystem.exists(first.path) or (first.create_file is not None and not first.size)
        if first.base_offset > start or not (log.offline or has_file):
            self._violate(f"S5: {watch.name} starts at {start}, and its first segment is {first.path}")
        epochs = log.leader_epochs.entries()
        if any(a >= c or b >= d for (a, b), (c, d) in pairwise(epochs)) or (epochs and epochs[-1][1] > end):
            self._violate(f"P6: {watch.name} ends at {end} and has leader epochs {epochs}")
        load = self.promises.load_of(log.topic_partition.topic, log.topic_partition.partition)
        committed = self.promises.committed(log.topic_id, log.topic_partition.partition)
        is_known = not committed.is_void and log.leader_epochs.latest >= committed.forgotten_in
        if (
            load is not None
            and start > max(load.history.requested_delete, watch.log_start)
            and not load.history.records_are_void
        ):
            wrong = load.why_not(start, log, machine, knows_all=is_known)
            if wrong is not None:
                self._violate(f"{watch.name}: {wrong}")
        if load is not None:
            load.on_log(log, machine)
        if end < watch.highest_end and committed.is_void and "compact" in log.config.cleanup_policy:
            watch.has_holes = True
        watch.log_start, watch.log_end, watch.highest_end = start, end, max(watch.highest_end, end)
        watch.checked_to = min(watch.checked_to, end)
        if is_known:
            committed.end = max(committed.end, high_watermark)
            if not log.offline and machine.filesystem.open_files_max is None:
                self._check_batches(watch, log, committed)
                wrong = committed.transactions.check(log) if committed.transactions.batches else None
                if wrong is not None:
                    self._violate(f"{watch.name}: {wrong}")

    def _check_batches(self, watch: ReplicaWatch, log: Log, committed: Committed) -> None:
        """Checks P1 for what was committed since the last check."""
        position = max(watch.checked_to, log.log_start_offset)
        committed.start = max(committed.start, log.log_start_offset)
        while position < log.high_watermark:
            found = log.read(position, _CHUNK_BYTES, end_offset=log.log_end_offset).slice
            if found is None:
                break
            data = content_of(found)
            before = position
            for _, header in iterate_batches(data):
                last = header.base_offset + header.last_offset_delta
                if last >= log.high_watermark:
                    watch.checked_to = position
                    return
                here = (header.partition_leader_epoch, header.crc, last)
                known = committed.batches.get(header.base_offset)
                if known is None:
                    committed.batches[header.base_offset] = here
                    committed.transactions.note(header)
                    load = self.promises.load_of(log.topic_partition.topic, log.topic_partition.partition)
                    if load is not None:
                        load.on_committed(header)
                elif known != here and not self._may_differ(known, here, log, header.base_offset, committed.start):
                    self._violate(
                        f"P1: {watch.name} has {here} at {header.base_offset}, where {known} is committed (epoch, CRC, "
                        "last offset)"
                    )
                position = last + 1
            if position == before:
                break
        watch.checked_to = position

    def _may_differ(
        self,
        known: tuple[int, int, Offset],
        here: tuple[int, int, Offset],
        log: Log,
        base_offset: Offset,
        start: Offset,
    ) -> bool:
        """Returns whether a batch may differ on a replica: by compaction, or without records below a log start.

        Erasing removes these, and an empty replica that may have erased them does not store them again.
        """
        if "compact" in log.config.cleanup_policy:
            return True
        is_across_start = base_offset < start
        load = self.promises.load_of(log.topic_partition.topic, log.topic_partition.partition)
        erasures = None if load is None else load.history.erasures
        is_named = erasures is not None and erasures.names_any(base_offset, here[2])
        return (is_across_start or is_named) and (known[0], known[2]) == (here[0], here[2])

    # The members of an ISR

    def _check_members(self, topic: TopicImage, number: int, state: PartitionImage) -> None:
        load = self.promises.load_of(topic.name, number)
        deleted = 0 if load is None else load.history.acknowledged_delete
        committed = self.promises.committed(topic.topic_id, number)
        image = self._shared.image
        for member, epoch in state.members.items():
            watch = self.watches.find(member, topic.topic_id, number)
            if watch is None or not self.promises.has_disk_since(member, epoch):
                continue
            if watch.log_start < deleted and not image.is_stale(member, topic.topic_id, number, epoch):
                self._violate(
                    f"D8: broker {member} is in the ISR {state.isr} or ELR {state.elr} of {topic.name}-{number}, "
                    f"leader {state.leader}, "
                    f"epoch {state.leader_epoch}; it starts at {watch.log_start}, and {deleted} was deleted with an "
                    "acknowledgement"
                )
            is_whole = epoch == image.broker_epoch(member) and self.promises.has_flushed_since(member, epoch)
            if is_whole and not committed.is_void and watch.log_end < committed.end:
                self._violate(
                    f"P2: broker {member} is in the ISR {state.isr} or ELR {state.elr} of {topic.name}-{number}, "
                    f"leader {state.leader}, "
                    f"epoch {state.leader_epoch}; it ends at {watch.log_end}, and {committed.end} is committed"
                )

    def _check_leaders(self, machine: Machine) -> None:
        broker = machine.broker
        assert broker is not None
        session, replicas = broker._session, broker.replicas  # noqa: SLF001 - the checker sees everything
        if session is None or replicas is None or self._images.get(machine.broker_id) == session.image.revision:
            return
        self._images[machine.broker_id] = session.image.revision
        for (_, number), partition in replicas.partitions.items():
            if partition.is_leader and partition.leadership is not None:
                mine = (machine.broker_id, machine.lives)
                owner = self._owners.setdefault((partition.topic_id, number, partition.leader_epoch), mine)
                if owner != mine:
                    self._violate(
                        f"P3: {machine.host}, life {machine.lives}, leads {partition.topic_partition} in epoch "
                        f"{partition.leader_epoch}, "
                        f"as broker {owner[0]} did in life {owner[1]}"
                    )

    def _violate(self, what: str) -> None:
        self._chronicle.violate(what)


def _is_replaced(watches: list[ReplicaWatch], logs: Mapping[TopicPartition, Log]) -> bool:
    """Returns whether a watched log is gone or replaced."""
    return any(watch.log is None or logs.get(watch.log.topic_partition) is not watch.log for watch in watches)
