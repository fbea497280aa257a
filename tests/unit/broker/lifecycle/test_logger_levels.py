"""Levels of loggers while a broker runs (KIP-412): by the room that writes, inherited, each broker's own."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from lowtide.broker.audit.audit_log import AuditEvent, AuditLog
from lowtide.broker.config.log_levels import LEVELS, LOGGERS, LogLevels, check_logger_changes
from lowtide.broker.lifecycle.logger import make_logger
from lowtide.broker.security.principal import ANONYMOUS
from lowtide.replication.config_changes import KeyChange, Operation

ROOT = Path(__file__).resolve().parents[4]


def change(name: str, value: str | None) -> KeyChange:
    return KeyChange(name, Operation.DELETE if value is None else Operation.SET, value)


def test_a_room_without_a_level_has_that_of_the_room_around_it() -> None:
    levels = LogLevels(logging.INFO)
    assert set(levels.shown().values()) == {"INFO"}
    levels.change([change("lowtide.broker", "ERROR"), change("lowtide.broker.network", "DEBUG")])
    assert levels.shown()["lowtide.broker.network"] == "DEBUG"
    assert levels.shown()["lowtide.broker.partitions"] == "ERROR"
    assert levels.shown()["lowtide.storage"] == "INFO"
    assert levels.is_on("lowtide.broker.network.connection.server", logging.DEBUG)
    assert not levels.is_on("lowtide.broker.partitions.strays", logging.WARNING)
    levels.change([change("lowtide.broker", None), change("root", "FATAL")])
    assert levels.shown()["lowtide.broker.partitions"] == "FATAL"
    assert not levels.is_on("lowtide.broker.partitions.strays", logging.ERROR)


@pytest.mark.parametrize("logger", ["root", "lowtide", "lowtide.broker", "lowtide.broker.audit"])
def test_no_level_hides_lines_of_the_audit_log(logger: str) -> None:
    """With `lowtide.audit.log=log` they are in the broker's log: a client that may set levels could hide them."""
    stream = io.StringIO()
    log = make_logger(1, stream=stream, level=logging.INFO)
    audit = AuditLog(log, frozenset(AuditEvent), lambda: 0)
    log.levels.change([change(logger, "FATAL")])
    audit.done(AuditEvent.DELETES, "records deleted", SimpleNamespace(principal=ANONYMOUS, client_address="127.0.0.1"))
    assert "records deleted" in stream.getvalue()
    assert log.levels.shown()["lowtide.broker.audit"] == "INFO"
    log.levels.change([change(logger, "DEBUG")])
    assert log.levels.shown()["lowtide.broker.audit"] == "DEBUG"


def test_the_level_of_the_start_holds_for_the_audit_log_too() -> None:
    assert not LogLevels(logging.ERROR).is_on("lowtide.broker.audit.audit_log", logging.INFO)


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_shown_as_it_was_set(level: str) -> None:
    levels = LogLevels(logging.INFO)
    levels.change([change("lowtide", level)])
    assert levels.shown()["lowtide.metadata"] == level


def test_lines_go_by_the_module_that_writes_them() -> None:
    stream = io.StringIO()
    log = make_logger(1, stream=stream, level=logging.INFO)
    other = make_logger(2, stream=stream, level=logging.INFO)
    module = {"__name__": "lowtide.broker.network.connection.server"}
    write = "def write(log):\n    log.debug('fine')\n    log.bind(more=1).warning('coarse')"
    exec(write, module)
    log.levels.change([change("lowtide.broker.network", "DEBUG")])
    for each in (log, other):
        module["write"](each)  # type: ignore[operator]
    log.levels.change([change("lowtide.broker.network", "ERROR")])
    module["write"](log)  # type: ignore[operator]
    log.info("of another module")
    lines = [(each["node_id"], each["event"]) for each in map(json.loads, stream.getvalue().splitlines())]
    assert lines == [(1, "fine"), (1, "coarse"), (2, "coarse"), (1, "of another module")]


def test_every_room_that_may_write_is_a_logger() -> None:
    rooms = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".") for path in (ROOT / "broker").rglob("__init__.py")
    }
    assert {f"lowtide.{room}" for room in rooms if room.count(".") <= 1} <= {*LOGGERS}
    modules = {name.removeprefix("lowtide.").replace(".", "/") for name in LOGGERS if name not in ("root", "lowtide")}
    assert all((ROOT / name).is_dir() for name in modules)


def test_changes_are_refused_as_by_kafka() -> None:
    def sentence(name: str, operation: Operation, value: str | None) -> str:
        refusal = check_logger_changes([KeyChange(name, operation, value)])
        return "" if refusal is None else f"{refusal.error_code.name}: {refusal.message}"

    assert sentence("root", Operation.SET, "TRACE") == ""
    assert sentence("no", Operation.SET, "TRACE") == "INVALID_CONFIG: Logger no does not exist!"
    assert (
        sentence("root", Operation.DELETE, None)
        == "INVALID_REQUEST: Removing the log level of the root logger is not allowed"
    )
    assert sentence("root", Operation.APPEND, "INFO").endswith(
        "operation is not allowed for the BROKER_LOGGER resource"
    )
    assert sentence("root", Operation.SET, "info").endswith(
        "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN"
    )
