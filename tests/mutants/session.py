"""`python -m tests.mutants.session GROUP near|wider FOLDER`: run the mutants of a group that are due, in forks of one
pytest process.

The process collects the tests once. A first fork runs them all and notes which lines of the group's modules each of
them runs. Then, for each mutant, a fork gives the mutated function its changed code, and runs the tests that run the
changed line until one fails: first those that have found the mutants before it, then the cheapest. Nothing is written
into the tree, so a kill at any moment leaves it as it was.

A fork ends by itself when a test takes a multiple of the CPU time that it took without a mutant; one that sleeps
without end is killed. Neither depends on how fast the machine is. Hypothesis draws the same examples each time, a
quarter of them as `make test` does, and keeps no database; it doesn't shrink what fails.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import msgspec
import pytest

from tests.campaign.machine import step_back

from .operators import FunctionKey, Mutant, mutants
from .results import EXPLAINED, Explanation, Result, digest_of, is_due, latest, load_lines
from .scope import GROUPS, ROOT, Group

CPU_LEAST_S = 3
CPU_FACTOR = 6
"""A multiple of each test's CPU time: one limit for all tests would let a looping mutant take minutes."""
ASLEEP_S = 10.0
"""Without a moment of CPU: a test waits for what a mutant has taken away."""
POLL_S = 0.02
LOOK_EVERY_S = 1.0
MEMORY_BYTES = 3 << 30
"""The memory of a fork beyond that of pytest; a mutant may allocate in an endless loop."""

FOUND_LATELY = 5
"""So many tests that have found mutants are asked first: the next mutant is often one of the same function."""

PASSED, FAILED = 0, 3

Coverage = dict[str, tuple[float, dict[str, list[int]]]]
"""For each passing test: seconds of CPU, and the lines that it runs in each module."""


def module_of(path: str) -> Any:
    return importlib.import_module(f"lowtide.{path.removesuffix('.py').replace('/', '.')}")


def tests_digest(group: Group) -> str:
    """The digest of all test files of a group."""
    folders = [ROOT / path for path in (*group.tests, *group.wider)]
    files = {file for path in folders for file in (path.rglob("*.py") if path.is_dir() else [path])}
    return digest_of(*(file.read_bytes() for file in sorted(files)))


class Lines:
    """Which lines of some files a test runs."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files
        self.seen: dict[str, set[int]] = {}

    def _in_any(self, frame: FrameType, _event: str, _argument: object) -> Any:
        return self._in_file if frame.f_code.co_filename in self._files else None

    def _in_file(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self.seen.setdefault(self._files[frame.f_code.co_filename], set()).add(frame.f_lineno)
        return self._in_file

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        self.seen = {}
        threading.settrace(self._in_any)
        sys.settrace(self._in_any)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)


def in_order(tests: Mapping[str, float], found_lately: Sequence[str]) -> list[str]:
    """Tests in the order in which they are asked.

    `tests` has what each costs; `found_lately` has the latest last, and may name others.
    """
    first = [name for name in dict.fromkeys(reversed(found_lately)) if name in tests]
    return [*first, *(name for name in sorted(tests, key=lambda name: (tests[name], name)) if name not in first)]


def run_test(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Returns whether it passed, or was skipped."""
    random.seed(0)
    reports = item.config.pluginmanager.get_plugin("runner").runtestprotocol(item, log=False, nextitem=following)
    return not any(report.failed for report in reports)


def in_fork(work: Callable[[], int], cpu_s: float) -> int | None:
    """Returns the exit code of a fork that runs this; None if it used too much CPU, or never woke."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = FAILED
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            limit = int(cpu_s) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
            signal.signal(signal.SIGXCPU, signal.SIG_DFL)
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            code = work()
        finally:
            os._exit(code)
    status = waited(child)
    if status is None or (
        os.WIFSIGNALED(status) and os.WTERMSIG(status) in {signal.SIGPROF, signal.SIGXCPU, signal.SIGKILL}
    ):
        return None
    return os.waitstatus_to_exitcode(status)


def waited(child: int) -> int | None:
    """Returns the status with which it ended; None if it had to be killed."""
    looked_s, used, idle_s = time.monotonic(), -1, 0.0
    try:
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            time.sleep(POLL_S)
            now_s = time.monotonic()
            if now_s - looked_s < LOOK_EVERY_S:
                continue
            fields = Path(f"/proc/{child}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            state, now_used = fields[0], int(fields[11]) + int(fields[12])
            idle_s = idle_s + now_s - looked_s if state == "S" and now_used == used else 0.0
            looked_s, used = now_s, now_used
            if idle_s > ASLEEP_S:
                break
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


class Mutants:
    """A pytest plugin that runs mutants instead of tests."""

    def __init__(self, group: Group, *, wider: bool, folder: Path) -> None:
        self._group, self._wider, self._folder = group, wider, folder
        self._sources = {path: (ROOT / path).read_bytes() for path in group.files()}
        self._digests = {path: digest_of(source) for path, source in self._sources.items()}
        self._tests = tests_digest(group)
        self._results = folder / "results.jsonl"
        self._explained = {(each.module, each.key) for each in load_lines(EXPLAINED, Explanation)}
        self._known = latest(load_lines(self._results, Result), self._digests)
        self._listed = {path: mutants(source.decode()) for path, source in self._sources.items()}

    def due(self) -> list[tuple[str, Mutant]]:
        """Returns the mutants to run now. The wider tests skip explained ones."""
        return [
            (path, mutant)
            for path, listed in self._listed.items()
            for mutant in listed
            if is_due(self._known.get((path, mutant.key)), self._tests, wider=self._wider)
            and not (self._wider and (path, mutant.key) in self._explained)
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """After the tests' own settings of Hypothesis, before the tests that take them over."""
        from hypothesis import Phase, settings

        settings.register_profile(
            "mutants", settings.default, database=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
        )
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        due = self.due()
        for path in self._sources:
            module_of(path)
        items = {item.nodeid: item for item in session.items}
        coverage = self._coverage(session.items)
        functions = self._functions()
        print(f"{self._group.name}: {len(due)} mutants, {len(coverage)} tests", flush=True)
        found_lately: list[str] = []
        gc.collect()
        gc.freeze()  # A collection in a fork would copy all that pytest holds.
        for number, (path, mutant) in enumerate(due, 1):
            tests = {
                name: cpu_s for name, (cpu_s, lines) in coverage.items() if mutant.lines & set(lines.get(path, ()))
            }
            chosen = [
                (items[name], CPU_LEAST_S + CPU_FACTOR * tests[name])
                for name in in_order(tests, found_lately)
                if name in items
            ]
            result = self._result(path, mutant, chosen, functions)
            if (
                result.outcome == "killed"
            ):  # A test that doesn't end takes its whole limit, where another one fails at once.
                found_lately = [*(name for name in found_lately if name != result.by), result.by][-FOUND_LATELY:]
            with self._results.open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")
            if result.outcome in {"survived", "not reached"}:
                print(f"{number}/{len(due)} {result.outcome}: {path} {mutant.key}", flush=True)
        return True

    def _coverage(self, listed: list[pytest.Item]) -> Coverage:
        """Returns the profile of the last session with the same code and tests, or of a run of all tests in a fork."""
        name = f"{self._group.name.replace(' ', '-')}-{'wider' if self._wider else 'near'}"
        digest = digest_of(self._tests.encode(), *(each.encode() for each in self._digests.values()))
        file, kept = self._folder / f"{name}.json", self._folder / f"{name}.digest"
        if not (file.exists() and kept.exists() and kept.read_text(encoding="ascii") == digest):
            files = {module_of(path).__file__: path for path in self._sources}
            kept.unlink(missing_ok=True)
            code = in_fork(lambda: cover(listed, Lines(files), file), 36_000)
            assert code == PASSED, f"the run of all tests ended with {code}"
            kept.write_text(digest, encoding="ascii")
        coverage: Coverage = json.loads(file.read_text(encoding="ascii"))
        if failing := {item.nodeid for item in listed} - coverage.keys():
            print(f"left out, for they fail without a mutant: {', '.join(sorted(failing))}", flush=True)
        return coverage

    def _functions(self) -> dict[tuple[str, FunctionKey], list[FunctionType]]:
        """Returns all function objects of the modules; one source may have several, or one behind a decorator."""
        gc.unfreeze()  # tests/conftest.py freezes; frozen objects aren't listed.
        files = {module_of(path).__file__: path for path in self._sources}
        found: dict[tuple[str, FunctionKey], list[FunctionType]] = {}
        for each in gc.get_objects():
            if type(each) is FunctionType and (path := files.get(each.__code__.co_filename)):
                found.setdefault((path, (each.__code__.co_qualname, each.__code__.co_firstlineno)), []).append(each)
        return found

    def _result(self, path: str, mutant: Mutant, chosen: list[tuple[pytest.Item, float]], functions: Any) -> Result:
        given: dict[str, Any] = {
            "module": path,
            "digest": self._digests[path],
            "key": mutant.key,
            "wider": self._wider,
            "tests": self._tests,
        }
        if not chosen:
            return Result(
                outcome="survived" if self._wider and self._was_reached(path, mutant) else "not reached", **given
            )
        targets = functions[path, mutant.function]
        code = mutant.code(targets[0].__code__.co_filename)
        record = self._folder / "by"
        record.write_text("", encoding="utf-8")
        ended = in_fork(lambda: look_for(targets, code, chosen, record), sum(limit_s for _, limit_s in chosen))
        if ended == PASSED:
            return Result(outcome="survived", **given)
        return Result(
            outcome="timed out" if ended is None else "killed", by=record.read_text(encoding="utf-8"), **given
        )

    def _was_reached(self, path: str, mutant: Mutant) -> bool:
        known = self._known.get((path, mutant.key))
        return known is not None and known.outcome == "survived"


def cover(items: list[pytest.Item], lines: Lines, file: Path) -> int:
    """Runs all tests in a fork, and writes the lines that the passing ones run."""
    coverage: Coverage = {}
    for item, following in zip(items, [*items[1:], None], strict=True):
        began_s = time.process_time()
        with lines.noted():
            passed = run_test(item, following)
        if passed:
            coverage[item.nodeid] = (
                time.process_time() - began_s,
                {path: sorted(seen) for path, seen in lines.seen.items()},
            )
    file.write_text(json.dumps(coverage), encoding="ascii")
    return PASSED


def look_for(targets: list[FunctionType], code: CodeType, chosen: list[tuple[pytest.Item, float]], record: Path) -> int:
    """Changes the function in a fork, and runs tests until one fails. Writes its name.

    Each test is limited to this many seconds of CPU.
    """
    for target in targets:
        target.__code__ = code
    items = [item for item, _ in chosen]
    for (item, limit_s), following in zip(chosen, [*items[1:], None], strict=True):
        record.write_text(item.nodeid, encoding="utf-8")
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        if not run_test(item, following):
            return FAILED
    return PASSED


def main(arguments: list[str]) -> int:
    """One group. Returns pytest's exit code."""
    name, stage, folder = arguments[0], arguments[1], Path(arguments[2])
    group = next(group for group in GROUPS if group.name == name)
    plugin = Mutants(group, wider=stage == "wider", folder=folder)
    step_back()
    os.environ.setdefault("EXAMPLES_PERCENT", "25")
    paths = group.wider if stage == "wider" else group.tests
    options = [
        "-q",
        "-n0",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        "-o",
        "faulthandler_timeout=0",
        "--capture=no",
        "-m",
        "not slow",
    ]
    return int(pytest.main([*options, f"--basetemp={folder / 'tmp'}", *paths], plugins=[plugin])) if plugin.due() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
