"""The promises of a simulated cluster for each partition, and the events that end them.

A committed record is promised until a replica that may lack it becomes leader: because its disk was replaced, it lost
unflushed data, or the election was unclean. Judges each election (P4, rule DR8, KIP-966): a directory that lost deletes
is not elected, nor one that lost records while another member, or an eligible leader, has them, alive or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
from lowtide.protocol.types import BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition
from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.loaded_partition import LoadedPartition
from lowtide.simulation.machines import Machine
from lowtide.simulation.replica_watch import ReplicaWatches
from lowtide.simulation.shared_store import SharedStore
from lowtide.simulation.transaction_invariants import CommittedTransactions
from lowtide.storage.checkpoint import CLEAN_SHUTDOWN_MARKER

Key: TypeAlias = tuple[TopicId, int]


CHANGES_MAX: Final = 20
"""The maximum number of changes of a partition within `SPAN_S`. Two brokers that restart three times cause twelve."""

SPAN_S: Final = 1.0


class IsrChanges:
    """The times of each partition's ISR changes."""

    def __init__(self, chronicle: Chronicle) -> None:
        self._chronicle = chronicle
        self._changed_s: dict[tuple[TopicId, int], deque[float]] = {}

    def note(self, topic_id: TopicId, name: str, number: int) -> None:
        now_s = self._chronicle.now_s
        times = self._changed_s.setdefault((topic_id, number), deque(maxlen=CHANGES_MAX + 1))
        times.append(now_s)
        if len(times) > CHANGES_MAX and now_s - times[0] < SPAN_S:
            self._chronicle.violate(
                f"L2: the ISR of {name}-{number} has changed {len(times)} times in {now_s - times[0]:.3f} s"
            )


class Committed:
    """The committed part of a partition."""

    __slots__ = ("batches", "end", "forgotten_in", "is_void", "start", "transactions")

    def __init__(self) -> None:
        self.batches: dict[Offset, tuple[int, int, Offset]] = {}
        self.transactions = CommittedTransactions()
        self.start = 0
        """The highest log start offset of any replica: a batch that starts below may be partly erased."""
        self.end = 0
        self.is_void = False
        self.forgotten_in: LeaderEpoch = -1
        """The last leader epoch that started without some committed but unacknowledged records.

        A log without any of them, of a broker that was down, may still know the earlier high watermark.
        """


class ClusterPromises:
    """The promises for the partitions of one cluster."""

    def __init__(
        self, watches: ReplicaWatches, shared: SharedStore, chronicle: Chronicle, *, flushes: bool, unclean: bool
    ) -> None:
        """`flushes`: each append is flushed before it counts.

        `unclean`: a replica that lacks records may be elected.
        """
        self.loads: dict[str, dict[int, LoadedPartition]] = {}
        self.on_void: Callable[[str, int], None] = _ignore
        """Called with each partition that may have lost records."""
        self._watches = watches
        self._shared = shared
        self._chronicle = chronicle
        self._flushes = flushes
        self._unclean = unclean
        self._committed: dict[Key, Committed] = {}
        self._lossy: dict[BrokerId, int] = {}
        self._dead: dict[BrokerId, str] = {}
        """The last incarnations that lost power or disk."""
        self._ended: dict[BrokerId, str] = {}
        """The last incarnations that were killed."""
        self._replaced: dict[BrokerId, int] = {}
        self._replaced_s: dict[BrokerId, float] = {}
        self._voided_s: dict[Key, float] = {}

    # What is known

    def committed(self, topic_id: TopicId, number: int) -> Committed:
        return self._committed.setdefault((topic_id, number), Committed())

    def is_sound(self, broker_id: BrokerId, topic_id: TopicId, number: int, member_epoch: int) -> bool:
        """Returns whether a member of an ISR since `member_epoch` has the same disk, and is not stale."""
        return member_epoch > self._replaced.get(broker_id, -1) and not self._shared.image.is_stale(
            broker_id, topic_id, number, member_epoch
        )

    def all_may_lack_records(self, state: PartitionImage) -> bool:
        """Returns whether every replica with all records has lost power or disk since."""
        return all(epoch <= self._lossy.get(member, -1) for member, epoch in state.members.items())

    def load_of(self, topic: str, number: int) -> LoadedPartition | None:
        """Returns the load of a partition, or None."""
        return self.loads.get(topic, {}).get(number)

    def has_disk_since(self, broker_id: BrokerId, epoch: int) -> bool:
        """Returns whether the broker's disk was not replaced since that broker epoch."""
        return epoch > self._replaced.get(broker_id, -1)

    def has_flushed_since(self, broker_id: BrokerId, epoch: int) -> bool:
        """Returns whether the broker lost no unflushed data since that broker epoch."""
        return epoch > self._lossy.get(broker_id, -1)

    def had_disk_at(self, broker_id: BrokerId, moment_s: float) -> bool:
        """Returns whether the broker had its present disk at that time."""
        return moment_s > self._replaced_s.get(broker_id, -1.0)

    # What takes promises back

    def on_death(self, machine: Machine, *, power: bool) -> None:
        """Handles a kill; with `power` a power cut of the machine, also without a process.

        Unflushed data may be lost: until it joins the ISR again, this broker may lack committed records. After a clean
        stop it has all.
        """
        ended = self._ended[machine.broker_id] = _incarnation(machine) or self._ended.get(machine.broker_id, "")
        if power:
            self._dead[machine.broker_id] = ended
            if not _has_stopped_cleanly(machine):
                self._lossy[machine.broker_id] = self._shared.image.revision

    def on_disk_replaced(self, machine: Machine) -> None:
        """Notes that a disk was replaced: everything on it may be gone, also deletes."""
        self._replaced[machine.broker_id] = self._lossy[machine.broker_id] = self._shared.image.revision
        self._dead[machine.broker_id] = self._ended.get(machine.broker_id, "")
        self._replaced_s[machine.broker_id] = self._shared.loop.time()

    def on_store_brought_forward(self, before: MetadataImage) -> None:
        """Handles a restored store that was brought forward: epochs start again.

        `before` is its earlier content. Members of ISRs were chosen by their logs, among those in sync and eligible,
        which may lack what no replica had flushed.
        """
        for topic in before.topics.values():
            known = self._shared.image.topic_by_id(topic.topic_id)
            for number, state in enumerate(() if known is None else topic.partitions):
                if self.all_may_lack_records(state):
                    leader = known.partitions[number].isr[0]  # type: ignore[union-attr]
                    self._on_lossy_leader(leader, topic, number)
        self._lossy.clear()
        self._replaced.clear()

    def on_election(self, topic: TopicImage, number: int, former: PartitionImage, state: PartitionImage) -> None:
        """Judges an election, and whether it may lose records.

        What counts is the leader's earlier membership. A leader that is still registered by that may be dead, and then
        cannot act; a new process registers again.
        """
        leader = state.leader
        members = former.members
        name = f"{topic.name}-{number}"
        image = self._shared.image
        self._chronicle.counts["election of an eligible leader"] += leader in former.elr
        if leader not in members and not self._unclean:
            self._chronicle.violate(
                f"P4: broker {leader} is elected for {name} from outside the ISR {former.isr} and the ELR {former.elr}"
            )
        if leader not in members or (self._unclean and image.is_stale(leader, topic.topic_id, number, members[leader])):
            self._on_unclean_election(topic, number, leader)
            return
        if members[leader] <= self._replaced.get(leader, -1) < (image.broker_epoch(leader) or -1):
            self._chronicle.violate(
                f"rule DR8: broker {leader} is elected for {name}, and its disk was replaced since it was in the ISR"
            )
        watch = self._watches.find(leader, topic.topic_id, number)
        if watch is not None and watch.has_holes:
            self._void(
                topic, number, f"broker {leader} is elected, which compacted for the sake of records that are gone"
            )
        registered = image.brokers.get(leader)
        if registered is not None and registered.incarnation == self._dead.get(leader):
            # It registered before its machine lost power or disk: it cannot act, and will
            self._lossy[leader] = max(self._lossy.get(leader, -1), registered.epoch)
            return
        if members[leader] <= self._lossy.get(leader, -1) and members[leader] != image.broker_epoch(leader):
            for other, epoch in members.items():
                lives = epoch == image.broker_epoch(other) and image.may_be_in_sync(other, topic.topic_id, number)
                # A registration may reach the store after a power cut of its machine: the next one counts.
                lost = max(self._lossy.get(other, -1), image.unclean_starts.get(other, 0) - 1)
                has_all = epoch > lost and not image.is_stale(other, topic.topic_id, number, epoch)
                if has_all and (lives or image.has_eligible_leaders) and not self._unclean:
                    self._chronicle.violate(
                        f"rule DR8: broker {leader} is elected for {name}, though it may have lost records, and broker "
                        f"{other} has them"
                    )
            self._on_lossy_leader(leader, topic, number)

    def _on_lossy_leader(self, leader: BrokerId, topic: TopicImage, number: int) -> None:
        if self._flushes:
            self._forget_unacknowledged(leader, topic, number)
        else:
            self._void(topic, number, f"broker {leader} is elected without what it had not flushed")

    def _on_unclean_election(self, topic: TopicImage, number: int, leader: BrokerId) -> None:
        """Handles an unclean election: records are lost or return, and D1 holds for later deletes."""
        watch, committed = self._watches.find(leader, topic.topic_id, number), self.committed(topic.topic_id, number)
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

    def is_void_since(self, topic: TopicImage, number: int, moment_s: float) -> bool:
        """Returns whether an unclean election ended the promises for deletes since then."""
        return moment_s <= self._voided_s.get((topic.topic_id, number), -1.0)

    def _forget_unacknowledged(self, leader: BrokerId, topic: TopicImage, number: int) -> None:
        """Forgets unacknowledged records, because a high watermark ahead of the leader's own disk promises nothing."""
        watch, committed = self._watches.find(leader, topic.topic_id, number), self.committed(topic.topic_id, number)
        end = committed.end if watch is None else self._watches.end_of(leader, watch)
        if end < committed.end:
            committed.end = end
            committed.forgotten_in = topic.partitions[number].leader_epoch
            for offset in [offset for offset in committed.batches if offset >= end]:
                del committed.batches[offset]
            committed.transactions.forget_from(end)
            load = self.loads.get(topic.name, {}).get(number)
            if load is not None:
                load.history.forget_read(end)

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

    def restore(self) -> None:
        """Renews the promises for records, and compares all replicas from now on, because they converged."""
        self._watches.look_again(key for key, committed in self._committed.items() if committed.is_void)
        for committed in self._committed.values():
            committed.is_void, committed.end = False, 0 if committed.is_void else committed.end
        starts = self._watches.log_starts()
        for topic, loads in self.loads.items():
            for number, load in loads.items():
                load.history.restore_records(starts.get(TopicPartition(topic, number), 0))


def _ignore(_topic: str, _number: int) -> None:
    """Does nothing."""


def _incarnation(machine: Machine) -> str:
    """Returns the incarnation of the running process; empty without one."""
    session = None if machine.broker is None else machine.broker._session  # noqa: SLF001 - the checker sees everything
    return "" if session is None else session.registrar._record.incarnation  # noqa: SLF001 - likewise


def _has_stopped_cleanly(machine: Machine) -> bool:
    """Returns whether all log directories are clean since the last stop."""
    paths = machine.settings["log.dirs"].split(",")
    return all(machine.filesystem.exists(f"{path}/{CLEAN_SHUTDOWN_MARKER}") for path in paths)
