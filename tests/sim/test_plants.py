"""Every planted bug patches something that exists.

The searches for the bugs take too long for each run, and wouldn't say so in time.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.each import each


def plants() -> Iterator[Callable[[pytest.MonkeyPatch], None]]:
    """The functions of this folder that plant a bug: those that take nothing but what patches."""
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.sim.{file.stem}")
        for function in vars(module).values():
            if (
                inspect.isfunction(function)
                and function.__module__ == module.__name__
                and [*inspect.signature(function).parameters] == ["patch"]
            ):
                yield function


PLANTS = list(plants())


def test_there_are_plants() -> None:
    assert len(PLANTS) > 100


@each("plant", PLANTS, lambda plant: f"{plant.__module__.rpartition('.')[2]}.{plant.__name__}")
def test_a_plant_can_be_planted(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that isn't there any more raises."""
    with monkeypatch.context() as patch:
        plant(patch)
