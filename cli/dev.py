"""`lowtide dev`: a cluster of several brokers in this one process, until it is stopped. For laptops and tests.

Real sockets, real files, real replication, one embedded metadata store; what it can't show is the death of a machine, for all brokers live
and die together. A broker that can't go on is stopped, and the others go on without it.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from lowtide.broker.config.broker_config import ConfigError, Given, load_config
from lowtide.cli.options import SOURCES, add_configuration, given_configuration
from lowtide.cli.serve import SWITCH_INTERVAL_S

if TYPE_CHECKING:
    from lowtide.broker.lifecycle.local_cluster import LocalCluster

BROKERS_MAX: Final = 20
"""More would only take each other's processor: they share one thread."""

_PORT_MAX: Final = 65_535


def dev(arguments: Sequence[str]) -> int:
    """Run the subcommand; returns the exit code."""
    options = _parser().parse_args(arguments)
    if not __debug__:
        return _refuse("Python must not run with -O: the broker relies on its assertions.")
    last_port = options.port + options.brokers - 1
    if options.port and last_port > _PORT_MAX:
        return _refuse(f"--port {options.port} is not possible: the last of {options.brokers} brokers would listen on {last_port}.")
    try:
        given = given_configuration(options)
    except ConfigError as error:
        return _refuse(str(error))
    with ExitStack() as stack:
        directory = options.data or stack.enter_context(tempfile.TemporaryDirectory(prefix="lowtide-dev-", ignore_cleanup_errors=True))
        return _run(given, directory, options.brokers, options.port)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lowtide dev",
        description=f"Run a cluster of several brokers in one process, on 127.0.0.1. {SOURCES} They hold for all of the brokers, whose ids "
        "are 1, 2, 3 and so on.",
    )
    parser.add_argument("--brokers", type=_broker_count, default=3, metavar="COUNT", help="how many; default 3")
    parser.add_argument(
        "--port",
        type=_port,
        default=9092,
        help="where the first broker listens, default 9092; the others have the next ports. 0: free ones",
    )
    parser.add_argument("--data", metavar="DIR", help="where the data are, and stay; without it they are temporary")
    add_configuration(parser)
    return parser


def _broker_count(text: str) -> int:
    return _number(text, 1, BROKERS_MAX)


def _port(text: str) -> int:
    return _number(text, 0, _PORT_MAX)


def _number(text: str, least: int, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        message = f"{text!r} is not possible: allowed is a number from {least} to {most}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _run(given: Mapping[str, Given], directory: str, count: int, port: int) -> int:
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # as `lowtide serve` does
    import uvloop  # noqa: PLC0415  after the options are known to be good

    from lowtide.broker.lifecycle.broker import START_ERRORS  # noqa: PLC0415
    from lowtide.broker.lifecycle.local_cluster import configurations_of_several  # noqa: PLC0415
    from lowtide.broker.lifecycle.logger import make_logger  # noqa: PLC0415

    try:
        configurations = configurations_of_several(given, directory, count, first_port=port)
        unenforced = load_config(given=configurations[0]).unenforced_keys_given
    except ConfigError as error:
        return _refuse(str(error))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if unenforced:
        make_logger(1).warning("these keys are known, but not acted upon yet", keys=list(unenforced))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(configurations, directory))
    except START_ERRORS as error:
        return _refuse(f"{error}")


async def _serve(configurations: Sequence[Mapping[str, Given]], directory: str) -> int:
    """Run until SIGINT or SIGTERM, or until no broker can go on. Errors: those of `Broker.start`."""
    from lowtide.broker.lifecycle.local_cluster import LocalCluster  # noqa: PLC0415
    from lowtide.broker.lifecycle.logger import make_logger  # noqa: PLC0415
    from lowtide.runtime.long_lived import LongLived  # noqa: PLC0415

    long_lived = LongLived()
    ends: asyncio.Queue[int | None] = asyncio.Queue()
    cluster = LocalCluster(configurations, directory, make_logger, on_failed=ends.put_nowait, on_partition_made=long_lived.note_made)
    loop, signals = asyncio.get_running_loop(), 0

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            ends.put_nowait(None)
        else:
            cluster.hurry()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await cluster.start()
    long_lived.freeze()
    print(f"bootstrap.servers={','.join(cluster.addresses.values())}", flush=True)
    print(f"{len(configurations)} brokers, data in {directory}; Ctrl-C stops them, a second one at once.", flush=True)
    return await _until_stopped(cluster, ends)


async def _until_stopped(cluster: LocalCluster, ends: asyncio.Queue[int | None]) -> int:
    """Stop what fails, and all when None comes. Returns the exit code: 1 if a broker has failed."""
    failed = False
    while cluster.brokers and (broker_id := await ends.get()) is not None:
        failed = True
        if broker_id in cluster.brokers:
            await cluster.stop_broker(broker_id)
    await cluster.stop()
    return 1 if failed else 0


def _refuse(reason: str) -> int:
    print(f"lowtide dev: {reason}", file=sys.stderr)
    return 2
