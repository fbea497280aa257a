"""Which batches the event loop may validate itself: the others are left to the worker, with the same outcome."""

from __future__ import annotations

import random

import msgspec
import pytest

from lowtide.protocol import native
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.errors import ErrorCode
from lowtide.storage.log.validation.rejections import Rejection
from lowtide.storage.log.validation.validation_rules import MAX_RECORDS, ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce

RULES = ValidationRules(
    quick_records=100, quick_bytes=10_000, quick_compression_bytes=1000, max_decompressed_bytes=100_000
)


def batch(count: int, size: int, codec: Compression = Compression.NONE) -> bytes:
    return build_batch(
        [(1, None, random.Random(number).randbytes(size), ()) for number in range(count)], compression=codec
    )


@pytest.mark.parametrize("codec", Compression)
def test_few_records_are_checked_at_once_and_many_are_not(codec: Compression) -> None:
    assert isinstance(validate_produce(batch(100, 0, codec), RULES, 1), ValidatedBatch)
    many = batch(101, 0, codec)
    assert validate_produce(many, RULES, 1) is None
    assert isinstance(validate_produce(many, RULES.without_haste(), 1), ValidatedBatch)


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
def test_what_unpacks_to_much_is_not_checked_at_once(codec: Compression) -> None:
    assert isinstance(validate_produce(batch(9, 1000, codec), RULES, 1), ValidatedBatch)
    large = batch(11, 1000, codec)
    assert validate_produce(large, RULES, 1) is None
    assert isinstance(validate_produce(large, RULES.without_haste(), 1), ValidatedBatch)
    bomb = batch(99, 2000, codec)
    assert validate_produce(bomb, RULES, 1) is None
    assert isinstance(validate_produce(bomb, RULES.without_haste(), 1), Rejection)


@pytest.mark.parametrize("compiled", [True, False])
def test_many_headers_that_the_plain_walk_has_to_check_take_long(
    monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    """A record of a megabyte with half a million headers held the loop for a second."""
    if not compiled:
        monkeypatch.setattr(native, "compiled", None)
    rules = msgspec.structs.replace(RULES, quick_headers=50, quick_bytes=1 << 20)
    few, many = (build_batch([(1, None, b"", tuple((b"", b"") for _ in range(count)))]) for count in (50, 51))
    assert isinstance(validate_produce(few, rules, 1), ValidatedBatch)
    if native.compiled is None:
        assert validate_produce(many, rules, 1) is None
    assert isinstance(validate_produce(many, rules.without_haste(), 1), ValidatedBatch)


def test_what_is_not_compressed_is_only_counted() -> None:
    assert isinstance(validate_produce(batch(11, 1000), RULES, 1), ValidatedBatch)


def test_compressing_much_takes_long() -> None:
    rules = ValidationRules(quick_compression_bytes=1000, compression_type="gzip")
    assert isinstance(validate_produce(batch(1, 900), rules, 1), ValidatedBatch)
    assert validate_produce(batch(2, 900), rules, 1) is None
    assert isinstance(validate_produce(batch(2, 900), rules.without_haste(), 1), ValidatedBatch)
    assert isinstance(validate_produce(batch(2, 900, Compression.GZIP), rules, 1), ValidatedBatch), (
        "it already has that codec"
    )


def test_a_batch_has_at_most_a_million_records() -> None:
    """A megabyte of zstd may hold eighteen million, and every search for a timestamp looks at them."""
    most = build_batch([(1, None, b"", ())] * 1000, compression=Compression.ZSTD)
    assert isinstance(validate_produce(most, ValidationRules(), 1), ValidatedBatch)
    count = MAX_RECORDS + 1
    header = bytearray(most)
    header[23:27], header[57:61] = (count - 1).to_bytes(4, "big"), count.to_bytes(4, "big")
    header[17:21] = crc32c(bytes(header[21:])).to_bytes(4, "big")
    rejection = validate_produce(bytes(header), ValidationRules(), 1)
    assert isinstance(rejection, Rejection)
    assert rejection.error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_count_that_the_bytes_cannot_hold_is_an_error_of_the_batch() -> None:
    """It is no error of the batch's size: sending it in two parts would not help."""
    count = MAX_RECORDS + 1
    header = bytearray(build_batch([(1, None, b"", ())]))
    header[23:27], header[57:61] = (count - 1).to_bytes(4, "big"), count.to_bytes(4, "big")
    header[17:21] = crc32c(bytes(header[21:])).to_bytes(4, "big")
    rejection = validate_produce(bytes(header), ValidationRules(), 1)
    assert isinstance(rejection, Rejection)
    assert rejection.error_code == ErrorCode.INVALID_RECORD
