"""`lowtide top` against a real broker: one view for programs and for people, and the live one in a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from types import SimpleNamespace

from lowtide.admin import BlockingAdminClient, TopicPartition

from .command_lines import answer, run
from .driver import Driver, OutgoingRecord

ENDS_S = 120


def test_one_view(lowtide: SimpleNamespace, other: Driver, topic: str) -> None:
    other.produce(topic, [OutgoingRecord(b"k", b"v")] * 10)
    with BlockingAdminClient(lowtide.bootstrap) as client:
        client.alter_group_offsets(f"g-{topic}", {TopicPartition(topic, 0): 0})
    told = answer("top", "--once", "--interval", 0.2, bootstrap=lowtide.bootstrap)
    (broker,) = told["brokers"]
    assert broker["is_controller"]
    assert broker["connections"] >= 1
    assert broker["waiting_deletes"] == 0
    (disk,) = told["disks"]
    assert disk["live"] > 0
    assert disk["deleted"] is not None
    assert disk["free"] > 0
    row = next(each for each in told["topics"] if each["topic"] == topic)
    assert (row["records_a_second"], row["bytes"] > 0) == (0, True)
    group = next(each for each in told["groups"] if each["group"] == f"g-{topic}")
    assert group["behind"] > 0
    assert told["deletes_waiting"] == []
    assert told["silent"] == []
    text = run("top", "--once", "--interval", 0.2, bootstrap=lowtide.bootstrap).stdout
    assert topic in text
    assert "Pending deletes" in text


def test_without_a_terminal_it_says_what_to_do(lowtide: SimpleNamespace) -> None:
    assert "--once" in run("top", bootstrap=lowtide.bootstrap, code=2).stderr


def test_the_live_view_takes_keys_and_leaves_the_terminal_as_it_was(lowtide: SimpleNamespace, topic: str) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    termios.tcsetwinsize(theirs, (40, 120))
    words = [
        sys.executable,
        "-m",
        "lowtide.cli.main",
        "top",
        "--interval",
        "0.2",
        "--bootstrap-server",
        lowtide.bootstrap,
    ]
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment)
    seen = b""

    def read_until(wanted: bytes) -> None:
        nonlocal seen
        ends = time.monotonic() + ENDS_S
        while wanted not in seen:
            assert time.monotonic() < ends, seen[-2000:]
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 65536)

    try:
        read_until(b"Topics, by records/s")
        os.write(ours, b"s")
        read_until(b"Topics, by bytes")
        os.write(ours, b"p")
        read_until(b"p resume")
        os.write(ours, b"q")
        ends = time.monotonic() + ENDS_S
        while process.poll() is None:  # It would wait for a reader of what it writes last.
            assert time.monotonic() < ends
            if select.select([ours], [], [], 0.1)[0]:
                os.read(ours, 65536)
        assert process.returncode == 0
        assert termios.tcgetattr(theirs) == before
    finally:
        if process.poll() is None:
            process.kill()
        _, errors = process.communicate()
        os.close(ours)
        os.close(theirs)
    assert errors == b""
