"""The kinds of runs of a campaign: commands and shares. Values only.

A run is one process that ends by itself after a minute or so of CPU: a killed campaign loses only that run. It leaves
its result in files that `Workplace` names; all its other files are below `TMPDIR`.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.power.powered_disk import missing

from .concerns import ROOT, closure


@dataclass(frozen=True)
class Workplace:
    """The interpreter of a run, and the campaign's folder, with the files of the run."""

    python: str
    folder: Path

    @property
    def temporary(self) -> Path:
        """The folder for all other files of the run; removed at its end."""
        return self.folder / "tmp"

    @property
    def results(self) -> Path:
        """The folder for its results, until the next run."""
        return self.folder / "results"

    @property
    def simulated(self) -> Path:
        """Written by `simulators.py`."""
        return self.results / "simulated.json"

    @property
    def junit(self) -> Path:
        """JUnit's XML, written by pytest."""
        return self.results / "junit.xml"

    @property
    def struck(self) -> Path:
        """Written by `struck.py`."""
        return self.results / "struck.json"

    @property
    def log(self) -> Path:
        """The output of the run."""
        return self.folder / "run.log"

    @property
    def files(self) -> tuple[Path, Path, Path]:
        return self.simulated, self.junit, self.struck


@dataclass(frozen=True)
class Command:
    """One run: its command, additional variables, and a command that reproduces it."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    replay: str


def always() -> None:
    """Returns None, for a kind that every machine can run."""


@dataclass(frozen=True)
class Kind:
    """`share` is the share of CPU time, relative to the others. A run uses `seeds` seeds.

    A run is current while neither `programs`, with all that they import, nor what is in `folders` has changed
    (`concerns.py`). `counted` names the fault by whose number the kind is measured, which says more than the number of
    seeds.
    """

    name: str
    share: int
    seeds: int
    command: Callable[[Workplace, int, int], Command]
    programs: Callable[[], tuple[str, ...]] = tuple
    wanted: int = 1
    """How much of it a release needs on its own code (`--until-current`)."""
    folders: tuple[str, ...] = ("protocol/native",)
    missing: Callable[[], str | None] = always
    """Returns why this machine can't run it, or None."""
    counted: str | None = None
    goal: int | None = None
    """The wanted total of all commits."""

    def concerned(self) -> frozenset[str]:
        """Returns the files whose change makes earlier runs of this kind say less, without those in `folders`."""
        return closure(self.programs())

    def concerns(self, file: str) -> bool:
        """Returns whether a change of this file does."""
        return file in self.concerned() or file.startswith(tuple(f"{folder}/" for folder in self.folders))


def files(*names: str) -> Callable[[], tuple[str, ...]]:
    """Returns these programs, by their paths from the root of the tree."""
    return lambda: names


@functools.cache
def with_drawn_examples() -> tuple[str, ...]:
    """Returns the unit tests that draw examples."""
    found = (path for path in (ROOT / "tests/unit").rglob("*.py") if b"hypothesis" in path.read_bytes())
    return tuple(sorted(str(path.relative_to(ROOT)) for path in found))


def simulated(name: str, replay: str) -> Callable[[Workplace, int, int], Command]:
    """Returns a simulator, by seeds."""

    def command(place: Workplace, first: int, end: int) -> Command:
        words = (place.python, "-m", "tests.campaign.simulators", name, str(first), str(end), str(place.simulated))
        return Command(words, {}, replay)

    return command


def pytest(*paths: str, **env: str) -> Callable[[Workplace, int, int], Command]:
    """Tests that take `SEED`."""

    def command(place: Workplace, first: int, _end: int) -> Command:
        words = (place.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={place.junit}", *paths)
        given = {**env, "SEED": str(first), "TEST_FAULTS": str(place.struck)}
        replay = " ".join(
            [*(f"{name}={value}" for name, value in (env | {"SEED": str(first)}).items()), ".venv/bin/pytest", *paths]
        )
        return Command(words, given, replay)

    return command


def properties(place: Workplace, first: int, _end: int) -> Command:
    """Every test with generated examples: from a seed, instead of from the name of the test."""
    options = ("-m", "hypothesis", f"--hypothesis-seed={first}", "tests/unit")
    words = (place.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={place.junit}", *options)
    examples = {"WALK_EXAMPLES": "2000"}
    return Command(words, examples, f"WALK_EXAMPLES=2000 .venv/bin/pytest {' '.join(options)}")


def sanitizers(_place: Workplace, first: int, _end: int) -> Command:
    """Compiled code under gcc's sanitizers."""
    words = ("make", "--no-print-directory", "sanitize", "SECONDS_LONG=60", f"SEED={first}")
    return Command(words, {}, " ".join(words))


def power_is_missing() -> str | None:
    """Of kinds that cut the power of a disk."""
    return missing("ext4") or missing("xfs")


def table_is_missing() -> str | None:
    """Of kinds that write tables."""
    return (
        None if importlib.util.find_spec("pyiceberg") else "PyIceberg is not installed (make .venv/.installed-pipeline)"
    )


KILLED, LIFE = "SIGKILL of a broker", "killed life of a table job"
DELETES = "acknowledged delete"
"""A delete or an erasure that a simulated client got an answer for, and that its run checked until the end."""

SEARCH = ".venv/bin/python -m lowtide.simulation.cluster_search"
CLUSTER, DRAWN = "simulation/cluster_search.py", ("tests/campaign/drawn.py", "tests/campaign/found.py")


def against_brokers(*tests: str, also: tuple[str, ...] = (), **env: str) -> dict[str, Any]:
    """Returns the command of tests, and their programs: the tests, what they start by name, and the broker."""
    return {"command": pytest(*tests, **env), "programs": files("cli/serve.py", *tests, *also)}


KINDS = (
    Kind("cluster", 20, 20, simulated("cluster", "make sim SEED={seed}"), files(CLUSTER), wanted=3_000, goal=100_000),
    Kind(
        "drawn faults",
        15,
        20,
        simulated("drawn faults", ".venv/bin/python -m tests.campaign.found {seed}"),
        files(CLUSTER, *DRAWN),
        wanted=1_500,
    ),
    Kind(
        "erasures",
        10,
        20,
        simulated("erasures", f"{SEARCH} --kinds erasures --seeds 1 --first {{seed}}"),
        files(CLUSTER),
        wanted=1_000,
    ),
    Kind(
        "one broker",
        5,
        200,
        simulated("one broker", "make sim SEED={seed}"),
        files("simulation/broker_simulation.py"),
        wanted=1_000,
    ),
    Kind(
        "crash states",
        10,
        2,
        simulated("crash states", "SEED={seed} .venv/bin/pytest -n0 tests/sim/test_crash_states.py"),
        files("tests/sim/crash_states.py"),
        wanted=10_000,
        counted="crash state",
        goal=250_000,
    ),
    Kind(
        "kill",
        10,
        1,
        **against_brokers(
            "tests/chaos/test_sigkill.py",
            "tests/chaos/test_killed_while_punching.py",
            "tests/chaos/test_erased_is_gone.py",
            "tests/chaos/test_groups_survive.py",
            "tests/chaos/test_consumer_groups_survive.py",
            "tests/chaos/test_transactions_survive.py",
            ROUNDS="20",
        ),
        wanted=500,
        counted=KILLED,
        goal=5_000,
    ),
    Kind(
        "cluster kill",
        10,
        1,
        **against_brokers(
            "tests/chaos/test_cluster_kills.py",
            "tests/chaos/test_compaction_survives.py",
            "tests/chaos/test_etcd_broker.py",
            "tests/chaos/test_moves_between_directories.py",
            ROUNDS="5",
            CLUSTER_ROUNDS="5",
        ),
        wanted=100,
        counted=KILLED,
    ),
    Kind(
        "erasure kill",
        5,
        1,
        **against_brokers("tests/chaos/test_erasures_survive.py", ROUNDS="5"),
        wanted=50,
        counted=KILLED,
        goal=500,
    ),
    Kind(
        "table kill",
        5,
        1,
        **against_brokers(
            "tests/pipeline/test_table_kills.py",
            also=("tests/pipeline/table_kill_job.py",),
            KILLS="11",
            SPARKS="999",
        ),
        wanted=20,
        missing=table_is_missing,
        counted=LIFE,
        goal=200,
    ),
    Kind(
        "power cut",
        5,
        1,
        **against_brokers("tests/power/test_power_cuts.py", CUTS="10", PYTEST_ADDOPTS="-m power"),
        wanted=50,
        missing=power_is_missing,
        counted="power cut of a disk",
        goal=500,
    ),
    Kind(
        "transfers",
        5,
        1,
        **against_brokers(
            "tests/chaos/test_transfers.py", also=("tests/chaos/transfer_programs.py",), SECONDS_OF_TRANSFER="30"
        ),
        wanted=5,
        counted=KILLED,
    ),
    Kind(
        "damaged frames",
        10,
        1,
        **against_brokers("tests/chaos/test_frame_storm.py", also=("tests/chaos/honest_client.py",), FRAMES="30000"),
        wanted=1_000_000,
        counted="damaged frame",
        goal=10_000_000,
    ),
    Kind("properties", 5, 1, properties, with_drawn_examples),
    Kind(
        "compiled walk",
        5,
        1,
        sanitizers,
        wanted=100_000_000,
        folders=("protocol/native", "tests/native"),
        counted="execution",
        goal=500_000_000,
    ),
)
