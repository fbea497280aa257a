"""The source distribution and the wheel: built from the tree, they contain the package, and the wheel's broker runs
without a compiler.

Building leaves the tree as it was: another environment may have it installed as editable.
"""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lowtide import BlockingAdminClient
from lowtide.protocol import native
from tests.unit.test_release import module_of

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
NOT_IN_A_WHEEL = {"simulation"}


def build(target: str, *, source: Path, into: Path, umask: int = 0o022, **variables: str) -> Path:
    """Runs Hatchling's own command, without a network. Returns the file that it wrote."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(into)]
    subprocess.run(
        command, cwd=source, env=os.environ | variables, umask=umask, check=True, capture_output=True, timeout=300
    )
    [built] = into.iterdir()
    return built


def unpacked(archive: Path, into: Path) -> Path:
    """Python 3.11.2, which Debian 12 has, knows no filters of `tarfile`, and later versions warn without one."""
    into.mkdir()
    subprocess.run(["tar", "-xzf", archive], cwd=into, check=True)
    [tree] = into.iterdir()
    return tree


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("source")
    return unpacked(build("sdist", source=ROOT, into=folder / "sdist"), folder / "tree")


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was built from the source distribution, as with `make wheels`."""
    return build("wheel", source=source, into=tmp_path_factory.mktemp("wheel"))


def file_of(wheel: Path, name: str) -> bytes:
    """The content of a file of its `.dist-info` folder."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(each for each in archive.namelist() if each.endswith(f".dist-info/{name}")))


def files_of(tree: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(tree): path.read_bytes()
        for path in tree.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("target", ["wheel", "wheel:editable"])
def test_a_build_changes_nothing_in_the_tree(source: Path, tmp_path: Path, target: str):
    """The module of 3.12 once replaced the one that a broker on 3.11 used, and ended it.

    It goes into the environment.
    """
    before = files_of(source)
    built = build(target, source=source, into=tmp_path / "built")
    assert files_of(source) == before
    modules = [name for name in zipfile.ZipFile(built).namelist() if name.endswith(".so")]
    assert modules == ([] if native.compiled is None else ["_lowtide_walk.abi3.so"])


def test_a_wheel_has_the_package_and_no_simulator(wheel: Path):
    """Every linked folder except those for development, and the licence."""
    names = set(zipfile.ZipFile(wheel).namelist())
    folders = {name.split("/")[1] for name in names if name.startswith("lowtide/") and name.count("/") > 1}
    linked = {path.name for path in (ROOT / "src/lowtide").iterdir() if path.is_symlink()}
    assert folders == linked - NOT_IN_A_WHEEL
    assert "pyspark_lowtide.py" in names
    assert {name.partition("/licenses/")[2] for name in names} == {"", "LICENSE", "console/static/vendor/uplot.LICENSE"}
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests/")]


def test_the_metadata_are_those_of_a_package_for_users(wheel: Path):
    """No extra of development, and nothing that leads nowhere. Tools for uploads refuse metadata later than 2.4."""
    about = email.message_from_bytes(file_of(wheel, "METADATA"))
    assert about["Metadata-Version"] == "2.4"
    assert about.get_all("Provides-Extra") == ["etcd", "pipeline", "table"]
    assert about["License-Expression"] == "Apache-2.0 AND MIT"
    assert about["Project-URL"] is None
    assert re.findall(r"\]\((?!https:)", str(about.get_payload())) == []
    assert file_of(wheel, "entry_points.txt").decode().split() == [
        *("[console_scripts]", "lowtide", "=", "lowtide.cli.main:main"),
        *("lowtide-delete-records", "=", "lowtide.cli.main:delete_records"),
        *("lowtide-spark-python", "=", "lowtide.pipeline.spark_python:main"),
        *("[pytest11]", "lowtide", "=", "lowtide.testing.plugin"),
    ]


def test_a_release_knows_its_repository(tmp_path: Path):
    """Also if it is built again from the source distribution, by somebody who does not name the repository."""
    address = "https://example.org/lowtide"
    packed = build("sdist", source=ROOT, into=tmp_path / "sdist", LOWTIDE_REPOSITORY=f"{address}/")
    tree = unpacked(packed, tmp_path / "tree")
    again = build("sdist", source=tree, into=tmp_path / "again", LOWTIDE_REPOSITORY="")
    assert again.read_bytes() == packed.read_bytes()
    about = email.message_from_bytes((tree / "PKG-INFO").read_bytes())
    assert f"Source, {address}" in about.get_all("Project-URL", [])
    assert f"({address}/blob/" in str(about.get_payload())


def test_the_source_distribution_has_what_a_packager_installs(source: Path):
    """Protects readers without the repository: they have the pages that README.md links, and what those say to copy."""
    targets = re.findall(r"\]\((?!https:)([^)#]+)", (source / "README.md").read_text(encoding="utf-8"))
    assert "docs/quick-start.md" in targets
    copied = ("packaging/systemd/lowtide.service", "packaging/kubernetes/lowtide.yaml", "observability", "examples")
    assert [target for target in (*targets, *copied) if not (source / target).exists()] == []


def test_the_version_survives_the_source_distribution(wheel: Path):
    """It has no git directory: PKG-INFO has the version."""
    expected = subprocess.run(
        [sys.executable, "-c", "import hatch_build; print(hatch_build.version())"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    assert wheel.name.split("-")[1] == expected


def test_a_broker_of_the_wheel_runs_without_a_compiler(wheel: Path, tmp_path: Path):
    """Works without PATH. If the module was compiled, it uses the stable ABI, and is in use."""
    package = tmp_path / "package"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(package)
    bare = {"PATH": str(tmp_path), "PYTHONPATH": str(package), "HOME": str(tmp_path)}
    code = "import lowtide, lowtide.protocol.native as native; print(lowtide.__file__, native.compiled is not None)"
    shown = subprocess.run(
        [sys.executable, "-c", code], env=bare, cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout.split()
    assert Path(shown[0]).is_relative_to(package)
    assert shown[1] == str("-abi3-" in wheel.name)
    settings = ["--set", "listeners=PLAINTEXT://127.0.0.1:0", "--set", f"log.dirs={tmp_path / 'data'}"]
    command = [sys.executable, "-m", "lowtide.cli.main", "serve", *settings]
    with subprocess.Popen(command, env=bare, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            ready = next(json.loads(line) for line in process.stderr if '"ready"' in line)
            with BlockingAdminClient(ready["address"]) as admin:
                assert admin.list_topics() is not None
        finally:
            process.terminate()


@pytest.mark.skipif(native.compiled is None, reason="protocol/native is not compiled here")
def test_a_compiled_wheel_serves_the_python_that_built_it_and_later_ones(wheel: Path):
    """Its tag names the stable ABI of that version."""
    major, minor = sys.version_info[:2]
    assert re.fullmatch(rf"lowtide-[\w.+!]+-cp{major}{minor}-abi3-\w+\.whl", wheel.name)


@pytest.mark.parametrize("target", ["sdist", "wheel"])
@pytest.mark.slow
def test_a_build_elsewhere_has_the_same_bytes(source: Path, tmp_path: Path, target: str):
    """Another folder, umask, time zone, language and home change nothing: anyone can build a release again."""
    other = shutil.copytree(source, tmp_path / "at another place" / "tree")
    usual = build(target, source=source, into=tmp_path / "usual")
    unusual = build(
        target,
        source=other,
        into=tmp_path / "unusual",
        umask=0o077,
        TZ="Asia/Kathmandu",
        LC_ALL="C",
        PYTHONHASHSEED="7",
        HOME=str(tmp_path),
    )
    assert usual.name == unusual.name
    assert usual.read_bytes() == unusual.read_bytes()


@pytest.mark.skipif(native.compiled is None, reason="protocol/native is not compiled here")
@pytest.mark.slow
def test_the_quick_start_works_with_the_wheel_in_a_bare_environment(wheel: Path, tmp_path: Path):
    """Does what `make test-wheel` does for every Python. pip installs the dependencies."""
    assert module_of("try_wheel").try_wheel(sys.executable, wheel, tmp_path) == ".".join(map(str, sys.version_info[:3]))
