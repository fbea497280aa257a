"""What an image shows of configurations that were set while brokers run: on one broker or on all, and on groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.metadata.records import decode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.metadata.store import Event, KeyValue, Revision


class ConfigImage(msgspec.Struct, frozen=True):
    """What was set on one broker, on all of them, or on a group.

    `revision` is what a change of it must compare with; 0: nothing is set.
    """

    configs: Mapping[str, str] = {}
    revision: Revision = 0


NOTHING_SET = ConfigImage()


def changed_configs(old: Mapping[str, ConfigImage], new: Mapping[str, ConfigImage]) -> tuple[str, ...]:
    """The names under which something else is set now."""
    if old is new:
        return ()
    return tuple(name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name))


def take_over(configs: dict[str, ConfigImage], name: str, key: bytes, change: KeyValue | Event) -> None:
    """Change what is set under a name. Errors: MetadataCorruptError."""
    if change.value is None:
        configs.pop(name, None)
    else:
        configs[name] = ConfigImage(decode(key, change.value, dict[str, str]), change.modify_revision)
