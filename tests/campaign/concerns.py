"""Which files a kind of run depends on, and whether they have changed since a commit.

The files are those that its programs import, and what these import, function-level imports included, but not those for
types only. A change of comments and docstrings alone is none. So a commit to the console leaves runs of simulators
current, and one to a handler doesn't.

If all files that are imported now are as they were at a commit, then the same files were imported there: an import can
only change in a file that has changed. So it is enough to look at the files of today. What else counts is named by the
kind: programs in C, which are no imports. Versions of packages don't count.
"""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT, TESTS = "lowtide", "tests"


def file_of(module: str) -> str | None:
    """Returns the file of a module of this tree, relative to its root; None of any other."""
    top, _, rest = module.partition(".")
    if top not in (PRODUCT, TESTS):
        return None
    base = (
        ROOT / "src" / PRODUCT
        if top == PRODUCT and not rest
        else ROOT / (rest if top == PRODUCT else module).replace(".", "/")
    )
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return str(path.relative_to(ROOT))
    return None


def module_of(file: str) -> str:
    """Returns the name under which a file of this tree is imported."""
    name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".").removeprefix("src.lowtide")
    return name if file.startswith(f"{TESTS}/") else f"{PRODUCT}.{name}".rstrip(".")


@functools.cache
def imported(file: str) -> frozenset[str]:
    """Returns the files that a file imports directly, packages on the way included."""
    name = module_of(file)
    package = name if file.endswith("__init__.py") else name.rpartition(".")[0]
    found = set()
    for module in _imported_modules(ast.parse((ROOT / file).read_bytes()), package):
        parts = module.split(".")
        found |= {file_of(".".join(parts[:end])) for end in range(1, len(parts) + 1)}
    return frozenset(each for each in found if each is not None)


def _imported_modules(tree: ast.AST, package: str) -> Iterator[str]:
    """The names after `from … import` may be modules, too."""
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(
                    [*package.split(".")[: len(package.split(".")) - node.level + 1], *filter(None, [base])]
                )
            yield from (f"{base}.{each.name}" for each in node.names)


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from _executed(ast.Module(node.orelse, []))
            continue
        yield node
        yield from _executed(node)


APART = ("src/", "console/", "cli/broker_console.py")
"""What no kind of run uses: the package's own names, which forward to what users import, and the console, which a
broker serves at other listeners."""


def closure(files: Iterable[str]) -> frozenset[str]:
    """Returns these files and all that they import, directly or not, without `APART` and what only that imports."""
    found: set[str] = set()
    left = list(files)
    while left:
        file = left.pop()
        if file not in found and not file.startswith(APART):
            found.add(file)
            left += imported(file)
    return frozenset(found)


def same(before: bytes, after: bytes, file: str) -> bool:
    """Returns whether two contents of a file differ in comments and docstrings at most."""
    if before == after:
        return True
    if not file.endswith(".py"):
        return False
    try:
        return _without_docstrings(before) == _without_docstrings(after)
    except SyntaxError:
        return False


def _without_docstrings(source: bytes) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [each for each in body if not _is_text(each)] or [ast.Pass()]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    """Returns whether a statement is a lone string: a docstring, or one below a field."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def unchanged(commit: str, files: Iterable[str], folders: Iterable[str] = ()) -> bool:
    """Returns whether the last commit has these files, and all in these folders, as a commit had them.

    False for a commit that is unknown here.
    """
    head = _git("rev-parse", "HEAD")
    changed = _changed(commit, head)
    if changed is None:
        return False
    below = tuple(f"{folder}/" for folder in folders)
    concerned = changed & frozenset(files) | {each for each in changed if each.startswith(below)}
    return all(_is_same(commit, head, each) for each in concerned)


def _git(*words: str) -> str:
    """Errors: CalledProcessError."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@functools.cache
def _changed(commit: str, head: str) -> frozenset[str] | None:
    """Returns the files that differ; None for an unknown commit."""
    try:
        return frozenset(_git("diff", "--name-only", "--no-renames", commit, head, "--").splitlines())
    except subprocess.CalledProcessError:
        return None


@functools.cache
def _is_same(commit: str, head: str, file: str) -> bool:
    """Returns whether a file is the same in both commits, comments and docstrings aside."""
    return same(_content(commit, file), _content(head, file), file)


def _content(commit: str, file: str) -> bytes:
    """Returns the file in a commit; empty if it has none."""
    return subprocess.run(["git", "show", f"{commit}:{file}"], cwd=ROOT, capture_output=True, check=False).stdout
