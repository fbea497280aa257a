"""What a reader copies from the pages: commands after `$ `, and programs in Python. Pure.

A command is a line of a block that begins with `$ `; a `\\` at its end joins the next line. The lines below it, up to
the next command or an empty line, are what it prints. Of a command with `--keys-from -` the first line below is what
the reader types. What a program prints is the block below the words `It prints`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    lines = iter(enumerate(text.splitlines()))
    programs = 0
    pending: tuple[int, str] | None = next(lines, None)
    while pending is not None:
        _, line = pending
        if line.strip() == "```python":
            programs += 1
            body = []
            for _, inner in lines:
                if inner.strip() == "```":
                    break
                body.append(inner)
            below = re.match(
                r"\n*It prints\n\n((?: {4}.*\n)+)", text.split("```python\n")[programs].partition("```\n")[2]
            )
            printed = [] if below is None else [each.removeprefix("    ") for each in below[1].splitlines()]
            yield Step(page, f"program {programs}", "\n".join(body) + "\n", "", tuple(printed))
            pending = next(lines, None)
            continue
        found = COMMAND.match(line)
        if found is None:
            pending = next(lines, None)
            continue
        indent, command = found[1], found[2]
        printed: list[str] = []
        pending = next(lines, None)
        while pending is not None and pending[1].startswith(indent) and not COMMAND.match(pending[1]):
            below = pending[1].removeprefix(indent)
            if command.endswith("\\") and not printed:
                command = command.removesuffix("\\") + below.lstrip()
            else:
                printed.append(below.rstrip())
            pending = next(lines, None)
        typed = f"{printed.pop(0)}\n" if TYPED in command and printed else ""
        yield Step(page, command, command, typed, tuple(printed))


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
