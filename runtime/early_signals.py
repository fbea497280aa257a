"""SIGINT and SIGTERM that come before a command handles them: they end the process at once and print nothing.

Python raises KeyboardInterrupt for SIGINT. In the middle of imports that ends in a traceback, or is lost where Python
ignores exceptions. For SIGTERM it has no handler, and without one the kernel drops the signal where the process is the
first one of a container.

Imports little: until `end_by_signals` has run, SIGINT prints a traceback.
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
"""What Python sets for a signal, unless the process was started with that signal ignored."""

_STATUS_OF_SIGNALS = 128
"""A shell adds it to the number of the signal that has ended a process."""


def end_by_signals() -> None:
    """Have SIGINT and SIGTERM end the process, until `restore_signals` or a handler of an event loop.

    One that is ignored stays ignored.
    For the main thread only.
    """
    for number, handler in _OF_PYTHON.items():
        if signal.getsignal(number) == handler:
            signal.signal(number, _end)


def restore_signals() -> None:
    """Have SIGINT raise KeyboardInterrupt again, and SIGTERM be without a handler, where `end_by_signals` has changed that."""
    for number, handler in _OF_PYTHON.items():
        if signal.getsignal(number) is _end:
            signal.signal(number, handler)


def _end(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(_STATUS_OF_SIGNALS + number)  # The kernel has dropped it, as it does for the first process of a container.
