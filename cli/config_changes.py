"""Options that change the configuration of topics, brokers and groups.

KEY=VALUE sets a key, KEY restores its default.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from lowtide.admin.configs import ConfigChange, ConfigOperation, ConfigResource
from lowtide.cli.call import NetworkCall
from lowtide.cli.outcome import ExitCode, misused
from lowtide.cli.results import report_each

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", "--config", "-c", metavar="KEY=VALUE", help="set a key; may be repeated"),
]
UnsetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--unset", "-u", "--delete-config", metavar="KEY", help="restore the default of a key; may be repeated"
    ),
]
ValidateOnlyOption = Annotated[
    bool, typer.Option("--validate-only", help="check whether the change is possible, and change nothing")
]


def assignments_of(texts: Iterable[str]) -> dict[str, str]:
    """Reads KEY=VALUE texts. Errors: CommandError for a text without `=`, and for a repeated key."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise misused(f"{text!r} has no value: write KEY=VALUE.")
        if key.strip() in found:
            raise misused(f"{key.strip()} is given twice.")
        found[key.strip()] = value.strip()
    return found


def changes_of(settings: Sequence[str], unset: Sequence[str]) -> list[ConfigChange]:
    """Returns the changes. Errors: CommandError for none, and for a key that is set and unset."""
    given = assignments_of(settings)
    both = [key for key in unset if key in given]
    if both:
        raise misused(f"{both[0]} is both set and unset.")
    if not given and not unset:
        raise misused("give --set KEY=VALUE or --unset KEY.")
    changes = [ConfigChange(key, value) for key, value in given.items()]
    return changes + [ConfigChange(key, operation=ConfigOperation.DELETE) for key in dict.fromkeys(unset)]


async def alter(
    call: NetworkCall,
    resources: Sequence[ConfigResource],
    settings: Sequence[str],
    unset: Sequence[str],
    *,
    validate_only: bool,
) -> ExitCode:
    """Makes the same changes to each resource, and prints the outcomes."""
    changes = changes_of(settings, unset)
    outcomes = await call.client.alter_configs(dict.fromkeys(resources, changes), validate_only=validate_only)
    return report_each(outcomes, call.output, done="could be changed" if validate_only else "changed")
