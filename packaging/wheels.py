"""Builds a release into `dist/`: the source distribution, and a wheel for each processor.

`make wheels` runs it. A C compiler from PyPI (ziglang, pinned in constraints.txt) compiles for each processor against
glibc 2.17, so the wheels install on every Linux since 2014. They are for the Python that builds them and later ones.

All is built twice, and must have the same bytes: from this tree, and from the unpacked source distribution in another
folder, with another umask, time zone, language and home. The time in all archives is that of the commit.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DIST: Final = ROOT / "dist"
WORK: Final = ROOT / "build" / "release"
PROCESSORS: Final = ("x86_64", "aarch64")
GLIBC: Final = "2.17"
TIMEOUT_S: Final = 600

USUAL_UMASK: Final = 0o022
OTHER_UMASK: Final = 0o077
OTHER_SETTINGS: Final = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONHASHSEED": "7", "LOWTIDE_REPOSITORY": ""}


def main() -> None:
    """Builds twice, compares, and checks the wheels."""
    for folder in (DIST, WORK):
        shutil.rmtree(folder, ignore_errors=True)
    WORK.mkdir(parents=True)
    copy_configuration(Path(sysconfig.get_path("include")), WORK / "headers")
    settings = {"SOURCE_DATE_EPOCH": commit_time(), "LOWTIDE_PURE": "0"}
    build_all(ROOT, WORK / "first", settings, USUAL_UMASK)
    [source] = (WORK / "first").glob("*.tar.gz")
    tree = WORK / "elsewhere" / source.name.removesuffix(".tar.gz")
    tree.parent.mkdir()
    run(["tar", "-xzf", str(source)], tree.parent, {}, USUAL_UMASK)
    build_all(tree, WORK / "second", settings | OTHER_SETTINGS | {"HOME": str(WORK / "elsewhere")}, OTHER_UMASK)
    first, second = (checksums(WORK / each) for each in ("first", "second"))
    if first != second:
        sys.exit(f"two builds have other bytes: {sorted(first.items() ^ second.items())}")
    for wheel in (WORK / "first").glob("*.whl"):
        check_platform(wheel)
    shutil.copytree(WORK / "first", DIST)


def commit_time() -> str:
    """Returns the time of the commit in seconds; `SOURCE_DATE_EPOCH`, if set."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return given or run(["git", "log", "-1", "--format=%ct"], ROOT, {}, USUAL_UMASK).strip()


def build_all(source: Path, into: Path, settings: dict[str, str], umask: int) -> None:
    """Builds the source distribution and all wheels, without a network."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(into), "--target"]
    run([*command, "sdist"], source, settings, umask)
    for processor in PROCESSORS:
        platform = {
            "CC": compiler(processor, WORK / "headers"),
            "ZIG_GLOBAL_CACHE_DIR": str(into.with_suffix(".cache")),
            "LOWTIDE_PLATFORM": f"manylinux_{GLIBC}_{processor}",
        }
        run([*command, "wheel"], source, settings | platform, umask)


def compiler(processor: str, headers: Path) -> str:
    """Returns the command that compiles for a processor, quoted as a shell and `hatch_build.py` split it."""
    target = ("-target", f"{processor}-linux-gnu.{GLIBC}", f"-I{headers}")
    return shlex.join([sys.executable, "-m", "ziglang", "cc", *target, "-s"])


def copy_configuration(include: Path, headers: Path) -> None:
    """Copies Debian's pyconfig.h to where its Python.h includes it, for each processor. Elsewhere there is none.

    Debian has it in a folder of the machine's own processor, beside the headers of its C library, which must not be
    used. The module uses what is equal for both processors: sizes of types, and the order of bytes.
    """
    for file in include.parent.glob(f"*-linux-gnu/{include.name}/pyconfig.h"):
        for processor in PROCESSORS:
            folder = headers / f"{processor}-linux-gnu" / include.name
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folder)


def check_platform(wheel: Path) -> None:
    """Exits unless auditwheel finds what the wheel's tag promises: the processor, and no newer interface of glibc."""
    shown = run([sys.executable, "-m", "auditwheel", "show", str(wheel)], WORK, {}, USUAL_UMASK)
    platform = wheel.stem.rpartition("-")[2]
    if f'"{platform}"' not in shown:
        sys.exit(f"{wheel.name} is not for {platform}:\n{shown}")


def checksums(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file, by name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def run(command: list[str], folder: Path, settings: dict[str, str], umask: int) -> str:
    """Returns the output of a command. Exits with its errors if it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | settings,
        umask=umask,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
