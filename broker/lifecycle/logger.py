"""How a broker logs: one event name with key=value, readable on a terminal, JSON elsewhere. Written to standard error.

Each broker has a logger of its own; nothing global is configured, so several brokers in one process don't mix. Which
lines are written goes by the module that writes one, and by `levels`, which may change at any time. A line is one write
with its end, so lines of several processes that have the same standard error don't mix.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, Final, TextIO

import structlog

from lowtide.broker.config.log_levels import LogLevels


def make_logger(node_id: int, *, stream: TextIO | None = None, level: int = logging.INFO) -> Any:
    """A logger bound to a broker, for `stream` (standard error by default); colours and columns only on a terminal."""
    stream = sys.stderr if stream is None else stream
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if stream.isatty():
        # Where rich is installed, the default shows the values of local variables, such as a password.
        last: list[Any] = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(sort_keys=True)]
    return _logger(structlog.WriteLoggerFactory(stream)(), [*shared, *last], level).bind(node_id=node_id)


def quiet_logger(level: int = logging.ERROR) -> Any:
    """A logger for brokers inside tests: errors only, as text."""
    processors = [structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer(key_order=["event"])]
    return _logger(structlog.WriteLoggerFactory(sys.stderr)(), processors, level)


def _logger(sink: Any, processors: Sequence[Any], level: int) -> Any:
    return structlog.wrap_logger(
        sink, processors=processors, wrapper_class=_bound_logger(LogLevels(level)), context_class=dict
    )


def _bound_logger(levels: LogLevels) -> Any:
    """The class of loggers that go by these levels, which are its attribute."""

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
