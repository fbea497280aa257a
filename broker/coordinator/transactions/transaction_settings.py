"""The transaction settings of a broker's configuration."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import field

from lowtide.broker.config.key import Value


class TransactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Each setting with its default and its key. Times are in milliseconds."""

    timeout_max_ms: int = field(default=900_000, name="transaction.max.timeout.ms")
    id_expiration_ms: int = field(default=604_800_000, name="transactional.id.expiration.ms")
    expiry_check_interval_ms: int = field(
        default=3_600_000, name="transaction.remove.expired.transaction.cleanup.interval.ms"
    )
    commit_timeout_ms: int = 30_000
    """How long a record may take to be committed. No key: Kafka's coordinator uses `request.timeout.ms`."""
    load_buffer_bytes: int = field(default=5 << 20, name="transaction.state.log.load.buffer.size")
    verifies: bool = field(default=True, name="transaction.partition.verification.enable")
    add_retry_ms: int = field(default=20, name="add.partitions.to.txn.retry.backoff.ms")
    add_retry_max_ms: int = field(default=100, name="add.partitions.to.txn.retry.backoff.max.ms")
    """While the previous transaction is ending, a write retries every `add_retry_ms`, for up to `add_retry_max_ms`."""
    topic_partition_count: int = field(default=50, name="transaction.state.log.num.partitions")
    topic_replication_factor: int = field(default=3, name="transaction.state.log.replication.factor")
    topic_minimum_in_sync: int = field(default=2, name="transaction.state.log.min.isr")
    topic_segment_bytes: int = field(default=100 << 20, name="transaction.state.log.segment.bytes")
    ids_max: int = field(default=100_000, name="lowtide.transactional.ids.max")


def transaction_settings(values: Mapping[str, Value]) -> TransactionSettings:
    """Returns the transaction settings among all values of a configuration."""
    return msgspec.convert(values, TransactionSettings)
