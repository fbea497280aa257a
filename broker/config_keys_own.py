"""A broker's keys that Apache Kafka does not have: limits that it has no names for. A table: its order is by subject."""

from __future__ import annotations

from typing import Final

from lowtide.broker.config_key import ConfigKey, Type, at_least

_INT: Final = Type.INT

# fmt: off
OWN_KEYS: Final[tuple[ConfigKey, ...]] = (
    ConfigKey("lowtide.request.decompressed.max.bytes", _INT, "134217728", at_least(1 << 20),
              "How many bytes the compressed batches of one Produce request may decompress to together.", enforced=True),
)
# fmt: on
