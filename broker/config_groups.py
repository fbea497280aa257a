"""What the keys about groups whose partitions the broker assigns say of each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lowtide.broker.config_key import ImpossibleTogetherError, Value

_BOUNDED: Final = ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")


def check_consumer_groups(values: Mapping[str, Value]) -> None:
    """Each time lies within its bounds, and a member shows itself before it is given up; there is an assignor.

    Errors: ImpossibleTogetherError. Source: Kafka's `GroupCoordinatorConfig`.
    """
    for name in _BOUNDED:
        key, low, high = f"group.consumer.{name}", f"group.consumer.min.{name}", f"group.consumer.max.{name}"
        value, least, most = _number(values, key), _number(values, low), _number(values, high)
        if not least <= value <= most:
            message = f"{key}={value} is not possible: allowed is from {low}={least} to {high}={most}"
            raise ImpossibleTogetherError(message, key, low, high)
    heartbeat, session = "group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms"
    if _number(values, heartbeat) >= _number(values, session):
        message = f"{heartbeat}={values[heartbeat]} is not possible: allowed is less than {session}={values[session]}"
        raise ImpossibleTogetherError(message, heartbeat, session)
    assignors = "group.consumer.assignors"
    if not values[assignors]:
        message = f"{assignors} is empty: allowed is at least one of range, uniform"
        raise ImpossibleTogetherError(message, assignors)


def _number(values: Mapping[str, Value], name: str) -> int:
    value = values[name]
    assert isinstance(value, int), f"{name} is {value!r}"
    return value
