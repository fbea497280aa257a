"""Changes of configurations as people write them, the same for topics, brokers and groups: KEY=VALUE, or KEY to have the default again."""

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
        "--unset", "-u", "--delete-config", metavar="KEY", help="have the default hold again; may be repeated"
    ),
]
ValidateOnlyOption = Annotated[
    bool, typer.Option("--validate-only", help="say whether it could be done, and do nothing")
]


def assignments_of(texts: Iterable[str]) -> dict[str, str]:
    """Keys with their values. Errors: CommandError for one without `=`, and for a key that is there twice."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise misused(f"{text!r} has no value: allowed is KEY=VALUE.")
        if key.strip() in found:
            raise misused(f"{key.strip()} is there twice.")
        found[key.strip()] = value.strip()
    return found


def changes_of(settings: Sequence[str], unset: Sequence[str]) -> list[ConfigChange]:
    """The changes. Errors: CommandError for none, and for a key that is set and unset."""
    given = assignments_of(settings)
    both = [key for key in unset if key in given]
    if both:
        raise misused(f"{both[0]} is set and unset.")
    if not given and not unset:
        raise misused("nothing is to be changed: give --set KEY=VALUE or --unset KEY.")
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
    """Change the same of each resource, and say what became of it."""
    changes = changes_of(settings, unset)
    outcomes = await call.client.alter_configs(
        dict.fromkeys(resources, changes), validate_only=validate_only, timeout=call.timeout_ms / 1000
    )
    return report_each(outcomes, call.output, done="could be changed" if validate_only else "changed")
