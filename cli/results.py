"""What became of each of several things that were to be changed: printed one by one, with one exit code for all."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from lowtide.admin.errors import AdminError
from lowtide.cli.outcome import ExitCode
from lowtide.cli.printing import Output, print_json, printable


def report_each(
    outcomes: Mapping[Any, AdminError | None],
    output: Output,
    *,
    done: str = "done",
    more: Mapping[Any, Mapping[str, Any]] | None = None,
    quiet: bool = False,
) -> ExitCode:
    """Print what became of each; `done` is the verb, `more` what the document for programs adds.

    `quiet`: people see errors only.
    Returns FAILED if anything has failed.
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
    """The sentence without the name that it begins with, where that is said already."""
    for prefix in (f"{name}: ", f"topic {name}: ", f"group {name}: "):
        sentence = sentence.removeprefix(prefix)
    return sentence


def error_value(error: AdminError) -> dict[str, Any]:
    """An error for programs: Kafka's name of its code, if a broker answered one, and a sentence."""
    return {"code": getattr(error, "name", None), "message": str(error)}
