"""The configuration of one group's share partitions: what is set on the group, or else on the broker.

Guards: a group's number outside the broker's bounds is replaced by the bound. A value that is invalid here, which
another version may have let through, is ignored. Pure.

Source: KIP-932, KIP-1191, KIP-1240; Kafka's `GroupConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from lowtide.broker.config.key import Value, number
from lowtide.broker.config.keys_of_groups import (
    DEAD_LETTER_COPIES,
    DEAD_LETTER_TOPIC,
    DELIVERY_LIMIT,
    ISOLATION_LEVEL,
    LOCK_DURATION,
    OFFSET_RESET,
    READ_COMMITTED,
    RECORD_LOCKS,
    RENEW,
)
from lowtide.broker.config.offset_reset import LATEST, OffsetReset, offset_reset_of
from lowtide.broker.partitions.share.share_values import ShareLimits

_BOUNDED: Final = (LOCK_DURATION, DELIVERY_LIMIT, RECORD_LOCKS)


class ShareRules(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a group."""

    limits: ShareLimits = ShareLimits()
    reset: OffsetReset = LATEST
    reads_committed: bool = False
    """Whether only committed records are delivered: `share.isolation.level`."""
    renews: bool = True
    """Whether members may renew their locks (KIP-1222)."""
    dead_letter_topic: str = ""
    """The topic of dead letters (KIP-1191); empty without one."""
    copies_records: bool = False
    """Whether dead letters have the keys and values of their records."""


def share_rules(broker: Mapping[str, Value], own: Mapping[str, str], *, has_dead_letters: bool) -> ShareRules:
    """Returns the configuration, from a broker's values and those that are set on a group.

    `has_dead_letters`: the cluster has them. Otherwise those that are decided are written, and there are no new ones.
    """
    topic = own.get(DEAD_LETTER_TOPIC, "")
    lock_ms, deliveries, locks = (_bounded(broker, own, name) for name in _BOUNDED)
    return ShareRules(
        limits=ShareLimits(
            delivery_count_limit=deliveries,
            lock_duration_ms=lock_ms,
            record_locks_max=locks,
            has_dead_letters=has_dead_letters and bool(topic),
        ),
        reset=offset_reset_of(own.get(OFFSET_RESET, "")) or LATEST,
        reads_committed=own.get(ISOLATION_LEVEL) == READ_COMMITTED,
        renews=own.get(RENEW) != "false",
        dead_letter_topic=topic,
        copies_records=own.get(DEAD_LETTER_COPIES) == "true",
    )


def _bounded(broker: Mapping[str, Value], own: Mapping[str, str], name: str) -> int:
    rest, text = name.removeprefix("share."), own.get(name)
    if text is None or not text.isdecimal():
        return number(broker[f"group.share.{rest}"])
    return min(max(int(text), number(broker[f"group.share.min.{rest}"])), number(broker[f"group.share.max.{rest}"]))
