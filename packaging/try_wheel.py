"""Installs a wheel of `dist/` into a bare environment of each given Python, and does the README's quick start.

    python3 packaging/try_wheel.py dist 3.11 3.12 /opt/python/bin/python3

It starts the installed broker, writes records, deletes and erases some with the commands of the README, reads the
others, and compares what is printed with the README. In the end SIGTERM must stop the broker with exit status 0. Needs
Python's package index for the dependencies. A missing Python is an error.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 300
WRITE = """
import sys
from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": sys.argv[1]})
for number in range(10):
    producer.produce("numbers", str(number))
for key, value in (("ann", "one"), ("bob", "two"), ("ann", "three")):
    producer.produce("letters", value, key)
sys.exit(producer.flush(60))
"""
READ = """
import sys
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "unused", "enable.partition.eof": True})
consumer.assign([TopicPartition(sys.argv[2], 0, OFFSET_BEGINNING)])
while (message := consumer.poll(60)) and not message.error():
    print(message.value().decode())
consumer.close()
"""


def main(arguments: list[str]) -> None:
    """The command."""
    if len(arguments) < 2:
        sys.exit("usage: try_wheel.py FOLDER PYTHON...")
    failed = []
    [wheel] = Path(arguments[0]).glob(f"lowtide-*_{platform.machine()}.whl")
    for python in arguments[1:]:
        program = program_of(python)
        with tempfile.TemporaryDirectory(prefix="lowtide-wheel-") as name:
            try:
                version = try_wheel(program, wheel, Path(name)) if program else None
            except (AssertionError, subprocess.SubprocessError) as error:
                print(f"{python}: {error}")
                version = None
        if version is None:
            failed.append(python)
        else:
            print(f"{python}: Python {version} runs the quick start")
    if failed:
        sys.exit(f"failed or missing: {', '.join(failed)}")


def program_of(python: str) -> str | None:
    """Returns the program of a version such as 3.12, from the PATH or pyenv; a path as it is. None: there is none."""
    if "/" in python:
        return python
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{python}.*/bin/python"))
    for program in (shutil.which(f"python{python}"), *map(str, pyenv)):
        # A shim of pyenv exists for versions that are not selected, and fails.
        if program and subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0:
            return program
    return None


def try_wheel(python: str, wheel: Path, folder: Path) -> str:
    """Does all of it in `folder`. Returns Python's version. Errors: AssertionError, CalledProcessError."""
    environment = folder / "environment"
    run(python, "-m", "venv", environment)
    commands = environment / "bin"
    constraints = ("--constraint", ROOT / "constraints.txt")
    run(commands / "pip", "install", "--quiet", *constraints, wheel.resolve(), "confluent-kafka")
    told = run(
        commands / "python", "-c", "import lowtide.protocol.native as native; print(native.why_plain())", cwd=folder
    )
    assert told == "None\n", f"the compiled module is not in use: {told}"
    settings = ("--set", "listeners=PLAINTEXT://127.0.0.1:0", "--set", f"log.dirs={folder / 'data'}")
    broker = subprocess.Popen([commands / "lowtide", "serve", *settings], cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        ready = next((json.loads(line) for line in broker.stderr if '"ready"' in line), None)
        assert ready is not None, "the broker does not start"
        quick_start(commands, folder, ready["address"])
        broker.send_signal(signal.SIGTERM)
        _, log = broker.communicate(timeout=TIMEOUT_S)
        assert broker.returncode == 0, log
    finally:
        broker.kill()
        broker.wait()
    return run(commands / "python", "-c", "import platform; print(platform.python_version())").strip()


def quick_start(commands: Path, folder: Path, address: str) -> None:
    """Does what the README shows, with a running broker; a Python client takes the place of kcat."""
    run(commands / "python", "-c", WRITE, address, cwd=folder)
    for topic, command in (
        ("numbers", "delete numbers --offset 7 --yes"),
        ("letters", "erase letters --key ann --yes"),
    ):
        words = ("records", *command.split(), "--bootstrap-server", address)
        same(run(commands / "lowtide", *words, cwd=folder), shown(f"records {command}"))
        same(run(commands / "python", "-c", READ, address, topic, cwd=folder), shown(f"-t {topic} -o beginning -e -q"))


def shown(command: str) -> str:
    """Returns what a command of the README prints there."""
    found = re.search(
        rf"{re.escape(command)}\n((?: {{4}}(?!\$).*\n)+)", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    assert found, f"the README does not show {command}"
    return found[1]


def same(output: str, expected: str) -> None:
    """Compares lines without the spaces around words."""
    lines, right = ([line.split() for line in text.strip().splitlines()] for text in (output, expected))
    assert lines == right, f"printed {output!r} instead of {expected!r}"


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Returns what a command prints. Errors: AssertionError with its errors if it fails."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}"
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
