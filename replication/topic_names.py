"""Legal topic names and collisions.

Sources: Kafka's `Topic` and `ReplicationControlManager.validateNewTopicNames`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide.metadata.image import MetadataImage

MAX_TOPIC_NAME_LENGTH: Final = 249
"""So that `<topic>-<partition>.<uuid>-delete` is a valid file name. Source: Kafka's `Topic`."""

LEDGER_TOPIC: Final = "__lowtide_erasures"
"""The ledger of erasures, Lowtide's own."""

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", LEDGER_TOPIC})
"""Topics that brokers write, and clients can't write or trim (Kafka's `Topic.isInternal`)."""

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
"""Kafka's own metadata log. It can't be created here either, because tools would misinterpret it."""

_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def check_topic_name(name: str) -> str | None:
    """Returns what is wrong with a topic's name, or None."""
    if not name:
        return "Topic name is invalid: it is empty"
    if name in {".", ".."}:
        return f"Topic name is invalid: {name!r} is not allowed"
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        return f"Topic name is invalid: {len(name)} characters are more than {MAX_TOPIC_NAME_LENGTH}"
    if not _LEGAL_NAME.fullmatch(name):
        return f"Topic name is invalid: {name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


def find_collision(image: MetadataImage, name: str) -> str | None:
    """Returns another topic whose name differs from `name` only in `.` versus `_`, which metrics can't distinguish."""
    if "." not in name and "_" not in name:
        return None
    unified = name.replace(".", "_")
    return next((other for other in image.topics if other != name and other.replace(".", "_") == unified), None)


def repeated_names(names: Iterable[str]) -> frozenset[str]:
    """Returns names that a request has more than once. Each gets one row with INVALID_REQUEST and isn't created."""
    return frozenset(name for name, count in Counter(names).items() if count > 1)
