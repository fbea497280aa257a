"""Rule DR9: no committed record is lost while a replica is left that has it.

Elections with random kills, losses of power, slow members and returns.
"""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lowtide.metadata.image import BrokerImage, MetadataImage, PartitionImage
from lowtide.metadata.records import NO_LEADER, FeaturesRecord, PartitionRecord
from lowtide.replication.elections import elect
from lowtide.replication.eligible_leaders import eligible_leaders

TOPIC_ID = b"T" * 16
REPLICAS = (1, 2, 3)
LEAST = 2
BROKERS = st.sampled_from(REPLICAS)


class Eligible(RuleBasedStateMachine):
    """One partition. A log is the number of committed records that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.revision = 10
        self.alive = dict.fromkeys(REPLICAS, 1)
        self.unclean: dict[int, int] = {}
        self.lost_power: set[int] = set()
        self.logs = dict.fromkeys(REPLICAS, 0)
        self.committed = 0
        self.partition = PartitionImage(REPLICAS, REPLICAS, (1, 1, 1), 1, 0, 0, 5)

    @property
    def image(self) -> MetadataImage:
        brokers = {each: BrokerImage(each, epoch, ()) for each, epoch in self.alive.items()}
        known = {each: BrokerImage(each, 1, ()) for each in REPLICAS}
        return MetadataImage(
            revision=self.revision,
            brokers=brokers,
            known_brokers=known,
            features=FeaturesRecord(1, 1),
            unclean_starts=self.unclean,
        )

    def take_over(self, record: PartitionRecord) -> None:
        self.revision += 1
        fields = {name: getattr(record, name) for name in PartitionRecord.__struct_fields__}
        elected = record.leader != NO_LEADER and record.leader_epoch > self.partition.leader_epoch
        self.partition = PartitionImage(**fields, modify_revision=self.revision)
        if elected:
            assert self.logs[record.leader] == self.committed, (
                f"broker {record.leader} has {self.logs[record.leader]} of {self.committed}"
            )

    def elect(self) -> None:
        record = elect(self.image, TOPIC_ID, 0, self.partition, min_insync_replicas=LEAST)
        if record is not None:
            self.take_over(record)
            assert elect(self.image, TOPIC_ID, 0, self.partition, min_insync_replicas=LEAST) is None

    def become(self, isr: dict[int, int]) -> None:
        """The leader's own change."""
        eligible = eligible_leaders(self.image, TOPIC_ID, 0, self.partition, tuple(isr), REPLICAS, LEAST)
        self.revision += 1
        self.partition = msgspec.structs.replace(
            self.partition,
            isr=tuple(isr),
            isr_epochs=tuple(isr.values()),
            elr=tuple(eligible),
            elr_epochs=tuple(eligible.values()),
            modify_revision=self.revision,
        )

    @property
    def isr(self) -> dict[int, int]:
        return dict(zip(self.partition.isr, self.partition.isr_epochs, strict=True))

    @property
    def is_led(self) -> bool:
        leader = self.partition.leader
        return leader != NO_LEADER and self.alive.get(leader) == self.isr.get(leader)

    def complete(self) -> list[int]:
        known = self.partition.members.items()
        return [
            member for member, epoch in known if member not in self.lost_power and epoch >= self.unclean.get(member, 0)
        ]

    @rule(broker=BROKERS)
    def is_killed(self, broker: int) -> None:
        self.alive.pop(broker, None)

    @rule(broker=BROKERS, data=st.data())
    def loses_power(self, broker: int, data: st.DataObject) -> None:
        """Of the members one at least has lost nothing since it became one: that much is promised."""
        if set(self.complete()) <= {broker}:
            return
        self.alive.pop(broker, None)
        self.logs[broker] = data.draw(st.integers(0, self.logs[broker]))
        self.lost_power.add(broker)

    @rule(broker=BROKERS)
    def starts(self, broker: int) -> None:
        if broker in self.alive:
            return
        self.revision += 1
        self.alive[broker] = self.revision
        if broker in self.lost_power:
            self.lost_power.discard(broker)
            self.unclean[broker] = self.revision

    @rule()
    def controller_looks(self) -> None:
        self.elect()

    @precondition(lambda self: self.is_led and len(self.partition.isr) >= LEAST and not self.partition.elr)
    @rule()
    def commits(self) -> None:
        """All members have it, so all live."""
        if all(self.alive.get(member) == epoch for member, epoch in self.isr.items()):
            self.committed += 1
            self.logs |= dict.fromkeys(self.partition.isr, self.committed)

    @precondition(lambda self: self.is_led)
    @rule(broker=BROKERS)
    def catches_up(self, broker: int) -> None:
        if broker in self.alive:
            self.logs[broker] = self.logs[self.partition.leader]
            if self.isr.get(broker) != self.alive[broker]:
                self.become(self.isr | {broker: self.alive[broker]})

    @precondition(lambda self: self.is_led)
    @rule(broker=BROKERS)
    def is_dropped(self, broker: int) -> None:
        if broker != self.partition.leader and broker in self.isr:
            self.become({member: epoch for member, epoch in self.isr.items() if member != broker})

    @invariant()
    def members_have_what_is_committed(self) -> None:
        for member in self.complete():
            assert self.logs[member] == self.committed, f"broker {member}, {self.partition}"

    def teardown(self) -> None:
        """Once all are back one leads."""
        for broker in REPLICAS:
            self.starts(broker)
        self.elect()
        assert self.partition.leader != NO_LEADER, self.partition


TestEligible = Eligible.TestCase
TestEligible.settings = settings(stateful_step_count=40)
