"""Mistakes with holes that the histories of `test_log_machine.py` find."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from lowtide.protocol.errors import ProtocolError
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.errors import StorageError
from lowtide.storage.log.segments.hole import Hole, PendingHole
from lowtide.storage.log.segments.segment import Segment
from tests.unit.storage.log.test_log_machine import LogMachine

FIND = settings(
    max_examples=1000,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


class WithoutNotes(LogMachine):
    """What says where a hole ends isn't durable before it is made."""

    def _known_on_disk(self) -> dict[str, object]:
        return {**super()._known_on_disk(), "hole": None}

    @rule(share=st.floats(0.3, 1))
    def lose_power_behind_a_hole(self, share: float) -> None:
        """More often than other histories."""
        self.die_behind_a_hole(share, power=True)


def finds(machine: type[LogMachine]) -> None:
    with pytest.raises((AssertionError, OSError, StorageError, ProtocolError)):
        run_state_machine_as_test(machine, settings=FIND)


def test_a_hole_that_is_made_before_its_end_is_noted() -> None:
    finds(WithoutNotes)


@pytest.mark.slow
def test_a_hole_under_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingHole, "is_read", lambda _self: False)
    finds(LogMachine)


@pytest.mark.slow
def test_a_hole_beyond_the_log_start(monkeypatch: pytest.MonkeyPatch) -> None:
    make = PendingHole.make

    def too_far(self: PendingHole, filesystem: FileSystem) -> None:
        self.hole = msgspec.structs.replace(self.hole, size=self.hole.size + 1)
        make(self, filesystem)

    monkeypatch.setattr(PendingHole, "make", too_far)
    finds(LogMachine)


@pytest.mark.slow
def test_a_hole_of_a_segment_that_was_cut_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingHole, "abandon", lambda _self: None)
    finds(LogMachine)


def test_reading_from_byte_0_where_a_hole_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out = Segment.leave_out

    def forgotten(self: Segment, hole: Hole) -> None:
        leave_out(self, hole)
        self.floor = 0

    monkeypatch.setattr(Segment, "leave_out", forgotten)
    finds(LogMachine)
