"""Files and folders of the simulated disk, each with its durable state and the changes since.

The durable state plus all pending changes, in order, is the visible state. Only `power_cut` and `settle` decide.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Final, TypeAlias

import msgspec

from lowtide.runtime.random import Random

SECTOR_BYTES: Final = 512
"""The unit that a disk writes atomically."""

BLOCK_BYTES: Final = 4096
"""The unit of allocation."""


class FileNode:
    """The content of a file."""

    __slots__ = ("_durable", "_holes", "_pending", "_visible", "modified_ms")

    def __init__(self, modified_ms: int) -> None:
        self.modified_ms = modified_ms
        self._visible = bytearray()
        self._durable = bytearray()
        # (position, data) of a write, (position, size) of a hole, (size, None) of a truncation.
        self._pending: list[tuple[int, bytes | int | None]] = []
        self._holes: set[int] = set()
        """The numbers of the blocks without space."""

    @property
    def size(self) -> int:
        return len(self._visible)

    @property
    def allocated_bytes(self) -> int:
        """The allocated space: all bytes except holes."""
        return len(self._visible) - BLOCK_BYTES * len(self._holes)

    def read(self, size: int, position: int) -> bytes:
        with memoryview(self._visible) as view:
            return bytes(view[position : position + size])

    def write(self, data: bytes, position: int, now_ms: int) -> None:
        """Writes `data` at `position`, with zeros before it if the file was shorter."""
        _write(self._visible, data, position)
        self._pending.append((position, data))
        if self._holes:
            self._holes.difference_update(range(position // BLOCK_BYTES, (position + len(data) - 1) // BLOCK_BYTES + 1))
        self.modified_ms = now_ms

    def punch(self, position: int, size: int, now_ms: int) -> None:
        """Replaces existing bytes by zeros; whole blocks give their space back."""
        end = min(position + size, len(self._visible))
        if position < end:
            _write(self._visible, bytes(end - position), position)
            self._holes.update(range(-(-position // BLOCK_BYTES), end // BLOCK_BYTES))
            self._pending.append((position, end - position))
            self.modified_ms = now_ms

    def truncate(self, size: int, now_ms: int) -> None:
        """Cuts or extends the content to `size` bytes."""
        if size != len(self._visible):
            _truncate(self._visible, size)
            self._pending.append((size, None))
            self._holes = {block for block in self._holes if (block + 1) * BLOCK_BYTES <= size}
            self.modified_ms = now_ms

    def copy(self) -> FileNode:
        """Returns a new file with the content that readers see, all of it durable."""
        copy = FileNode(self.modified_ms)
        copy.write(bytes(self._visible), 0, self.modified_ms)
        copy.sync()
        return copy

    def sync(self) -> None:
        """Makes the visible content durable, except for changes that a failed sync has lost."""
        for position, data in self._pending:
            if data is None:
                _truncate(self._durable, position)
            else:
                _write(self._durable, self._content(position, data), position)
        self._pending.clear()

    def settle(self, random: Random | None, counts: Counter[str] | None = None) -> None:
        """Decides at random which pending changes become durable; the rest never will. The visible content stays.

        Without randomness none does.
        """
        for position, data in self._pending:
            fate = random.choice(("kept", "lost", "torn")) if random is not None else "lost"
            if counts is not None and fate != "kept":
                counts[
                    "lost_truncate" if data is None else f"{fate}_punch" if isinstance(data, int) else f"{fate}_write"
                ] += 1
            if data is None:
                if fate == "kept":
                    _truncate(self._durable, position)
            elif fate == "kept":
                _write(self._durable, self._content(position, data), position)
            elif fate == "torn" and (content := self._content(position, data)):
                assert random is not None
                _write_torn(self._durable, content, position, random)
        self._pending.clear()

    def _content(self, position: int, data: bytes | int) -> bytes:
        """Returns what a change writes: a hole is zeros, up to the file's end."""
        return bytes(max(min(data, len(self._durable) - position), 0)) if isinstance(data, int) else data

    def power_cut(self, random: Random | None, counts: Counter[str]) -> None:
        """Decides the pending changes at random; only the durable content remains visible."""
        self.settle(random, counts)
        self._visible = bytearray(self._durable)
        blocks = ((block, self.read(BLOCK_BYTES, block * BLOCK_BYTES)) for block in self._holes)
        self._holes = {block for block, content in blocks if content == bytes(BLOCK_BYTES)}


class Folder:
    """A folder's names. What no durable name reaches is lost with its contents, synced or not."""

    __slots__ = ("_durable", "_pending", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self._durable: dict[str, Node] = {}
        self._pending: list[FolderChange] = []

    def change(self, change: FolderChange) -> None:
        change.apply(self.entries)
        self._pending.append(change)

    def copy(self) -> Folder:
        """Returns a copy of the visible folder, all durable."""
        copy = Folder()
        for name, node in self.entries.items():
            copy.change(FolderChange(added=name, node=node.copy()))
        copy.sync()
        return copy

    def sync(self) -> None:
        for change in self._pending:
            change.apply(self._durable)
        self._pending.clear()

    def power_cut(self, random: Random | None, counts: Counter[str]) -> None:
        """Loses all pending changes but a random prefix, and cuts the power of the files and folders that are left."""
        kept_count = random.randint(0, len(self._pending)) if random is not None else 0
        counts["lost_name"] += len(self._pending) - kept_count
        del self._pending[kept_count:]
        self.sync()
        self.entries = dict(self._durable)
        for name in sorted(self.entries):
            self.entries[name].power_cut(random, counts)


Node: TypeAlias = FileNode | Folder


class FolderChange(msgspec.Struct, frozen=True, kw_only=True):
    """One atomic change of a folder: a name added (or repointed), a name removed, or both for a rename."""

    added: str | None = None
    node: Node | None = None
    removed: str | None = None

    def apply(self, entries: dict[str, Node]) -> None:
        if self.removed is not None:
            del entries[self.removed]
        if self.added is not None:
            assert self.node is not None, self.added
            entries[self.added] = self.node


def _write(content: bytearray, data: bytes, position: int) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _truncate(content: bytearray, size: int) -> None:
    if size <= len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _write_torn(content: bytearray, data: bytes, position: int, random: Random) -> None:
    """Writes some sectors of `data`: a prefix, or any; the file may grow over missing ones."""
    end = position + len(data)
    edges = [position, *range((position // SECTOR_BYTES + 1) * SECTOR_BYTES, end, SECTOR_BYTES), end]
    sectors = list(itertools.pairwise(edges))
    a_prefix = random.getrandbits(1)
    arrived = (
        sectors[: random.randrange(len(sectors))]
        if a_prefix
        else [sector for sector in sectors if random.getrandbits(1)]
    )
    for start, stop in arrived:
        _write(content, data[start - position : stop - position], start)
    if len(content) < end and random.getrandbits(1):
        _truncate(content, end)
