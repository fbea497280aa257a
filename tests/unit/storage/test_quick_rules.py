"""Which batches can be checked while the event loop waits: the others are left to the worker, with the same outcome."""

from __future__ import annotations

import random

import pytest

from lowtide.protocol.compression import Compression
from lowtide.protocol.records import build_batch
from lowtide.storage.validator import Rejection, ValidatedBatch, ValidationRules, validate_produce

RULES = ValidationRules(quick_records=100, quick_bytes=10_000, quick_compression_bytes=1000, max_decompressed_bytes=100_000)


def batch(count: int, size: int, codec: Compression = Compression.NONE) -> bytes:
    return build_batch([(1, None, random.Random(number).randbytes(size), ()) for number in range(count)], compression=codec)


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


def test_what_is_not_compressed_is_only_counted() -> None:
    assert isinstance(validate_produce(batch(11, 1000), RULES, 1), ValidatedBatch)


def test_compressing_much_takes_long() -> None:
    rules = ValidationRules(quick_compression_bytes=1000, compression_type="gzip")
    assert isinstance(validate_produce(batch(1, 900), rules, 1), ValidatedBatch)
    assert validate_produce(batch(2, 900), rules, 1) is None
    assert isinstance(validate_produce(batch(2, 900), rules.without_haste(), 1), ValidatedBatch)
    assert isinstance(validate_produce(batch(2, 900, Compression.GZIP), rules, 1), ValidatedBatch), "it has that codec already"
