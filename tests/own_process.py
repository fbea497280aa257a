"""Memory measurements in a process of their own, away from the threads of other tests' brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


@contextmanager
def own_process() -> Iterator[Run]:
    """Gives what calls a function in a process of its own, and returns what it returns, or raises.

    It is found by its name.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1])  # The new process imports the module.
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            yield lambda measure, *args, **kwargs: process.submit(measure, *args, **kwargs).result()
