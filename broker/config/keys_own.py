"""A broker's keys that Apache Kafka does not have: limits that it has no names for. A table: its order is by subject."""

from __future__ import annotations

from typing import Final

from lowtide.broker.config.key import ConfigKey, Type, at_least

_INT: Final = Type.INT

# fmt: off
OWN_KEYS: Final[tuple[ConfigKey, ...]] = (
    ConfigKey("lowtide.request.rows.max", _INT, "100000", at_least(1_000),
              "How many rows a request may have, in all its arrays: topics, partitions, groups, ... Larger ones are answered with INVALID_REQUEST.", enforced=True),
    ConfigKey("lowtide.answers.unread.max.bytes", _INT, "268435456", at_least(1 << 20),
              "How many bytes of answers that clients don't read may be in memory, of all connections together. Beyond it the connections "
              "of clients that have read nothing for longest are closed.", enforced=True),
    ConfigKey("lowtide.request.decompressed.max.bytes", _INT, "134217728", at_least(1 << 20),
              "How many bytes the compressed batches of one Produce request may decompress to together.", enforced=True),

    # What clients may create.
    ConfigKey("lowtide.partitions.max", _INT, "100000", at_least(1),
              "How many partitions a broker may host; more are refused with POLICY_VIOLATION.", enforced=True),
    ConfigKey("lowtide.partitions.created.per.second", _INT, "1000", at_least(1),
              "How many partitions clients may create in a second, and twenty times as many at once.", enforced=True),
    ConfigKey("lowtide.auto.created.topics.per.second", _INT, "50", at_least(1),
              "How many topics one connection may have created in a second by asking for them, and twenty times as many at once.", enforced=True),
    ConfigKey("lowtide.groups.max", _INT, "100000", at_least(1), "How many groups a broker coordinates; others are refused.", enforced=True),
    ConfigKey("lowtide.groups.created.per.second", _INT, "1000", at_least(1),
              "How many groups may begin in a second, and twenty times as many at once.", enforced=True),
    ConfigKey("lowtide.offsets.max", _INT, "5000000", at_least(1), "How many committed offsets a broker keeps in memory; others are refused.",
              enforced=True),
    ConfigKey("lowtide.offsets.metadata.bytes.max", _INT, "67108864", at_least(0),
              "How much metadata all committed offsets may have together, in characters.", enforced=True),
    ConfigKey("lowtide.transactional.ids.max", _INT, "100000", at_least(1),
              "How many transactional ids a broker coordinates; others are refused with POLICY_VIOLATION.", enforced=True),
)
# fmt: on
