"""What a reader copies from the pages: commands after `$ `, and programs in Python. Pure.

A command is a line of a block that begins with `$ `; a `\\` at its end joins the next line. The lines below it, up to
the next command or an empty line, are what it prints. Of a command with `--keys-from -` the first line below is what
the reader types. What a program prints is the block below the words `It prints`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "docs/lab/pages-tried.md"

COMMAND = re.compile(r"^( {4,})\$ (.+)$")
TYPED = "--keys-from -"
PROGRAMS = (
    "apt-get|cat|cp|curl|docker|echo|etcdctl|export|for|git|kafka-[a-z-]+|kcat|kubectl|lowtide|lowtide-[a-z-]+|make|mkdir|"
    r"pip|printf|python3?|seq|systemctl|useradd|\.venv/bin/\S+"
)
BARE = re.compile(rf"^ {{4,}}(?:{PROGRAMS}) .*$")


class Step(NamedTuple):
    """A command or a program of a page; `text` is what the shell or Python gets."""

    page: str
    name: str
    text: str
    typed: str
    printed: tuple[str, ...]


def pages() -> dict[str, str]:
    """Returns the texts of the README and of all pages that readers see in the navigation, in its order."""
    listed = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), yaml.BaseLoader)["nav"]
    names = ["README.md", *(f"docs/{name}" for name in _leaves(listed))]
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names}


def _leaves(node: object) -> Iterator[str]:
    match node:
        case str():
            yield node
        case list():
            for each in node:
                yield from _leaves(each)
        case dict():
            for each in node.values():
                yield from _leaves(each)


def steps(page: str, text: str) -> Iterator[Step]:
    """Yields the commands and programs of a page in their order."""
    lines = text.splitlines()
    place, programs = 0, 0
    while place < len(lines):
        found = COMMAND.match(lines[place])
        if lines[place] == "```python":
            programs += 1
            end = lines.index("```", place)
            code = "\n".join(lines[place + 1 : end]) + "\n"
            yield Step(page, f"program {programs}", code, "", _printed_by_program(lines[end + 1 :]))
            place = end
        elif found:
            command, shown = _command(found[2], list(_indented(lines[place + 1 :], found[1])))
            typed = f"{shown.pop(0)}\n" if TYPED in command and shown else ""
            yield Step(page, command, command, typed, tuple(shown))
        place += 1


def _indented(lines: Sequence[str], indent: str) -> Iterator[str]:
    """Yields the lines of a block below a command, up to the next command."""
    for line in lines:
        if not line.startswith(indent) or COMMAND.match(line):
            return
        yield line.removeprefix(indent).rstrip()


def _command(first: str, below: list[str]) -> tuple[str, list[str]]:
    """Returns a command of one or several lines, and the lines below it."""
    while first.endswith("\\") and below:
        first = first.removesuffix("\\") + below.pop(0).lstrip()
    return first, below


def _printed_by_program(below: Sequence[str]) -> tuple[str, ...]:
    """Returns the lines of the block below `It prints`, which stands directly below a program."""
    if [line for line in below if line][:1] != ["It prints"]:
        return ()
    return tuple(_indented(below[below.index("It prints") + 2 :], "    "))


def without_a_prompt(page: str, text: str) -> list[str]:
    """Returns the lines that look like commands without `$ `. A block that begins with `#!` is a file."""
    shown = {line for step in steps(page, text) for line in step.printed}
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found = []
    for block in re.findall(r"(?:^ {4}.*\n?)+", outside, re.MULTILINE):
        if block.lstrip().startswith("#!"):
            continue
        lines = block.replace("\\\n", " ").splitlines()
        found += [line for line in lines if BARE.match(line) and line.strip() not in shown]
    return found


def table(title: str) -> list[list[str]]:
    """Returns the cells of the table in a section of docs/lab/pages-tried.md, without its head."""
    section = TABLES.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


class Reason(NamedTuple):
    """Why no test runs the commands of a page that begin with `beginning`, without its backticks."""

    page: str
    beginning: str
    reason: str

    def covers(self, step: Step) -> bool:
        return step.page == self.page and f"{step.name} ".startswith(f"{self.beginning} ")


def reasons() -> list[Reason]:
    """Returns the rows of the section about commands that no test runs; a row may have several beginnings."""
    return [
        Reason(page.strip("`"), beginning, reason)
        for page, beginnings, reason in table("Commands that no test runs")
        for beginning in re.findall(r"`([^`]+)`", beginnings)
    ]
