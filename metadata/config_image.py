"""What an image shows of dynamic configurations: of brokers and of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.metadata.records import decode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.metadata.store import KeyEvent, KeyValue, Revision


class ConfigImage(msgspec.Struct, frozen=True):
    """The configuration set for one broker, for all brokers, or for a group.

    A change compares `revision`, which is 0 if nothing is set.
    """

    configs: Mapping[str, str] = {}
    revision: Revision = 0


NOTHING_SET = ConfigImage()


def changed_configs(old: Mapping[str, ConfigImage], new: Mapping[str, ConfigImage]) -> tuple[str, ...]:
    """Returns the names whose configuration changed."""
    if old is new:
        return ()
    return tuple(name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name))


def apply_config(configs: dict[str, ConfigImage], name: str, key: bytes, change: KeyValue | KeyEvent) -> None:
    """Sets or removes the configuration under a name. Errors: MetadataCorruptError."""
    if change.value is None:
        configs.pop(name, None)
    else:
        configs[name] = ConfigImage(decode(key, change.value, dict[str, str]), change.modify_revision)
