"""A share coordinator under any sequence of requests, lost records, moves and time, against a dictionary.

Protected: what was answered to be written is read by every later coordinator; a fenced leader changes nothing; a cut
log loads the same.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lowtide.broker.coordinator.share_state.share_settings import ShareSettings
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.share_state_records import SharePlace
from tests.examples import examples

from .share_world import TOPIC, ShareWorld, batch

PLACES = [SharePlace("g", TOPIC, number) for number in range(3)]
PLACE = st.sampled_from(PLACES)


class Expected:
    """What is known of one share partition: epochs, start, and the state of each record."""

    def __init__(self, state_epoch: int, start_offset: int) -> None:
        self.state_epoch = state_epoch
        self.leader_epoch = -1
        self.start_offset = start_offset
        self.records: dict[int, tuple[int, int]] = {}


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = ShareWorld(ShareSettings(updates_per_snapshot=2))
        self.expected: dict[SharePlace, Expected] = {}

    @rule(place=PLACE, epoch=st.integers(0, 3), start=st.integers(-1, 20))
    def begin(self, place: SharePlace, epoch: int, start: int) -> None:
        known = self.expected.get(place)
        error = self.world.initialize(epoch, start, place).error
        if known is not None and epoch < known.state_epoch:
            assert error == ErrorCode.FENCED_STATE_EPOCH
            return
        assert error == ErrorCode.NONE
        if known is None or epoch > known.state_epoch:
            self.expected[place] = Expected(epoch, start)

    @rule(place=PLACE, leader=st.integers(-1, 3))
    def read(self, place: SharePlace, leader: int) -> None:
        known = self.expected.get(place)
        answer = self.world.read(leader, place)
        if known is None or leader < 0:
            assert answer.error == ErrorCode.INVALID_REQUEST
        elif leader < known.leader_epoch:
            assert answer.error == ErrorCode.FENCED_LEADER_EPOCH
        else:
            known.leader_epoch = max(known.leader_epoch, leader)
            self.check(answer.response, known)

    @rule(
        place=PLACE,
        epochs=st.tuples(st.integers(-1, 3), st.integers(-1, 3)),
        start=st.integers(-1, 20),
        ranges=st.lists(
            st.tuples(st.integers(0, 20), st.integers(0, 5), st.sampled_from([0, 2, 4]), st.integers(1, 3)), max_size=3
        ),
    )
    def write(
        self, place: SharePlace, epochs: tuple[int, int], start: int, ranges: list[tuple[int, int, int, int]]
    ) -> None:
        known, (state_epoch, leader) = self.expected.get(place), epochs
        batches = [batch(first, first + size, state, count) for first, size, state, count in ranges]
        error = self.world.write(
            *batches, start_offset=start, state_epoch=state_epoch, leader_epoch=leader, place=place
        ).error
        if known is None or min(epochs) < 0:
            assert error == ErrorCode.INVALID_REQUEST
        elif leader < known.leader_epoch:
            assert error == ErrorCode.FENCED_LEADER_EPOCH
        elif state_epoch < known.state_epoch:
            assert error == ErrorCode.FENCED_STATE_EPOCH
        else:
            assert error == ErrorCode.NONE
            for first, size, state, count in ranges:
                for offset in range(first, first + size + 1):
                    known.records[offset] = max(known.records.get(offset, (0, 0)), (count, state))
            known.start_offset = max(known.start_offset, start)
            known.records = {offset: value for offset, value in known.records.items() if offset >= known.start_offset}

    @rule(place=PLACE)
    def delete(self, place: SharePlace) -> None:
        assert self.world.delete(place).error == ErrorCode.NONE
        self.expected.pop(place, None)

    @rule(place=PLACE)
    def lose_a_write(self, place: SharePlace) -> None:
        """An uncommitted write is not answered as successful, and is lost with its coordinator."""
        self.world.holds_back = True
        answer = self.world.write(batch(0, 30, 4, 9), state_epoch=9, leader_epoch=9, place=place)
        assert answer.error in (None, ErrorCode.INVALID_REQUEST)
        self.world.move()

    @rule()
    def move(self) -> None:
        self.world.move()

    @rule()
    def wait(self) -> None:
        self.world.run_timers(310_000)

    @invariant()
    def all_is_as_expected(self) -> None:
        assert set(self.world.state.states) == set(self.expected)

    def check(self, response: Any, known: Expected) -> None:
        assert (response.state_epoch, response.start_offset) == (known.state_epoch, known.start_offset)
        found: dict[int, tuple[int, int]] = {}
        for each in response.state_batches:
            for offset in range(each.first_offset, each.last_offset + 1):
                assert offset not in found
                found[offset] = (each.delivery_count, each.delivery_state)
        assert found == known.records

    def teardown(self) -> None:
        self.world.move()
        for place, known in self.expected.items():
            self.check(self.world.read(9, place).response, known)


Machine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestShareStates = Machine.TestCase
