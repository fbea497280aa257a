"""The invariants of waiting deletes, and of the replicas that a leader must count as alive.

* Rule DR4: a delete is answered within 50 virtual ms of the event that ends its waiting. Either every replica that the
  leader must ask has reported a sufficient log start, no other replica is eligible as a leader (KIP-966), and no broker
  that had a replica may still answer with it; or the leadership, the topic or the broker's right to act has ended.
* Rule DR6: a delete isn't acknowledged in another leader epoch than the one that accepted it. DR4 sees one that waits.
* Rule DR3, from outside: a follower that was registered, and fetched within the lag time, since before the delete was
  sent must have applied it when it is acknowledged, whether it is in the ISR or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from lowtide.broker.lifecycle.broker import Broker
from lowtide.broker.pending import DelayedQueue
from lowtide.metadata.image import TopicImage
from lowtide.protocol.types import BrokerId
from lowtide.replication.former_replicas import awaited_former
from lowtide.replication.partition import Partition
from lowtide.simulation.chronicle import Chronicle
from lowtide.simulation.machines import Machine

ANSWER_WITHIN_MS: Final = 50

LISTEN_EVERY_S: Final = 0.005
"""The interval at which leaders' received fetches are recorded."""


class ParkedDeletes:
    """The waiting deletes, and what each replica last reported to its leader."""

    def __init__(self, machines: Mapping[BrokerId, Machine], chronicle: Chronicle) -> None:
        self._machines = machines
        self._chronicle = chronicle
        self.now_s = 0.0
        self._listened_s = 0.0
        self._ended: dict[int, tuple[Any, float, str]] = {}
        # (leader, topic id, number, leader epoch, follower) -> broker epoch, since when it has fetched without a gap,
        # and the newest broker epoch of its fetches.
        self._heard: dict[tuple[BrokerId, bytes, int, int, BrokerId], tuple[int, float, int]] = {}

    def check(self) -> None:
        """Checks all waiting deletes."""
        waiting: dict[int, tuple[Any, float, str]] = {}
        listens = self.now_s - self._listened_s >= LISTEN_EVERY_S
        if listens:
            self._listened_s = self.now_s
        for machine in self._machines.values():
            broker = machine.broker
            replicas = None if broker is None else broker.replicas
            if broker is None or replicas is None:
                continue
            deletes, log_starts = replicas.waiting.deletes, replicas.waiting.log_starts
            waits = deletes._purgatory._buckets or log_starts._purgatory._buckets  # noqa: SLF001 - the checker sees everything
            if not (waits or listens) or not machine.is_running:  # This is looked at whenever time moves on.
                continue
            if listens:
                self._note_heard(machine.broker_id, broker)
            if waits:
                self._check_queue(machine, broker, deletes, waiting)
                self._check_queue(machine, broker, log_starts, waiting)
        self._ended = waiting

    def live_since(
        self, leader: BrokerId, topic: TopicImage, number: int, moment_s: float
    ) -> Iterator[tuple[BrokerId, int, float]]:
        """Returns the followers that the leader must count as live from `moment_s` until now.

        Each with the newest broker epoch that the leader knows of it, and since when it has fetched, in seconds.
        """
        broker = self._machines[leader].broker
        if broker is None or broker.replicas is None:
            return  # The answer was on its way when its broker was started again.
        self._note_heard(leader, broker)
        state = topic.partitions[number]
        for (by, topic_id, partition, epoch, follower), (_, since_s, newest_epoch) in self._heard.items():
            if (by, topic_id, partition, epoch) == (
                leader,
                topic.topic_id,
                number,
                state.leader_epoch,
            ) and since_s < moment_s:
                if follower not in state.replicas:
                    continue
                yield follower, newest_epoch, since_s

    def _note_heard(self, leader: BrokerId, broker: Broker) -> None:
        replicas = broker.replicas
        assert replicas is not None
        image = replicas.image
        if image is None:
            return
        now_ms = broker._ports.clock.monotonic_ms()  # noqa: SLF001 - the checker sees everything
        still: set[tuple[BrokerId, bytes, int, int, BrokerId]] = set()
        for (_, number), partition in replicas.partitions.items():
            leadership = partition.leadership
            if leadership is None:
                continue
            lag_ms = leadership.lag_time_max_ms
            for follower, state in leadership.followers.items():
                epoch = image.broker_epoch(follower)
                has_fetched = state.broker_epoch == epoch and state.has_fetched_within(lag_ms, now_ms)
                # Also before the image shows its registration: the leader answered it.
                if epoch is None or not (
                    has_fetched or (state.unseen_epoch == epoch and now_ms - state.unseen_ms <= lag_ms)
                ):
                    continue
                if not image.may_be_in_sync(follower, partition.topic_id, number):
                    continue
                key = (leader, partition.topic_id, number, partition.leader_epoch, follower)
                still.add(key)
                before = self._heard.get(key)
                since_s = self.now_s if before is None or before[0] != epoch else before[1]
                self._heard[key] = (epoch, since_s, max(epoch, state.unseen_epoch))
        # Also former replicas: one that returns begins with an empty log.
        for key in [key for key in self._heard if key[0] == leader and key not in still]:
            del self._heard[key]

    def _check_queue(
        self, machine: Machine, broker: Broker, queue: DelayedQueue, waiting: dict[int, tuple[Any, float, str]]
    ) -> None:
        purgatory = queue._purgatory  # noqa: SLF001 - the checker sees everything
        for bucket in purgatory._buckets.values():  # noqa: SLF001
            for identity, operation in bucket.items():
                reason = self._why_over(broker, operation)
                if reason is None:
                    continue
                before = self._ended.get(identity)
                since_s = self.now_s if before is None or before[0] is not operation else before[1]
                waiting[identity] = (operation, since_s, reason)
                if (self.now_s - since_s) * 1000 > ANSWER_WITHIN_MS:
                    self._chronicle.violate(
                        f"rule DR4: a delete waits on {machine.host} for more than 50 ms after its end: {reason}"
                    )

    def _why_over(self, broker: Broker, operation: Any) -> str | None:
        """Returns why an operation should be answered now; None while it may wait."""
        reasons = [self._why_row_over(broker, row) for row in operation._rows if not row.done]  # noqa: SLF001 - the checker sees everything
        return None if not reasons or None in reasons else "; ".join(str(reason) for reason in reasons)

    def _why_row_over(self, broker: Broker, row: Any) -> str | None:
        replicas = broker.replicas
        assert replicas is not None
        partition = replicas.partitions.get(row.key)
        if partition is None or partition is not row.partition:
            return f"{row.key} isn't here any more"
        if partition.leader_epoch != row.leader_epoch or not partition.is_leader:
            return (
                f"{row.key} is led by {partition.leader_id} in epoch {partition.leader_epoch}, accepted in "
                f"{row.leader_epoch}"
            )
        if partition.log.offline:
            return f"the directory of {row.key} is offline"
        if partition.log.log_start_offset < row.offset or not self._all_have_it(broker, partition, row.offset):
            return None
        return f"all have reported that {row.key} starts at {row.offset} or above"

    def _all_have_it(self, broker: Broker, partition: Partition, offset: int) -> bool:  # noqa: PLR0911 - one return per reason
        """Returns whether every registered or (proposed) ISR replica has reported it under its registration."""
        leadership = partition.leadership
        image = None if broker.replicas is None else broker.replicas.image
        if image is None or not image.log_start_reporting:
            return False
        if awaited_former(partition, image, broker._ports.clock.monotonic_ms()):  # noqa: SLF001 - the checker sees everything
            return False
        if leadership is None:
            return True
        if leadership.state.elr:
            return False
        for other, state in leadership.followers.items():
            present = image.broker_epoch(other)
            if state.unseen_epoch > image.revision:
                return False
            if present is None and other not in leadership.maximal_isr:
                continue
            if state.log_start_offset < offset or state.broker_epoch != present:
                return False
        return True
