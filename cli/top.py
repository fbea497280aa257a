"""`lowtide top`: shows brokers, disks, topics by rate, pending deletes and groups by lag, live on a terminal.

It asks all brokers concurrently in each interval, and draws when the answers have arrived. A broker that is away delays
a round by the time of one request at most. Data that only Lowtide's brokers return are left out for other clusters.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated, Final

import typer

from lowtide.cli.call import NetworkCall, network
from lowtide.cli.outcome import ExitCode, misused
from lowtide.cli.printing import Output, plural, print_json
from lowtide.cli.top_sample import Sample, Sampler
from lowtide.cli.top_view import TopicOrder, View, as_value, screen, tables, view_of
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.process import read_some

app = typer.Typer(add_completion=False)

ROUND_S: Final = 5.0
"""The longest time for a request of a round."""

_ORDERS: Final = tuple(TopicOrder)


class KeyState:
    """The keys that the user has pressed, and their effects."""

    def __init__(self) -> None:
        self.order = TopicOrder.RATE
        self.is_paused = False
        self.pressed = asyncio.Event()
        self.quit = False

    def on_key(self, key: str) -> None:
        """Handles a key; unknown keys do nothing."""
        if key in "qQ\x1b":
            self.quit = True
        elif key in "sS":
            self.order = _ORDERS[(_ORDERS.index(self.order) + 1) % len(_ORDERS)]
        elif key in "pP ":
            self.is_paused = not self.is_paused
        else:
            return
        self.pressed.set()


@app.command()
@network
async def top(
    call: NetworkCall,
    *,
    interval: Annotated[
        float,
        typer.Option("--interval", "-n", metavar="SECONDS", min=0.2, max=3600, help="the time between two samples"),
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="print one view, with rates over one interval")] = False,
) -> ExitCode:
    """Show brokers, disks, topics by rate, pending deletes and groups by lag, live.

    Keys: s sorts, p pauses, q quits.
    """
    patience_s = call.client.settings.default_api_timeout_ms / 1000
    if once or call.output is Output.JSON:
        return await _once(call, Sampler(call.client, SystemClock(), patience_s), interval)
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise misused("standard input and output are not a terminal: --once prints one view.")
    return await _live(Sampler(call.client, SystemClock(), min(max(interval, 1.0), ROUND_S, patience_s)), interval)


async def _once(call: NetworkCall, sampler: Sampler, interval_s: float) -> ExitCode:
    before = await sampler.take()
    await asyncio.sleep(interval_s)
    sample = await sampler.take()
    view = view_of(sample, before, TopicOrder.RATE)
    if call.output is Output.JSON:
        print_json(as_value(sample, view))
    else:
        from rich.console import Console  # noqa: PLC0415 - slow

        width = None if sys.stdout.isatty() else 200
        found = tables(sample, view, TopicOrder.RATE)
        Console(width=width, highlight=False).print(screen(found, _headline(sample, view), sample.silent, None))
    return ExitCode.DONE if sample.cluster is not None and not sample.silent else ExitCode.FAILED


async def _live(sampler: Sampler, interval_s: float) -> ExitCode:
    from rich.console import Console  # noqa: PLC0415 - slow
    from rich.live import Live  # noqa: PLC0415

    console, keys = Console(highlight=False), KeyState()
    before: Sample | None = None
    with _single_keys(keys), Live(console=console, screen=True, auto_refresh=False) as live:
        sample = await sampler.take()
        while not keys.quit:
            view = view_of(sample, before, keys.order)
            headline = f"s sort  p {'resume' if keys.is_paused else 'pause'}  q quit   {_headline(sample, view)}"
            live.update(
                screen(tables(sample, view, keys.order), headline, sample.silent, console.size.height), refresh=True
            )
            keys.pressed.clear()
            is_pressed = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    is_pressed = await keys.pressed.wait()
            if not is_pressed and not keys.is_paused:
                before, sample = sample, await sampler.take()
    return ExitCode.DONE


def _headline(sample: Sample, view: View) -> str:
    if sample.cluster is None:
        return "lowtide top: no broker answers"
    waiting = f", {plural(len(view.deletes), 'delete')} waiting" if sample.has_lowtide else ""
    counts = f"{plural(len(view.brokers), 'broker')}, {plural(len(view.topics), 'topic')}{waiting}"
    return f"lowtide top: cluster {sample.cluster.cluster_id}, {counts}"


@contextlib.contextmanager
def _single_keys(keys: KeyState) -> Iterator[None]:
    """Passes keys to `keys` as they are pressed, without an echo."""
    import termios  # noqa: PLC0415 - not on every system
    import tty  # noqa: PLC0415

    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def on_readable() -> None:
        # Unbuffered: the next key makes the descriptor readable again.
        for key in (read_some(descriptor) or b"q").decode("ascii", "replace"):
            keys.on_key(key)

    loop.add_reader(descriptor, on_readable)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
