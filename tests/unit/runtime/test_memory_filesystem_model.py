"""The simulated disk against a model of the port's promises that is independent of its implementation.

The model keeps, per file, what is durable and every change since; per folder, every state of its names since it was
synced. After a power cut each byte must come from somewhere allowed, and the names must be one of those states.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lowtide.runtime.filesystem.memory import MemoryFileSystem
from tests.examples import examples

NAMES = st.sampled_from(["a", "b", "c"])
SIZES = st.one_of(st.integers(0, 20), st.integers(500, 530), st.integers(0, 2500))


@dataclass(eq=False)
class ModelFile:
    """One file, independent of its name."""

    visible: bytes = b""
    durable: bytes = b""
    changes: list[tuple[int, bytes | None]] = field(default_factory=list)

    def write(self, position: int, data: bytes) -> None:
        padded = self.visible.ljust(position, b"\0")
        self.visible = padded[:position] + data + padded[position + len(data) :]
        self.changes.append((position, data))

    def truncate(self, size: int) -> None:
        self.visible = self.visible[:size].ljust(size, b"\0")
        self.changes.append((size, None))

    def sync(self) -> None:
        self.durable = self.visible
        self.changes = []

    def may_become(self, content: bytes) -> bool:
        """Whether a power cut may leave the content."""
        if not self.changes:
            return content == self.durable
        ends = [len(self.durable), *(position + len(data or b"") for position, data in self.changes)]
        if len(content) > max(ends):
            return False
        for place, byte in enumerate(content):
            sources = [b"\0", self.durable[place : place + 1]]
            sources += [
                data[place - position : place - position + 1]
                for position, data in self.changes
                if data and place >= position
            ]
            if bytes([byte]) not in sources:
                return False
        return True


class DiskAgainstModel(RuleBasedStateMachine):
    """One folder with few names, so that they collide."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryFileSystem(Random(0))
        self.disk.make_directories("/d")
        self.disk.sync_directory("/")
        self.names: dict[str, ModelFile] = {}
        self.states: list[dict[str, ModelFile]] = [{}]

    def _names_changed(self) -> None:
        self.states.append(dict(self.names))

    @rule(name=NAMES)
    def create(self, name: str) -> None:
        self.disk.open(f"/d/{name}", write=True, create=True)
        if name not in self.names:
            self.names[name] = ModelFile()
            self._names_changed()

    @precondition(lambda self: self.names)
    @rule(data=st.data(), position=SIZES, size=SIZES, fill=st.integers(1, 255))
    def write(self, data: st.DataObject, position: int, size: int, fill: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.names)))
        content = bytes((fill + place) % 256 for place in range(size))
        self.disk.open(f"/d/{name}", write=True).pwritev([content[: size // 2], content[size // 2 :]], position)
        if content:
            self.names[name].write(position, content)

    @precondition(lambda self: self.names)
    @rule(data=st.data(), size=SIZES)
    def truncate(self, data: st.DataObject, size: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.names)))
        self.disk.open(f"/d/{name}", write=True).truncate(size)
        self.names[name].truncate(size)

    @precondition(lambda self: self.names)
    @rule(data=st.data(), position=SIZES, size=st.integers(1, 2500))
    def punch(self, data: st.DataObject, position: int, size: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.names)))
        self.disk.open(f"/d/{name}", write=True).punch(position, size)
        inside = max(min(size, len(self.names[name].visible) - position), 0)
        if inside:
            self.names[name].write(position, bytes(inside))

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.names)))
        self.disk.open(f"/d/{name}").sync()
        self.names[name].sync()

    @precondition(lambda self: self.names)
    @rule(data=st.data(), new_name=NAMES)
    def rename(self, data: st.DataObject, new_name: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.names)))
        self.disk.rename(f"/d/{name}", f"/d/{new_name}")
        self.names[new_name] = self.names.pop(name)
        self._names_changed()

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def unlink(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.names)))
        self.disk.unlink(f"/d/{name}")
        del self.names[name]
        self._names_changed()

    @rule()
    def sync_directory(self) -> None:
        self.disk.sync_directory("/d")
        self.states = [dict(self.names)]

    @rule()
    def process_crash(self) -> None:
        self.disk.crash_process()

    @rule(seed=st.integers(0, 1 << 30))
    def power_cut(self, seed: int) -> None:
        self.disk.power_cut(Random(seed))
        left = {name: self.disk.read_bytes(f"/d/{name}") for name in self.disk.listdir("/d")}
        allowed = [
            state
            for state in self.states
            if state.keys() == left.keys() and all(state[name].may_become(content) for name, content in left.items())
        ]
        assert allowed, (left.keys(), [state.keys() for state in self.states])
        self.names = {name: ModelFile(visible=content, durable=content) for name, content in left.items()}
        self.states = [dict(self.names)]

    @invariant()
    def what_is_visible_is_what_was_done(self) -> None:
        assert self.disk.listdir("/d") == sorted(self.names)
        for name, file in self.names.items():
            assert self.disk.read_bytes(f"/d/{name}") == file.visible


TestDiskAgainstModel = DiskAgainstModel.TestCase
TestDiskAgainstModel.settings = settings(
    max_examples=examples(150), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
