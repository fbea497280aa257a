"""A Python worker of Spark is connected before it has imported anything, so that a busy machine fails no stream."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from .local_spark import python_for_spark

LIMIT_S = 60.0

WORKER = """
import os, socket, sys
assert sys.stdin.readline() == "go on\\n"
one = socket.socket(socket.AF_UNIX)
one.settimeout(15)
one.connect(os.environ["PYTHON_WORKER_FACTORY_SOCK_PATH"])
one.sendall(b"first")
one.settimeout(None)
other = socket.socket(socket.AF_UNIX)
other.connect(os.environ["PYTHON_WORKER_FACTORY_SOCK_PATH"])
other.sendall(b"second " + one.recv(3) + b" " + " ".join(sys.argv[1:]).encode())
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "some_worker.py").write_text(WORKER)
    return [python_for_spark(tmp_path), "-m", "some_worker", "x", "y"]


def received(listener: socket.socket, answer: bytes = b"") -> bytes:
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(LIMIT_S)
        text = connection.recv(5)
        if answer:
            connection.sendall(answer)
        while piece := connection.recv(100):
            text += piece
        return text


def test_the_connection_is_there_before_the_worker_begins_and_the_worker_gets_it(tmp_path: Path, command: list[str]):
    with (
        tempfile.TemporaryDirectory() as short,
        socket.socket(socket.AF_UNIX) as listener,
    ):  # Its path has a hundred bytes at most.
        listener.bind(f"{short}/socket")
        listener.listen()
        listener.settimeout(LIMIT_S)
        env = {**os.environ, "PYTHON_WORKER_FACTORY_SOCK_PATH": f"{short}/socket"}
        with subprocess.Popen(command, cwd=tmp_path, env=env, stdin=subprocess.PIPE) as worker:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(LIMIT_S)
                assert worker.poll() is None
                worker.stdin.write(b"go on\n")
                worker.stdin.close()
                assert connection.recv(5) == b"first"
                connection.sendall(b"yes")
                assert received(listener) == b"second yes x y"
                assert worker.wait(LIMIT_S) == 0


def test_it_is_the_python_of_the_tests(tmp_path: Path):
    (tmp_path / "which_python.py").write_text("import sys; print(sys.executable)")
    ended = subprocess.run(
        [python_for_spark(tmp_path), "-m", "which_python"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == sys.executable


def test_spark_gets_its_version_from_it(tmp_path: Path):
    command = [python_for_spark(tmp_path), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "%d.%d" % sys.version_info[:2]  # noqa: UP031
