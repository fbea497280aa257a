"""`python -m lowtide.cli.child_broker ID DESCRIPTORS…`: a broker that `lowtide serve --processes` starts.

The descriptors are sockets to the supervisor. It sends the configuration too, because all users can read a command
line.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from lowtide import __version__
from lowtide.runtime.long_lived import pause_for_imports, resume_after_imports
from lowtide.runtime.process import raise_open_file_limit


def child_broker(arguments: Sequence[str]) -> int:
    """Runs the broker; returns the exit code."""
    from lowtide.broker.lifecycle.broker import START_ERRORS  # noqa: PLC0415 - garbage collection is paused now
    from lowtide.runtime.serving_loop import new_serving_loop  # noqa: PLC0415

    node_id, *descriptors = map(int, arguments)
    raise_open_file_limit()
    try:
        with asyncio.Runner(loop_factory=new_serving_loop) as runner:
            return runner.run(_run(descriptors))
    except START_ERRORS as error:
        print(f"lowtide serve: broker {node_id}: {error}", file=sys.stderr)
        return 2


async def _run(descriptors: list[int]) -> int:
    """Runs it until its supervisor stops it. Errors: those of `Broker.start`."""
    from lowtide.broker.config.broker_config import load_config  # noqa: PLC0415
    from lowtide.broker.config.log_levels import level_of_start  # noqa: PLC0415
    from lowtide.broker.lifecycle.logger import make_logger  # noqa: PLC0415
    from lowtide.broker.lifecycle.running import run_broker  # noqa: PLC0415
    from lowtide.broker.lifecycle.supervisor.child import meet_supervisor  # noqa: PLC0415
    from lowtide.cli.serve import SWITCH_INTERVAL_S, console_of  # noqa: PLC0415

    supervisor = await meet_supervisor(descriptors)
    if supervisor is None:
        return 0
    configuration = supervisor.configuration
    config = load_config(given=configuration.given, host_name=configuration.host_name)
    resume_after_imports()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    logger = make_logger(config.node_id, level=level_of_start(config.values))
    return await run_broker(config, logger=logger, version=__version__, console=console_of, supervisor=supervisor)


if __name__ == "__main__":
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # as `lowtide serve` does
    pause_for_imports()
    sys.exit(child_broker(sys.argv[1:]))
