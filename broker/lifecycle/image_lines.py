"""Log lines about changes of the cluster: leader elections, fenced brokers, reassignments.

Only the controller logs them, so that each appears once; a new controller logs what happened while there was none. The
events of a second are one line per kind and pair of brokers, however many partitions they concern. Elections that lose
records are also logged at once, by the controller and by each new leader; a follower that truncates committed records
logs it in `replica_fetcher`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from lowtide.metadata.records import NO_LEADER
from lowtide.protocol.types import TopicPartition
from lowtide.replication.elections import led_uncleanly

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide.metadata.image import ImageDelta, MetadataImage, PartitionImage
    from lowtide.protocol.types import BrokerEpoch, BrokerId

PARTITIONS_NAMED: Final = 5
"""The maximum number of partitions named in a line."""

UNREADABLE_LINES_MAX: Final = 20
"""The maximum number of unreadable keys named at once. Each is named once, until it changes."""

BROKER_LINES_MAX: Final = 1000
"""The maximum number of lines about brokers that are kept while there is no controller."""


class ImageLines:
    """Log lines about changes of the metadata. Used from the event loop only."""

    def __init__(self, broker_id: BrokerId, log: Any, machine: Collection[BrokerId] = ()) -> None:
        """`machine`: the brokers of this machine, if one supervisor runs several."""
        self._machine = frozenset(machine)
        self._broker_id = broker_id
        self._log = log
        self._image: MetadataImage | None = None
        self._brokers: list[tuple[bool, str, dict[str, Any]]] = []
        """Lines about brokers: whether it is a warning, the event, and its fields."""
        self._elections: dict[tuple[BrokerId, BrokerId], dict[str, dict[str, Any]]] = {}
        """The fields of each partition, by old and new leader."""
        self._moves: dict[str, dict[str, dict[str, Any]]] = {}
        """The fields of each partition, by event."""

    def on_image(self, old: MetadataImage, new: MetadataImage, delta: ImageDelta) -> None:
        self._image = new
        self.log_unreadable(old, new)
        if new.controller_id == self._broker_id != old.controller_id:
            self._log.info("this broker is the controller", before=old.controller_id)
        if self._machine and new.controller_id == self._broker_id:
            self._warn_of_shared_machine(delta)
        for broker_id in delta.brokers_changed:
            self._on_broker(broker_id, old, new)
        for key, before, now in _changed_partitions(old, delta):
            if now.leader_epoch != before.leader_epoch and now.leader != before.leader:
                self._elections.setdefault((before.leader, now.leader), {})[str(key)] = _election(now)
            self._on_replicas(str(key), before, now)

    def log_unreadable(self, old: MetadataImage, new: MetadataImage) -> None:
        """Logs the keys of the metadata that are unreadable, and those that are readable again."""
        if old.unreadable is new.unreadable:
            return
        found = [(key, each) for key, each in new.unreadable.items() if old.unreadable.get(key) != each]
        for key, each in found[:UNREADABLE_LINES_MAX]:
            self._log.error(
                "metadata key is unreadable, dependent operations wait until it is repaired",
                key=key.decode(errors="replace"),
                revision=each.revision,
                reason=each.reason,
                value_from_before="stays in use" if each.keeps else "is unknown or ignored",
            )
        if len(found) > UNREADABLE_LINES_MAX:
            self._log.error("more metadata keys are unreadable", keys=len(found) - UNREADABLE_LINES_MAX)
        mended = [key.decode(errors="replace") for key in old.unreadable if key not in new.unreadable]
        if mended:
            some = mended[:PARTITIONS_NAMED]
            self._log.info("metadata keys are readable again or deleted", keys=len(mended), some_keys=some)

    def _warn_of_shared_machine(self, delta: ImageDelta) -> None:
        """Warns once of a topic with all replicas on this machine: it is allowed, but perhaps unexpected."""
        for topic in delta.topics_created:
            for number, partition in enumerate(topic.partitions):
                if len(partition.replicas) > 1 and self._machine.issuperset(partition.replicas):
                    self._log.warning(
                        "all replicas of a partition are on this machine: they survive a failed process, not a failed "
                        "machine",
                        partition=f"{topic.name}-{number}",
                        replicas=list(partition.replicas),
                    )
                    self._machine = frozenset()
                    return

    def _on_broker(self, broker_id: BrokerId, old: MetadataImage, new: MetadataImage) -> None:
        before, now = old.brokers.get(broker_id), new.brokers.get(broker_id)
        if now is None and before is not None:
            self._note(True, "broker is fenced", broker_id, before.epoch)
        elif now is not None and (before is None or before.epoch != now.epoch):
            event = "broker is unfenced" if before is None else "broker has registered again"
            self._note(False, event, broker_id, now.epoch)

    def _note(self, is_warning: bool, event: str, broker_id: BrokerId, epoch: BrokerEpoch) -> None:  # noqa: FBT001
        if len(self._brokers) < BROKER_LINES_MAX:
            self._brokers.append((is_warning, event, {"broker": broker_id, "broker_epoch": epoch}))

    def _on_replicas(self, name: str, before: PartitionImage, now: PartitionImage) -> None:
        was_moving, is_moving = bool(before.adding or before.removing), bool(now.adding or now.removing)
        if is_moving and (now.adding, now.removing) != (before.adding, before.removing):
            values = {name: list(getattr(now, name)) for name in ("replicas", "adding", "removing")}
            self._moves.setdefault("reassignment begins", {})[name] = values
        elif was_moving and not is_moving:
            self._moves.setdefault("reassignment ends", {})[name] = {"replicas": list(now.replicas)}

    def on_tick(self) -> None:
        """Logs what happened since the last call. Called about once a second."""
        image = self._image
        if image is None or image.controller_id not in (self._broker_id, *image.brokers):
            return  # There is no live controller: the next one logs it.
        brokers, self._brokers = self._brokers, []
        elections, self._elections = self._elections, {}
        moves, self._moves = self._moves, {}
        if image.controller_id != self._broker_id:
            return
        for is_warning, event, what in brokers:
            (self._log.warning if is_warning else self._log.info)(event, **what)
        for (before, now), partitions in elections.items():
            some = [{"partition": name} | values for name, values in list(partitions.items())[:PARTITIONS_NAMED]]
            event = "partitions have no leader" if now == NO_LEADER else "leaders are elected"
            tell = self._log.warning if now == NO_LEADER else self._log.info
            tell(event, old_leader=before, new_leader=now, partitions=len(partitions), some_partitions=some)
        for event, partitions in moves.items():
            some = [{"partition": name} | values for name, values in list(partitions.items())[:PARTITIONS_NAMED]]
            self._log.info(event, partitions=len(partitions), some_partitions=some)


def _election(now: PartitionImage) -> dict[str, Any]:
    """Returns the fields of an election. Without a leader: one of these brokers must return with its log (KIP-966)."""
    waits = {} if now.has_leader else {"waits_for": sorted(now.members)}
    return {"leader_epoch": now.leader_epoch} | waits


def _changed_partitions(
    old: MetadataImage, delta: ImageDelta
) -> Iterator[tuple[TopicPartition, PartitionImage, PartitionImage]]:
    for topic in delta.topics_changed:
        former = old.topics.get(topic.name)
        if former is None or former.topic_id != topic.topic_id or former.partitions is topic.partitions:
            continue
        for number in delta.partitions_of(former, topic):
            if number < len(former.partitions):
                yield TopicPartition(topic.name, number), former.partitions[number], topic.partitions[number]


class UncleanElections:
    """Logs and counts unclean elections: all of them on the controller, and those of a broker's own partitions."""

    def __init__(self, broker_id: BrokerId, log: Any) -> None:
        self.count = 0
        """The number of elections decided while this broker was the controller: each is counted by one broker."""
        self._broker_id = broker_id
        self._log = log

    def on_image(self, old: MetadataImage, new: MetadataImage, delta: ImageDelta) -> None:
        """Logs at most two lines per image. `delta` leads from `old` to `new`."""
        found = led_uncleanly(old, delta)
        here = [key for key, leader in found.items() if leader == self._broker_id]
        if here:
            self._log.warning("this broker leads partitions uncleanly, records are lost", **_told(here))
        if found and new.controller_id == self._broker_id:
            self.count += len(found)
            self._log.warning("leaders were elected uncleanly, records are lost", **_told(found))


def _told(keys: Iterable[TopicPartition]) -> dict[str, Any]:
    names = [str(key) for key in keys]
    return {"partitions": len(names), "some_partitions": names[:PARTITIONS_NAMED]}
