"""What the log says of a changed configuration: each key, what was set before, and what is set now; never a secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lowtide.broker.config.described import shown_value
from lowtide.broker.config.resources import Resource, ResourceType

HIDDEN: Final = "[hidden]"
"""In the place of a password, and of the value of a key that isn't known. Source: Kafka's `Password`."""


def tell_changes(resource: Resource, before: Mapping[str, str], now: Mapping[str, str], log: Any) -> None:
    """One line for each key that is set to something else. None stands for a key that isn't set: the default holds."""
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        if old != new:
            log.info(
                "configuration changed",
                resource=resource.type.name,
                name=resource.name,
                key=key,
                old_value=_shown(resource, key, old),
                new_value=_shown(resource, key, new),
            )


def _shown(resource: Resource, key: str, value: str | None) -> str | None:
    if value is None or resource.type is not ResourceType.BROKER:
        return value
    return HIDDEN if shown_value(key, value) is None else value
