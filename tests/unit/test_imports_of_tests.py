"""What tests import of each other is there.

Those of `make interop` and of long campaigns run seldom, and no type checker reads them.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tests", "bench")


@cache
def names_of(file: Path) -> set[str]:
    """What a module defines or imports, anywhere in it; nothing if there is no such file."""
    found: set[str] = set()
    if not file.is_file():
        return found
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def place_of(package: list[str]) -> Path | None:
    """The file of a module of these folders; None for any other."""
    if not package or package[0] not in FOLDERS:
        return None
    path = ROOT.joinpath(*package)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def missing_in(file: Path, text: str) -> list[str]:
    """Names that a module imports of others of these folders, and that aren't there."""
    missing = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom):
            continue
        parts = file.relative_to(ROOT).parts[: -node.level] if node.level else ()
        package = [*parts, *(node.module or "").split(".")] if node.module else list(parts)
        place = place_of(package)
        if place is None:
            continue
        for alias in node.names:
            submodule = ROOT.joinpath(*package, alias.name)
            if alias.name not in names_of(place) and not (submodule.is_dir() or submodule.with_suffix(".py").is_file()):
                missing.append(f"line {node.lineno}: {'.'.join(package)}.{alias.name}")
    return missing


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_that_are_imported_are_defined(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert len(files) > 20
    missing = {str(file.relative_to(ROOT)): missing_in(file, file.read_text(encoding="utf-8")) for file in files}
    assert {file: names for file, names in missing.items() if names} == {}


def test_a_name_that_is_gone_is_found() -> None:
    file = ROOT / "tests/interop/test_transactions.py"
    assert missing_in(
        file, "from .members import until, no_such_thing\nfrom tests.examples import examples\nimport os\n"
    ) == ["line 1: tests.interop.members.no_such_thing"]
    assert missing_in(file, "from . import members, nothing\nfrom .nowhere import x\n") == [
        "line 1: tests.interop.nothing",
        "line 2: tests.interop.nowhere.x",
    ]
