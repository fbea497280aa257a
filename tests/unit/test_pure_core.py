"""The pure core is pure: code that decides uses neither clocks, files, sockets, threads nor an event loop, by any form
of import.

Time and randomness are arguments there, so a test, a model and a simulation get the same decision. Files are touched in
plain functions, through the ports of `lowtide.runtime`; only code that waits is `async`.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from .statements import nodes

ROOT = Path(__file__).resolve().parents[2]

OUTSIDE = frozenset(
    {
        "asyncio", "concurrent", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "select",
        "selectors", "signal", "socket", "sqlite3", "ssl", "structlog", "subprocess", "tempfile", "threading", "time",
        "uvloop",
    }
)  # fmt: skip
"""Modules for access to the outside, and for waiting."""

PORTS_OF_VALUES = frozenset({"lowtide.runtime.json_text", "lowtide.runtime.random"})
"""What a pure module may import of that room: a parser, and a generator of numbers that is passed in with its seed."""

PURE_FOLDERS = (
    "protocol",
    "replication",
    "broker/coordinator/classic",
    "broker/coordinator/modern",
    "broker/security",
)
PURE_MODULES = (
    "broker/coordinator/counted_ids.py",
    "broker/coordinator/group_admission.py",
    "broker/coordinator/group_settings.py",
    "broker/coordinator/member_memory.py",
    "broker/coordinator/groups/commit_topics.py",
    "broker/coordinator/groups/committed_offsets.py",
    "broker/coordinator/groups/consumed.py",
    "broker/coordinator/groups/group_shard.py",
    "broker/coordinator/groups/pending_offsets.py",
    "broker/coordinator/runtime/effects.py",
    "broker/coordinator/runtime/in_transaction.py",
    "broker/coordinator/runtime/timers.py",
    "broker/coordinator/transactions/next_transaction.py",
    "broker/coordinator/transactions/transaction.py",
    "broker/coordinator/transactions/transaction_settings.py",
    "broker/coordinator/transactions/transaction_shard.py",
    "broker/coordinator/transactions/uncommitted.py",
    "broker/network/admission/login_memory.py",
    "broker/network/routing/refusals.py",
    "broker/network/routing/request_parts.py",
    "broker/network/connection/slow_clients.py",
    "broker/partitions/fetch/fetch_session.py",
    "broker/partitions/fetch/fetch_session_slots.py",
    "broker/partitions/produce/produce_rows.py",
    "broker/token_bucket.py",
    "metadata/broker_image.py",
    "metadata/changes.py",
    "metadata/image.py",
    "metadata/image_change.py",
    "metadata/keys.py",
    "metadata/records.py",
    "metadata/served_frames.py",
    "metadata/scram_image.py",
    "metadata/topics_change.py",
    "storage/compaction/compaction.py",
    "storage/compaction/offset_map.py",
    "storage/log/offsets.py",
    "storage/log/producers/open_transactions.py",
    "storage/log/producers/producer_snapshot.py",
    "storage/log/producers/producer_snapshot.py",
    "storage/log/producers/producer_state.py",
    "storage/log/validation/record_runs.py",
    "storage/log/validation/rejections.py",
    "storage/log/retention/retention_explain.py",
    "storage/log/retention/retention_plan.py",
    "storage/log/segments/roll_limits.py",
    "storage/log/segments/segment_life.py",
    "storage/log/segments/segment_names.py",
    "storage/log/validation/validation_rules.py",
    "storage/log/validation/validator.py",
    "storage/log/producers/verifications.py",
    "storage/log_start/journal_format.py",
    "verification/history.py",
    "verification/judge.py",
    "verification/operations.py",
)
EXCEPTIONS = {
    ("protocol/native/__init__.py", "os"),  # LOWTIDE_PURE selects the form of the walk.
    ("storage/log/segments/segment_files.py", "threading"),  # A lock: reads in the worker share its files.
    (
        "storage/log/segments/hole.py",
        "threading",
    ),  # A lock: the loop gives a hole up while the worker makes it.
}

SYNCHRONOUS_FOLDERS = ("protocol", "replication", "storage")
WAITING = frozenset({"asyncio", "select", "selectors", "socket", "threading"})


def sources(folders: tuple[str, ...]) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


PURE = [*sources(PURE_FOLDERS), *(ROOT / name for name in PURE_MODULES)]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(tree: ast.Module) -> set[str]:
    """The modules that import statements name, at any place; for the standard library only the package."""
    names: set[str] = set()
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "lowtide":
            names |= {f"lowtide.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "lowtide.runtime":
            names |= {f"lowtide.runtime.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    return {name if name.startswith("lowtide") else name.partition(".")[0] for name in names}


def awaited(tree: ast.Module) -> list[int]:
    waiting = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    return [node.lineno for node in nodes(tree) if isinstance(node, waiting)]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import asyncio", "asyncio"),
        ("import asyncio.events as events", "asyncio"),
        ("from asyncio import sleep", "asyncio"),
        ("from os.path import join", "os"),
        ("def late():\n    from time import monotonic", "time"),
        ("from lowtide.runtime import clock", "lowtide.runtime.clock"),
        ("from lowtide.runtime.clock import Clock", "lowtide.runtime.clock"),
    ],
)
def test_every_form_of_import_counts(source: str, module: str) -> None:
    assert module in imported(ast.parse(source))


@functools.cache
def facts(path: Path) -> tuple[list[int], set[str]]:
    """Returns the lines that wait, and the imports without exceptions of this module."""
    tree = parsed(path)
    return awaited(tree), {name for name in imported(tree) if (relative(path), name) not in EXCEPTIONS}


def test_code_that_decides_is_pure() -> None:
    """No clock, no file, no socket, no thread, no loop, no log, and no port except values."""
    assert len(PURE) > 100
    for path in PURE:
        waiting, imports = facts(path)
        ports = {name for name in imports if name.startswith("lowtide.runtime")} - PORTS_OF_VALUES
        assert (waiting, imports & OUTSIDE, ports) == ([], set(), set()), relative(path)


def test_deciding_and_touching_files_is_synchronous() -> None:
    """Between a check and the write that relies on it nothing else may run."""
    for path in sources(SYNCHRONOUS_FOLDERS):
        waiting, imports = facts(path)
        assert (waiting, imports & WAITING) == ([], set()), relative(path)


def test_each_exception_is_needed() -> None:
    assert {
        (relative(path), name) for path in sources(SYNCHRONOUS_FOLDERS) for name in imported(parsed(path)) & OUTSIDE
    } == EXCEPTIONS
