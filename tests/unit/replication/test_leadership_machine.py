"""The state of a leader under any order of fetches, appends, deletes, images and ISR changes.

Checked after every step: the high watermark never falls and never passes a member of the maximal ISR; the low watermark
follows rule DR3; a proposed member of the ISR has all committed records and every acknowledged delete; no proposal is
taken back by the next; a refused fetch changes nothing.
"""

from __future__ import annotations

from copy import deepcopy

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lowtide.metadata.image import PartitionImage
from lowtide.protocol.errors import ErrorCode
from lowtide.replication import in_sync_replicas
from lowtide.replication.eligible_leaders import IsrProposal
from lowtide.replication.leadership import FollowerFetch
from tests.examples import examples

from .leaders import LAG_MS, SELF, FakeLog, image_of, leads, partition_of

OTHERS = (2, 3)
others = st.sampled_from(OTHERS)


class LeadershipMachine(RuleBasedStateMachine):
    """Broker 1 leads; 2 and 3 follow, have what they report, and fail and return."""

    @initialize(
        isr=st.sampled_from([(1,), (1, 2), (1, 2, 3)]),
        end=st.integers(0, 3),
        start=st.integers(0, 3),
        away=st.sampled_from([(), (3,)]),
        least=st.integers(1, 3),
    )
    def begin(self, isr: tuple[int, ...], end: int, start: int, away: tuple[int, ...], least: int) -> None:
        self.now_ms = 0
        self.revision = 10
        self.epochs = {1: 1, 2: 2, 3: 3}
        self.fenced = set(away)
        self.log = FakeLog(log_start_offset=min(start, end), log_end_offset=end, min_insync_replicas=least)
        self.log.leader_epochs.assign(5, 0)
        self.state = partition_of(isr, tuple(self.epochs[member] for member in isr))
        self.see()
        self.leadership = leads(self.log, self.state, self.image)
        self.reported: dict[int, tuple[int, int] | None] = dict.fromkeys(OTHERS)
        """By follower, the registration of its last report in this leader epoch, and the reported log start."""
        self.fetched_ms = {broker: -2 * LAG_MS if broker in away else 0 for broker in OTHERS}
        self.unseen = dict.fromkeys(OTHERS, (-1, -2 * LAG_MS))
        """By follower, the newest registration that the image lacked, and the time of its last fetch under it."""
        self.acknowledged = self.log.log_start_offset
        self.highest = self.log.high_watermark

    def see(self) -> None:
        self.image = image_of(
            self.revision, {broker: epoch for broker, epoch in self.epochs.items() if broker not in self.fenced}
        )

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        self.log.move_log_end(self.log.log_end_offset + count)
        self.advance()

    def advance(self) -> None:
        self.log.advance_high_watermark(in_sync_replicas.high_watermark(self.leadership, self.image, self.now_ms))

    @rule(broker=others, behind=st.integers(0, 4), lag=st.integers(0, 3), later=st.sampled_from([0, 0, 1, 2, 5]))
    def fetch(self, broker: int, behind: int, lag: int, later: int) -> None:
        """In range, with a log start at or below ours.

        `later`: under a registration that the image does not have yet, or never will.
        """
        offset = max(self.log.log_end_offset - behind, self.log.log_start_offset)
        start = max(self.log.log_start_offset - lag, 0)
        epoch = self.revision + later if later else self.epochs[broker]
        fetch = FollowerFetch(broker, epoch, offset, start, 5, 5)
        before = deepcopy(self.leadership.followers)
        error = self.leadership.check_fetch(fetch, self.image)
        over = broker in self.fenced and not later
        older = epoch < before[broker].broker_epoch
        assert (error != ErrorCode.NONE) == (over or older)
        assert self.leadership.followers == before, "checking changes nothing"
        if error == ErrorCode.NONE:
            noted = self.leadership.note_fetch(fetch, self.image, self.now_ms)
            if epoch > self.revision:
                assert noted is None
                unseen, at_ms = self.unseen[broker]
                self.unseen[broker] = (epoch if self.now_ms - at_ms > LAG_MS else max(epoch, unseen), self.now_ms)
            else:
                self.reported[broker], self.fetched_ms[broker] = (epoch, start), self.now_ms
            self.advance()

    @rule(
        broker=st.sampled_from([0, 1, 2, 3, 77]),
        epoch=st.integers(-1, 9),
        leader_epoch=st.sampled_from([-1, 5]),
        start=st.integers(-3, 99),
    )
    def forge(self, broker: int, epoch: int, leader_epoch: int, start: int) -> None:
        before = deepcopy(self.leadership.followers)
        fetch = FollowerFetch(broker, epoch, self.log.log_end_offset, start, leader_epoch)
        error = self.leadership.check_fetch(fetch, self.image)
        is_true = broker in OTHERS and broker not in self.fenced and epoch == self.epochs[broker] and leader_epoch == 5
        is_true = is_true and -1 <= start <= self.log.log_end_offset and epoch >= before[broker].broker_epoch
        assert (error == ErrorCode.NONE) == is_true
        assert self.leadership.followers == before

    @rule(ms=st.sampled_from([1, LAG_MS // 2, LAG_MS + 1]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.advance()

    @rule(to=st.integers(0, 3))
    def delete(self, to: int) -> None:
        offset = self.log.high_watermark - to
        if offset > self.log.log_start_offset:
            self.log.move_log_start(offset)
            self.log.leader_epochs.truncate_from_start(offset)

    @rule()
    def acknowledge(self) -> None:
        if self.leadership.low_watermark(self.image, self.now_ms) >= self.log.log_start_offset:
            self.leadership.note_acknowledged(self.log.log_start_offset)
            self.acknowledged = max(self.acknowledged, self.log.log_start_offset)

    @rule(broker=others)
    def fence(self, broker: int) -> None:
        self.fenced.add(broker)
        self.change(broker)

    @rule(broker=others)
    def register(self, broker: int) -> None:
        self.epochs[broker] = self.revision + 1
        self.fenced.discard(broker)
        self.change(broker)
        reported = self.reported[broker]
        if reported is not None and reported[0] < self.epochs[broker]:
            self.reported[broker] = None

    @rule(broker=others, behind=st.integers(0, 4))
    def fetch_before_the_registration_is_shown(self, broker: int, behind: int) -> None:
        self.fetch(broker, behind, 0, 1)
        self.register(broker)

    def change(self, broker: int) -> None:
        self.revision += 1
        self.see()
        self.leadership.follow_broker(broker, self.image)
        self.advance()

    @rule()
    def propose(self) -> None:
        proposal = in_sync_replicas.next_proposal(self.leadership, self.image, self.now_ms)
        if proposal is None:
            return
        assert proposal.isr[0] == SELF
        members = dict(zip(self.state.isr, self.state.isr_epochs, strict=True))
        for member, epoch in zip(proposal.isr, proposal.isr_epochs, strict=True):
            if member != SELF and members.get(member) != epoch:
                follower = self.leadership.followers[member]
                assert epoch == self.epochs[member] == follower.broker_epoch
                assert member not in self.fenced
                assert follower.log_end_offset >= self.log.high_watermark
                assert follower.log_start_offset >= self.acknowledged
        in_sync_replicas.propose(self.leadership, proposal)
        self.advance()
        taken = deepcopy(self.leadership)
        taken.follow(self.as_proposed(proposal))
        image = msgspec.structs.replace(self.image, revision=self.revision + 1)
        taken.log.advance_high_watermark(in_sync_replicas.high_watermark(taken, image, self.now_ms))
        assert in_sync_replicas.next_proposal(taken, image, self.now_ms) is None

    def as_proposed(self, proposal: IsrProposal) -> PartitionImage:
        return msgspec.structs.replace(
            self.state, isr=proposal.isr, isr_epochs=proposal.isr_epochs, modify_revision=self.revision + 1
        )

    @precondition(lambda self: self.leadership.proposal is not None)
    @rule(taken=st.booleans())
    def decide(self, taken: bool) -> None:
        proposal = self.leadership.proposal
        assert proposal is not None
        if taken:
            self.state = self.as_proposed(proposal)
            self.revision += 1
            self.see()
            self.leadership.follow(self.state)
        else:
            assert in_sync_replicas.on_refused(self.leadership, proposal, conflicted=True)
        assert self.leadership.proposal is None
        self.advance()

    @invariant()
    def the_high_watermark_is_sound(self) -> None:
        assert self.log.high_watermark >= self.highest
        if self.log.high_watermark > self.highest:
            for member in self.leadership.maximal_isr - {SELF}:
                assert self.leadership.followers[
                    member
                ].log_end_offset >= self.log.high_watermark or self.log.high_watermark <= (self.log.log_start_offset)
        self.highest = self.log.high_watermark

    @invariant()
    def the_low_watermark_is_that_of_rule_3(self) -> None:
        expected = [self.log.log_start_offset]
        for broker in OTHERS:
            reported = self.reported[broker]
            epoch, at_ms = self.unseen[broker]
            newer = epoch > self.revision and self.now_ms - at_ms <= LAG_MS
            is_shown = (
                self.revision >= epoch >= self.epochs[broker]
            )  # The fetch came before the image showed its registration.
            heard_ms = max(self.fetched_ms[broker], at_ms) if is_shown else self.fetched_ms[broker]
            live = self.now_ms - heard_ms <= LAG_MS and broker not in self.fenced
            if newer or live or broker in self.leadership.maximal_isr:
                expected.append(-1 if newer or reported is None else reported[1])
        assert self.leadership.low_watermark(self.image, self.now_ms) == min(expected)

    @invariant()
    def the_leader_is_in_sync(self) -> None:
        assert SELF in self.leadership.maximal_isr
        assert set(self.state.isr) <= self.leadership.maximal_isr


LeadershipMachine.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
TestLeadership = LeadershipMachine.TestCase
