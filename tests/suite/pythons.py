"""`python -m tests.suite.pythons 3.11 3.12 ...`: unit and wire tests under each version of Python, each in its own environment.

An interpreter is searched by its name (`python3.12`), among pyenv's versions, and with uv, which may download it. The environments are
`build/pythons/VERSION`. Every available version runs, independently of the others; at the end each has a line, and missing ones
list where they were searched. Returns 0 when all ran and passed, 1 when tests failed, 2 when only interpreters are missing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / "build/pythons"
TESTS = ("-m", "not full", "tests/unit", "tests/wire")
LOOKED = "no python{0} on the PATH that starts, none of pyenv's, and uv has none and can't download it"


def output(*command: str) -> str:
    """The output of a command, or nothing if it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def is_version(program: str, version: str) -> bool:
    return output(program, "-c", "import sys; print('%d.%d' % sys.version_info[:2])") == version


def newest(folders: Sequence[Path]) -> list[Path]:
    """By the numbers in their names, the highest first."""
    return sorted(
        folders, key=lambda path: [int(part) for part in path.name.split(".") if part.isdigit()], reverse=True
    )


def candidates(version: str) -> Iterator[str]:
    """Programs on this machine that may be of this version, the nearest first."""
    yield f"python{version}"
    yield sys.executable
    if root := output("pyenv", "root"):
        yield from (str(path / "bin/python") for path in newest(list(Path(root, "versions").glob(f"{version}.*"))))
    if shutil.which("uv") and (program := output("uv", "python", "find", version)):
        yield program


def installed(version: str) -> str | None:
    """A program of this version that is on this machine."""
    return next((program for program in candidates(version) if is_version(program, version)), None)


def interpreter(version: str) -> str | None:
    """A program of this version, which uv may download."""
    if (program := installed(version)) is None and shutil.which("uv"):
        subprocess.run(["uv", "python", "install", "--quiet", version], check=False, capture_output=True)
        program = installed(version)
    return program


def passes(version: str, program: str) -> bool:
    """Create its environment if there is none, install what tests need, run them. Everything is printed."""
    environment = ENVIRONMENTS / version
    python = environment / "bin/python"
    if not is_version(str(python), version):
        subprocess.run([program, "-m", "venv", "--clear", str(environment)], check=True)
    install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--constraint",
        "constraints.txt",
        "--editable",
    ]
    steps = (
        [str(python), *install, ".[dev,demo,etcd]"],
        [str(python), "-m", "pytest", "-q", "-n", "2", "--dist=loadfile", *TESTS],
    )
    return all(subprocess.run(step, cwd=ROOT, check=False).returncode == 0 for step in steps)


def main(versions: Sequence[str]) -> int:
    """The command. Returns its exit code."""
    lines, failed, missing = [], False, False
    for version in versions:
        program = interpreter(version)
        print(f"--- Python {version}: {program or 'missing'}", flush=True)
        if program is None:
            missing = True
            lines.append(f"Python {version}: missing; {LOOKED.format(version)}")
        elif passes(version, program):
            lines.append(f"Python {version}: passed")
        else:
            failed = True
            lines.append(f"Python {version}: failed")
    print("\n".join(lines), flush=True)
    return 1 if failed else 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
