"""SIGINT and SIGTERM while a command is starting end it at once: the status is that of the signal, and nothing is
printed.

A process sends itself the signal when it imports a given module. A `sitecustomize` module, which Python imports
first, arranges this.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.interrupts import sigint

INT, TERM = signal.SIGINT, signal.SIGTERM
LIMIT_S = 120
HOST = "127.0.0.1"
PROJECT = Path(__file__).parents[2]
HOOK = """
import os, signal, sys

class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["AT_IMPORT_OF"]:
            signal.raise_signal(int(os.environ["SEND"]))

sys.meta_path.insert(0, Hook())
"""

SERVE = ("lowtide", "serve", "--set", f"listeners=PLAINTEXT://{HOST}:0", "--set", "log.dirs=data")
LIST = ("lowtide", "topics", "list", "--bootstrap-server", f"{HOST}:1")
VERSION = ("lowtide", "version")
DELETE = ("lowtide-delete-records", "--version")
FIRST = "lowtide.cli.own_commands"
MOMENTS = [
    (SERVE, FIRST, INT),
    pytest.param(SERVE, "lowtide.cli.streams", INT, marks=pytest.mark.slow),
    pytest.param(SERVE, "socket", INT, marks=pytest.mark.slow),
    (SERVE, "lowtide.cli.serve", TERM),
    pytest.param(SERVE, "asyncio", INT, marks=pytest.mark.slow),
    pytest.param(SERVE, "lowtide.broker.lifecycle.broker", INT, marks=pytest.mark.slow),
    (SERVE, "lowtide.broker.lifecycle.running", TERM),
    (SERVE, "lowtide.runtime.serving_loop", INT),
    pytest.param(
        (*SERVE, "--processes", "2"), "lowtide.broker.lifecycle.supervisor.supervisor", INT, marks=pytest.mark.slow
    ),
    (LIST, FIRST, INT),
    pytest.param(LIST, "typer", INT, marks=pytest.mark.slow),
    pytest.param(LIST, "lowtide.cli.topics", INT, marks=pytest.mark.slow),
    (LIST, "lowtide.cli.call", TERM),
    (VERSION, FIRST, INT),
    (DELETE, "lowtide.cli.delete_records_tool", INT),
    pytest.param(DELETE, "lowtide.admin.client", INT, marks=pytest.mark.slow),
]
"""The command, the module at whose import the signal comes, and the signal."""


def script(directory: Path, name: str) -> Path:
    """Returns the script that an installer creates for an entry point."""
    entries = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["scripts"]
    module, function = entries[name].split(":")
    path = directory / name
    path.write_text(
        f"import re\nimport sys\nfrom {module} import {function}\nif __name__ == '__main__':\n    "
        f"sys.exit({function}())\n"
    )
    return path


def environment(**more: str) -> dict[str, str]:
    """Ours without the settings of a broker, and with `more`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LOWTIDE_")} | more


def ended(
    directory: Path, command: tuple[str, ...], module: str, number: int, *, ignored: bool = False
) -> tuple[int, str, str]:
    """Runs a command, which gets the signal at the import of the module: its status and what it has printed.

    `ignored` says that SIGINT is ignored where the command is called, as by a shell for commands in the background.
    """
    (directory / "sitecustomize.py").write_text(HOOK)
    variables = environment(PYTHONPATH=str(directory), AT_IMPORT_OF=module, SEND=str(int(number)))
    words = [sys.executable, script(directory, command[0]), *command[1:]]
    with sigint(ignored=ignored):
        process = subprocess.Popen(
            words, cwd=directory, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    try:
        printed, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode, printed, errors


@pytest.mark.parametrize(
    ("command", "module", "number"), MOMENTS, ids=lambda value: value[0] if isinstance(value, tuple) else str(value)
)
def test_a_signal_ends_a_start_and_nothing_is_printed(command, module, number, tmp_path):
    """Python's own handler printed a traceback, until the function of the command had begun."""
    assert ended(tmp_path, command, module, number) == (-number, "", "")
    assert not (tmp_path / "data").exists()


def test_an_ignored_signal_stays_ignored(tmp_path):
    """SIGINT is ignored, as for `lowtide version &` in a script."""
    status, printed, errors = ended(tmp_path, VERSION, FIRST, INT, ignored=True)
    assert (status, len(printed.split()), errors) == (0, 1, "")


@pytest.mark.parametrize("name", ["lowtide", "lowtide-delete-records"])
def test_ctrl_c_interrupts_a_command_that_waits(name, tmp_path):
    """A command then has Python's handler again: it exits with its code and reports what it did."""
    offsets = tmp_path / "offsets.json"
    offsets.write_text('{"partitions": [{"topic": "t", "partition": 0, "offset": 1}], "version": 1}')
    with socket.create_server((HOST, 0)) as silent:
        address = f"{HOST}:{silent.getsockname()[1]}"
        words = {"lowtide": ("topics", "list"), "lowtide-delete-records": ("--offset-json-file", str(offsets))}[name]
        with sigint():
            process = subprocess.Popen(
                [sys.executable, script(tmp_path, name), *words, "--bootstrap-server", address],
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        try:
            silent.settimeout(LIMIT_S)
            connection, _ = silent.accept()
            with connection:
                process.send_signal(INT)
                _, errors = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 130
    assert errors.count("\n") <= 1
    assert "Traceback" not in errors
