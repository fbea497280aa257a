"""Ends a process at one of its steps: the files and the catalog are from then on as it has left them."""

from __future__ import annotations

from contextlib import contextmanager
from unittest.mock import patch

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO


class Crash(BaseException):
    """No handler of errors sees it, and all later steps fail with it too, as in a process that is dead."""


class Steps:
    """Counts the steps, and crashes at one of them; never without `at`."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.count = 0
        self.seen: list[str] = []

    def step(self, name: str) -> None:
        self.seen.append(name)
        if self.at is not None and self.count >= self.at:
            raise Crash(name)
        self.count += 1


@contextmanager
def crashing(steps: Steps):
    """Makes each new file, each deletion, and each commit (before and after it is done) a step."""
    original = {
        "new_output": PyArrowFileIO.new_output,
        "delete": PyArrowFileIO.delete,
        "commit_table": SqlCatalog.commit_table,
    }

    def new_output(self, location):
        steps.step(f"write {location}")
        return original["new_output"](self, location)

    def delete(self, location):
        steps.step(f"delete {location}")
        return original["delete"](self, location)

    def commit_table(self, *arguments, **named):
        steps.step("before the commit")
        answer = original["commit_table"](self, *arguments, **named)
        steps.step("after the commit")
        return answer

    with (
        patch.object(PyArrowFileIO, "new_output", new_output),
        patch.object(PyArrowFileIO, "delete", delete),
        patch.object(SqlCatalog, "commit_table", commit_table),
    ):
        yield steps
