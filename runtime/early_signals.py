"""Handles SIGINT and SIGTERM that arrive before a command does: the process ends at once and prints nothing.

Python raises KeyboardInterrupt for SIGINT. During imports that prints a traceback, or is lost where Python ignores
exceptions. For SIGTERM it has no handler, and without one the kernel drops the signal for the first process of a
container. Imports little: until `end_by_signals` has run, SIGINT prints a traceback.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

_OF_PYTHON: dict[signal.Signals, Callable[..., Any] | signal.Handlers] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
"""Python's handlers, unless the process was started with the signal ignored."""

_STATUS_OF_SIGNALS = 128
"""A shell adds it to the number of the signal that ended a process."""


def end_by_signals() -> None:
    """Makes SIGINT and SIGTERM end the process, until `restore_signals` or a handler of an event loop.

    An ignored signal stays ignored. For the main thread only.
    """
    for number, handler in _OF_PYTHON.items():
        if signal.getsignal(number) == handler:
            signal.signal(number, _end)


def restore_signals() -> None:
    """Undoes `end_by_signals`."""
    for number, handler in _OF_PYTHON.items():
        if signal.getsignal(number) is _end:
            signal.signal(number, handler)


def _end(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(_STATUS_OF_SIGNALS + number)  # The kernel has dropped the signal, as for the first process of a container.
