"""Places the replicas of new partitions: as the client says, or spread over racks and brokers.

Leaders rotate over the racks, and within a rack over its brokers. Followers go to the racks after the leader's. After
as many partitions as there are live brokers the order is shuffled, so that a dead broker's load spreads over several
others.

A known broker that isn't alive (fenced, in Kafka's words) gets replicas too, after the live ones of its rack, and is
never the leader. Its replica starts out of sync and catches up later. A broker that is about to stop gets none, nor
does one whose log directories are all cordoned (KIP-1066).
Sources: Kafka's `StripedReplicaPlacer`, `ReplicationControlManager.validateManualPartitionAssignment`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.metadata import keys
from lowtide.metadata.records import PartitionRecord, encode
from lowtide.metadata.store import ABSENT, Compare
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lowtide.metadata.image import MetadataImage
    from lowtide.protocol.types import BrokerEpoch, BrokerId, LeaderEpoch
    from lowtide.runtime.random import Random


def check_replicas(
    image: MetadataImage, number: int, replicas: Sequence[BrokerId], factor: int | None, known: Sequence[BrokerId] = ()
) -> str | None:
    """Returns what is wrong with the replicas that a client chose for a partition, or None.

    `factor` is the replication factor of the topic's others. `known` are brokers that already have the partition and
    may be unregistered.
    """
    if not replicas:
        return f"Partition {number} has an empty list of replicas"
    for broker_id in sorted(replicas):
        if not image.is_known(broker_id) and broker_id not in known:
            return f"Partition {number} names broker {broker_id}, which is not registered"
        if broker_id not in known and _is_cordoned(image, broker_id):
            return f"Partition {number} names broker {broker_id}, but all its log directories are cordoned"
        if list(replicas).count(broker_id) > 1:
            return f"Partition {number} names broker {broker_id} more than once"
    if factor is not None and len(replicas) != factor:
        return f"Partition {number} has {len(replicas)} replicas, those before it have {factor}"
    return None


def _is_cordoned(image: MetadataImage, broker_id: BrokerId) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.is_cordoned


def check_somebody_stays(image: MetadataImage, number: int, replicas: Sequence[BrokerId]) -> str | None:
    """Returns an error if all brokers chosen for a new partition are dead or about to stop, else None."""
    known = (image.brokers.get(broker_id) for broker_id in replicas)
    if any(broker is not None and not broker.in_controlled_shutdown for broker in known):
        return None
    return f"All brokers of partition {number} are fenced or in controlled shutdown"


def place_replicas(
    image: MetadataImage, count: int, factor: int, random: Random
) -> list[tuple[BrokerId, ...]] | Refusal:
    """Returns replicas for `count` partitions, the leader first.

    Errors: INVALID_REPLICATION_FACTOR if all brokers are dead, about to stop or cordoned, or fewer than `factor` are
    usable.
    """
    live = [
        broker
        for _, broker in sorted(image.brokers.items())
        if not (broker.in_controlled_shutdown or broker.is_cordoned)
    ]
    fenced = [broker for broker in image.fenced_brokers.values() if not broker.is_cordoned]
    if not live:
        text = (
            f"{factor} replicas can't be placed: all brokers are fenced, in controlled shutdown, or have only cordoned "
            "log directories"
        )
        return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    if factor > len(live) + len(fenced):
        text = f"{factor} replicas can't be placed: only {len(live) + len(fenced)} broker(s) take new ones"
        return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    racks: dict[str | None, tuple[list[BrokerId], list[BrokerId]]] = {}
    for place, brokers in enumerate((live, fenced)):
        for broker in brokers:
            racks.setdefault(broker.rack, ([], []))[place].append(broker.broker_id)
    stripes = _Stripes([racks[name] for name in sorted(racks, key=lambda name: (name is not None, name or ""))], random)
    return [stripes.place(factor) for _ in range(count)]


class _Brokers:
    """Some brokers of a rack, in rotation. Each partition starts one further than the previous one."""

    def __init__(self, brokers: list[BrokerId], random: Random) -> None:
        self.brokers = brokers
        self._offset = random.randrange(len(brokers)) if brokers else 0
        self._given = 0
        self._turn = 0

    def next(self, turn: int) -> BrokerId | None:
        """Returns the next broker for the partition of this turn, or None if the partition has all of them."""
        if not self.brokers:
            return None
        if turn != self._turn:
            self._turn, self._given = turn, 0
            self._offset = (self._offset + 1) % len(self.brokers)
        if self._given == len(self.brokers):
            return None
        broker_id = self.brokers[(self._offset + self._given) % len(self.brokers)]
        self._given += 1
        return broker_id


class _Rack:
    """The live and the fenced brokers of a rack."""

    def __init__(self, live: list[BrokerId], fenced: list[BrokerId], random: Random) -> None:
        self.live = _Brokers(live, random)
        self.fenced = _Brokers(fenced, random)

    def next(self, turn: int) -> BrokerId | None:
        """Returns the next broker for this turn's partition, live ones first; None if the partition has all brokers."""
        broker_id = self.live.next(turn)
        return self.fenced.next(turn) if broker_id is None else broker_id


class _Stripes:
    """All racks. Each call of `place` begins at the next one."""

    def __init__(self, racks: Sequence[tuple[list[BrokerId], list[BrokerId]]], random: Random) -> None:
        self._random = random
        self._racks = [_Rack(live, fenced, random) for live, fenced in racks]
        self._live = sum(len(live) for live, _ in racks)
        self._offset = random.randrange(len(self._racks))
        self._placed = 0
        self._turn = 0

    def place(self, factor: int) -> tuple[BrokerId, ...]:
        """Returns the replicas of the next partition, at most one per broker. The first is live."""
        if self._placed == self._live and self._live > 1:
            self._shuffle()
        count = len(self._racks)
        leader, leaders_rack = self._place_leader()
        replicas = [leader]
        at, skips = self._offset, True
        while len(replicas) < factor:
            rack = self._racks[at % count]
            at += 1
            if skips and rack is leaders_rack:
                skips = False  # Followers go to other racks first.
                continue
            broker_id = rack.next(self._turn)
            if broker_id is not None:
                replicas.append(broker_id)
        self._offset = (self._offset + 1) % count
        self._placed += 1
        self._turn += 1
        return tuple(replicas)

    def _place_leader(self) -> tuple[BrokerId, _Rack]:
        """Returns a live broker of the next rack that has one."""
        at = self._offset
        while True:
            rack = self._racks[at % len(self._racks)]
            broker_id = rack.live.next(self._turn)
            if broker_id is not None:
                return broker_id, rack
            at += 1

    def _shuffle(self) -> None:
        """Shuffles racks and brokers after one pass over all live brokers."""
        self._placed = 0
        self._random.shuffle(self._racks)
        for rack in self._racks:
            self._random.shuffle(rack.live.brokers)
            self._random.shuffle(rack.fenced.brokers)


def new_partition_record(
    replicas: tuple[BrokerId, ...],
    isr: tuple[BrokerId, ...],
    epochs: Mapping[BrokerId, BrokerEpoch],
    *,
    leader_epoch: LeaderEpoch = 0,
) -> bytes:
    """Returns the record of a partition that starts with `isr` in sync, led by its first member."""
    return encode(
        PartitionRecord(
            replicas=replicas,
            isr=isr,
            isr_epochs=tuple(epochs[broker_id] for broker_id in isr),
            leader=isr[0],
            leader_epoch=leader_epoch,
            partition_epoch=0,
        )
    )


def new_partition_records(image: MetadataImage, placed: Sequence[tuple[BrokerId, ...]]) -> list[bytes]:
    """Returns the records of new partitions. All replicas start in sync, except on dead or stopping brokers."""
    epochs = {
        broker_id: broker.epoch for broker_id, broker in image.brokers.items() if not broker.in_controlled_shutdown
    }
    made: dict[tuple[BrokerId, ...], bytes] = {}
    for replicas in placed:
        if replicas not in made:
            isr = tuple(broker_id for broker_id in replicas if broker_id in epochs)
            made[replicas] = new_partition_record(replicas, isr, epochs)
    return [made[replicas] for replicas in placed]


def brokers_unchanged(image: MetadataImage, placed: Iterable[Sequence[BrokerId]]) -> list[Compare]:
    """Returns the comparisons for new partitions: live brokers keep their registration, the others are still known."""
    compares = []
    for broker_id in sorted({broker_id for replicas in placed for broker_id in replicas}):
        epoch = image.broker_epoch(broker_id)
        if epoch is None:
            compares.append(Compare(keys.known_broker(broker_id), "create", "!=", ABSENT))
        else:
            compares.append(Compare(keys.broker(broker_id), "create", "==", epoch))
    return compares
