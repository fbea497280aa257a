"""The broker's logger: one event name with key=value, readable on a terminal, JSON elsewhere, on standard error.

Each broker has its own logger and nothing global is configured, so brokers in one process stay separate. `levels`
decides which lines a module writes, and can change at any time. A line is one write, so lines of several processes with
the same standard error do not mix.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, Final, TextIO

import structlog

from lowtide.broker.config.log_levels import LogLevels


def make_logger(node_id: int, *, stream: TextIO | None = None, level: int = logging.INFO) -> Any:
    """Returns a logger for a broker and `stream` (standard error by default), with colours only on a terminal."""
    stream = sys.stderr if stream is None else stream
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if stream.isatty():
        # If rich is installed, the default shows the values of local variables, such as passwords.
        last: list[Any] = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(sort_keys=True)]
    return _logger(structlog.WriteLoggerFactory(stream)(), [*shared, *last], level).bind(node_id=node_id)


def quiet_logger(level: int = logging.ERROR) -> Any:
    """Returns a logger for brokers in tests: errors only, as text."""
    processors = [structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer(key_order=["event"])]
    return _logger(structlog.WriteLoggerFactory(sys.stderr)(), processors, level)


def _logger(sink: Any, processors: Sequence[Any], level: int) -> Any:
    return structlog.wrap_logger(
        sink, processors=processors, wrapper_class=_bound_logger(LogLevels(level)), context_class=dict
    )


def _bound_logger(levels: LogLevels) -> Any:
    """Returns a logger class for these levels, which are its attribute."""

    def method(name: str, level: int) -> Any:
        def log(self: Any, event: str, **fields: Any) -> Any:
            if not levels.is_on(sys._getframe(1).f_globals.get("__name__", ""), level):  # noqa: SLF001 - as logging does
                return None
            return self._proxy_to_logger(name, event, **fields)

        return log

    methods = {name: method(name, level) for name, level in _METHODS.items()}
    return type("BoundLogger", (structlog.BoundLoggerBase,), {"levels": levels, **methods})


_METHODS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
