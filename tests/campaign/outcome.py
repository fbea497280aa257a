"""The result of a run, from its files and the end of its process. Pure."""

from __future__ import annotations

import json
import re
import shlex
import xml.etree.ElementTree as ET
from dataclasses import dataclass

from .kinds import Command
from .ledger import Violation

REASON_CHARACTERS = 300

_EXECUTIONS = re.compile(r"^(\d+) runs from seed \d+$", re.MULTILINE)
"""The last line of each program in tests/native."""


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run's files, empty if missing; `output` is its standard output."""

    exit_code: int
    output: str
    simulated: str = ""
    junit: str = ""
    struck: str = ""


def reason(text: str) -> str:
    """Returns the first line, shortened."""
    return text.strip().partition("\n")[0][:REASON_CHARACTERS]


def failures(junit: str) -> list[str]:
    """`test: message` of each test that failed, from JUnit's XML as pytest writes it."""
    found = []
    for case in ET.fromstring(junit).iter("testcase"):
        for bad in (*case.findall("failure"), *case.findall("error")):
            found.append(reason(f"{case.get('classname')}.{case.get('name')}: {bad.get('message', '')}"))
    return found


@dataclass(frozen=True)
class Outcome:
    """The report of a run: the injected faults, the states reached for the first time, and the violations."""

    faults: dict[str, int]
    states: int
    violations: list[Violation]


def outcome(left: RunFiles, command: Command) -> Outcome:
    """Returns a process that failed without a report is a violation itself."""
    faults: dict[str, int] = json.loads(left.struck) if left.struck else {}
    if executions := sum(map(int, _EXECUTIONS.findall(left.output))):
        faults["execution"] = executions
    states, violations = 0, list[Violation]()
    if left.simulated:
        results = json.loads(left.simulated)
        faults, states = results["faults"], results["states"]
        for seed, text, run in results["broken"]:
            violations.append(Violation(reason(text), command.replay.format(seed=shlex.quote(run) if run else seed)))
    if left.junit:
        violations += [Violation(text, command.replay) for text in failures(left.junit)]
    if left.exit_code != 0 and not violations:
        last = left.output.strip().rpartition("\n")[2]
        violations.append(Violation(reason(f"ended with {left.exit_code}: {last}"), command.replay))
    return Outcome(faults, states, violations)
