"""What the log says of a change of the cluster: leaders elected, brokers fenced and back, partitions being moved.

The controller logs them, so that each is logged once; what happens while there is none is logged by the next one. What
happens within a second is one line for each kind and pair of brokers, however many partitions it concerns. Elections
that lose records are logged besides, at once (`unclean_elections`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from lowtide.metadata.records import NO_LEADER
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from lowtide.metadata.image import ImageDelta, MetadataImage, PartitionImage
    from lowtide.protocol.types import BrokerEpoch, BrokerId

PARTITIONS_NAMED: Final = 5
"""In a line about any number of them."""

UNREADABLE_LINES_MAX: Final = 20
"""Keys that can't be read and are named at once; of more than that only the number is said. Each is named once, until it changes."""

BROKER_LINES_MAX: Final = 1000
"""What is kept while there is no controller; of partitions there is one entry each."""


class ImageLines:
    """Log lines about changes of the metadata. Used from the event loop only."""

    def __init__(self, broker_id: BrokerId, log: Any, machine: Collection[BrokerId] = ()) -> None:
        """`machine`: the brokers of this machine, where one supervisor runs several."""
        self._machine = frozenset(machine)
        self._broker_id = broker_id
        self._log = log
        self._image: MetadataImage | None = None
        self._brokers: list[tuple[bool, str, dict[str, Any]]] = []
        """Lines about brokers: whether it is a warning, the event, and what it is about."""
        self._elections: dict[tuple[BrokerId, BrokerId], dict[str, dict[str, Any]]] = {}
        """By old and new leader: what there is to say, by partition."""
        self._moves: dict[str, dict[str, dict[str, Any]]] = {}
        """By event: what it is about, by partition."""

    def on_image(self, old: MetadataImage, new: MetadataImage, delta: ImageDelta) -> None:
        """An image has followed another one."""
        self._image = new
        self.say_unreadable(old, new)
        if new.controller_id == self._broker_id != old.controller_id:
            self._log.info("this broker is the controller", before=old.controller_id)
        if self._machine and new.controller_id == self._broker_id:
            self._say_what_shares_a_machine(delta)
        for broker_id in delta.brokers_changed:
            self._on_broker(broker_id, old, new)
        for key, before, now in _changed_partitions(old, delta):
            if now.leader_epoch != before.leader_epoch and now.leader != before.leader:
                self._elections.setdefault((before.leader, now.leader), {})[str(key)] = _election(now)
            self._on_replicas(str(key), before, now)

    def say_unreadable(self, old: MetadataImage, new: MetadataImage) -> None:
        """Name the keys of the metadata that can't be read, and those that can again."""
        if old.unreadable is new.unreadable:
            return
        found = [(key, each) for key, each in new.unreadable.items() if old.unreadable.get(key) != each]
        for key, each in found[:UNREADABLE_LINES_MAX]:
            self._log.error(
                "key of the metadata can't be read, what depends on it waits until it is repaired",
                key=key.decode(errors="replace"),
                revision=each.revision,
                reason=each.reason,
                value_from_before="stays in force" if each.keeps else "is not known, or counts no more",
            )
        if len(found) > UNREADABLE_LINES_MAX:
            self._log.error("more keys of the metadata can't be read", keys=len(found) - UNREADABLE_LINES_MAX)
        mended = [key.decode(errors="replace") for key in old.unreadable if key not in new.unreadable]
        if mended:
            self._log.info(
                "keys of the metadata can be read again, or are gone",
                keys=len(mended),
                some_keys=mended[:PARTITIONS_NAMED],
            )

    def _say_what_shares_a_machine(self, delta: ImageDelta) -> None:
        """Once in a life: it is allowed, and an operator may not expect it."""
        for topic in delta.topics_created:
            for number, partition in enumerate(topic.partitions):
                if len(partition.replicas) > 1 and self._machine.issuperset(partition.replicas):
                    self._log.warning(
                        "all replicas of a partition are on this machine: they survive the death of a process, and not that of the machine",
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
            values: dict[str, Any] = {
                "replicas": list(now.replicas),
                "adding": list(now.adding),
                "removing": list(now.removing),
            }
            self._moves.setdefault("reassignment begins", {})[name] = values
        elif was_moving and not is_moving:
            self._moves.setdefault("reassignment ends", {})[name] = {"replicas": list(now.replicas)}

    def on_tick(self) -> None:
        """Tell what has happened since the last call. About once a second."""
        image = self._image
        if image is None or image.controller_id not in (self._broker_id, *image.brokers):
            return  # There is no controller, or it is gone: the next one tells.
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
    """Without a leader: the brokers of which one has to come back, with all that it had (KIP-966)."""
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
