"""Memory of large requests: bounded, without deadlocks, and not reserved by an announced length."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lowtide.broker.network.connection.request_memory import (
    OVERTAKEN_MAX,
    STALLED_BYTES,
    STALLED_MS,
    RequestMemory,
)

LIMIT = 100


class Frame:
    """A receiver, and whether it may be read."""

    def __init__(self, memory: RequestMemory, size: int) -> None:
        self.size = size
        self.received_bytes = 0
        self.has_memory = memory.take(self, size)

    def on_memory_granted(self) -> None:
        assert not self.has_memory
        self.has_memory = True


def test_every_request_is_granted_while_there_is_room() -> None:
    memory = RequestMemory(LIMIT)
    one, two = Frame(memory, 40), Frame(memory, 60)
    assert (one.has_memory, two.has_memory, memory.used_bytes) == (True, True, 100)
    memory.give_back(one)
    assert memory.used_bytes == 60
    memory.give_back(one)
    assert memory.used_bytes == 60


def test_a_frame_above_the_limit_is_admitted_alone() -> None:
    memory = RequestMemory(LIMIT)
    small, huge, other = Frame(memory, 1), Frame(memory, 500), Frame(memory, 1)
    assert (small.has_memory, huge.has_memory, other.has_memory) == (True, False, True)
    memory.give_back(small)
    memory.give_back(other)
    late = Frame(memory, 1)
    assert (huge.has_memory, late.has_memory) == (True, False)
    memory.give_back(huge)
    assert late.has_memory


def test_smaller_frames_overtake_but_not_for_ever() -> None:
    memory = RequestMemory(LIMIT)
    held = [Frame(memory, 45), Frame(memory, 45)]
    huge = Frame(memory, 90)
    overtaking = 0
    while not huge.has_memory:
        frame = Frame(memory, 20)
        memory.give_back(held.pop(0))
        overtaking += frame.has_memory
        held.append(frame)
        assert overtaking <= OVERTAKEN_MAX
    assert overtaking == OVERTAKEN_MAX


def test_frames_of_one_size_are_served_in_order_of_arrival() -> None:
    memory = RequestMemory(LIMIT)
    held = Frame(memory, 90)
    waiting = [Frame(memory, 40) for _ in range(3)]
    memory.give_back(held)
    assert [frame.has_memory for frame in waiting] == [True, True, False]


def test_a_closed_connection_no_longer_waits() -> None:
    memory = RequestMemory(LIMIT)
    held, first, second = Frame(memory, 90), Frame(memory, 80), Frame(memory, 90)
    memory.give_back(first)
    memory.give_back(held)
    assert (first.has_memory, second.has_memory, memory.used_bytes) == (False, True, 90)


@given(st.lists(st.tuples(st.integers(1, 150), st.integers(0, 7)), max_size=200))
def test_the_limit_holds_and_every_wait_ends(steps: list[tuple[int, int]]) -> None:
    memory = RequestMemory(LIMIT)
    frames: list[Frame] = []
    for size, ended in steps:
        frames.append(Frame(memory, size))
        if ended < len(frames):
            memory.give_back(frames.pop(ended))
        holding = [frame.size for frame in frames if frame.has_memory]
        assert memory.used_bytes == sum(holding)
        assert sum(holding) <= LIMIT or len(holding) == 1
        assert holding or not frames
    while frames:
        ending = next(frame for frame in frames if frame.has_memory)
        frames.remove(ending)
        memory.give_back(ending)
    assert memory.used_bytes == 0


def full() -> tuple[RequestMemory, list[Frame], Frame]:
    """Two frames have all of the memory, one waits; all have received most of their bytes."""
    memory = RequestMemory(LIMIT)
    frames = [Frame(memory, 50), Frame(memory, 50), Frame(memory, 50)]
    for frame in frames:
        frame.received_bytes = 10 * STALLED_BYTES
    return memory, frames[:2], frames[2]


def test_no_frame_is_stalled_while_none_waits() -> None:
    memory, _, waiting = full()
    memory.give_back(waiting)
    assert [memory.stalled(now_ms) for now_ms in range(0, 100_000, 1000)] == [[]] * 100


def test_a_frame_that_stops_arriving_is_stalled_while_others_wait() -> None:
    memory, (one, two), waiting = full()
    assert memory.stalled(1000) == []
    two.received_bytes += STALLED_BYTES
    assert memory.stalled(1000 + STALLED_MS - 1) == []
    assert memory.stalled(1000 + STALLED_MS) == [one], "neither the frame that continues nor the one that waits"
    memory.give_back(one)
    assert waiting.has_memory
    assert memory.stalled(1000 + 3 * STALLED_MS) == [], "no frame waits any more"


def test_a_frame_that_waited_has_its_time_too() -> None:
    memory, (one, two), waiting = full()
    memory.stalled(1000)
    memory.give_back(one)
    another = Frame(memory, 50)
    assert not another.has_memory
    assert memory.stalled(1000 + STALLED_MS) == [two]
    assert memory.stalled(1000 + 2 * STALLED_MS) == [two, waiting]
