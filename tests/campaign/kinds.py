"""The kinds of runs of a campaign: commands and shares. Values only.

A run is one process that ends by itself after a minute or so of CPU: a killed campaign loses only that run. It leaves
its result in files that `Workplace` names; all its other files are below `TMPDIR`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.power.powered_disk import missing


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

    `concerns` are the folders and files whose change makes earlier runs of this kind say less. `counted` names the
    fault by whose number the kind is measured, which says more than the number of seeds.
    """

    name: str
    share: int
    seeds: int
    command: Callable[[Workplace, int, int], Command]
    concerns: tuple[str, ...] = ()
    missing: Callable[[], str | None] = always
    """Returns why this machine can't run it, or None."""
    counted: str | None = None
    goal: int | None = None
    """The wanted total."""


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


SERVED = ("broker", "metadata", "protocol", "replication", "storage")
"""The code that serves requests: nearly all that may violate a promise."""

KILLED = "SIGKILL of a broker"

KINDS = (
    Kind("cluster", 20, 20, simulated("cluster", "make sim SEED={seed}"), (*SERVED, "simulation"), goal=100_000),
    Kind(
        "drawn faults",
        15,
        20,
        simulated("drawn faults", ".venv/bin/python -m tests.campaign.found {seed}"),
        (*SERVED, "simulation"),
    ),
    Kind("one broker", 5, 200, simulated("one broker", "make sim SEED={seed}"), (*SERVED, "simulation")),
    Kind(
        "crash states",
        10,
        2,
        simulated("crash states", "SEED={seed} .venv/bin/pytest -n0 tests/sim/test_crash_states.py"),
        (*SERVED, "simulation"),
        counted="crash state",
        goal=250_000,
    ),
    Kind(
        "kill",
        10,
        1,
        pytest(
            "tests/chaos/test_sigkill.py",
            "tests/chaos/test_killed_while_punching.py",
            "tests/chaos/test_erased_is_gone.py",
            "tests/chaos/test_groups_survive.py",
            "tests/chaos/test_consumer_groups_survive.py",
            "tests/chaos/test_transactions_survive.py",
            ROUNDS="20",
        ),
        (*SERVED, "runtime"),
        counted=KILLED,
        goal=5_000,
    ),
    Kind(
        "cluster kill",
        10,
        1,
        pytest(
            "tests/chaos/test_cluster_kills.py",
            "tests/chaos/test_compaction_survives.py",
            "tests/chaos/test_etcd_broker.py",
            "tests/chaos/test_moves_between_directories.py",
            ROUNDS="5",
            CLUSTER_ROUNDS="5",
        ),
        (*SERVED, "runtime"),
        counted=KILLED,
    ),
    Kind(
        "power cut",
        5,
        1,
        pytest("tests/power/test_power_cuts.py", CUTS="10", PYTEST_ADDOPTS="-m power"),
        (*SERVED, "runtime"),
        power_is_missing,
        counted="power cut of a disk",
        goal=500,
    ),
    Kind("transfers", 5, 1, pytest("tests/chaos/test_transfers.py", SECONDS_OF_TRANSFER="30"), SERVED, counted=KILLED),
    Kind(
        "damaged frames",
        10,
        1,
        pytest("tests/chaos/test_frame_storm.py", FRAMES="30000"),
        ("broker", "protocol"),
        counted="damaged frame",
        goal=10_000_000,
    ),
    Kind("properties", 5, 1, properties, SERVED),
    Kind("compiled walk", 5, 1, sanitizers, ("protocol/native", "tests/native"), counted="execution", goal=500_000_000),
)
