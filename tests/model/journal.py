"""The model of a log start journal on a disk that tears and loses writes (rule DR1, at the level of files).

One partition, offsets 0 to 2. Frames are written, and durable when synced; a fold replaces the file by a new one. A
power cut keeps any part of what was not synced, frame by frame, and may undo a rename whose directory was not synced. A
killed process loses only its memory: its writes can be read although the disk may not have them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

TORN = -1
FIRST = 0
ROUTES = ((1, 2), (2, 1), (2,))
"""The requests, one after the other: two deletes; a delete, and a truncation below it; a delete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Switches for how the journal is written and read."""

    visible_when_durable: bool = True
    unlinked_when_durable: bool = True
    one_frame_under_way: bool = True
    last_counts: bool = True
    torn_end_is_dropped: bool = True
    written_anew_at_start: bool = True
    synced_before_rename: bool = True
    directory_synced_after_rename: bool = True


Frames = tuple[tuple[int, bool], ...]
"""Each frame has its offset, and whether it is durable."""


class State(NamedTuple):
    """`frames`: the journal's file; `before`: the file that a power cut may bring back; `staged`: the new file of a
    fold.

    `told` is the log start that was reported to others; files below `unlinked` are removed; `coming` is accepted and
    not durable.
    """

    running: bool
    damaged: bool
    frames: Frames
    before: Frames | None
    staged: Frames | None
    value: int
    told: int
    unlinked: int
    coming: tuple[int, ...]
    wanted: tuple[int, ...]
    folds: int


class Journal:
    """One log directory, used, killed, cut from power, and started again."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def starts(self) -> Iterator[tuple[tuple, State]]:
        for wanted in ROUTES:
            yield (
                ("the log starts at 0; then {}", wanted),
                State(True, False, ((FIRST, True),), None, None, FIRST, FIRST, FIRST, (), wanted, 1),
            )

    def steps(self, state: State, may_fail: bool) -> Iterator[tuple[bool, tuple, State]]:
        if not state.running:
            if not state.damaged:
                yield False, ("it starts again",), self.started(state)
            return
        yield from self.writing(state)
        yield from self.folding(state)
        if may_fail:
            down = state._replace(running=False, staged=None, value=FIRST)
            yield True, ("THE PROCESS IS KILLED",), down
            for frames in self.after_power_cut(state):
                yield True, ("THE POWER IS CUT; the file is {}", frames), down._replace(frames=frames, before=None)

    def writing(self, state: State) -> Iterator[tuple[bool, tuple, State]]:
        rules = self.rules
        synced = all(durable for _, durable in state.frames)
        settled = state.before is None or not rules.directory_synced_after_rename
        if state.wanted and state.staged is None and settled and (synced or not rules.one_frame_under_way):
            offset = state.wanted[0]
            accepted = state._replace(
                frames=(*state.frames, (offset, False)), coming=(*state.coming, offset), wanted=state.wanted[1:]
            )
            if offset < state.value:  # a truncation: the rest is empty, whichever files are removed
                accepted = accepted._replace(unlinked=FIRST)
            if not rules.visible_when_durable:
                accepted = accepted._replace(value=offset, told=offset)
            if not rules.unlinked_when_durable:
                accepted = accepted._replace(unlinked=max(state.unlinked, offset))
            yield False, ("offset {} is accepted and written", offset), accepted
        if not synced:
            frames = tuple((offset, True) for offset, _ in state.frames)
            durable = state.coming[-1] if state.coming else state.value
            unlinked = max(state.unlinked, durable) if durable > state.value else state.unlinked
            yield (
                False,
                ("it is synced",),
                state._replace(frames=frames, value=durable, told=durable, unlinked=unlinked, coming=()),
            )

    def folding(self, state: State) -> Iterator[tuple[bool, tuple, State]]:
        """A new file with the last offset is written, synced and renamed before anything else is written."""
        rules = self.rules
        if state.staged is None and state.before is None and not state.coming and state.folds:
            yield (
                False,
                ("a fold writes a new file",),
                state._replace(staged=((state.value, False),), folds=state.folds - 1),
            )
        if state.staged is not None:
            if not state.staged[-1][1]:
                yield False, ("the new file is synced",), state._replace(staged=((state.staged[-1][0], True),))
            if state.staged[-1][1] or not rules.synced_before_rename:
                yield (
                    False,
                    ("the new file is renamed",),
                    state._replace(frames=state.staged, before=state.frames, staged=None),
                )
        if state.before is not None:
            yield False, ("the directory is synced",), state._replace(before=None)

    def after_power_cut(self, state: State) -> list[Frames]:
        """Every file that the disk may have."""
        found = []
        for frames in (state.frames,) if state.before is None else (state.frames, state.before):
            choices = [(frame,) if frame[1] else (frame, (TORN, False)) for frame in frames]
            found += [tuple((offset, offset != TORN) for offset, _ in kept) for kept in product(*choices)]
        return found

    def started(self, state: State) -> State:
        """The value in the file counts, and may be reported at once."""
        rules = self.rules
        frames = state.frames
        if len(frames) > 1 and frames[-1][0] == TORN and rules.torn_end_is_dropped:
            frames = frames[:-1]
        if any(offset == TORN for offset, _ in frames):
            return state._replace(damaged=True)
        offsets = [offset for offset, _ in frames]
        value = offsets[-1] if rules.last_counts else max(offsets)
        if rules.written_anew_at_start:
            frames = ((value, True),)
        told = value if value in state.coming else state.told
        return state._replace(running=True, frames=frames, before=None, value=value, told=told, coming=())

    def violation(self, state: State) -> str | None:
        if state.damaged:
            return "S1: the result of a crash is treated as damage"
        if not state.running:
            return None
        if state.value < state.told:
            return f"D5: the log starts at {state.value}, and {state.told} was reported"
        if state.value > state.told:
            return f"D7: the log starts at {state.value}, and {state.told} was reported last"
        if state.value < state.unlinked:
            return f"S5: the log starts at {state.value}, and files below {state.unlinked} are removed"
        return None
