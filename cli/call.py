"""What all commands have in common: their options, how they are run, and how their errors end them.

A command is a function whose first argument is a `Call`. `local` is for those that need no cluster: it adds the options, and turns errors
into one sentence on standard error and an exit code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, Final, get_type_hints

import typer

from lowtide.cli.outcome import CommandError, ExitCode
from lowtide.cli.printing import Output, printable, remark


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """How a command was called."""

    output: Output


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text is for people, json for programs")]
_OWN_OUTPUT: Final = {"output": (OutputOption, Output.TEXT)}


def local(function: Callable[..., ExitCode]) -> Callable[..., int]:
    """A command that needs no cluster."""

    @wraps(function)
    def run(context: typer.Context, **given: Any) -> int:
        call = Call(output=given.pop("output"))
        return _ended(context, lambda: function(call, **given))

    return _with_options(run, function, _OWN_OUTPUT)


def _ended(context: typer.Context, command: Callable[[], ExitCode]) -> int:
    """Runs a command; its exit code."""
    try:
        return int(command())
    except CommandError as error:
        remark(f"{context.command_path}: {printable(str(error))}")
        return int(error.code)


def _with_options(run: Callable[..., int], function: Callable[..., Any], options: Mapping[str, tuple[Any, Any]]) -> Callable[..., int]:
    """`run`, which shows the parameters of `function` without the first, and those of `options` behind them."""
    hints = get_type_hints(function, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = list(inspect.signature(function).parameters.values())[1:]
    parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    parameters += [each.replace(kind=keyword, annotation=hints[each.name]) for each in own]
    parameters += [inspect.Parameter(name, keyword, default=default, annotation=kind) for name, (kind, default) in options.items()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run
