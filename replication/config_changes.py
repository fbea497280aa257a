"""Plans changes of topic, broker and group configurations.

Guards: a plan compares the configuration that it was decided on, so of two concurrent changes the later one conflicts
and is decided again. A topic's plan compares the topic too, so nothing is set on a deleted topic.

The caller checks keys and values. Source: Kafka's `ConfigurationControlManager`, KIP-339.
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
"""The most groups with a configuration: the groups need not exist, and every broker keeps all of them in memory. Kafka
has no limit."""


SUBSCRIPTIONS_MAX: Final = 100
"""The most client metrics subscriptions: each new client is matched against all of them. Kafka has no limit."""


class Operation(IntEnum):
    """What IncrementalAlterConfigs does with a key, with the numbers of the protocol."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class KeyChange(msgspec.Struct, frozen=True, gc=False):
    """One key and the operation on it.

    `value` is None only for DELETE. For a list it has the members, separated by commas.
    """

    name: str
    operation: Operation
    value: str | None


def change_configs(
    current: Configs, changes: Sequence[KeyChange], list_default: Callable[[str], str | None]
) -> dict[str, str] | Refusal:
    """Applies the changes to `current` and returns the result. Keys keep their order.

    `list_default` returns the default of a key that is a list, and None for others. Appending to or subtracting from an
    unset list starts from its default. A member is added at most once; subtracting removes one occurrence.

    Errors: INVALID_CONFIG for an append or a subtraction on a key that isn't a list.
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
    """Plans the change of a topic's configuration to `wanted`."""
    unchanged = Compare(keys.topic(topic.name), "modify", "==", topic.modify_revision)
    return _plan(keys.topic_config(topic.name), topic.configs, topic.config_revision, wanted, unchanged)


def plan_broker_configs(image: MetadataImage, name: str, wanted: Configs) -> ChangePlan:
    """Plans a broker's configuration, by its id in decimal; an empty name stands for all brokers."""
    current = image.broker_configs.get(name, NOTHING_SET)
    return _plan(keys.broker_config(name), current.configs, current.revision, wanted)


def plan_group_configs(image: MetadataImage, group_id: str, wanted: Configs) -> ChangePlan | Refusal:
    """Plans a group's configuration. Errors: POLICY_VIOLATION if `GROUPS_SET_MAX` other groups have one."""
    current = image.group_configs.get(group_id, NOTHING_SET)
    if wanted and not current.configs and len(image.group_configs) >= GROUPS_SET_MAX:
        return Refusal(ErrorCode.POLICY_VIOLATION, f"{GROUPS_SET_MAX} groups have a configuration, which is the limit.")
    return _plan(keys.group_config(group_id), current.configs, current.revision, wanted)


def plan_client_metrics(image: MetadataImage, name: str, wanted: Configs) -> ChangePlan | Refusal:
    """Plans a client metrics subscription; an empty one is deleted.

    Errors: POLICY_VIOLATION if there are `SUBSCRIPTIONS_MAX` others.
    """
    current = image.client_metrics.get(name, NOTHING_SET)
    if wanted and not current.configs and len(image.client_metrics) >= SUBSCRIPTIONS_MAX:
        return Refusal(ErrorCode.POLICY_VIOLATION, f"There are {SUBSCRIPTIONS_MAX} subscriptions, which is the limit.")
    return _plan(keys.client_metrics(name), current.configs, current.revision, wanted)


def _plan(key: bytes, current: Configs, revision: Revision, wanted: Configs, *compares: Compare) -> ChangePlan:
    """Returns the plan of these steps. Any broker may carry it out, because it compares everything it relies on."""
    if wanted == current:
        return NOTHING_TO_WRITE
    operation = Put(key, encode(dict(wanted))) if wanted else Delete(key)
    return ChangePlan(
        (Step((operation,), (Compare(key, "modify", "==", revision), *compares)),), needs_controller=False
    )


def _members(text: str) -> list[str]:
    """Returns the members of a list; an empty text has none."""
    return [member.strip() for member in text.split(",")] if text else []
