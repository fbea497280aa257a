"""A pytest plugin: begin no test after the moment that `TEST_UNTIL` names, in seconds of the monotonic clock.

The others are skipped. So CI ends in time on a machine of any speed; which tests those are is a matter of the order,
which is another one in each run.
"""

from __future__ import annotations

import os
import time

import pytest

VARIABLE = "TEST_UNTIL"

REASON = "the time for this run was up"


class Until:
    """Registered by `tests/conftest.py` if the variable is set."""

    def __init__(self, moment_s: float) -> None:
        self._moment_s = moment_s

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Before any fixture of the test."""
        if time.monotonic() >= self._moment_s:
            pytest.skip(REASON)


def register(config: pytest.Config) -> None:
    """Errors: ValueError for a variable that is no number; without it tests begin at any time."""
    if VARIABLE in os.environ:
        config.pluginmanager.register(Until(float(os.environ[VARIABLE])), "lowtide-until")
