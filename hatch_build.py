"""Packages Lowtide: compiles the module, determines the version, and writes the description for package indexes.

`protocol/native/` is compiled when Lowtide is installed or its wheel is built. Without a C compiler (`CC`, or the one
that built this Python) or Python's headers, the build warns, and Lowtide uses the plain Python form, which is slower
(docs/adr/0009-compiled-walk.md). The module uses the stable interface, so a wheel serves the Python that built it and
all later versions. It is compiled only for CPython with the interpreter's lock, and not for Windows. `LOWTIDE_PURE=1`
omits the module; with `LOWTIDE_PURE=0` a failed compilation fails the build. `LOWTIDE_PLATFORM` names another platform
in the wheel's tag, if `CC` compiles for that one.

A build never writes into the source tree, because several environments may have that tree installed as editable. The
module is compiled into a temporary folder, and pip copies it into the environment.

The version comes from git: the tag `v1.2.3` gives 1.2.3; three commits after it the version is 1.2.4.dev3+g1a2b3c4, and
without a tag `NEXT_VERSION`.dev3+g1a2b3c4. A source distribution has its version in PKG-INFO. Without both it is
`NEXT_VERSION`.dev0.

The description is README.md. An index shows it without the repository's other files, so links to files become links to
the repository that `LOWTIDE_REPOSITORY` names (`https://github.com/OWNER/lowtide`), at the commit of the version.
Without it they become plain text. A source distribution has the description in PKG-INFO.

The same sources, compiler and headers give the same bytes, in whichever folder they are built. `make wheels` checks it.
"""

from __future__ import annotations

import itertools
import os  # noqa: TID251 - it runs before Lowtide is installed
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

MODULE = "_lowtide_walk.abi3.so"
"""The path of the module in a wheel and an environment. An editable installation is a wheel too."""

FLAGS = (
    "-std=c11",
    "-O2",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror=implicit-function-declaration",
)
COMPILER_TIMEOUT_S = 300

NEXT_VERSION = "0.1.0"
"""The version of the next release while no commit has a tag."""

GIT_TIMEOUT_S = 30

REPOSITORY = "LOWTIDE_REPOSITORY"

PICTURE = re.compile(r"\[<img src=\"(?P<file>[^\"]+)\"(?P<rest>[^>]*)>\]\((?P<target>[^)]+)\)\n*")
"""A picture with a link to a page, as README.md has it."""

LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?!https?:|#)(?P<target>[^)]+)\)")
"""A link to a file of the repository."""

WHERE_THE_PAGES_ARE = "\nThe pages that this text names are in the source distribution, in the folder `docs`.\n"


class CompiledWalkHook(BuildHookInterface):
    """Compiles the module and adds it to the wheel."""

    folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Runs before hatchling writes a wheel or an editable installation."""
        wish = os.environ.get("LOWTIDE_PURE", "")
        if wish not in ("", "0"):
            return
        self.folder = tempfile.TemporaryDirectory(prefix="lowtide-build-")
        module = Path(self.folder.name, MODULE)
        error = compile_module(module, Path(self.root))
        if error is not None:
            if wish == "0":
                raise SystemExit(f"LOWTIDE_PURE=0, and protocol/native does not compile: {error}")
            self.app.display_warning(
                f"protocol/native does not compile, so record batches are walked in Python, more slowly: {error}"
            )
            return
        build_data["force_include_editable" if version == "editable" else "force_include"][str(module)] = MODULE
        build_data["pure_python"] = False
        build_data["tag"] = wheel_tag()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Runs after hatchling has written the wheel."""
        if self.folder is not None:
            self.folder.cleanup()


class DescriptionHook(MetadataHookInterface):
    """Sets the description and the addresses of the project."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Runs before any metadata are written. What PKG-INFO has set stays as it is."""
        if "readme" in metadata:
            metadata.setdefault("urls", {})
            return
        repository = os.environ.get(REPOSITORY, "").rstrip("/")
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        commit = commit_name(metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": description(readme, repository, commit)}
        metadata["urls"] = project_urls(repository, commit) if repository else {}


def commit_name(version: str) -> str:
    """Returns a name that git has for the commit of a version: its tag, or the commit's hash."""
    commit = version.partition("+g")[2]
    return commit or ("HEAD" if ".dev" in version else f"v{version}")


def description(readme: str, repository: str, commit: str) -> str:
    """Returns the text of README.md without relative links. If `repository` is empty, nothing is linked or shown."""
    if not repository:
        return LINK.sub(r"\g<text>", PICTURE.sub("", readme)) + WHERE_THE_PAGES_ARE
    files = f"{repository}/blob/{commit}"
    shown = PICTURE.sub(rf'[<img src="{repository}/raw/{commit}/\g<file>"\g<rest>>]({files}/\g<target>)\n\n', readme)
    return LINK.sub(rf"[\g<text>]({files}/\g<target>)", shown)


def project_urls(repository: str, commit: str) -> dict[str, str]:
    """Returns the addresses that an index lists beside the description."""
    return {
        "Source": repository,
        "Documentation": f"{repository}/blob/{commit}/docs/index.md",
        "Changelog": f"{repository}/blob/{commit}/CHANGELOG.md",
        "Security": f"{repository}/blob/{commit}/SECURITY.md",
        "Issues": f"{repository}/issues",
    }


def wheel_tag() -> str:
    """Returns the tag of a wheel that this Python builds, for itself and later versions."""
    major, minor = sys.version_info[:2]
    platform = os.environ.get("LOWTIDE_PLATFORM") or sysconfig.get_platform()
    return f"cp{major}{minor}-abi3-{platform.replace('-', '_').replace('.', '_')}"


def compile_module(
    module: Path, root: Path, include: str = sysconfig.get_path("include"), flags: tuple[str, ...] = FLAGS
) -> str | None:
    """Compiles the module with the headers in `include`. Returns the reason of a failure, or None."""
    if sys.implementation.name != "cpython" or os.name == "nt" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python is not supported"
    if not Path(include, "Python.h").exists():
        return "Python's headers are missing"
    # With paths relative to the root, because some compilers keep them in the module.
    sources = sorted(str(path.relative_to(root)) for path in root.glob("protocol/native/*.c"))
    command = [*link_command(), *flags, f"-I{include}", *sources, "-o", str(module)]
    try:
        done = subprocess.run(  # noqa: S603 - the compiler
            command, cwd=root, capture_output=True, text=True, timeout=COMPILER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as failed:
        return str(failed)
    return None if done.returncode == 0 else f"{command[0]}: {done.stderr.strip()}"


def link_command() -> list[str]:
    """Returns the command that compiles and links a module for this Python.

    Debian's Python also names flags of its own build (`-fwrapv`), with which a wheel would have other bytes.
    """
    given = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    compiler = shlex.split(os.environ["CC"]) if os.environ.get("CC") else given[:1]
    words = [word for word in given[1:] if not word.startswith(("-L", "-Wl", "-g", "-f", "-O"))]
    # A macOS interpreter for two architectures names them in its compiler flags.
    flags = shlex.split(sysconfig.get_config_var("CFLAGS") or "")
    architectures = [word for pair in itertools.pairwise(flags) if pair[0] == "-arch" for word in pair]
    return [*compiler, *words, *([] if "-arch" in words else architectures)]


def version(root: Path | None = None) -> str:
    """Returns the version of a source tree (PEP 440), by default of this one. `[tool.hatch.version]` calls it."""
    root = root or Path(__file__).parent
    if not (root / ".git").exists():
        return f"{NEXT_VERSION}.dev0"
    described = git(root, "describe", "--tags", "--long", "--match", "v[0-9]*")
    if described is None:
        commits, commit = git(root, "rev-list", "--count", "HEAD"), git(root, "rev-parse", "--short", "HEAD")
        return f"{NEXT_VERSION}.dev{commits}+g{commit}" if commits and commit else f"{NEXT_VERSION}.dev0"
    tag, distance, commit = described.rsplit("-", 2)
    return version_after(tag, int(distance), commit)


def version_after(tag: str, distance: int, commit: str) -> str:
    """Returns the version `distance` commits after a tag (`v1.2.3`, `v1.2.3rc1`). Errors: ValueError for other tags."""
    matched = re.fullmatch(r"v(\d+\.\d+\.)(\d+)((?:a|b|rc)\d+)?", tag)
    if matched is None:
        raise ValueError(f"tag {tag} is not vMAJOR.MINOR.PATCH, optionally with a1, b1 or rc1")
    start, patch, early = matched.groups()
    if distance == 0:
        return tag[1:]
    following = int(patch) if early else int(patch) + 1
    return f"{start}{following}.dev{distance}+{commit}"


def git(root: Path, *arguments: str) -> str | None:
    """Returns the output of git; None if it is missing or fails."""
    try:
        done = subprocess.run(  # noqa: S603 - no argument comes from outside
            ["git", "-C", str(root), *arguments],  # noqa: S607 - git is where PATH has it
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
