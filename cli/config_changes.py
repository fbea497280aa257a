"""Options that change the configuration of topics, brokers and groups.

KEY=VALUE sets a key, KEY restores its default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import typer

from lowtide.admin.configs import ConfigChange, ConfigOperation, ConfigResource
from lowtide.admin.errors import AdminError
from lowtide.admin.retained import size
from lowtide.cli.call import NetworkCall
from lowtide.cli.outcome import ExitCode, misused
from lowtide.cli.printing import Output, plural, printable
from lowtide.cli.results import report_each
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.types import TopicPartition

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
    """Makes the same changes to each resource, and prints the outcomes.

    With `validate_only` also what the next retention pass would delete of topics, as far as their leaders say.
    """
    changes = changes_of(settings, unset)
    outcomes = await call.client.alter_configs(dict.fromkeys(resources, changes), validate_only=validate_only)
    if not validate_only:
        return report_each(outcomes, call.output, done="changed")
    possible = [
        each.name for each, error in outcomes.items() if error is None and each.type is ConfigResourceType.TOPIC
    ]
    forecasts = await _forecasts(call, possible, {each.key: each.text for each in changes})
    more = {each: {"forecast": forecasts.get(each.name)} for each in outcomes if each.name in possible}
    code = report_each(outcomes, call.output, done="could be changed", more=more)
    if call.output is Output.TEXT:
        for name, forecast in forecasts.items():
            print(f"{printable(name)}: {_forecast_line(forecast)}")
    return code


async def _forecasts(
    call: NetworkCall, names: Sequence[str], changes: Mapping[str, str | None]
) -> dict[str, dict[str, int]]:
    """Returns by topic what the next retention pass would delete; nothing of topics whose leaders do not say."""
    found: dict[str, dict[str, int]] = {}
    if not names:  # A request without names is for all topics.
        return found
    for name, topic in (await call.client.describe_topics(names)).items():
        if isinstance(topic, AdminError):
            continue
        asked = [TopicPartition(name, number) for number in sorted(topic.partitions)]
        rows = (await call.client.describe_segments(asked, segments_max=1, proposed={name: changes})).values()
        sums = [each for row in rows if not isinstance(row, AdminError) and (each := row.forecast()) is not None]
        if sums:
            found[name] = {
                "records": sum(each.records for each in sums),
                "bytes": sum(each.size_bytes for each in sums),
                "anyway": sum(each.anyway for each in sums),
                "kept": sum(each.kept for each in sums),
                "unknown_partitions": len(asked) - len(sums),
            }
    return found


def _forecast_line(forecast: Mapping[str, int]) -> str:
    """Returns a forecast as one line."""
    line = f"the next retention pass would delete {plural(forecast['records'], 'record')}"
    if forecast["records"]:
        line += f", {size(forecast['bytes'])} of each replica"
    if forecast["anyway"]:
        line += f"; with the present settings it deletes {forecast['anyway']:,} of them too"
    if forecast["kept"]:
        line += f"; {plural(forecast['kept'], 'record')} would be kept that the present settings delete"
    if forecast["unknown_partitions"]:
        line += f"; {plural(forecast['unknown_partitions'], 'partition')} did not answer"
    return line
