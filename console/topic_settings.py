"""The settings of a topic: their values, defaults, sources and meanings; and changes, after a rehearsal.

The brokers check a change (`validate_only`). Lowtide's brokers also forecast what their next retention pass deletes
with the new settings: the plan of the pass itself, asked for with DescribeSegments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowtide.admin.configs import ConfigChange, ConfigEntry, ConfigOperation, ConfigResource
from lowtide.admin.errors import AdminError
from lowtide.admin.retained import known
from lowtide.console import arguments
from lowtide.console.answers import bad, meaning_of
from lowtide.console.arguments import Parameters
from lowtide.console.insight import asked_lowtide
from lowtide.console.topic import topic_of
from lowtide.console.topic_changes import changed, settings_given
from lowtide.protocol.config_values import ConfigResourceType, ConfigSource
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.cluster_view import TopicDescription
    from lowtide.admin.observation import PartitionSegments
    from lowtide.console.sessions import ConsoleSession

FORECASTS_MAX: Final = 1_000
"""How many partitions of a topic are forecast; the page says how many are not."""

OTHER_TOPICS: Final = 5
"""How many other topics are asked for defaults."""

_SOURCES: Final[Mapping[int, str]] = {
    ConfigSource.TOPIC: "this topic",
    ConfigSource.DYNAMIC_BROKER: "a broker's setting",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "a setting of all brokers",
    ConfigSource.STATIC_BROKER: "a broker's file",
    ConfigSource.DEFAULT: "default",
}
_DELETING: Final = ("retention", "cleanup.policy", "lowtide.hold.until", "delete.retention.ms")
"""Parts of the keys that decide what is deleted."""


class SettingValue(NamedTuple):
    """A value of a setting, and whether the topic sets it."""

    value: str | None
    is_set: bool


@dataclass(frozen=True, slots=True)
class RehearsedSettings:
    """Changes of a topic's settings, with the values that they replace."""

    topic: TopicDescription
    changes: Mapping[str, str | None]
    """None restores the default."""
    entries: Mapping[str, ConfigEntry]
    defaults: Mapping[str, str]
    """The known defaults."""
    forecasts: Mapping[TopicPartition, PartitionSegments]
    """By Lowtide's leaders that forecast."""

    def new(self, key: str) -> str | None:
        """Returns the new value of a setting; None for an unknown default."""
        value = self.changes[key]
        return self.defaults.get(key) if value is None else value

    def before(self, key: str) -> SettingValue:
        """Returns a setting as it was in the rehearsal."""
        return value_of(self.entries[key])


# ---------------------------------------------------------------------- the page
async def settings_page(client: AdminClient, name: str) -> dict[str, Any]:
    """Returns all settings of a topic. Errors: AdminError."""
    entries = await _entries(client, name, documentation=True)
    defaults = await _defaults(client, name, entries)
    return {"topic": name, "settings": [setting_row(entries[key], defaults.get(key)) for key in sorted(entries)]}


def setting_row(entry: ConfigEntry, default: str | None) -> dict[str, Any]:
    """Returns a setting for the page; the value of a secret, and an unknown default are null."""
    return {
        "key": entry.key,
        "value": None if entry.is_sensitive else entry.value,
        "set": entry.source == ConfigSource.TOPIC,
        "source": _SOURCES.get(entry.source, "another source"),
        "default": default,
        "about": meaning_of(entry.documentation),
        "type": entry.type,
        "sensitive": entry.is_sensitive,
        "read_only": entry.is_read_only,
    }


async def _defaults(client: AdminClient, name: str, entries: Mapping[str, ConfigEntry]) -> dict[str, str]:
    """Returns the values without the topic's own ones, as far as they are known. Errors: AdminError.

    Brokers don't always say the default of a key that the topic sets. Then a topic that doesn't set it has the default.
    """
    found = {key: entry.value for key, entry in entries.items() if entry.source != ConfigSource.TOPIC}
    found |= {
        key: value
        for key, entry in entries.items()
        for synonym, value, source in entry.synonyms[1:2]
        if key not in found and source != ConfigSource.TOPIC and _same_unit(key, synonym)
    }
    unknown = [key for key, entry in entries.items() if key not in found and not entry.is_sensitive]
    if unknown:
        topics = [each for each in await client.list_topics(include_internal=True) if each != name][:OTHER_TOPICS]
        others = [ConfigResource(ConfigResourceType.TOPIC, each) for each in topics]
        for answer in (await client.describe_configs(others, keys=unknown)).values() if others else ():
            if not isinstance(answer, AdminError):
                found |= {key: each.value for key, each in answer.items() if each.source != ConfigSource.TOPIC}
    return {key: value for key, value in found.items() if value is not None and not entries[key].is_sensitive}


def _same_unit(key: str, synonym: str) -> bool:
    """Returns whether a broker's key has the unit of the topic's: log.retention.hours does not."""
    return not key.endswith(".ms") or synonym.endswith(".ms")


def value_of(entry: ConfigEntry) -> SettingValue:
    """Returns a value to compare with a later one."""
    return SettingValue(entry.value, entry.source == ConfigSource.TOPIC)


# ---------------------------------------------------------------------- changes
async def rehearse_settings(session: ConsoleSession, given: Parameters) -> RehearsedSettings:
    """Has the brokers check a change, and forecast what it deletes. Errors: RefusedError, AdminError."""
    client = session.client
    topic = await topic_of(client, arguments.topic(given))
    changes = settings_given(given)
    if not changes:
        raise bad("Choose a setting to change.")
    entries = await _entries(client, topic.name)
    for key in changes:
        if key not in entries:
            raise bad(f"The topic has no setting {key}.")
        if changes[key] is None and entries[key].source != ConfigSource.TOPIC:
            raise bad(f"{key} has its default already.")
    await _alter(client, topic.name, changes, validate_only=True)
    chosen = {key: entries[key] for key in changes}
    defaults = await _defaults(client, topic.name, chosen)
    return RehearsedSettings(topic, changes, chosen, defaults, await _forecasts(session, topic, changes))


async def _forecasts(
    session: ConsoleSession, topic: TopicDescription, changes: Mapping[str, str | None]
) -> dict[TopicPartition, PartitionSegments]:
    """Returns what Lowtide's leaders forecast; nothing of other brokers."""
    numbers = [number for number, row in topic.partitions.items() if row.leader is not None][:FORECASTS_MAX]
    asked = [TopicPartition(topic.name, number) for number in numbers]
    answers = await asked_lowtide(
        session,
        lambda client: client.describe_segments(asked, segments_max=1, proposed={topic.name: changes}),
    )
    return {
        key: each
        for key, each in sorted(answers.items())
        if not isinstance(each, AdminError) and each.described.forecast
    }


def settings_value(plan: RehearsedSettings) -> dict[str, Any]:
    """Returns a change for the page, with what the next retention pass deletes because of it."""
    rows = [
        {
            "key": key,
            "old": None if entry.is_sensitive else entry.value,
            "new": plan.new(key),
            "restores_default": value is None,
        }
        for key, value in plan.changes.items()
        for entry in [plan.entries[key]]
    ]
    forecasts = [forecast_row(each, plan.topic) for each in plan.forecasts.values()]
    return {
        "topic": plan.topic.name,
        "changes": rows,
        "forecast": forecast_value(forecasts, plan) if forecasts else None,
        "notes": notes_of(plan),
    }


def forecast_value(rows: Sequence[Mapping[str, Any]], plan: RehearsedSettings) -> dict[str, Any]:
    """Returns the forecast of a topic: its sums, and the partitions of which records go."""
    times = [
        each.next_check_at_ms - each.checked_at_ms for each in plan.forecasts.values() if each.next_check_at_ms > 0
    ]
    return {
        "records": sum(row["records"] for row in rows),
        "anyway": sum(row["anyway"] for row in rows),
        "bytes": sum(row["bytes"] for row in rows),
        "on_all_disks": sum(row["bytes"] * row["replicas"] for row in rows),
        "in_ms": max(0, min(times)) if times else None,
        "partitions": [row for row in rows if row["records"] or row["kept"]],
        "unknown": len(plan.topic.partitions) - len(rows),
    }


def forecast_row(found: PartitionSegments, topic: TopicDescription) -> dict[str, Any]:
    """Returns what the next retention pass deletes of a partition with the new settings."""
    row, sums = found.described, found.forecast()
    assert sums is not None, row
    return {
        "partition": row.partition_index,
        "log_start": sums.log_start,
        "delete_to": sums.delete_to,
        "high_watermark": known(row.retained.high_watermark),
        "records": sums.records,
        "anyway": sums.anyway,
        "kept": sums.kept,
        "segments": sums.segments,
        "bytes": sums.size_bytes,
        "reasons": [each.reason for each in row.forecast[0].proposed],
        "replicas": max(1, len(topic.partitions[row.partition_index].isr)),
    }


def notes_of(plan: RehearsedSettings) -> list[str]:
    """Returns what the visitor should know before the change, as sentences."""
    changes, notes = plan.changes, []
    if not plan.forecasts and any(part in key for key in changes for part in _DELETING):
        notes.append("What this deletes is not known: only the leaders of Lowtide forecast it, and they did not.")
    new = {key: plan.new(key) for key in changes}
    if "cleanup.policy" in new:
        was_compacted = "compact" in (plan.entries["cleanup.policy"].value or "")
        if not was_compacted and "compact" in (new["cleanup.policy"] or ""):
            notes.append("Compaction will delete all but the newest record of each key; how many, is not known before.")
            notes.append("The brokers of a compacted topic refuse records without a key.")
    needed = new.get("min.insync.replicas")
    replicas = min((len(row.replicas) for row in plan.topic.partitions.values()), default=0)
    if needed is not None and needed.isdecimal() and int(needed) > replicas:
        notes.append(f"A partition has {replicas} replicas only: writes with acks=all will be refused.")
    return notes


async def carry_out_settings(client: AdminClient, plan: RehearsedSettings) -> dict[str, Any]:
    """Changes the settings, unless one of them has changed since. Errors: RefusedError, AdminError."""
    now = await topic_of(client, plan.topic.name)
    if now.topic_id != plan.topic.topic_id:
        raise changed(f"The topic {now.name} was deleted and created again since the rehearsal: rehearse again.")
    entries = await _entries(client, plan.topic.name)
    for key in plan.changes:
        before, after = plan.before(key), value_of(entries[key]) if key in entries else SettingValue(None, is_set=False)
        if before != after:
            shown = f"{_shown(after)} now, and was {_shown(before)} in the rehearsal"
            raise changed(f"{key} is {shown}: rehearse again.")
    await _alter(client, plan.topic.name, plan.changes, validate_only=False)
    return {"topic": plan.topic.name, "changed": list(plan.changes)}


def _shown(setting: SettingValue) -> str:
    return f"{setting.value or 'empty'}{'' if setting.is_set else ' (default)'}"


async def _entries(client: AdminClient, name: str, *, documentation: bool = False) -> Mapping[str, ConfigEntry]:
    resource = ConfigResource(ConfigResourceType.TOPIC, name)
    found = (await client.describe_configs([resource], synonyms=True, documentation=documentation))[resource]
    if isinstance(found, AdminError):
        raise found
    return found


async def _alter(client: AdminClient, name: str, changes: Mapping[str, str | None], *, validate_only: bool) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, name)
    wanted = [
        ConfigChange(key, operation=ConfigOperation.DELETE) if value is None else ConfigChange(key, value)
        for key, value in changes.items()
    ]
    error = (await client.alter_configs({resource: wanted}, validate_only=validate_only))[resource]
    if error is not None:
        raise error
