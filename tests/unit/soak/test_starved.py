"""A soak whose machine had no time for it blames no broker for what was late, and still for what was wrong."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import pytest

from lowtide.simulation.history import HistoryError
from tests.chaos.cluster_processes import NotInTimeError
from tests.soak.kept import SoakFolder
from tests.soak.run import Run, SoakCluster


@pytest.mark.parametrize(
    ("error", "late_s", "expected"),
    [
        (NotInTimeError("late"), 6.0, True),
        (TimeoutError(), 6.0, True),
        (NotInTimeError("late"), 4.0, False),
        (HistoryError("D1"), 6.0, False),
        (AssertionError("a record is left"), 6.0, False),
    ],
)
def test_only_lateness_of_a_starved_machine_is_excused(tmp_path: Path, error: Exception, late_s: float, expected: bool):
    run = Run(SoakCluster(tmp_path / "cluster", set()), SoakFolder(tmp_path), argparse.Namespace(), 1.0)
    run._late = [(time.monotonic(), late_s)]
    assert run.was_starved(error) is expected
