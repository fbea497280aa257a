"""Levels of a broker's loggers, which can change while it runs (KIP-412).

A logger is a package of the code, by its import name; a line belongs to the package of the module that writes it. A
package without a level inherits that of its parent, up to `root`. Levels belong to one broker and are not stored.

Guards: only existing loggers can be set, so the memory is bounded. Audit lines cannot be switched off: the level at
startup is the minimum for their package, so that no client can hide its actions.

Source: Kafka's `RuntimeLoggerManager`, `LogLevelConfig`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from lowtide.protocol.errors import ErrorCode
from lowtide.replication.config_changes import KeyChange, Operation
from lowtide.replication.refusal import Refusal

ROOT: Final = "root"

_AUDIT: Final = "lowtide.broker.audit"

LOG_LEVEL: Final = "lowtide.log.level"

NAME_SHOWN: Final = 255
"""The number of characters of an invalid name or level in messages."""

LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "FATAL": logging.CRITICAL,
        "ERROR": logging.ERROR,
        "WARN": logging.WARNING,
        "INFO": logging.INFO,
        "DEBUG": logging.DEBUG,
        "TRACE": 5,
    }
)
"""Kafka's names. There are no lines below DEBUG, so TRACE equals DEBUG."""

_BROKER_ROOMS: Final = (
    "administration",
    "audit",
    "authorizer",
    "config",
    "coordinator",
    "coordinator.classic",
    "coordinator.modern",
    "coordinator.groups",
    "coordinator.runtime",
    "coordinator.transactions",
    "guards",
    "handlers",
    "http",
    "ledger",
    "lifecycle",
    "metrics",
    "network",
    "observation",
    "partitions",
    "quotas",
    "retention",
    "security",
    "telemetry",
)

LOGGERS: Final = (
    ROOT,
    "lowtide",
    "lowtide.broker",
    *(f"lowtide.broker.{room}" for room in _BROKER_ROOMS),
    "lowtide.metadata",
    "lowtide.replication",
    "lowtide.runtime",
    "lowtide.storage",
)


def level_of_start(values: Mapping[str, object]) -> int:
    """Returns the root level from a broker's configuration."""
    return LEVELS[str(values[LOG_LEVEL])]


class LogLevels:
    """The levels of one broker's loggers."""

    def __init__(self, level: int) -> None:
        """`level` is the root's."""
        self._set = {ROOT: level}
        self._of_start = level
        self._by_module: dict[str, int] = {}

    def is_on(self, module: str, level: int) -> bool:
        least = self._by_module.get(module)
        if least is None:
            least = self._by_module[module] = self.level_of(module)
        return level >= least

    def level_of(self, logger: str) -> int:
        """Returns the effective level of a logger or module."""
        room = logger
        while room and room not in self._set:
            room = room.rpartition(".")[0]
        level = self._set[room or ROOT]
        return min(level, self._of_start) if logger.startswith(_AUDIT) else level

    def shown(self) -> dict[str, str]:
        return {logger: _name(self.level_of(logger)) for logger in LOGGERS}

    def change(self, changes: Sequence[KeyChange]) -> None:
        """Applies changes that passed `check_logger_changes`."""
        for each in changes:
            if each.operation is Operation.DELETE:
                self._set.pop(each.name, None)
            else:
                self._set[each.name] = LEVELS[each.value or ""]
        self._by_module.clear()


def check_logger_changes(changes: Sequence[KeyChange]) -> Refusal | None:
    """Returns why these changes of levels are invalid, or None.

    Refusals: INVALID_REQUEST for list operations and for removing the root's level; INVALID_CONFIG for an unknown
    logger or level.
    """
    for each in changes:
        if each.operation in (Operation.APPEND, Operation.SUBTRACT):
            return Refusal(
                ErrorCode.INVALID_REQUEST,
                f"{each.operation.name} operation is not allowed for the BROKER_LOGGER resource",
            )
        if each.name not in LOGGERS:
            return Refusal(ErrorCode.INVALID_CONFIG, f"Logger {each.name[:NAME_SHOWN]} does not exist!")
        if each.operation is Operation.SET and each.value not in LEVELS:
            message = (
                f"Cannot set the log level of {each.name} to {(each.value or '')[:NAME_SHOWN]} as it is not a "
                "supported log level. "
                f"Valid log levels are {', '.join(sorted(LEVELS))}"
            )
            return Refusal(ErrorCode.INVALID_CONFIG, message)
        if each.operation is Operation.DELETE and each.name == ROOT:
            return Refusal(ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT} logger is not allowed")
    return None


def _name(level: int) -> str:
    """Returns the name of the highest of Kafka's levels that includes a level."""
    return max((least, name) for name, least in LEVELS.items() if least <= level or name == "TRACE")[1]
