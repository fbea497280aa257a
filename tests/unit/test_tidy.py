"""House rules that no other tool checks: sizes, links of the import name, names of tests."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("admin", "broker", "cli", "metadata", "pipeline", "protocol", "replication", "runtime", "simulation", "storage", "testing")
UNSHIPPED = ("simulation",)
"""Folders of the package that only this repository has: no wheel and no source archive."""

SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
C_SOURCES = sorted(path for folder in FOLDERS for kind in ("*.c", "*.h") for path in (ROOT / folder).rglob(kind))
OTHERS = sorted(path for folder in ("tests", "bench", "demo", "examples") for path in (ROOT / folder).rglob("*.py"))
"""Code that is read, and isn't part of the package."""

FILE_LINES = 500
SOURCE_LINES = 400
FUNCTION_LINES = 70

LONG_FILES = {
    "tests/unit/metadata/test_session.py": 501,
    "tests/unit/runtime/test_simulated_network.py": 620,
    "tests/unit/storage/log/test_log.py": 510,
    "tests/unit/storage/directory/test_log_manager.py": 1150,
    "tests/unit/storage/log_start/test_journal.py": 715,
}
"""Test files that are longer than a file should be, with the length they may have. Numbers here fall and entries go; none is added."""

LONG_SOURCES = frozenset(
    {
        "broker/coordinator/classic/classic_group.py",
        "broker/coordinator/consumer/consumer_group.py",
        "broker/coordinator/runtime/coordinator_runtime.py",
        "broker/coordinator/transactions/transaction_shard.py",
        "broker/lifecycle/broker.py",
        "broker/partitions/fetch_session.py",
        "broker/partitions/replica_fetcher.py",
        "broker/partitions/replica_manager.py",
        "metadata/image.py",
        "metadata/session.py",
        "protocol/primitives.py",
        "protocol/records.py",
        "runtime/filesystem/memory.py",
        "runtime/simulated_loop.py",
        "runtime/simulated_transport.py",
        "simulation/cluster_invariants.py",
        "simulation/cluster_load.py",
        "simulation/consumer_group_load.py",
        "storage/directory/directory_logs.py",
        "storage/directory/log_manager.py",
        "storage/log/producer_state.py",
        "storage/log/segment.py",
        "storage/log/validator.py",
        "storage/log_start/journal.py",
    }
)
"""Modules longer than `SOURCE_LINES`, at most `FILE_LINES`: nearly all have one large class, still to be taken apart. None is added."""

TABLES = re.compile(r"keys_\w+\.py")


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_the_rules_see_the_code():
    """Were the folders moved, every rule below would hold for nothing."""
    assert len(SOURCES) > 100
    assert len(TESTS) > 30


@pytest.mark.parametrize("path", [*SOURCES, *OTHERS], ids=relative)
def test_files_and_functions_can_be_read(path: Path):
    """A function fits a screen or two, a file a sitting; tables may be longer, and tests that were long already."""
    if not TABLES.fullmatch(path.name):
        most = SOURCE_LINES if path in SOURCES and relative(path) not in LONG_SOURCES else FILE_LINES
        assert len(path.read_text(encoding="utf-8").splitlines()) <= LONG_FILES.get(relative(path), most)
    for function in functions(path):
        assert (function.end_lineno or 0) - function.lineno + 1 <= FUNCTION_LINES, f"{function.name} at line {function.lineno}"


@pytest.mark.parametrize("path", C_SOURCES, ids=relative)
def test_c_can_be_read_too(path: Path):
    """The same sizes; a file begins with what it is, and is compiled if it has code."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= FILE_LINES
    assert lines[0].startswith("/* ")
    assert max(map(len, lines)) <= 140
    begins = 0
    for number, line in enumerate(lines):
        if line == "{":
            begins = number
        elif line == "}":
            assert number - begins <= FUNCTION_LINES, f"the function at line {begins}"
    assert path.suffix == ".h" or f'"{relative(path)}"' in (ROOT / "hatch_build.py").read_text(encoding="utf-8")


def test_the_list_of_long_files_only_shrinks():
    """An entry goes when its file is short enough, or gone, and follows a file that has become much shorter."""
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in OTHERS}
    for name, allowed in LONG_FILES.items():
        assert FILE_LINES < lengths.get(name, 0), f"{name} needs no entry any more"
        assert allowed - lengths[name] <= 100, f"the entry of {name} can fall to {lengths[name]}"
    sources = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    for name in LONG_SOURCES:
        assert sources.get(name, 0) > SOURCE_LINES, f"{name} needs no entry any more"


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_modules_say_what_they_are(path: Path):
    """Each begins with a docstring."""
    assert ast.get_docstring(tree(path))


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_modules_have_no_state_of_their_own(path: Path):
    """Several brokers run in one process: nothing may be reached by `global`."""
    assert [node.lineno for node in ast.walk(tree(path)) if isinstance(node, ast.Global)] == []


def test_each_folder_is_part_of_the_package():
    """Linked for development, put into the wheel, shipped with the source, banned under its bare name, and a layer."""
    shipped = [folder for folder in FOLDERS if folder not in UNSHIPPED]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    build = project["tool"]["hatch"]["build"]["targets"]
    assert build["wheel"]["force-include"] == {folder: f"lowtide/{folder}" for folder in shipped}
    assert set(build["sdist"]["only-include"]) & set(FOLDERS) == set(shipped)
    banned = project["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert set(FOLDERS) <= set(banned)
    contracts = (ROOT / ".importlinter").read_text(encoding="utf-8")
    for folder in FOLDERS:
        link = ROOT / "src/lowtide" / folder
        assert link.is_symlink()
        assert str(link.readlink()) == f"../../{folder}"
        assert f"lowtide.{folder}" in contracts


IMPORT_NAMES = {
    "pytest_asyncio": "pytest-asyncio",
    "kafka": "kafka-python",
    "snappy": "python-snappy",
    "grpc": "grpcio",
    "google": "protobuf",
    "re2": "google-re2",
    "yaml": "pyyaml",
}
"""Packages whose import name is another one than the package's."""


def imported_packages(paths: list[Path]) -> set[str]:
    """Names of packages that are neither Python's own nor ours."""
    names: set[str] = set()
    for path in paths:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names.add(node.module.partition(".")[0])
    beside = {path.stem for path in paths} | {"tests", "bench"}
    return {IMPORT_NAMES.get(name, name).replace("_", "-") for name in names - set(sys.stdlib_module_names) - {"lowtide"} - beside}


def required_packages(*extras: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return {re.split(r"[<>=\[ ]", line)[0] for line in lines}


def test_every_package_that_is_imported_is_a_dependency():
    """What happens to be in the development environment isn't in a user's. Only the pytest plugin imports what its users bring."""
    assert imported_packages(SOURCES) - required_packages("etcd", "pipeline") == {"pytest"}


def test_every_dependency_is_imported_but_the_one_that_waits_for_its_use():
    """docs/rooms/runtime.md says what aiofiles is for, and where it may never be used."""
    assert required_packages() - imported_packages(SOURCES) == {"aiofiles"}


def test_what_etcd_needs_is_imported_for_etcd_only():
    """Most brokers run without it, and don't have its packages."""
    users = [path for path in SOURCES if imported_packages([path]) & (required_packages("etcd") - required_packages())]
    assert users
    assert all(path.stem.startswith("etcd") for path in users)


def test_every_package_that_tests_import_is_in_an_extra():
    """Or the tests run here and nowhere else. construct-typing brings the types of construct, and nothing to import."""
    assert imported_packages(OTHERS) - required_packages("dev", "demo", "pipeline") == set()


def test_every_pinned_package_is_pinned_exactly():
    """A constraints file that lets something float isn't one."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][\w.]*", line) for line in lines)
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]:
        assert re.split(r"[<>=\[ ]", line)[0].lower() in pinned, line


@pytest.mark.parametrize("path", TESTS, ids=relative)
def test_test_modules_say_what_they_protect(path: Path):
    """In their docstring; and no test sleeps where tests are to be fast."""
    assert ast.get_docstring(tree(path))
    if path.relative_to(ROOT).parts[1] == "unit":
        calls = [node.func for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
        assert not [call.lineno for call in calls if ast.unparse(call) == "time.sleep"]


def test_the_copyright_is_apaches_licence():
    """Apache-2.0, whole."""
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
