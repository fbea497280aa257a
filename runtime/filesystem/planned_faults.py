"""Planned errors of a simulated disk, by operation and part of the path."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

Operation: TypeAlias = Literal[
    "open",
    "read",
    "write",
    "truncate",
    "sync",
    "rename",
    "unlink",
    "sync_directory",
    "create",
    "make_directory",
    "punch",
]

NEED_ROOM: Final[frozenset[Operation]] = frozenset({"create", "write", "rename", "make_directory"})
"""Operations that may fail on a full disk: a name needs space in its folder too."""


class _Fault:
    """An error for matching operations."""

    __slots__ = ("error_number", "operation", "path_contains", "remaining_count")

    def __init__(self, operation: Operation, error_number: int, count: int, path_contains: str) -> None:
        self.operation = operation
        self.error_number = error_number
        self.remaining_count = count
        self.path_contains = path_contains


class PlannedFaults:
    """The pending faults."""

    def __init__(self) -> None:
        self._faults: list[_Fault] = []

    def add(self, operation: Operation, error_number: int, count: int, path_contains: str) -> None:
        """Makes the next `count` operations on paths that contain `path_contains` fail."""
        self._faults.append(_Fault(operation, error_number, count, path_contains))

    def clear(self) -> None:
        self._faults.clear()

    def strike(self, operation: Operation, path: str) -> int | None:
        """Uses up a fault of this operation. Returns its errno, or None."""
        for fault in self._faults:
            if fault.operation == operation and fault.path_contains in path:
                fault.remaining_count -= 1
                if fault.remaining_count == 0:
                    self._faults.remove(fault)
                return fault.error_number
        return None
