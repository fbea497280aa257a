"""The settings of a producer, with the keys of Kafka's producer.

Lowtide's producer is always idempotent and waits for all in-sync replicas. Keys that ask for less are refused rather
than ignored, because a user who sets them expects an effect. `lowtide.admin.settings` reads the keys of connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from lowtide.admin.settings import ClientSettings, SettingsError
from lowtide.pipeline.outbox import Limits
from lowtide.protocol.compression import Compression

BATCH_BYTES: Final = 512 * 1024
"""The default of `batch.size`: half of what topics accept by default, so that no batch must be split."""

SMALLEST_BATCH_BYTES: Final = 1024
INT32_MAX: Final = 2**31 - 1

_COMPRESSIONS: Final = {codec.name.lower(): codec for codec in Compression}
_ACKS: Final = {"all", "-1"}
_UNUSED: Final = {
    # They have no meaning for a producer that gets whole columns.
    "linger.ms",
    "retries",
    "max.request.size",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
    "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
}
_OWNED: Final = {
    "key.serializer": "the column key is written as it is: cast it to string or binary",
    "value.serializer": "the column value is written as it is: cast it to string or binary",
    "transactional.id": "a Spark task cannot take part in a transaction that outlives the task",
    "partitioner.class": "the column partition says where a row goes",
    "interceptor.classes": "Python cannot call Java interceptors",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """All settings of a producer. They can be compared, and pickled for another machine."""

    client: ClientSettings
    limits: Limits
    batch_bytes: int = BATCH_BYTES
    compression: Compression = Compression.NONE
    max_block_ms: int = 60_000
    """How long to wait for a missing topic."""

    unused_keys: tuple[str, ...] = ()

    @classmethod
    def of(cls, properties: Mapping[str, str], source: str = "the options") -> Self:
        """Reads properties, whose keys lack the prefix `kafka.`. Errors: SettingsError."""
        given = dict(properties)
        for key, why in _OWNED.items():
            if key in given:
                raise SettingsError(f"{source}: kafka.{key} must not be set: {why}.")
        _check_fixed(given, source)
        delivery_ms = _integer(given, "delivery.timeout.ms", 120_000, source, low=1)
        request_ms = _integer(given, "request.timeout.ms", min(30_000, delivery_ms), source, low=1)
        if request_ms > delivery_ms:
            raise SettingsError(
                f"{source}: kafka.delivery.timeout.ms is {delivery_ms}: it must be at least "
                f"kafka.request.timeout.ms, {request_ms}."
            )
        compression = given.pop("compression.type", "none").strip().lower()
        if compression not in _COMPRESSIONS:
            raise SettingsError(
                f"{source}: kafka.compression.type is {compression!r}: it must be one of {', '.join(_COMPRESSIONS)}."
            )
        limits = Limits(
            memory_bytes=_integer(given, "buffer.memory", 32 << 20, source, low=SMALLEST_BATCH_BYTES),
            requests_in_flight=_integer(given, "max.in.flight.requests.per.connection", 5, source, low=1, high=5),
            delivery_timeout_ms=delivery_ms,
        )
        batch_bytes = _integer(given, "batch.size", BATCH_BYTES, source, low=0)
        max_block_ms = _integer(given, "max.block.ms", 60_000, source)
        client = ClientSettings.of(
            {"client.id": "lowtide-spark"}
            | {key: given[key] for key in given.keys() - _UNUSED}
            | {"request.timeout.ms": request_ms},
            source,
        )
        return cls(
            client=client,
            limits=limits,
            batch_bytes=max(SMALLEST_BATCH_BYTES, batch_bytes),
            compression=_COMPRESSIONS[compression],
            max_block_ms=max_block_ms,
            unused_keys=(*client.unused_keys, *sorted(given.keys() & _UNUSED)),
        )


def _check_fixed(given: dict[str, str], source: str) -> None:
    """Refuses settings with which retries could lose or duplicate records. Errors: SettingsError."""
    acks = given.pop("acks", "all").strip().lower()
    if acks not in _ACKS:
        raise SettingsError(
            f"{source}: kafka.acks is {acks!r}: this sink always waits for all in-sync replicas. Remove the option "
            "or set it to all."
        )
    idempotence = given.pop("enable.idempotence", "true").strip().lower()
    if idempotence != "true":
        raise SettingsError(
            f"{source}: kafka.enable.idempotence is {idempotence!r}: this sink is always idempotent. Remove the "
            "option or set it to true."
        )


def _integer(given: dict[str, str], key: str, default: int, source: str, low: int = 0, high: int = INT32_MAX) -> int:
    """Removes a key, and returns its value or the default. Errors: SettingsError."""
    text = given.pop(key, str(default)).strip()
    if not text.isascii() or not text.isdecimal() or not low <= int(text) <= high:
        raise SettingsError(f"{source}: kafka.{key} is {text!r}: it must be a whole number from {low} to {high}.")
    return int(text)
