"""Imports have no circles: neither between modules nor between rooms, including imports for types and inside functions.

import-linter (`.importlinter`) defines which room may import which; it does not find circles between modules of one
room.
"""

from __future__ import annotations

import ast
import functools
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from .statements import statements

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/lowtide"
FOLDERS = sorted(path.name for path in PACKAGE.iterdir() if path.is_symlink())


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("lowtide", *(parts[:-1] if parts[-1] == "__init__" else parts)))


MODULES = {module_name(path): path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}


def imported(tree: ast.Module) -> set[str]:
    """Returns all our modules in import statements; `from package import module` names the module."""
    found: set[str] = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "the package imports by full names"
            modules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in modules}
    return found & MODULES.keys()


def circle(graph: dict[str, set[str]]) -> list[str] | None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


@functools.cache
def graph() -> dict[str, set[str]]:
    """Returns what each module imports."""
    return {name: imported(ast.parse(path.read_text(encoding="utf-8"))) - {name} for name, path in MODULES.items()}


def test_every_folder_is_checked() -> None:
    assert {"broker", "simulation", "storage"} <= set(FOLDERS)
    assert sum(map(len, graph().values())) > 2000


@pytest.mark.parametrize(
    "source",
    [
        "from lowtide.broker.turns import run_in_slices",
        "from lowtide.broker import turns",
        "import lowtide.broker.turns",
        "if TYPE_CHECKING:\n    from lowtide.broker import turns as work",
        "def late():\n    from lowtide.broker.turns import run_in_slices",
    ],
)
def test_every_form_of_import_counts(source: str) -> None:
    assert imported(ast.parse(source)) == {"lowtide.broker.turns"}


def test_circles_are_found() -> None:
    """Otherwise the next test would prove nothing."""
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) is not None
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def test_no_modules_import_each_other() -> None:
    """A module can be understood after its imports: for types too."""
    assert circle(graph()) is None


def test_each_room_has_a_description() -> None:
    """Its `__init__` says in a few lines what it guards, what it imports, and where to begin."""
    rooms = [path.parent for folder in ("broker", "storage") for path in (ROOT / folder).rglob("__init__.py")]
    assert len(rooms) > 15
    for room in (*rooms, *(ROOT / name for name in ("metadata", "replication", "simulation", "testing"))):
        docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
        assert 3 <= len(docstring.splitlines()) <= 8, room
        text = " ".join(docstring.split())
        assert "Guards: " in text, room
        assert "Begin with `" in text, room
        for name in text.partition("Begin with ")[2].split("`")[1::2]:
            assert (room / f"{name}.py").exists() or (room / name).is_dir() or not name.islower(), (room, name)
