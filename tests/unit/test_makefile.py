"""What `make` installs, and when: `make -n` says so without doing it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Returns a folder with the files of a fresh clone that `make -n` reads, and an environment without packages.

    Its name has a space.
    """
    folder = tmp_path / "a clone"
    (folder / ".venv" / "bin").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "hatch_build.py"):
        shutil.copy(ROOT / name, folder / name)
    (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
    return folder


def steps(tree: Path, *targets: str) -> list[str]:
    # Without the variables of the `make` that may run this test, such as ARGS.
    own = {name: value for name, value in os.environ.items() if name not in ("ARGS", "MAKEFLAGS", "MAKEOVERRIDES")}
    done = subprocess.run(
        ["make", "-n", *targets], cwd=tree, env=own, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


def test_a_broker_needs_no_tools(tree: Path) -> None:
    """The first `make run` of a clone takes a fraction of what `make test` installs."""
    installs = [line for line in steps(tree, "run") if "pip install" in line]
    assert len(installs) == 1
    assert installs[0].endswith(" --editable .")


@pytest.mark.parametrize("target", ["test", "test-ci", "coverage"])
def test_the_name_of_the_folder_stays_one_word(tree: Path, target: str) -> None:
    """Protects clones in folders whose names have a space: `make test` failed there, for want of quotes."""
    commands = "\n".join(steps(tree, target)).replace("\\\n", "").splitlines()
    lines = [line for line in commands if str(tree) in line]
    assert lines
    for line in lines:
        assert sum(str(tree) in word for word in shlex.split(line)) == line.count(str(tree)), line


@pytest.mark.parametrize("target", ["demo-pipeline", "test", "demo", "docs", "wheels", "interop", "check"])
def test_nothing_takes_the_command_away_from_a_broker_that_runs(tree: Path, target: str) -> None:
    """pip removes an installation before it installs it again; only packages of groups and extras follow later."""
    (tree / ".venv" / ".runs").touch()
    installs = [line for line in steps(tree, target) if "pip install" in line]
    assert installs
    assert not [line for line in installs if "--editable" in line or not line.endswith("-packages.txt")]


def test_the_packages_of_groups_and_extras_are_those_of_the_project(tree: Path) -> None:
    """The line that lists them is executed; `.[pipeline]` would have installed the same."""
    (tree / ".venv" / ".runs").touch()
    (line,) = [line for line in steps(tree, ".venv/.installed") if "dependency-groups" in line]
    subprocess.run(line, shell=True, cwd=tree, timeout=60, check=True)
    names = {
        re.split(r"[<>=]", each)[0] for each in (tree / ".venv" / ".installed-packages.txt").read_text().splitlines()
    }
    assert {"pytest", "confluent-kafka", "matplotlib", "grpcio"} <= names
    assert not {"pyspark", "uvloop"} & names


def test_what_observes_is_stopped_with_the_rest(tree: Path) -> None:
    """Version 2 of compose stops the services of a profile only where the profile is named."""
    (line,) = [line for line in steps(tree, "down", "COMPOSE=compose") if "down" in line]
    assert line.split() == ["compose", "--profile", "observe", "down"]


@pytest.mark.parametrize(
    ("volumes", "given", "refused"), [("x_secure", {}, True), ("", {}, False), ("x_secure", {"OPEN": "1"}, False)]
)
def test_volumes_of_a_secure_cluster_are_not_opened_by_mistake(
    tree: Path, volumes: str, given: dict[str, str], refused: bool
) -> None:
    """`make up` over them would serve everything without a login; `docker` and `compose` are stubs."""
    stub = tree / "stub"
    stub.mkdir()
    (stub / "docker").write_text(f"""#!/bin/sh
case "$*" in *'name=^x_secure$') echo {volumes} ;; inspect*) echo healthy ;; esac
""")
    (stub / "compose").write_text(f'#!/bin/sh\necho "$@" >> "{tree}/calls"\n')
    for each in stub.iterdir():
        each.chmod(0o755)
    environment = {**os.environ, "PATH": f"{stub}:{os.environ['PATH']}", "COMPOSE_PROJECT_NAME": "x", **given}
    done = subprocess.run(
        ["make", "up", "COMPOSE=compose"],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode != 0) is refused, done.stdout + done.stderr
    assert ("make up SECURE=1" in done.stdout) is refused
    assert (tree / "calls").exists() is not refused


@pytest.mark.parametrize("reason", [None, "it was not compiled when Lowtide was installed"])
def test_an_installation_without_a_compiler_says_so(tree: Path, reason: str | None) -> None:
    """In one line; pip keeps the warning of the build for itself."""
    package = tree / "stub" / "lowtide" / "protocol"
    package.mkdir(parents=True)
    (package / "native.py").write_text(f"def why_plain():\n    return {reason!r}\n")
    (line,) = [line for line in steps(tree, "run") if "why_plain" in line]
    done = subprocess.run(
        line,
        shell=True,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "stub")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == (0 if reason is None else 1)
    assert all(each.startswith("no compiler: ") and "gcc python3-dev" in each for each in lines)


@pytest.mark.parametrize(
    ("program", "package"),
    [("kcat", "kcat"), ("etcd", "etcd-server"), ("java", "openjdk-17-jre-headless"), ("chromium", "chromium")],
)
def test_only_ci_installs_system_packages(tree: Path, program: str, package: str) -> None:
    """Elsewhere `make` names what is missing and Debian's package, and succeeds: its tests are skipped."""
    bin_folder = tree / "bin"
    bin_folder.mkdir()
    calls = tree / "calls"
    for name in ("apt-get", "sudo", "dnf", "brew"):
        stub = bin_folder / name
        stub.write_text(f'#!/bin/sh\necho {name} "$@" >> "{calls}"\n')
        stub.chmod(0o755)
    for name in ("bash", "sh", "id"):
        found = shutil.which(name)
        assert found is not None
        (bin_folder / name).symlink_to(found)
    make = shutil.which("make")
    assert make is not None
    environment = {"PATH": str(bin_folder)}

    def run(**given: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [make, program], cwd=tree, env=environment | given, capture_output=True, text=True, timeout=60, check=False
        )

    done = run()
    assert done.returncode == 0
    assert f"{program} is missing" in done.stdout
    assert package in done.stdout
    assert not calls.exists()
    run(CI="true")
    assert package in calls.read_text()
