"""Compiles `protocol/native/` when Lowtide is installed, or its wheel built, where that can be done; otherwise warns, and goes without.

Everything works without the module, only more slowly (docs/adr/0009-compiled-walk.md). It is compiled for the stable interface of Python
3.11: one wheel serves every later version, too. That takes a C compiler (`CC`, or the one that this Python was built with) and Python's
headers. There is none for Windows, nor for a Python other than CPython with its lock. `LOWTIDE_PURE=1` says that it isn't to be done,
`LOWTIDE_PURE=0` that it must, or the installation fails.
"""

from __future__ import annotations

import itertools
import os  # noqa: TID251 - it runs before anything of Lowtide is there
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = (
    "protocol/native/arguments.c",
    "protocol/native/keys.c",
    "protocol/native/module.c",
    "protocol/native/plain.c",
    "protocol/native/records.c",
    "protocol/native/rows.c",
    "protocol/native/walks.c",
)
MODULE = "protocol/native/walk.abi3.so"
FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
COMPILER_TIMEOUT_S = 300


class CompiledWalkHook(BuildHookInterface):
    """Puts the module beside its sources: an editable installation finds it there, and a wheel takes it along with the folder."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel, or an editable one, is put together."""
        module = Path(self.root, MODULE)
        module.unlink(missing_ok=True)
        wish = os.environ.get("LOWTIDE_PURE", "")
        if wish not in ("", "0"):
            return
        error = self.compile(module)
        if error is not None:
            if wish == "0":
                raise SystemExit(f"the walk over record batches can't be compiled: {error}")
            self.app.display_warning(f"the walk over record batches isn't compiled, and will be slower: {error}")
        elif version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def compile(self, module: Path) -> str | None:
        """Compiles the module. Returns why not."""
        if sys.implementation.name != "cpython" or os.name == "nt" or sysconfig.get_config_var("Py_GIL_DISABLED"):
            return "there is none for this Python"
        if not Path(sysconfig.get_path("include"), "Python.h").exists():
            return "Python's headers are missing"
        command = [*link_command(), *FLAGS, f"-I{sysconfig.get_path('include')}", *SOURCES, "-o", f"{module}.new"]
        try:
            done = subprocess.run(  # noqa: S603 - the compiler
                command, cwd=self.root, capture_output=True, text=True, timeout=COMPILER_TIMEOUT_S, check=False
            )
            if done.returncode != 0:
                return f"{command[0]} says {done.stderr.strip()}"
            # A process that has the old one in its memory keeps it.
            Path(f"{module}.new").replace(module)
        except (OSError, subprocess.TimeoutExpired) as failed:
            return str(failed)
        return None


def link_command() -> list[str]:
    """The compiler, told to make a module that Python can load."""
    given = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    compiler = shlex.split(os.environ["CC"]) if os.environ.get("CC") else given[:1]
    words = [word for word in given[1:] if not word.startswith(("-L", "-Wl", "-g"))]
    # An interpreter for two processors (macOS) says so among the flags of its compiler.
    flags = shlex.split(sysconfig.get_config_var("CFLAGS") or "")
    architectures = [word for pair in itertools.pairwise(flags) if pair[0] == "-arch" for word in pair]
    return [*compiler, *words, *([] if "-arch" in words else architectures)]
