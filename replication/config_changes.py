"""Changes of what is set on topics, brokers and groups: what follows from the operations of a request, and the plan that writes it.

Guards: a plan compares the very configuration it was decided on, so that of two changes at once none undoes the other: the later one
conflicts and is decided again. A topic's plan compares the topic too, so that nothing is set on one that was deleted meanwhile.

Does not do: checking keys and values (the caller's). Source: Kafka's `ConfigurationControlManager`, KIP-339.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.changes import NOTHING_TO_WRITE, ChangePlan, Step
from lowtide.metadata.config_image import NOTHING_SET
from lowtide.metadata.records import encode
from lowtide.metadata.store import Compare, Delete, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lowtide.metadata.image import MetadataImage, TopicImage
    from lowtide.metadata.store import Revision

Configs: TypeAlias = "Mapping[str, str]"

GROUPS_SET_MAX: Final = 10_000
"""On how many groups something may be set: there need be no such groups, and every broker remembers all of them. Kafka has no limit."""


SUBSCRIPTIONS_MAX: Final = 100
"""To clients' metrics: each new client is compared with all of them. Kafka has no limit."""


class Operation(IntEnum):
    """What IncrementalAlterConfigs does with a key; the wire's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class KeyChange(msgspec.Struct, frozen=True, gc=False):
    """One key and what to do with it.

    `value` is None for DELETE only; of a list it has the members, separated by commas.
    """

    name: str
    operation: Operation
    value: str | None


def change_configs(
    current: Configs, changes: Sequence[KeyChange], list_default: Callable[[str], str | None]
) -> dict[str, str] | Refusal:
    """What `current` becomes. The order of keys that stay is kept.

    `list_default` gives the default of a key that is a list, None of any other: a list that isn't set is appended to, and subtracted
    from, as it is by default. A member is added once; of one that is there several times, one is taken away.

    Refusals: INVALID_CONFIG for an append to, or a subtraction from, what isn't a list.
    """
    wanted = dict(current)
    for change in changes:
        if change.value is None or change.operation is Operation.DELETE:
            wanted.pop(change.name, None)
            continue
        if change.operation is Operation.SET:
            wanted[change.name] = change.value
            continue
        default = list_default(change.name)
        if default is None:
            return Refusal(
                ErrorCode.INVALID_CONFIG,
                f"Can't {change.operation.name} to key {change.name} because its type is not LIST.",
            )
        members = _members(wanted.get(change.name, default))
        for member in _members(change.value):
            if change.operation is Operation.SUBTRACT and member in members:
                members.remove(member)
            elif change.operation is Operation.APPEND and member not in members:
                members.append(member)
        wanted[change.name] = ",".join(members)
    return wanted


def plan_topic_configs(topic: TopicImage, wanted: Configs) -> ChangePlan:
    """How a topic's own configuration becomes `wanted`."""
    unchanged = Compare(keys.topic(topic.name), "modify", "==", topic.modify_revision)
    return _plan(keys.topic_config(topic.name), topic.configs, topic.config_revision, wanted, unchanged)


def plan_broker_configs(image: MetadataImage, name: str, wanted: Configs) -> ChangePlan:
    """How what is set on a broker, by its id in decimal, becomes `wanted`; an empty name stands for all brokers."""
    current = image.broker_configs.get(name, NOTHING_SET)
    return _plan(keys.broker_config(name), current.configs, current.revision, wanted)


def plan_group_configs(image: MetadataImage, group_id: str, wanted: Configs) -> ChangePlan | Refusal:
    """How what is set on a group becomes `wanted`.

    Refusals: POLICY_VIOLATION where as many other groups have something set as may have.
    """
    current = image.group_configs.get(group_id, NOTHING_SET)
    if wanted and not current.configs and len(image.group_configs) >= GROUPS_SET_MAX:
        return Refusal(
            ErrorCode.POLICY_VIOLATION, f"Something is set on {GROUPS_SET_MAX} groups, as many as there may be."
        )
    return _plan(keys.group_config(group_id), current.configs, current.revision, wanted)


def plan_client_metrics(image: MetadataImage, name: str, wanted: Configs) -> ChangePlan | Refusal:
    """How a subscription to clients' metrics becomes `wanted`; nothing ends it.

    Refusals: POLICY_VIOLATION where there are as many others as there may be.
    """
    current = image.client_metrics.get(name, NOTHING_SET)
    if wanted and not current.configs and len(image.client_metrics) >= SUBSCRIPTIONS_MAX:
        return Refusal(
            ErrorCode.POLICY_VIOLATION, f"There are {SUBSCRIPTIONS_MAX} subscriptions, as many as there may be."
        )
    return _plan(keys.client_metrics(name), current.configs, current.revision, wanted)


def _plan(key: bytes, current: Configs, revision: Revision, wanted: Configs, *compares: Compare) -> ChangePlan:
    """Any broker may make it, controller or not: it compares all that it relies on."""
    if wanted == current:
        return NOTHING_TO_WRITE
    operation = Put(key, encode(dict(wanted))) if wanted else Delete(key)
    return ChangePlan(
        (Step((operation,), (Compare(key, "modify", "==", revision), *compares)),), needs_controller=False
    )


def _members(text: str) -> list[str]:
    """The members of a list; an empty text has none."""
    return [member.strip() for member in text.split(",")] if text else []
