"""`lowtide serve`: run one broker until it is told to stop.

Imports little: from the command to the first answer it should be a fraction of a second.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import PurePath

from lowtide.broker.config import BROKER_KEYS, BrokerConfig, ConfigError, Given, load_config
from lowtide.broker.config_apis import MAX_VERSION_PREFIX
from lowtide.broker.config_sources import from_environment, from_properties, from_settings, merge
from lowtide.metadata.etcd_address import parse_endpoints
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.process import environment, host_name, raise_open_file_limit

_SWITCH_INTERVAL_S = 0.0005
"""How long a busy event loop may keep the committer's thread from answering that a sync is done; Python's default is ten times that."""


def serve(arguments: Sequence[str]) -> int:
    """Run the subcommand; returns the exit code."""
    options = _parser().parse_args(arguments)
    if not __debug__:
        return _refuse("Python must not run with -O: the broker relies on its assertions.")
    try:
        config = _configuration(options)
    except ConfigError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"--config {options.config} cannot be read: {error.strerror}.")
    return _run(config, options.metadata)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lowtide serve",
        description="Run a broker. Configuration keys are those of Kafka; from weak to strong they come from --config, from the "
        "environment (LOWTIDE_LOG_RETENTION_MS is log.retention.ms) and from --set.",
    )
    parser.add_argument("--config", metavar="FILE", help="a file in the syntax of server.properties")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="set one key; may be repeated")
    parser.add_argument(
        "--metadata",
        type=_endpoints,
        default=(),
        metavar="etcd://HOST:PORT,HOST:PORT",
        help="keep the metadata in an etcd; without it they are in the first log directory. One broker only, until there is replication",
    )
    parser.add_argument(
        "--max-version",
        action="append",
        default=[],
        metavar="API=VERSION",
        dest="max_versions",
        help="offer an API up to this version only",
    )
    return parser


def _endpoints(address: str) -> tuple[str, ...]:
    try:
        return parse_endpoints(address)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _configuration(options: argparse.Namespace) -> BrokerConfig:
    """All sources, checked. Errors: ConfigError, OSError."""
    file: dict[str, Given] = {}
    if options.config is not None:
        name = PurePath(options.config).name
        try:
            file = from_properties(OsFileSystem().read_bytes(options.config).decode("utf-8"), name)
        except UnicodeDecodeError as error:
            message = f"{name} is not a text in UTF-8: byte {error.start} is {error.object[error.start]:#x}."
            raise ConfigError(message) from None
    caps = from_settings(options.max_versions, "--max-version", MAX_VERSION_PREFIX)
    given = merge(file, from_environment(environment(), BROKER_KEYS), from_settings(options.settings), caps)
    return load_config(given=given, host_name=host_name())


def _run(config: BrokerConfig, etcd: tuple[str, ...]) -> int:
    # structlog imports rich where that is installed, to print tracebacks that a broker's log has in plain text: a seventh of the start.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    import uvloop  # noqa: PLC0415  after the configuration is known to be good

    from lowtide.broker.lifecycle import START_ERRORS, run_broker  # noqa: PLC0415
    from lowtide.broker.logs import make_logger  # noqa: PLC0415

    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    limit = raise_open_file_limit()
    logger = make_logger(config.node_id)
    unenforced = config.unenforced_keys_given
    if unenforced:
        logger.warning("these keys are known, but not acted upon yet", keys=list(unenforced))
    logger.debug("limits", open_files=limit)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run_broker(config, logger=logger, etcd=etcd))
    except START_ERRORS as error:
        return _refuse(f"{error}")


def _refuse(reason: str) -> int:
    print(f"lowtide serve: {reason}", file=sys.stderr)
    return 2
