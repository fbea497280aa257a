"""A key gets the partition of Kafka's own clients, and rows without a key form large batches."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lowtide.pipeline.partitioner import StickyPartition, murmur2, partitions_of_keys
from lowtide.protocol.key_hash import murmur2 as murmur2_of_one


def column(keys: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, keys)]).astype(np.int32)
    return offsets, np.frombuffer(b"".join(keys), np.uint8)


@pytest.mark.parametrize(
    ("key", "signed"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_hashes_are_those_that_kafkas_own_test_expects(key, signed):
    """Source: Kafka's UtilsTest.testMurmur2."""
    assert int(murmur2(*column([key])).astype(np.int32)[0]) == signed


def test_hashes_are_right_for_keys_of_every_length():
    draw = random.Random(1)
    keys = [draw.randbytes(draw.randrange(40)) for _ in range(500)]
    assert [int(value) for value in murmur2(*column(keys))] == [murmur2_of_one(key) for key in keys]


def test_a_column_that_is_a_slice_of_another_is_read_from_its_own_position():
    offsets, content = column([b"first", b"second", b"third"])
    assert list(partitions_of_keys(offsets[1:], content, 7)) == list(
        partitions_of_keys(*column([b"second", b"third"]), 7)
    )


def test_no_keys_are_no_partitions():
    assert len(partitions_of_keys(*column([]), 3)) == 0


def test_rows_without_a_key_stay_until_a_batch_is_full():
    sticky = StickyPartition(batch_bytes=100, turn=4)
    first = sticky.partitions(np.full(15, 10, np.int64), [0, 1, 2])
    assert list(first) == [1] * 10 + [2] * 5
    second = sticky.partitions(np.full(10, 10, np.int64), [0, 1, 2])
    assert list(second) == [2] * 5 + [0] * 5


def test_rows_without_a_key_go_to_partitions_that_have_a_leader():
    sticky = StickyPartition(batch_bytes=10, turn=0)
    assert set(sticky.partitions(np.full(50, 10, np.int64), [1, 4])) == {1, 4}
