"""How a broker logs: one event name with key=value, readable on a terminal, JSON elsewhere. Written to standard error.

Each broker has a logger of its own; nothing global is configured, so several brokers in one process don't mix.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import structlog


def make_logger(node_id: int, *, stream: TextIO | None = None, level: int = logging.INFO) -> Any:
    """A logger bound to a broker, for `stream` (standard error by default); colours and columns only on a terminal."""
    stream = sys.stderr if stream is None else stream
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if stream.isatty():
        last: list[Any] = [structlog.dev.ConsoleRenderer()]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(sort_keys=True)]
    return _logger(structlog.PrintLoggerFactory(stream)(), [*shared, *last], level).bind(node_id=node_id)


def quiet_logger(level: int = logging.ERROR) -> Any:
    """A logger for brokers inside tests: errors only, as text."""
    processors = [structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer(key_order=["event"])]
    return _logger(structlog.PrintLoggerFactory(sys.stderr)(), processors, level)


def _logger(sink: Any, processors: Sequence[Any], level: int) -> Any:
    return structlog.wrap_logger(
        sink, processors=processors, wrapper_class=structlog.make_filtering_bound_logger(level), context_class=dict
    )
