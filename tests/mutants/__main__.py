"""`make mutants`: change one thing of a module at a time, and see whether a test notices.

`ARGS=--help` has the options. One process at a time, on one core, at the lowest priority. Each mutant that was run is a
line in the folder, from which the next run continues: a kill costs the mutant at hand. In the end the survivors without
an explanation are printed (`explained.jsonl`, beside this file).
"""

from __future__ import annotations

import argparse
import fcntl
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tests.campaign import evidence, machine

from .operators import mutants
from .results import (
    EXPLAINED,
    FOUND,
    SUMS,
    Explanation,
    Result,
    Sum,
    digest_of,
    is_at_its_end,
    latest,
    load_lines,
    sum_of,
)
from .scope import GROUPS, ROOT, Group


def parse(arguments: list[str] | None) -> argparse.Namespace:
    names = ", ".join(group.name for group in GROUPS)
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="which changes of the code no test notices"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "build/mutants",
        help="of what is known about mutants, and of all other files",
    )
    parser.add_argument("--groups", help=f"only these, of {names}")
    parser.add_argument("--near", action="store_true", help="don't give survivors to the wider tests")
    parser.add_argument("--list", action="store_true", help="print the survivors that are known, and end")
    parser.add_argument("--publish", action="store_true", help="add the counts to docs/lab/evidence.md, and end")
    return parser.parse_args(arguments)


def known_mutants(group: Group, folder: Path) -> Iterator[tuple[str, str, list[str], dict[tuple[str, str], Result]]]:
    """The modules of a group: path, digest, keys of the mutants, and their results."""
    results = load_lines(folder / "results.jsonl", Result)
    for path in group.files():
        source = (ROOT / path).read_bytes()
        digest = digest_of(source)
        yield path, digest, [mutant.key for mutant in mutants(source.decode())], latest(results, {path: digest})


def survivors(groups: list[Group], folder: Path) -> list[str]:
    """Returns those without an explanation."""
    explained = {(each.module, each.key) for each in load_lines(EXPLAINED, Explanation)}
    found: dict[str, None] = {}
    for group in groups:
        for path, _, keys, known in known_mutants(group, folder):
            for key in keys:
                result = known.get((path, key))
                if result is not None and result.outcome not in FOUND and (path, key) not in explained:
                    found[f"{path}: {key}: {result.outcome}"] = None
    return list(found)


def publish(folder: Path) -> None:
    """Writes the counts of the modules that were run to the end, and the page of evidence."""
    explained = load_lines(EXPLAINED, Explanation)
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    sums = {each.module: each for each in load_lines(SUMS, Sum)}
    for group in GROUPS:
        for path, digest, keys, known in known_mutants(group, folder):
            counts = sum_of(path, keys, known, explained)
            if keys and is_at_its_end(path, keys, known, explained):
                sums[path] = Sum(
                    module=path,
                    digest=digest,
                    commit=commit,
                    date=date,
                    mutants=len(keys),
                    killed=counts["killed"],
                    timed_out=counts["timed out"],
                    explained=counts["explained"],
                    open=counts["open"],
                )
    SUMS.write_bytes(b"".join(msgspec.json.encode(sums[path]) + b"\n" for path in sorted(sums)))
    evidence.write_page()


def main(arguments: list[str] | None = None) -> int:
    """Runs the command.

    Returns 0, 1 if there are survivors without an explanation, 2 for wrong options or a folder in use.
    """
    options = parse(arguments)
    folder: Path = options.folder.resolve()
    names = [name.strip() for name in options.groups.split(",")] if options.groups else [group.name for group in GROUPS]
    groups = [group for group in GROUPS if group.name in names]
    if len(groups) != len(set(names)):
        print(f"there are {', '.join(group.name for group in GROUPS)}")
        return 2
    if options.publish:
        publish(folder)
        return 0
    if not options.list and (code := run(groups, folder, ("near",) if options.near else ("near", "wider"))):
        return code
    left = survivors(groups, folder)
    print("\n".join(left) if left else "no survivor without an explanation")
    return 1 if left else 0


def run(groups: list[Group], folder: Path, stages: tuple[str, ...]) -> int:
    """Runs all mutants that are due. Returns 0, or why it ended early."""
    folder.mkdir(parents=True, exist_ok=True)
    machine.step_back()
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another run uses {folder}")
            return 2
        try:
            for group in groups:
                for stage in stages:
                    subprocess.run(
                        [sys.executable, "-m", "tests.mutants.session", group.name, stage, str(folder)],
                        cwd=ROOT,
                        check=True,
                    )
        except KeyboardInterrupt:
            print("interrupted; the next run continues")
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
