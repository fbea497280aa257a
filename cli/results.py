"""Prints the outcomes of changes of several things, with one exit code for all."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from lowtide.admin.errors import AdminError
from lowtide.cli.outcome import ExitCode
from lowtide.cli.printing import Output, print_json, printable

K = TypeVar("K")


def errors_of(outcomes: Mapping[K, object]) -> dict[K, AdminError]:
    """Returns the outcomes that are errors."""
    return {key: each for key, each in outcomes.items() if isinstance(each, AdminError)}


def error_values(errors: Mapping[Any, AdminError]) -> dict[str, dict[str, Any]]:
    """Returns errors by name for JSON."""
    return {str(name): error_value(error) for name, error in errors.items()}


def report_each(
    outcomes: Mapping[Any, AdminError | None],
    output: Output,
    *,
    done: str = "done",
    more: Mapping[Any, Mapping[str, Any]] | None = None,
    quiet: bool = False,
) -> ExitCode:
    """Prints the outcome of each thing: `done`, or its error. Returns FAILED if any has failed.

    `more` adds fields to the JSON document. `quiet` prints errors for people only.
    """
    failed = any(error is not None for error in outcomes.values())
    if not quiet and output is Output.JSON:
        rows = [
            {"name": str(name), "error": None if error is None else error_value(error), **(more or {}).get(name, {})}
            for name, error in outcomes.items()
        ]
        print_json({"results": rows})
    elif output is Output.TEXT:
        for name, error in outcomes.items():
            if error is not None:
                print(f"{printable(str(name))}: {printable(_without_name(str(error), str(name)))}", file=sys.stderr)
            elif not quiet:
                print(f"{printable(str(name))}: {done}")
    return ExitCode.FAILED if failed else ExitCode.DONE


def _without_name(sentence: str, name: str) -> str:
    """Removes the name at the beginning of an error, which the line has already."""
    for prefix in (f"{name}: ", f"topic {name}: ", f"group {name}: "):
        sentence = sentence.removeprefix(prefix)
    return sentence


def error_value(error: AdminError) -> dict[str, Any]:
    """Returns an error for JSON: Kafka's name of its code, if a broker returned one, and a sentence."""
    return {"code": getattr(error, "name", None), "message": str(error)}
