"""Class names are unique in the tree, and a small module with one importer belongs into that importer.

The lists have what isn't so yet. They only shrink.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .statements import statements

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "admin",
    "broker",
    "cli",
    "console",
    "metadata",
    "pipeline",
    "protocol",
    "replication",
    "runtime",
    "simulation",
    "storage",
    "testing",
    "verification",
)
LINES_MAX = 60

FOUND_BY_NAME = ("broker/handlers/", "protocol/messages/")
"""A module for each API, which is found by its name."""

REPEATED: dict[str, int] = {
    "AlterConfigsResource": 2,
    "AlterConfigsResourceResponse": 2,
    "AlterableConfig": 2,
    "Broker": 2,
    "Client": 2,
    "Committed": 2,
    "Committer": 2,
    "ConfigResource": 2,
    "EpochEndOffset": 2,
    "GroupMember": 2,
    "IsrChanges": 2,
    "PartitionLoad": 3,
    "Producer": 2,
    "TransactionState": 2,
}
"""Class names that stand more than once, with how often."""

SMALL: set[str] = {
    "broker/metrics/clients.py",
    "broker/metrics/coordinators.py",
    "broker/metrics/site.py",
    "broker/partitions/fence.py",
    "replication/unregistration.py",
}
"""Modules of fewer than `LINES_MAX` lines that one module imports."""


class Module(NamedTuple):
    """What the rules ask about a module. Its tree isn't kept."""

    path: str
    lines: int
    classes: tuple[str, ...]
    """Those at its top."""
    imports: frozenset[str]
    """The names of modules, and of what is imported from them."""


def imports_of(tree: ast.Module) -> Iterator[str]:
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@functools.cache
def modules() -> dict[str, Module]:
    """All modules, by name."""
    found = {}
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        name, text = path.relative_to(ROOT), path.read_text(encoding="utf-8")
        if not path.name.endswith("_pb2.py"):
            module = ".".join(("lowtide", *name.with_suffix("").parts))
            tree = ast.parse(text)
            classes = tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef))
            found[module] = Module(str(name), len(text.splitlines()), classes, frozenset(imports_of(tree)))
    return found


def repeated_names() -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for module in modules().values():
        for name in module.classes:
            counts[name] += 1
    return {name: count for name, count in sorted(counts.items()) if count > 1}


def importers() -> dict[str, set[str]]:
    """The modules that import each module of ours."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, module in modules().items():
        for imported in module.imports:
            found[imported].add(name)
    return found


def small_modules() -> set[str]:
    by = importers()
    return {
        module.path
        for name, module in modules().items()
        if module.lines < LINES_MAX
        and len(by[name]) == 1
        and not module.path.endswith("__init__.py")
        and not module.path.startswith(FOUND_BY_NAME)
    }


def test_class_names_are_unique() -> None:
    """The same thing has one name, and a name means one thing."""
    assert repeated_names() == REPEATED


def test_small_modules_are_part_of_the_module_that_uses_them() -> None:
    assert small_modules() == SMALL
