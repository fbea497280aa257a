"""The results of a run: faults, violations with a command to reproduce them, and processes that failed without output."""

from __future__ import annotations

import json

from tests.campaign.kinds import Command
from tests.campaign.ledger import Violation
from tests.campaign.outcome import REASON_CHARACTERS, Left, Outcome, outcome

COMMAND = Command(("x",), {}, "again {seed}")

JUNIT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest">
<testcase classname="tests.chaos.test_x" name="test_good" time="1.0" />
<testcase classname="tests.chaos.test_x" name="test_bad"><failure message="HistoryError: offset 7&#10;is back">trace</failure></testcase>
<testcase classname="tests.chaos.test_x" name="test_worse"><error message="failed on teardown">trace</error></testcase>
<testcase classname="tests.chaos.test_x" name="test_none"><skipped message="no etcd" /></testcase>
</testsuite></testsuites>"""


def test_a_simulator_names_its_seeds():
    left = Left(0, "", simulated=json.dumps({"faults": {"kill": 3}, "states": 2, "broken": [[7, "D1: a\nb", ""]]}))
    assert outcome(left, COMMAND) == Outcome({"kill": 3}, 2, [Violation("D1: a", "again 7")])


def test_pytest_names_its_tests():
    result = outcome(Left(1, "", junit=JUNIT, struck='{"SIGKILL of a broker": 8}'), COMMAND)
    assert result.faults == {"SIGKILL of a broker": 8}
    assert [violation.reason for violation in result.violations] == [
        "tests.chaos.test_x.test_bad: HistoryError: offset 7",
        "tests.chaos.test_x.test_worse: failed on teardown",
    ]


def test_a_process_that_fails_without_output_is_a_violation():
    violations = outcome(Left(-11, "building\nAddressSanitizer: heap-buffer-overflow\n"), COMMAND).violations
    assert violations == [Violation("ended with -11: AddressSanitizer: heap-buffer-overflow", "again {seed}")]


def test_a_run_without_output_that_succeeded_is_no_violation():
    assert outcome(Left(0, "made\n"), COMMAND) == Outcome({}, 0, [])


def test_executions_of_compiled_code_are_added_up():
    left = Left(0, "7 runs from seed 1\ncc -o fuzz_join\n12000 runs from seed 1\n")
    assert outcome(left, COMMAND).faults == {"execution": 12007}


def test_a_drawn_run_is_repeated_by_its_values():
    """A seed alone doesn't repeat it; the shell gets it as one word."""
    left = Left(0, "", simulated=json.dumps({"faults": {}, "states": 0, "broken": [[7, "D1: a", '{"seed":7}']]}))
    assert outcome(left, COMMAND).violations == [Violation("D1: a", """again '{"seed":7}'""")]


def test_reasons_are_short():
    left = Left(0, "", simulated=json.dumps({"faults": {}, "states": 0, "broken": [[7, "x" * 5000, ""]]}))
    assert len(outcome(left, COMMAND).violations[0].reason) == REASON_CHARACTERS
