"""What must hold of the replicas of a simulated cluster at every moment: looked at whenever virtual time moves on.

The checker is omniscient: it reads the logs of all brokers, their knowledge of each other, and the metadata store itself. What it says of
clients is in `cluster_history`, of waiting deletes in `parked_deletes`.

Checked (letters of the invariants): D5, D6 and P6 of each log; D8 every member of the ISR has every acknowledged delete; P1 committed
batches are the same on all replicas, unless each compacts them by itself; P2 a member of the ISR under its present registration has
everything that was committed; P3 a leader epoch has one leader; S5 no segment above the log start is gone; rule DR3 as seen from outside:
no live replica lacks an acknowledged delete; rule DR8: a directory that lost deletes isn't elected, nor one that lost records while
another has them.

Records may be lost where nothing was promised: see `on_power_cut`. Of such a partition only deletes are checked from then on, and after an
unclean election only those that were asked for since. At the end of a run, when all replicas are the same again, everything holds again
(`restore`), and P1 is looked at from the first byte on.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
from lowtide.metadata.store import Batch
from lowtide.protocol.records import iterate_batches
from lowtide.protocol.types import BrokerId, Offset, TopicId, TopicPartition
from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.cluster_load import PartitionLoad
from lowtide.simulation.machines import Machine
from lowtide.simulation.parked_deletes import ParkedDeletes
from lowtide.simulation.shared_store import PREFIX, SharedStore
from lowtide.simulation.transaction_invariants import CommittedTransactions
from lowtide.storage.directory.log_manager import LogManager
from lowtide.storage.log.log import Log

Key: TypeAlias = tuple[TopicId, int]

_CHUNK_BYTES: Final = 1 << 20


class ReplicaWatch:
    """What was seen of one replica's log on one disk, over all lives."""

    __slots__ = ("checked_to", "directory_changes", "has_holes", "log", "log_end", "log_start", "name", "seen")

    def __init__(self, name: str, directory_changes: int) -> None:
        self.name = name
        self.directory_changes = directory_changes
        self.log: Log | None = None
        self.log_start = 0
        self.log_end = 0
        self.checked_to = 0
        self.seen = (-1, -1, -1)
        self.has_holes = False
        """Records may have gone for the sake of later ones that were lost: that was no promise, and there is no promise from it."""


class Committed:
    """What is known of the committed part of a partition."""

    __slots__ = ("batches", "end", "is_void", "transactions")

    def __init__(self) -> None:
        self.batches: dict[Offset, tuple[int, int, Offset]] = {}
        self.transactions = CommittedTransactions()
        self.end = 0
        self.is_void = False


class ClusterInvariants:
    """Checks the invariants of all replicas, with the store and every log in view."""

    def __init__(
        self,
        machines: Sequence[Machine],
        shared: SharedStore,
        chronicle: Chronicle,
        *,
        flushes: bool,
        unclean: bool,
    ) -> None:
        """`flushes`: each append is flushed before it counts. `unclean`: a replica that lacks records may be elected."""
        self.machines = {machine.broker_id: machine for machine in machines}
        self.loads: dict[str, dict[int, PartitionLoad]] = {}
        self.on_void: Callable[[str, int], None] = _ignore
        """Called with each partition that may have lost records."""
        self.checks = 0
        self.parked = ParkedDeletes(self.machines, chronicle)
        self._shared = shared
        self._chronicle = chronicle
        self._flushes = flushes
        self._unclean = unclean
        self._watches: dict[tuple[BrokerId, TopicId, int], ReplicaWatch] = {}
        self._entries: dict[BrokerId, tuple[object, int, list[ReplicaWatch]]] = {}
        self._committed: dict[Key, Committed] = {}
        self._owners: dict[tuple[TopicId, int, int], tuple[BrokerId, int]] = {}
        self._images: dict[BrokerId, int] = {}
        self._lossy: dict[BrokerId, int] = {}
        self._replaced: dict[BrokerId, int] = {}
        self._replaced_s: dict[BrokerId, float] = {}
        self._voided_s: dict[Key, float] = {}
        self._looks_at_all = True
        self._follows_store = True
        self._last_image = shared.image
        self._dirty = True
        """Whether all members must be looked at, or only those of these partitions:"""
        self._touched: dict[Key, None] = {}

    # Each moment

    def check(self, ran: Container[object]) -> None:
        """Look at everything that has changed. Of the brokers only those may have that ran: `ran` has their nodes."""
        self.checks += 1
        looks_at_all, self._looks_at_all = self._looks_at_all, False
        if self._follows_store:
            self._shared.follow(self._on_metadata)
        for machine in self.machines.values():
            manager = None if machine.broker is None else machine.broker._log_manager  # noqa: SLF001 - the checker sees everything
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
        logs = manager.logs
        if entry is None or entry[0] is not manager or entry[1] != len(logs):
            entry = (manager, len(logs), [self._watch(machine, log) for log in logs.values()])
            self._entries[machine.broker_id] = entry
        elif not may_have_changed:
            return
        for watch in entry[2]:
            log = watch.log
            assert log is not None
            if (log.log_start_offset, log.high_watermark, log.log_end_offset) != watch.seen:
                self._on_log(machine, watch, log)
        session = machine.broker._session  # type: ignore[union-attr]  # noqa: SLF001
        if session is not None and self._images.get(machine.broker_id) != session.image.revision:
            self._check_leaders(machine)

    def leave_store(self) -> None:
        """The store is put back: what it says is no truth until it was brought forward. What clients see is checked all the same."""
        self._shared.follow(self._on_metadata)
        self._follows_store = False
        self._last_image = self._shared.image

    def follow_store(self) -> None:
        """The store was brought forward, and no broker runs: all logs and members are checked again.

        Epochs count from the beginning, and members of ISRs were chosen by what their logs have. That may lack what no replica had flushed.
        """
        for topic in self._last_image.topics.values():
            known = self._shared.image.topic_by_id(topic.topic_id)
            for number, state in enumerate(() if known is None else topic.partitions):
                members = zip(state.isr, state.isr_epochs, strict=True)
                if all(epoch <= self._lossy.get(member, -1) for member, epoch in members):
                    leader = known.partitions[number].isr[0]  # type: ignore[union-attr]
                    self._on_lossy_leader(leader, topic, number)
        self._lossy.clear()
        self._replaced.clear()
        self._follows_store = self._looks_at_all = self._dirty = True
        self._images.clear()
        self._entries.clear()

    def replica(self, broker_id: BrokerId, topic_id: TopicId, number: int) -> ReplicaWatch | None:
        """What is known of a replica, if anything was seen of it on its present disk."""
        watch = self._watches.get((broker_id, topic_id, number))
        return None if watch is None or watch.directory_changes != self.machines[broker_id].directory_changes else watch

    def committed(self, topic_id: TopicId, number: int) -> Committed:
        """What is known of a partition."""
        return self._committed.setdefault((topic_id, number), Committed())

    def is_sound(self, broker_id: BrokerId, topic_id: TopicId, number: int, member_epoch: int) -> bool:
        """Whether a member of an ISR since `member_epoch` is on the disk that it was on, and not marked as stale."""
        return member_epoch > self._replaced.get(broker_id, -1) and not self._shared.image.is_stale(
            broker_id, topic_id, number, member_epoch
        )

    # Reported by others

    def on_delete_acknowledged(self, load: PartitionLoad, broker_id: BrokerId, offset: Offset, sent_s: float) -> None:
        """See `DeleteObserver`."""
        self._dirty = True
        topic = self._shared.image.topics.get(load.topic) if self._follows_store else None
        if topic is None or self._is_void_since(topic, load.partition, sent_s):
            return
        if not self._shared.image.log_start_reporting:
            self._violate(f"rule DR3: a delete of {load.history.name} was acknowledged while followers don't tell their log starts")
        for other, reason in self.parked.live_since(broker_id, topic, load.partition, sent_s):
            watch = self.replica(other, topic.topic_id, load.partition)
            is_this_disk = self._replaced.get(other, -1) < (self._shared.image.broker_epoch(other) or 0)
            if watch is not None and watch.log_start < offset and is_this_disk:
                self._violate(
                    f"rule DR3: a delete of {load.history.name} to {offset} was acknowledged by broker {broker_id}, and broker {other} "
                    f"({reason}) starts at {watch.log_start}"
                )

    def on_leader_only_delete(self, load: PartitionLoad, broker_id: BrokerId, offset: Offset, sent_s: float) -> None:
        """See `DeleteObserver`. An answer may have been on its way since its broker had another disk."""
        topic = self._shared.image.topics.get(load.topic) if self._follows_store else None
        if topic is None or self._is_void_since(topic, load.partition, sent_s) or sent_s <= self._replaced_s.get(broker_id, -1.0):
            return
        watch = self.replica(broker_id, topic.topic_id, load.partition)
        if watch is not None and watch.log_start < offset:
            self._violate(f"D2: broker {broker_id} says that {load.history.name} is deleted to {offset}, and starts at {watch.log_start}")

    def on_power_cut(self, machine: Machine) -> None:
        """What was not flushed may be gone: until it joins the ISR again, this broker may lack committed records."""
        self._lossy[machine.broker_id] = self._shared.image.revision

    def on_disk_replaced(self, machine: Machine) -> None:
        """Everything may be gone, deletes too."""
        self._replaced[machine.broker_id] = self._lossy[machine.broker_id] = self._shared.image.revision
        self._replaced_s[machine.broker_id] = self._shared.loop.time()
        self._dirty = True

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
                if former is not None and state.leader_epoch != former.leader_epoch and state.has_leader:
                    self._on_election(topic, number, former, state)

    def _on_election(self, topic: TopicImage, number: int, former: PartitionImage, state: PartitionImage) -> None:
        """A new leadership: was the choice right, and may records be lost by it? What counts is what the leader was a member by before.

        One that is still registered by that may be dead by now, and then can't act in it; a process that has begun since registers again.
        """
        leader = state.leader
        members = dict(zip(former.isr, former.isr_epochs, strict=True))
        name = f"{topic.name}-{number}"
        image = self._shared.image
        if leader not in members and not self._unclean:
            self._violate(f"P4: broker {leader} is elected for {name} from outside the ISR {former.isr}")
        if leader not in members or (self._unclean and image.is_stale(leader, topic.topic_id, number, members[leader])):
            self._on_unclean_election(topic, number, leader)
            return
        if members[leader] <= self._replaced.get(leader, -1) < (image.broker_epoch(leader) or -1):
            self._violate(f"rule DR8: broker {leader} is elected for {name}, and its disk was replaced since it was in the ISR")
        watch = self.replica(leader, topic.topic_id, number)
        if watch is not None and watch.has_holes:
            self._void(topic, number, f"broker {leader} is elected, which compacted for the sake of records that are gone")
        if members[leader] <= self._lossy.get(leader, -1) and members[leader] != image.broker_epoch(leader):
            for other, epoch in members.items():
                if (
                    epoch > self._lossy.get(other, -1)
                    and epoch == image.broker_epoch(other)
                    and image.may_be_in_sync(other, topic.topic_id, number)
                ):
                    self._violate(
                        f"rule DR8: broker {leader} is elected for {name}, though it may have lost records, and broker {other} lives"
                    )
            self._on_lossy_leader(leader, topic, number)

    def _on_lossy_leader(self, leader: BrokerId, topic: TopicImage, number: int) -> None:
        if self._flushes:
            self._forget_unacknowledged(leader, topic, number)
        else:
            self._void(topic, number, f"broker {leader} is elected without what it had not flushed")

    def _on_unclean_election(self, topic: TopicImage, number: int, leader: BrokerId) -> None:
        """What this leader lacks is lost, and what was deleted may be back: D1 holds for the deletes that are asked for from now on."""
        watch, committed = self.replica(leader, topic.topic_id, number), self.committed(topic.topic_id, number)
        lost = committed.end - (0 if watch is None else watch.log_end)
        self._chronicle.counts["unclean election"] += 1
        self._chronicle.counts["unclean election that lost records"] += lost > 0
        self._void(topic, number, f"broker {leader} is elected uncleanly, {lost} that were committed at least")
        self._voided_s[topic.topic_id, number] = self._shared.loop.time()
        load = self.loads.get(topic.name, {}).get(number)
        if load is not None:
            self._chronicle.counts["unclean election that took deletes back"] += (
                watch is not None and watch.log_start < load.history.acknowledged_delete
            )
            load.history.void_deletes(self._shared.loop.time())

    def _is_void_since(self, topic: TopicImage, number: int, moment_s: float) -> bool:
        return moment_s <= self._voided_s.get((topic.topic_id, number), -1.0)

    def restore(self) -> None:
        """All replicas are the same again: what holds of records holds again, and all that they have is compared."""
        self._looks_at_all = True
        for (_, topic_id, number), watch in self._watches.items():
            if self.committed(topic_id, number).is_void:
                watch.checked_to, watch.seen = 0, (-1, -1, -1)
        for committed in self._committed.values():
            committed.is_void, committed.end = False, 0 if committed.is_void else committed.end
        starts: dict[TopicPartition, Offset] = {}
        for watch in self._watches.values():
            if watch.log is not None:
                key = watch.log.topic_partition
                starts[key] = max(starts.get(key, 0), watch.log.log_start_offset)
        for topic, loads in self.loads.items():
            for number, load in loads.items():
                load.history.restore_records(starts.get(TopicPartition(topic, number), 0))

    def _forget_unacknowledged(self, leader: BrokerId, topic: TopicImage, number: int) -> None:
        """What is acknowledged was flushed; that a high watermark may be ahead of the leader's own disk is no promise."""
        watch, committed = self.replica(leader, topic.topic_id, number), self.committed(topic.topic_id, number)
        if watch is not None and watch.log_end < committed.end:
            committed.end = watch.log_end
            for offset in [offset for offset in committed.batches if offset >= watch.log_end]:
                del committed.batches[offset]
            committed.transactions.forget_from(watch.log_end)
            load = self.loads.get(topic.name, {}).get(number)
            if load is not None:
                load.history.forget_read(watch.log_end)

    def _void(self, topic: TopicImage, number: int, reason: str) -> None:
        committed = self.committed(topic.topic_id, number)
        if not committed.is_void:
            self._chronicle.note("---", f"records of {topic.name}-{number} may be lost: {reason}")
            self._chronicle.counts["partitions that may have lost records"] += 1
        committed.is_void = True
        committed.batches.clear()
        committed.transactions.void()
        self.on_void(topic.name, number)
        load = self.loads.get(topic.name, {}).get(number)
        if load is not None:
            load.history.void_records()

    def void_all(self, reason: str) -> None:
        """Nothing is promised of records from now on."""
        for topic in self._shared.image.topics.values():
            for number in range(len(topic.partitions)):
                self._void(topic, number, reason)

    # One replica

    def _watch(self, machine: Machine, log: Log) -> ReplicaWatch:
        key = (machine.broker_id, log.topic_id, log.topic_partition.partition)
        watch = self._watches.get(key)
        if watch is None or watch.directory_changes != machine.directory_changes:
            watch = self._watches[key] = ReplicaWatch(f"{log.topic_partition} on {machine.host}", machine.directory_changes)
        if watch.log is not log:
            watch.log, watch.seen = log, (-1, -1, -1)
            watch.checked_to = 0
        return watch

    def _on_log(self, machine: Machine, watch: ReplicaWatch, log: Log) -> None:
        start, high_watermark, end = watch.seen = (log.log_start_offset, log.high_watermark, log.log_end_offset)
        self._touched[log.topic_id, log.topic_partition.partition] = None
        if not start <= high_watermark <= end:
            self._violate(f"D6: {watch.name}: {log.describe()}")
        if start < watch.log_start and start != end:
            self._violate(f"D5: the log start of {watch.name} fell from {watch.log_start}: {log.describe()}")
        if log.segments[0].base_offset > start or not (log.offline or machine.filesystem.exists(log.segments[0].path)):
            self._violate(f"S5: {watch.name} starts at {start}, and its first segment is {log.segments[0].path}")
        epochs = log.leader_epochs.entries()
        if any(a >= c or b >= d for (a, b), (c, d) in pairwise(epochs)) or (epochs and epochs[-1][1] > end):
            self._violate(f"P6: {watch.name} ends at {end} and has leader epochs {epochs}")
        load = self.loads.get(log.topic_partition.topic, {}).get(log.topic_partition.partition)
        if load is not None and start > max(load.history.requested_delete, watch.log_start) and not load.history.records_are_void:
            wrong = load.why_not(start, log, machine)
            if wrong is not None:
                self._violate(f"{watch.name}: {wrong}")
        if load is not None:
            load.on_log(log, machine)
        committed = self.committed(log.topic_id, log.topic_partition.partition)
        if end < watch.log_end and committed.is_void and "compact" in log.config.cleanup_policy:
            watch.has_holes = True
        watch.log_start, watch.log_end = start, end
        watch.checked_to = min(watch.checked_to, end)
        if not committed.is_void:
            committed.end = max(committed.end, high_watermark)
            if not log.offline and machine.filesystem.open_files_max is None:
                self._check_batches(watch, log, committed)
                wrong = committed.transactions.check(log) if committed.transactions.batches else None
                if wrong is not None:
                    self._violate(f"{watch.name}: {wrong}")

    def _check_batches(self, watch: ReplicaWatch, log: Log, committed: Committed) -> None:
        """P1, over what came below the high watermark since it was checked last."""
        position = max(watch.checked_to, log.log_start_offset)
        while position < log.high_watermark:
            found = log.read(position, _CHUNK_BYTES, end_offset=log.log_end_offset).slice
            if found is None:
                break
            data = found.file._node.read(found.size, found.position)  # type: ignore[attr-defined]  # noqa: SLF001 - without a fault's chance
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
                    load = self.loads.get(log.topic_partition.topic, {}).get(log.topic_partition.partition)
                    if load is not None:
                        load.on_committed(header)
                elif known != here and "compact" not in log.config.cleanup_policy:
                    self._violate(
                        f"P1: {watch.name} has {here} at {header.base_offset}, where {known} is committed (epoch, CRC, last offset)"
                    )
                position = last + 1
            if position == before:
                break
        watch.checked_to = position

    # The members of an ISR

    def _check_members(self, topic: TopicImage, number: int, state: PartitionImage) -> None:
        load = self.loads.get(topic.name, {}).get(number)
        deleted = 0 if load is None else load.history.acknowledged_delete
        committed = self.committed(topic.topic_id, number)
        image = self._shared.image
        for member, epoch in zip(state.isr, state.isr_epochs, strict=True):
            watch = self.replica(member, topic.topic_id, number)
            if watch is None or epoch <= self._replaced.get(member, -1):
                continue
            if watch.log_start < deleted and not image.is_stale(member, topic.topic_id, number, epoch):
                self._violate(
                    f"D8: broker {member} is in the ISR {state.isr} of {topic.name}-{number}, leader {state.leader}, epoch "
                    f"{state.leader_epoch}; it starts at {watch.log_start}, and {deleted} was deleted with an acknowledgement"
                )
            is_whole = epoch == image.broker_epoch(member) and epoch > self._lossy.get(member, -1)
            if is_whole and not committed.is_void and watch.log_end < committed.end:
                self._violate(
                    f"P2: broker {member} is in the ISR {state.isr} of {topic.name}-{number}, leader {state.leader}, epoch "
                    f"{state.leader_epoch}; it ends at {watch.log_end}, and {committed.end} is committed"
                )

    def _check_leaders(self, machine: Machine) -> None:
        """P3: a leader epoch belongs to one process."""
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
                        f"P3: {machine.host}, life {machine.lives}, leads {partition.topic_partition} in epoch {partition.leader_epoch}, "
                        f"as broker {owner[0]} did in life {owner[1]}"
                    )

    def _violate(self, what: str) -> None:
        self._chronicle.violate(what)


def _ignore(_topic: str, _number: int) -> None:
    """No one listens."""


Machines: TypeAlias = Mapping[BrokerId, Machine]
