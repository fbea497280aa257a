"""`python -m tests.native.fuzz_codec SECONDS SEED`: the compiled codec over mutated frames of all messages, with
sanitizers.

Builds `fuzz_codec.c` with the codec's sources, and starts Python again with the library of the address sanitizer.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import sysconfig
import time
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from lowtide.protocol.compiler import plain_codec, shape_of
from lowtide.protocol.schema import wire_form
from tests.unit.test_version import HOOK
from tests.wire.conftest import CASES, RandomMessages

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "build/fuzz_codec.so"
SOURCES = [f"protocol/native/{name}.c" for name in ("arguments", "decode", "encode", "head", "shapes")]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FLAGS = ["-std=c11", "-O1", "-g", "-fPIC", "-Wall", "-Wextra", *SANITIZERS]
FRAMES = 16
EXECUTIONS = 2_000
"""Of one message at a time."""

_RUNS_AGAIN = "LOWTIDE_FUZZ"


def build() -> None:
    """Errors: CalledProcessError where the compiler refuses the sources."""
    MODULE.parent.mkdir(exist_ok=True)
    include = f"-I{sysconfig.get_path('include')}"
    folders = ["-Iprotocol/native", "-Itests/native"]
    files = ["tests/native/fuzz_codec.c", *SOURCES, "-o", str(MODULE)]
    subprocess.run([*HOOK.link_command(), *FLAGS, include, *folders, *files], cwd=ROOT, check=True)


def run_again() -> int:
    """Runs this program under the sanitizers. Returns its exit code."""
    found = subprocess.run(
        [HOOK.link_command()[0], "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    more = {
        _RUNS_AGAIN: "1",
        "LD_PRELOAD": found.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=32",
        "PYTHONMALLOC": "malloc",
    }
    command = [sys.executable, "-m", "tests.native.fuzz_codec", *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT, env=os.environ | more, check=False).returncode


def loaded() -> Any:
    spec = spec_from_loader("fuzz_codec", ExtensionFileLoader("fuzz_codec", str(MODULE)))
    assert spec is not None
    module = module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def fuzz(seconds: int, seed: int) -> None:
    """Fuzzes one message after another until the time is over."""
    module, chance, end = loaded(), random.Random(seed), time.monotonic() + seconds
    messages = RandomMessages(str(seed))
    shapes: dict[int, Any] = {}
    executions = accepted = 0
    gc.disable()
    while time.monotonic() < end:
        place = chance.randrange(len(CASES))
        case = CASES[place]
        if place not in shapes:
            codec = plain_codec(case.message, case.version)
            frames = [codec.encode(messages.message(case)) for _ in range(FRAMES)]
            shapes[place] = (
                shape_of(wire_form(case.message, case.version)),
                [each for each in frames if len(each) < 1 << 16],
            )
        shape, frames = shapes[place]
        accepted += module.fuzz(shape, frames or [b""], EXECUTIONS, chance.getrandbits(62))
        executions += EXECUTIONS
    assert accepted > executions // 10, f"only {accepted} of {executions} were accepted"
    print(f"{executions} runs from seed {seed}, {accepted} of them accepted, {len(shapes)} of {len(CASES)} messages")


if __name__ == "__main__":
    if _RUNS_AGAIN in os.environ:
        fuzz(int(sys.argv[1]), int(sys.argv[2]))
    else:
        build()
        sys.exit(run_again())
