"""Creates topics and adds partitions, after a rehearsal in which the brokers check the change (`validate_only`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.errors import AdminError
from lowtide.admin.topics import BROKERS_DEFAULT, CreatedTopic, NewTopic
from lowtide.console import arguments
from lowtide.console.answers import RefusedError, bad
from lowtide.console.arguments import Parameters
from lowtide.console.topic import topic_of

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.cluster_view import TopicDescription

REPLICAS_MAX: Final = 32_767
SETTINGS_MAX: Final = 100
"""Settings in one request."""

SETTING_CHARACTERS_MAX: Final = 16_384


@dataclass(frozen=True, slots=True)
class RehearsedCreation:
    """A topic to create, with the numbers that the brokers chose."""

    topic: NewTopic


@dataclass(frozen=True, slots=True)
class RehearsedGrowth:
    """A topic, as it was, and its new number of partitions."""

    topic: TopicDescription
    partitions: int


def settings_given(given: Parameters, name: str = "settings") -> dict[str, str | None]:
    """Reads an object of settings; null stands for the default. Errors: RefusedError."""
    values = given.get(name, {})
    if not isinstance(values, dict) or len(values) > SETTINGS_MAX:
        raise bad(f"{name} must be an object with at most {SETTINGS_MAX} settings.")
    for key, value in values.items():
        if not key or (value is not None and not isinstance(value, str)):
            raise bad(f"The setting {key} must have a string, or null for its default.")
        if len(key) > SETTING_CHARACTERS_MAX or len(value or "") > SETTING_CHARACTERS_MAX:
            raise bad(f"A setting has at most {SETTING_CHARACTERS_MAX} characters.")
    return values


# ---------------------------------------------------------------------- create
async def rehearse_creation(client: AdminClient, given: Parameters) -> RehearsedCreation:
    """Has the brokers check a new topic. Errors: RefusedError, AdminError."""
    name = arguments.topic(given)
    configs = {key: value for key, value in settings_given(given).items() if value is not None}
    wanted = NewTopic(
        name=name,
        partitions=_or_default(given, "partitions", arguments.PARTITIONS_MAX),
        replication_factor=_or_default(given, "replication_factor", REPLICAS_MAX),
        configs=configs,
    )
    found = await _create(client, wanted, validate_only=True)
    return RehearsedCreation(
        replace(
            wanted,
            partitions=_chosen(found.partitions, wanted.partitions),
            replication_factor=_chosen(found.replication_factor, wanted.replication_factor),
        )
    )


def creation_value(plan: RehearsedCreation) -> dict[str, Any]:
    """Returns a creation for the page; numbers that the brokers don't say are null."""
    topic = plan.topic
    partitions, replicas = _known(topic.partitions), _known(topic.replication_factor)
    return {
        "topic": topic.name,
        "partitions": partitions,
        "replication_factor": replicas,
        "replicas": None if partitions is None or replicas is None else partitions * replicas,
        "settings": [{"key": key, "value": str(value)} for key, value in topic.configs.items()],
        "notes": creation_notes(topic),
    }


def creation_notes(topic: NewTopic) -> list[str]:
    """Returns what the visitor should know before the topic is created, as sentences."""
    notes = []
    if topic.replication_factor == 1:
        notes.append("Each partition has one replica: its records are lost with that broker's disk.")
    needed = topic.configs.get("min.insync.replicas")
    if needed is not None and str(needed).isdecimal() and 0 < topic.replication_factor < int(str(needed)):
        notes.append("There are fewer replicas than min.insync.replicas: writes with acks=all would be refused.")
    return notes


async def carry_out_creation(client: AdminClient, plan: RehearsedCreation) -> dict[str, Any]:
    """Creates the topic. Errors: AdminError."""
    await _create(client, plan.topic, validate_only=False)
    return {"topic": plan.topic.name}


async def _create(client: AdminClient, topic: NewTopic, *, validate_only: bool) -> CreatedTopic:
    found = (await client.create_topics([topic], validate_only=validate_only))[topic.name]
    if isinstance(found, AdminError):
        raise found
    return found


def _or_default(given: Parameters, name: str, most: int) -> int:
    return BROKERS_DEFAULT if given.get(name) in (None, "") else arguments.number(given, name, 1, most)


def _chosen(number: int, wanted: int) -> int:
    return number if number > 0 else wanted


def _known(number: int) -> int | None:
    return number if number > 0 else None


# ---------------------------------------------------------------------- add partitions
async def rehearse_growth(client: AdminClient, given: Parameters) -> RehearsedGrowth:
    """Has the brokers check more partitions. Errors: RefusedError, AdminError."""
    topic = await topic_of(client, arguments.topic(given))
    wanted = arguments.number(given, "partitions", 1, arguments.PARTITIONS_MAX)
    if wanted <= len(topic.partitions):
        raise bad(f"The topic has {len(topic.partitions)} partitions: give a larger number, none can be removed.")
    _raise_first(await client.create_partitions({topic.name: wanted}, validate_only=True))
    return RehearsedGrowth(topic, wanted)


def growth_value(plan: RehearsedGrowth) -> dict[str, Any]:
    """Returns new partitions for the page."""
    return {
        "topic": plan.topic.name,
        "old": len(plan.topic.partitions),
        "new": plan.partitions,
        "notes": [
            "Partitions can't be removed later.",
            "New records of most keys go to other partitions than the present ones, so their order is not kept.",
        ],
    }


async def carry_out_growth(client: AdminClient, plan: RehearsedGrowth) -> dict[str, Any]:
    """Adds the partitions, unless the topic has changed since. Errors: RefusedError, AdminError."""
    await check_same(client, plan.topic)
    _raise_first(await client.create_partitions({plan.topic.name: plan.partitions}))
    return {"topic": plan.topic.name, "partitions": plan.partitions}


async def check_same(client: AdminClient, before: TopicDescription) -> None:
    """Refuses a change if the topic is another one now, or has other partitions. Errors: RefusedError, AdminError."""
    now = await topic_of(client, before.name)
    if now.topic_id != before.topic_id:
        raise changed(f"The topic {before.name} was deleted and created again since the rehearsal: rehearse again.")
    if len(now.partitions) != len(before.partitions):
        counts = f"{len(now.partitions)} partitions now, and had {len(before.partitions)} in the rehearsal"
        raise changed(f"The topic {before.name} has {counts}: rehearse again.")


def changed(sentence: str) -> RefusedError:
    """Returns the error for a plan that no longer fits."""
    return RefusedError(HTTPStatus.CONFLICT, sentence)


def _raise_first(outcomes: Mapping[str, AdminError | None]) -> None:
    for error in outcomes.values():
        if error is not None:
            raise error
