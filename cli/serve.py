"""`lowtide serve`: runs a broker until it is stopped, or with `--processes` several, each in its own process.

It imports little, so that the broker starts in a fraction of a second.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lowtide import __version__
from lowtide.broker.config.broker_config import BrokerConfig, ConfigError, Setting, load_config
from lowtide.broker.config.http_listeners import DEFAULT_HTTP_LISTENERS, HTTP_LISTENERS, SERVE_DEFAULT
from lowtide.broker.config.log_levels import level_of_start
from lowtide.broker.config.sources import PROCESSES
from lowtide.broker.lifecycle.supervisor.shares import PROCESSES_MAX, check_others, shares
from lowtide.cli.metadata_options import add_metadata, given_metadata
from lowtide.cli.options import SOURCES, add_configuration, given_configuration, whole_number
from lowtide.metadata.etcd_address import EtcdAddress
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.long_lived import resume_after_imports
from lowtide.runtime.process import environment, host_name, raise_open_file_limit
from lowtide.storage.errors import StorageError

if TYPE_CHECKING:
    from lowtide.broker.lifecycle.broker import Broker
    from lowtide.runtime.http_site import Site

SWITCH_INTERVAL_S = 0.0005
"""Python's switch interval: a busy event loop delays the committer's thread this long. Python's default is ten times
that."""


_PROCESSES: Final = whole_number(1, PROCESSES_MAX)


def serve(arguments: Sequence[str]) -> int:
    """Runs the command; returns the exit code."""
    try:
        return _serve(arguments)
    finally:
        resume_after_imports()


def _serve(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if not __debug__:
        return _refuse("Python must not run with -O: the broker relies on its assertions.")
    try:
        given = {HTTP_LISTENERS: Setting(DEFAULT_HTTP_LISTENERS, SERVE_DEFAULT), **given_configuration(options)}
        config = load_config(given=given, host_name=host_name())
        etcd = given_metadata(options, environment(), OsFileSystem().read_bytes)
        processes = options.processes or _given_processes(environment())
        check_others(OsFileSystem(), config, processes)
        if processes > 1:
            return _supervise(config, processes, etcd)
    except (ConfigError, StorageError) as error:
        return _refuse(str(error))
    return _run(config, etcd)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lowtide serve", description=f"Run a broker. {SOURCES}")
    add_configuration(parser)
    add_metadata(parser)
    parser.add_argument(
        "--processes",
        type=_PROCESSES,
        metavar="COUNT",
        help="run so many brokers on this machine, each in its own process, under a supervisor. Their ids and ports "
        f"are those of the configuration and the following ones; default 1, or {PROCESSES}",
    )
    return parser


def _given_processes(variables: Mapping[str, str]) -> int:
    """Reads the number of processes from the environment. Errors: ConfigError."""
    try:
        return _PROCESSES(variables.get(PROCESSES) or "1")
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{PROCESSES}={error}.") from None


def _supervise(config: BrokerConfig, processes: int, etcd: EtcdAddress | None) -> int:
    """Runs several brokers until they are stopped. Errors: ConfigError, StorageError."""
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # as below
    from lowtide.broker.lifecycle.logger import make_logger  # noqa: PLC0415
    from lowtide.broker.lifecycle.supervisor.supervisor import SupervisorPlan, supervise  # noqa: PLC0415
    from lowtide.metadata.store import MetadataStoreError  # noqa: PLC0415

    plan = SupervisorPlan(
        config=config,
        shares=tuple(shares(config, processes, host_name=host_name(), is_alone=etcd is None)),
        command=(sys.executable, "-P", "-m", "lowtide.cli.child_broker"),
        host_name=host_name(),
        etcd=etcd,
    )
    resume_after_imports()
    logger = (
        make_logger(config.node_id, level=level_of_start(config.values)).unbind("node_id").bind(process="supervisor")
    )
    warn_of_unenforced_keys(config, logger)
    if config.advertises_local_address:
        logger.warning(
            "each broker advertises the address that the client connected to, and this machine's name for the others",
            remedy="set advertised.listeners to an address that clients can reach, with the port of the first broker",
        )
    try:
        with asyncio.Runner() as runner:
            return runner.run(supervise(plan, logger, __version__))
    except (MetadataStoreError, OSError) as error:
        return _refuse(str(error))


def _run(config: BrokerConfig, etcd: EtcdAddress | None) -> int:
    # structlog would import rich, which takes a seventh of the start; a broker logs tracebacks in plain text.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    from lowtide.broker.lifecycle.broker import START_ERRORS  # noqa: PLC0415
    from lowtide.broker.lifecycle.logger import make_logger  # noqa: PLC0415
    from lowtide.broker.lifecycle.running import run_broker  # noqa: PLC0415
    from lowtide.runtime.serving_loop import new_serving_loop  # noqa: PLC0415  after the configuration is known to be good

    resume_after_imports()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    raise_open_file_limit()
    logger = make_logger(config.node_id, level=level_of_start(config.values))
    warn_of_unenforced_keys(config, logger)
    try:
        with asyncio.Runner(loop_factory=new_serving_loop) as runner:
            return runner.run(run_broker(config, logger=logger, version=__version__, etcd=etcd, console=console_of))
    except START_ERRORS as error:
        return _refuse(f"{error}")


def warn_of_unenforced_keys(config: BrokerConfig, logger: Any) -> None:
    """Logs a warning about given keys that have no effect."""
    if config.unenforced_keys_given:
        logger.warning("these keys are known but have no effect yet", keys=list(config.unenforced_keys_given))


def console_of(broker: Broker) -> Site:
    """Creates the console of a broker. A thread calls this at the first visit."""
    from lowtide.cli.broker_console import broker_console  # noqa: PLC0415 - imports aiohttp and the client

    return broker_console(broker)


def _refuse(reason: str) -> int:
    print(f"lowtide serve: {reason}", file=sys.stderr)
    return 2
