"""The limits of one topic, or of one version of Produce, for a batch."""

from __future__ import annotations

import msgspec

from lowtide.protocol.compression import Compression

_MAX_INT64 = 2**63 - 1

MAXIMUM_DECOMPRESSED_BYTES = 128 << 20
"""A compressed batch may not unpack to more: above the largest frame (100 MiB), far below a bomb."""

UNLIMITED_RECORD_BYTES = 2_147_483_639
"""Kafka's default of `max.decompressed.message.bytes`, more than any batch can have."""

MAX_RECORDS = 1_000_000
"""Records of one batch: compressed ones cost a sender nothing. Clients write ten thousand; Kafka bounds the bytes only.
"""

HEADERS_MAX = 1_000_000
"""Headers of all records of a batch that the plain form reads at most: each takes half a microsecond."""

QUICK_RECORDS = 10_000
"""Also librdkafka's `batch.num.messages`. Records of mixed sizes take a microsecond and a half each."""

QUICK_HEADERS = 10_000
"""Headers of batches that the compiled walk leaves to the plain one, which takes half a microsecond for each."""

QUICK_BYTES = 1 << 20
"""The slowest codec decompresses them in three milliseconds; the default maximum of clients' batches."""

QUICK_COMPRESSION_BYTES = 128 << 10
"""The slowest codec compresses them in five milliseconds."""

TARGET_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
"""Values of `compression.type` besides "producer", which keeps the producer's choice."""


class ValidationRules(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The limits of one topic, or one Produce version. Built once per configuration, not per request.

    `max_message_bytes` bounds the whole batch, inclusive. `timestamp_type` is "create" or "log_append"; a record older
    than now by more than `timestamp_before_max_ms`, or newer by more than `timestamp_after_max_ms`, is refused.
    `compacted` topics need keys. `compression_type` is "producer" or a key of `TARGET_CODECS`. `allow_zstd` is False
    below Produce v7.
    """

    max_message_bytes: int = 1_048_588
    timestamp_type: str = "create"
    timestamp_before_max_ms: int = _MAX_INT64
    timestamp_after_max_ms: int = 3_600_000
    compacted: bool = False
    compression_type: str = "producer"
    max_decompressed_bytes: int = 104_857_600
    max_record_bytes: int = UNLIMITED_RECORD_BYTES
    """A single record of a compressed batch may not be larger when decompressed; inclusive."""
    allow_zstd: bool = True
    quick_records: int = _MAX_INT64
    """Batches with more records would hold the event loop too long, and so would those larger than `quick_bytes` when
    decompressed, or larger than `quick_compression_bytes` if they must be compressed again; all inclusive.
    """
    quick_headers: int = HEADERS_MAX
    """The same for headers, in batches that only the plain form can check; inclusive."""
    quick_bytes: int = _MAX_INT64
    quick_compression_bytes: int = _MAX_INT64

    @property
    def unchanged_bytes(self) -> int:
        """Up to this size, inclusive, a sound batch with allowed times is written as it was sent.

        0 if more must be checked: a codec, a timestamp, keys, or the size of records.
        """
        asks_for_more = (
            self.compacted
            or self.timestamp_type != "create"
            or self.compression_type != "producer"
            or self.max_record_bytes < self.max_decompressed_bytes
        )
        return 0 if asks_for_more else self.max_message_bytes

    def without_haste(self) -> ValidationRules:
        """Returns the same rules without the `quick_` limits."""
        return msgspec.structs.replace(
            self,
            quick_records=_MAX_INT64,
            quick_headers=HEADERS_MAX,
            quick_bytes=_MAX_INT64,
            quick_compression_bytes=_MAX_INT64,
        )
