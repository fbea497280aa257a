"""The examples of docs/command-line.md in order: they print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide import LowtideCluster

from .command_lines import environment

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
SECTIONS = ("Topics", "Deleting records", "Groups", "Looking at records, and writing some")
"""Those that are about the cluster of the page, in its order."""

FILES = "offsets.json"
"""What an example names that a test of its own has."""


def examples() -> Iterator[tuple[str, list[str]]]:
    """Each command line with the lines that it prints."""
    for title in SECTIONS:
        assert f"\n## {title}\n" in PAGE, title
        section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        for block in re.findall(r"(?:^    .*\n)+", section, re.MULTILINE):
            if FILES in block:
                continue
            for example in re.split(r"^    \$ ", block, flags=re.MULTILINE)[1:]:
                line, *printed = example.splitlines()
                yield line, [each.removeprefix("    ").rstrip() for each in printed]


def masked(line: str, printed: list[str]) -> list[str]:
    """Without what is another value each time: moments, ids, sizes, and who leads and coordinates."""
    text = "\n".join(printed)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "MOMENT", text)
    text = re.sub(r"\bid [\w-]{22}\b", "id ID", text)
    text = re.sub(r"\babout [\d.]+ kB", "about SIZE", text)
    text = re.sub(r"\bcoordinator \d+", "coordinator BROKER", text)
    if "bytes, about" in text:
        text = re.sub(r"^(flights .*?) +\d+$", r"\1 SIZE", text, flags=re.MULTILINE)
    if "topics describe" in line:
        text = re.sub(r"^( +\d) .*", r"\1 REPLICAS", text, flags=re.MULTILINE)
    return text.splitlines()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    with LowtideCluster(brokers=3) as three:
        yield three


@pytest.mark.slow
def test_the_page_can_be_followed(cluster: LowtideCluster) -> None:
    tried = 0
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for line, printed in examples():
        done = subprocess.run(
            ["bash", "-c", line],
            env={**environment(cluster.bootstrap), "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        assert masked(line, [each.rstrip() for each in done.stdout.splitlines()]) == masked(line, printed), line
        tried += 1
    assert tried >= 10
