"""`lowtide dev`: runs a cluster of several brokers in this process until it is stopped, for laptops and tests.

Sockets, files and replication are real, and there is one embedded metadata store. The brokers share the process, so the
loss of a single machine can't be tested. A broker that fails is stopped, and the others continue.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lowtide.broker.config.broker_config import ConfigError, Setting, load_config
from lowtide.broker.config.log_levels import level_of_start
from lowtide.cli.options import SOURCES, add_configuration, given_configuration, whole_number
from lowtide.cli.serve import SWITCH_INTERVAL_S, warn_of_unenforced_keys
from lowtide.storage.errors import StorageError

if TYPE_CHECKING:
    from lowtide.broker.lifecycle.local_cluster import LocalCluster
    from lowtide.broker.lifecycle.secure_cluster import SecureCluster

BROKERS_MAX: Final = 20
"""All brokers share one thread."""

_PORT_MAX: Final = 65_535


def dev(arguments: Sequence[str]) -> int:
    """Runs the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    if not __debug__:
        return _refuse("Python must not run with -O: the broker relies on its assertions.")
    last_port = options.port + options.brokers - 1
    if options.port and last_port > _PORT_MAX:
        return _refuse(
            f"--port {options.port} is too high: the last of {options.brokers} brokers would listen on {last_port}."
        )
    try:
        given = given_configuration(options)
    except ConfigError as error:
        return _refuse(str(error))
    with ExitStack() as stack:
        directory = options.data or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="lowtide-dev-", ignore_cleanup_errors=True)
        )
        secured = None
        if options.secure:
            from lowtide.broker.lifecycle.secure_cluster import SecureCluster  # noqa: PLC0415

            try:
                secured = SecureCluster(directory)
            except StorageError as error:
                return _refuse(str(error))
            given = secured.given() | given
        return _run(given, directory, options, secured)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lowtide dev",
        description=f"Run a cluster of several brokers in one process, on 127.0.0.1. {SOURCES} They apply to all "
        "brokers, whose ids are 1, 2, 3 and so on.",
    )
    parser.add_argument(
        "--brokers",
        type=whole_number(1, BROKERS_MAX),
        default=3,
        metavar="COUNT",
        help="the number of brokers; default 3",
    )
    parser.add_argument(
        "--port",
        type=whole_number(0, _PORT_MAX),
        default=9092,
        help="the port of the first broker, default 9092; the others have the following ports. 0: free ports",
    )
    parser.add_argument("--data", metavar="DIR", help="a directory that keeps the data; by default they are temporary")
    parser.add_argument(
        "--secure",
        action="store_true",
        help="use TLS, logins and an authorizer; the folder `secure` of the data has certificates and client settings",
    )
    add_configuration(parser)
    return parser


def _run(
    given: Mapping[str, Setting], directory: str, options: argparse.Namespace, secured: SecureCluster | None
) -> int:
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # as `lowtide serve` does
    from lowtide.broker.lifecycle.broker import START_ERRORS  # noqa: PLC0415
    from lowtide.broker.lifecycle.local_cluster import configurations_of_several  # noqa: PLC0415
    from lowtide.broker.lifecycle.logger import make_logger as make_logger_of_level  # noqa: PLC0415
    from lowtide.runtime.serving_loop import new_serving_loop  # noqa: PLC0415  after the options are known to be good

    try:
        configurations = configurations_of_several(given, directory, options.brokers, first_port=options.port)
        first = load_config(given=configurations[0])
    except ConfigError as error:
        return _refuse(str(error))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    make_logger = partial(make_logger_of_level, level=level_of_start(first.values))
    warn_of_unenforced_keys(first, make_logger(1))
    try:
        with asyncio.Runner(loop_factory=new_serving_loop) as runner:
            return runner.run(_serve(configurations, directory, secured, make_logger))
    except START_ERRORS as error:
        return _refuse(f"{error}")


async def _serve(
    configurations: Sequence[Mapping[str, Setting]],
    directory: str,
    secured: SecureCluster | None,
    make_logger: Callable[[int], Any],
) -> int:
    """Runs until SIGINT or SIGTERM, or until all brokers have failed. Errors: those of `Broker.start`."""
    from lowtide.broker.lifecycle.local_cluster import LocalCluster  # noqa: PLC0415
    from lowtide.runtime.long_lived import LongLived  # noqa: PLC0415

    long_lived = LongLived()
    long_lived.watch()
    ends: asyncio.Queue[int | None] = asyncio.Queue()
    cluster = LocalCluster(configurations, directory, make_logger, on_failed=ends.put_nowait)
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
    if secured is not None:
        await secured.set_passwords(directory)
    await cluster.start()
    long_lived.freeze()
    bootstrap = ",".join(cluster.addresses.values())
    said = [] if secured is None else _login_help(secured, bootstrap)
    print(f"bootstrap.servers={bootstrap}", flush=True)
    print(
        f"{len(configurations)} brokers, data in {directory}; Ctrl-C stops them, a second one at once.",
        *said,
        sep="\n",
        flush=True,
    )
    return await _until_stopped(cluster, ends)


def _login_help(secured: SecureCluster, bootstrap: str) -> list[str]:
    """Writes settings for clients; returns lines about them. Errors: StorageError."""
    from lowtide.broker.lifecycle.client_settings import LIBRDKAFKA_FILE, PROPERTIES_FILE, PYTHON_FILE  # noqa: PLC0415
    from lowtide.broker.lifecycle.secure_material import ADMIN  # noqa: PLC0415

    secured.write_client_files(bootstrap)
    folder = secured.client_folder
    conf, properties = (shlex.quote(f"{folder}/{name}") for name in (LIBRDKAFKA_FILE, PROPERTIES_FILE))
    said = f"User {ADMIN} may do everything. Its client settings are in {folder}:"
    return [
        f"{said} {PROPERTIES_FILE} (Java), {LIBRDKAFKA_FILE} (librdkafka), {PYTHON_FILE} (Python).",
        f"  kcat -F {conf} -L",
        f"  lowtide users add alice --command-config {properties}",
        f"  lowtide acls allow alice read 'topic:*' --command-config {properties}",
    ]


async def _until_stopped(cluster: LocalCluster, ends: asyncio.Queue[int | None]) -> int:
    """Stops each broker that `ends` reports as failed, and all after None. Returns 1 if one has failed, else 0."""
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
