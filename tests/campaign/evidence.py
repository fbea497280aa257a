"""`make campaign ARGS=--publish`: what campaigns have searched, as a page.

The sums of their ledgers are kept in the tree. `evidence.jsonl` has one line for each ledger, kind and commit. Lines
of the ledger "documented" are totals from before a kind was part of campaigns, from `docs/lab/erasures.md` and
`docs/lab/tables.md`; they took an unknown time.
Publishing replaces the lines of this ledger by new sums, so it may be repeated; a ledger is known by the number in its
folder. The page is written from these lines and from what has changed since. Adding up and the page are pure.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from tests.mutants import results as mutation
from tests.sim import planting

from . import concerns, headline, ledger
from .kinds import DELETES, KINDS, Kind

ROOT = Path(__file__).resolve().parents[2]
SUMS, PAGE = ROOT / "tests/campaign/evidence.jsonl", ROOT / "docs/lab/evidence.md"
FAULTS_NAMED = 40

NO_FAULTS = frozenset({"execution", "crash state", DELETES})
"""What is counted besides faults."""

HEAD = """# Evidence

What `make campaign` has searched for broken [promises](../invariants.md) ([how it works](../own-tests.md#campaigns)).
`make campaign ARGS=--publish` writes this page; do not edit it.

A run is *current* while the code that it executes is as it was at its commit: the programs of its kind and all that
they import, comments and docstrings aside. So a change of the console or of a page leaves all rows current, and one of
the code that serves requests leaves none. A goal counts all runs together. *Drawn faults* and *erasures* count towards
the goal of *cluster*; *cluster kill*, *erasure kill* and *transfers* count towards that of *kill*. The unit of each
kind:

- *cluster*, *drawn faults*, *erasures*: a simulated cluster with its load and faults; in *erasures* clients only write
  and erase. *one broker*: a broker with a simulated disk.
- *crash states*: a state of a simulated disk. A broker starts on it and everything is read back; each moment of a run
  gives four states.
- *kill*, *cluster kill*, *transfers*: a broker process that is killed. *kill*: one broker under load, in recovery,
  while it frees or erases records, or commits for groups and transactions. *cluster kill*: three brokers with etcd,
  also while they compact, move and reassign. *erasure kill*: while single records are erased. *transfers*: transfers
  of money.
- *table kill*: a life of a job that writes a topic into a table, in which the job or the broker is killed.
- *power cut*: a power cut under load on ext4 or XFS (`tests/power`); *damaged frames*: a frame sent to a broker.
- *acknowledged deletes*, in the README: deletes and erasures by clients of simulated brokers and clusters, each checked
  until the end of its run.
- *properties*: a pass over all tests with drawn examples; *compiled walk*: an execution under sanitizers, since
  2026-11-27.

Other searches: [hours of load and the model of deletes](long-runs.md), [upgrades under load, and ways
back](upgrades.md), and [large clusters](scale.md). What all of them have found is in [violations](violations.md).
"""


class Sum(msgspec.Struct, frozen=True):
    """All runs of a kind at a commit, in one ledger."""

    ledger: str
    kind: str
    commit: str
    runs: int
    seeds: int
    cpu_seconds: float
    states: int
    last: str
    faults: dict[str, int]
    violations: list[str]

    def counted(self, kind: Kind) -> int:
        """The measure of the kind."""
        return self.seeds if kind.counted is None else self.faults.get(kind.counted, 0)

    def fault_count(self) -> int:
        """Returns all faults that had an effect."""
        return sum(count for fault, count in self.faults.items() if fault not in NO_FAULTS)


def sums(name: str, entries: Iterable[ledger.Entry], folder: str = "") -> list[Sum]:
    """Returns the lines of one ledger.

    Runs of a tree that differed from its commit don't count. The published reasons of violations name
    files below the ledger's `folder` as those of the default folder are named: a page names no machine."""
    groups: dict[tuple[str, str], list[ledger.Entry]] = {}
    for entry in entries:
        if not entry.changed:
            groups.setdefault((entry.kind, entry.commit), []).append(entry)
    lines = []
    for (kind, commit), group in groups.items():
        total = ledger.totals(group)[kind]
        lines.append(
            Sum(
                ledger=name,
                kind=kind,
                commit=commit,
                runs=total.runs,
                seeds=total.seeds,
                cpu_seconds=round(total.cpu_seconds, 1),
                states=total.states,
                last=max(entry.began for entry in group),
                faults=dict(total.faults),
                violations=[published(violation.reason, folder) for violation in total.violations],
            )
        )
    return lines


def page(lines: Sequence[Sum], kinds: Sequence[Kind], is_current: Callable[[Kind, str], bool], *others: str) -> str:
    """Returns the page of these lines, then `others`.

    `is_current` says whether runs of a kind at a commit still stand for the tree.
    """
    rows = [
        (
            "| kind | current, of what a release needs | most at a commit | all | goal | CPU hours | "
            "a core does in a day | faults | states | violations | last run |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in kinds:
        of_kind = [line for line in lines if line.kind == kind.name]
        goal = "" if kind.goal is None else f"{kind.goal:,}"
        if not of_kind:
            rows.append(f"| {kind.name} | 0 of {kind.wanted:,} | 0 | 0 | {goal} | 0 | | 0 | | 0 | never |")
            continue
        current = current_count(kind, of_kind, is_current)
        at_commits = Counter[str]()
        for line in of_kind:
            at_commits[line.commit] += line.counted(kind)
        count, hours = at_commits.total(), sum(line.cpu_seconds for line in of_kind) / 3600
        timed = sum(line.counted(kind) for line in of_kind if line.cpu_seconds)
        faults, states = sum(line.fault_count() for line in of_kind), sum(line.states for line in of_kind)
        violations, last = sum(len(line.violations) for line in of_kind), max(line.last for line in of_kind)[:10]
        a_day = f"{timed / hours * 24:,.0f}" if hours else ""
        most = max(at_commits.values())
        counts = f"{current:,} of {kind.wanted:,} | {most:,} | {count:,} | {goal} | {hours:,.2f} | {a_day}"
        rows.append(f"| {kind.name} | {counts} | {faults:,} | {states or ''} | {violations} | {last} |")
    struck = Counter[str]()
    for line in lines:
        struck.update({fault: count for fault, count in line.faults.items() if fault not in NO_FAULTS})
    named = [f"| {fault} | {count:,} |" for fault, count in struck.most_common(FAULTS_NAMED)]
    parts = ["\n".join(rows), "## Faults that had an effect\n\n| fault | times |\n|---|---|\n" + "\n".join(named)]
    parts.append(
        "## Violations found\n\n[Each is listed](violations.md) in words, with its fix: in the broker, or in the test "
        "where that was wrong.\n`tests/campaign/evidence.jsonl` has the assertions that failed."
    )
    return HEAD + "\n" + "\n\n".join([*parts, *others]) + "\n"


def current_count(kind: Kind, lines: Iterable[Sum], is_current: Callable[[Kind, str], bool]) -> int:
    """Returns how much of a kind stands for the tree."""
    return sum(line.counted(kind) for line in lines if line.kind == kind.name and is_current(kind, line.commit))


def per_cpu_second(lines: Iterable[Sum], kinds: Sequence[Kind]) -> dict[str, float]:
    """Returns how much of each kind a CPU second has done, at the last commit where it was run."""
    found = {}
    for kind in kinds:
        timed = [line for line in lines if line.kind == kind.name and line.cpu_seconds and line.counted(kind)]
        if timed:
            last = max(timed, key=lambda line: line.last)
            found[kind.name] = last.counted(kind) / last.cpu_seconds
    return found


def mutant_part(sums: Sequence[mutation.Sum], is_current: Callable[[mutation.Sum], bool]) -> str:
    """Returns the table of mutants, with one row for each folder of modules."""
    folders: dict[str, list[mutation.Sum]] = {}
    for each in sums:
        folders.setdefault(each.module.rpartition("/")[0], []).append(each)
    rows = [
        "## Mutants",
        "",
        (
            "`make mutants` changes one thing of a module at a time: a comparison, a condition, a number, a statement "
            "that is left out."
        ),
        (
            "A mutant is killed if a unit test of `make test` fails, timed out if one doesn't end. A survivor is "
            "explained in"
        ),
        (
            "`tests/mutants/explained.jsonl` (it makes no difference, or one of speed or of a message only), or open. "
            "Modules that"
        ),
        "aren't named were not run to the end. Code that runs when a module is imported is not mutated.",
        "",
        "| modules | unchanged since | mutants | killed | timed out | explained | open | last run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for folder, listed in sorted(folders.items()):
        names = ", ".join(f"`{each.module.rpartition('/')[2].removesuffix('.py')}`" for each in listed)
        current = sum(is_current(each) for each in listed)
        counts = [
            sum(getattr(each, name) for each in listed)
            for name in ("mutants", "killed", "timed_out", "explained", "open")
        ]
        numbers = " | ".join(f"{count:,}" for count in counts)
        rows.append(
            f"| {folder}: {names} | {current} of {len(listed)} | {numbers} | {max(each.date for each in listed)} |"
        )
    return "\n".join(rows)


def plant_part(tries: Sequence[planting.Try]) -> str:
    """Returns the table of planted bugs: after how many seeds each was found, from each first seed."""
    by_plant: dict[tuple[str, str], list[planting.Try]] = {}
    for each in tries:
        by_plant.setdefault((each.plant, each.expected), []).append(each)
    within = sum(
        all(each.seeds is not None and each.seeds <= planting.GOAL_SEEDS for each in listed)
        for listed in by_plant.values()
    )
    rows = [
        "## Planted bugs",
        "",
        (
            f"`make plants` plants a bug and counts the seeds until a simulator finds it. {within} of {len(by_plant)} "
            "plants were"
        ),
        (
            f"found within {planting.GOAL_SEEDS:,} seeds from each first seed that was tried. `> 40`: 40 seeds did not "
            "find it."
        ),
        "",
        "| bug | violates | seeds until found |",
        "|---|---|---|",
    ]
    for (plant, expected), listed in sorted(by_plant.items()):
        counts = ", ".join(str(each.seeds) if each.seeds is not None else f"> {each.searched}" for each in listed)
        text = expected.replace("|", "\\|")
        rows.append(f"| `{plant}` | `{text}` | {counts} |")
    return "\n".join(rows)


def published(reason: str, folder: str) -> str:
    """Returns a reason without the path of the ledger's folder."""
    return reason.replace(folder, "build/campaign") if folder else reason


def load(file: Path = SUMS) -> list[Sum]:
    return [msgspec.json.decode(line, type=Sum) for line in file.read_bytes().splitlines()] if file.exists() else []


def seeds_of(lines: Iterable[Sum]) -> dict[str, int]:
    """Returns how many seeds of each kind were searched.

    Ledgers take them in turn, so those from this number on are new, `--first-seed` aside.
    """
    found = Counter[str]()
    for line in lines:
        found[line.kind] += line.seeds
    return dict(found)


def name_of(folder: Path) -> str:
    """Returns the number of the ledger in a folder, made once."""
    file = folder / "name"
    if not file.exists():
        file.write_text(secrets.token_hex(4), encoding="utf-8")
    return file.read_text(encoding="utf-8")


def unchanged_since(kind: Kind, commit: str) -> bool:
    """Returns whether runs of a kind at a commit stand for the last commit."""
    return concerns.unchanged(commit, kind.concerned(), kind.folders)


def known(folder: Path, file: Path = SUMS) -> list[Sum]:
    """Returns what is published, with the ledger of a folder as it is now."""
    name = name_of(folder)
    others = [line for line in load(file) if line.ledger != name]
    return others + sums(name, ledger.load(folder / "ledger.jsonl"), str(folder))


def publish(folder: Path, file: Path = SUMS, target: Path = PAGE) -> None:
    """Adds up the ledger of a folder, and writes the page."""
    lines = known(folder, file)
    file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    write_page(file, target)


def write_page(file: Path = SUMS, target: Path = PAGE) -> None:
    """Publishes all results in the tree: sums of campaigns, also at the head of the README, mutants, planted bugs."""
    mutants = mutant_part(mutation.load_lines(mutation.SUMS, mutation.Sum), is_unchanged)
    plants = plant_part(planting.load())
    target.write_text(page(load(file), KINDS, unchanged_since, mutants, plants), encoding="utf-8")
    if target == PAGE:
        headline.write(load(file))


def is_unchanged(counts: mutation.Sum) -> bool:
    """Returns whether a module is as it was when its mutants were counted."""
    file = ROOT / counts.module
    return file.exists() and mutation.digest_of(file.read_bytes()) == counts.digest
