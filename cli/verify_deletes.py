"""`lowtide verify-deletes`: tests whether a cluster keeps deleted records deleted, while its brokers are killed."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from dataclasses import dataclass, replace
from typing import Annotated, Final

import typer

from lowtide.admin.client import AdminClient
from lowtide.admin.errors import AdminError
from lowtide.admin.settings import SettingsError
from lowtide.cli.call import OptionGroup, SettingsCall, network_error, unhurried
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, print_json, printable, remark
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.random import Random, system_random
from lowtide.verification.faults import FaultCommand
from lowtide.verification.report import RunVerdict, report_lines, report_value, verdict_of
from lowtide.verification.run import RunPlan, RunResult, VerificationRun

app = typer.Typer(add_completion=False)

RECONNECT_MS: Final = 200
"""A restarted broker is asked this soon: some serve old records only for a moment."""

_CODES: Final = {
    RunVerdict.KEPT: ExitCode.DONE,
    RunVerdict.BROKEN: ExitCode.FAILED,
    RunVerdict.UNKNOWN: ExitCode.MISUSED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions(OptionGroup):
    """The topics that a run creates."""

    topics: Annotated[int, typer.Option("--topics", min=1, max=50, help="how many topics to create")] = 1
    partitions: Annotated[int, typer.Option("--partitions", min=1, max=50, help="the partitions of each")] = 3
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor", min=1, max=20, help="default: 3, or the number of brokers if it is smaller"
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions(OptionGroup):
    """The command that makes faults, and its times."""

    faults: Annotated[
        str | None,
        typer.Option(
            "--faults",
            metavar="COMMAND",
            help="kills brokers, say, and starts them again; it gets the number of the round as its last argument and "
            "as VERIFY_DELETES_ROUND",
        ),
    ] = None
    fault_interval: Annotated[
        float,
        typer.Option("--fault-interval", metavar="SECONDS", min=1, max=3600, help="the mean time between two rounds"),
    ] = 20.0
    fault_timeout: Annotated[
        float,
        typer.Option("--fault-timeout", metavar="SECONDS", min=1, max=3600, help="the command is killed after this"),
    ] = 120.0
    recovery: Annotated[
        float,
        typer.Option(
            "--recovery", metavar="SECONDS", min=1, max=3600, help="how long replicas may take to be complete again"
        ),
    ] = 60.0


@app.command()
@unhurried
def verify_deletes(
    call: SettingsCall,
    *,
    minutes: Annotated[float, typer.Option("--minutes", min=0.05, max=7 * 24 * 60, help="how long to test")] = 10.0,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="repeats the choices of a run; the cluster's timing differs")
    ] = None,
    topics: TopicOptions,
    faults: FaultOptions,
) -> ExitCode:
    """Test whether a cluster of Lowtide or Apache Kafka keeps deleted records deleted.

    Creates topics of its own, named lowtide-verify-…, and deletes them at the end, also after Ctrl-C. Writes, deletes
    and reads records, lets --faults kill brokers, and reads every replica. The exit code is 0 if no answer contradicts
    a promise, 1 if one does, 2 if nothing can be said, 3 if no broker is reachable.
    """
    used_seed = system_random().getrandbits(32) if seed is None else seed
    plan = RunPlan(
        prefix=f"lowtide-verify-{system_random().getrandbits(32):08x}",
        duration_s=minutes * 60,
        topics=topics.topics,
        partitions=topics.partitions,
        replication_factor=topics.replication_factor or 0,
        round_s=faults.fault_interval,
        recovery_s=faults.recovery,
    )
    try:
        return asyncio.run(_verify(call, plan, _command_of(faults), used_seed))
    except asyncio.CancelledError:
        return ExitCode.INTERRUPTED


def _command_of(options: FaultOptions) -> FaultCommand | None:
    """Returns the command of --faults. Errors: CommandError."""
    if options.faults is None:
        return None
    try:
        words = shlex.split(options.faults)
    except ValueError as error:
        raise misused(f"--faults: {error}.") from None
    if not words:
        raise misused("--faults is empty.")
    return FaultCommand(words, options.fault_timeout)


async def _verify(call: SettingsCall, plan: RunPlan, faults: FaultCommand | None, seed: int) -> ExitCode:
    """Runs and reports. After SIGINT or SIGTERM a run deletes its topics too, and is reported. Errors: CommandError."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    settings = replace(call.settings, reconnect_backoff_max_ms=RECONNECT_MS, retry_backoff_max_ms=RECONNECT_MS)
    result: RunResult | None = None
    try:
        async with AdminClient(settings) as client:
            run = VerificationRun(
                client, plan, SystemClock(), Random(seed), faults.run if faults else None, on_progress=_remark
            )
            try:
                result = await run.prepare()
                await run.run(result)
            finally:
                remaining = await run.clean_up()
                if result is not None:
                    result.remaining_topics = remaining
                    _show(call.output, result, seed)
    except AdminError as error:
        found = network_error(error)
        if result is not None and verdict_of(result) is RunVerdict.BROKEN:
            _remark(f"the run ended early: {found}")
            return ExitCode.FAILED
        raise CommandError(str(found), max(found.code, ExitCode.MISUSED)) from error
    except SettingsError as error:
        raise misused(str(error)) from error
    return _CODES[verdict_of(result)]


def _remark(text: str) -> None:
    remark(printable(text))


def _show(output: Output, result: RunResult, seed: int) -> None:
    if output is Output.JSON:
        print_json(report_value(result, seed))
    else:
        for line in report_lines(result, seed):
            print(printable(line))
    sys.stdout.flush()
