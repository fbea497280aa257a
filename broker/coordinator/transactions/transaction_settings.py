"""The settings of transactions, out of a broker's configuration."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lowtide.broker.config.key import Value


class TransactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """By Kafka's names: `transaction.*`, `transactional.id.expiration.ms`, `transaction.state.log.*`, `add.partitions.to.txn.*`."""

    timeout_max_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    expiry_check_interval_ms: int = 3_600_000
    commit_timeout_ms: int = 30_000
    """How long a record may take to be committed. Source: Kafka's `request.timeout.ms`, which its coordinator uses for that."""
    load_buffer_bytes: int = 5 << 20
    verifies: bool = True
    add_retry_ms: int = 20
    add_retry_max_ms: int = 100
    """A write adds its partition again after so long, and for so long, while the transaction before is ending."""
    topic_partition_count: int = 50
    topic_replication_factor: int = 3
    topic_minimum_in_sync: int = 2
    topic_segment_bytes: int = 100 << 20
    ids_max: int = 100_000


def transaction_settings(values: Mapping[str, Value]) -> TransactionSettings:
    """The settings among all values of a configuration."""

    def number(name: str) -> int:
        value = values[name]
        assert isinstance(value, int), f"{name} is {value!r}"
        return value

    return TransactionSettings(
        timeout_max_ms=number("transaction.max.timeout.ms"),
        id_expiration_ms=number("transactional.id.expiration.ms"),
        expiry_check_interval_ms=number("transaction.remove.expired.transaction.cleanup.interval.ms"),
        load_buffer_bytes=number("transaction.state.log.load.buffer.size"),
        verifies=bool(values["transaction.partition.verification.enable"]),
        add_retry_ms=number("add.partitions.to.txn.retry.backoff.ms"),
        add_retry_max_ms=number("add.partitions.to.txn.retry.backoff.max.ms"),
        topic_partition_count=number("transaction.state.log.num.partitions"),
        topic_replication_factor=number("transaction.state.log.replication.factor"),
        topic_minimum_in_sync=number("transaction.state.log.min.isr"),
        topic_segment_bytes=number("transaction.state.log.segment.bytes"),
        ids_max=number("lowtide.transactional.ids.max"),
    )
