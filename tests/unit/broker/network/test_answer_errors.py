"""Every error code in an answer is counted, wherever the answer has it."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from lowtide.broker.network.routing.answer_errors import counting_errors
from lowtide.broker.network.routing.refusals import refusal_of_all
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreateTopicsResponse
from lowtide.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from tests.each import each


@each("key", API, lambda key: key.name)
def test_a_refusal_is_counted_by_its_api(key: ApiKey) -> None:
    for version in (API[key].min_version, API[key].max_version):
        errors: Counter[tuple[str, int]] = Counter()
        codec = codec_for(API[key].response, version)
        sent = codec.encode(refusal_of_all(key, version, ErrorCode.INVALID_REQUEST))
        answer = codec.decode(sent, 0, len(sent))  # Without what this version has no place for.
        counting_errors(key, version, errors, lambda *_: None)(0, answer)
        text = str(msgspec.to_builtins(answer, str_keys=True, builtin_types=(bytes,)))
        assert bool(errors) == ("error_code': 42" in text)
        assert {code for _, code in errors} <= {ErrorCode.INVALID_REQUEST}
        assert {name for name, _ in errors} <= {API[key].request.__name__.removesuffix("Request")}


@pytest.mark.parametrize("partitions", [0, 3, 1_000])
def test_each_row_is_counted(partitions: int) -> None:
    rows = [
        DeleteRecordsPartitionResult(
            partition_index=number, low_watermark=-1, error_code=number % 2 * ErrorCode.OFFSET_OUT_OF_RANGE
        )
        for number in range(partitions)
    ]
    answer = DeleteRecordsResponse(topics=[DeleteRecordsTopicResult(name="t", partitions=rows)] * 300)
    counted: Counter[tuple[str, int]] = Counter()
    counting_errors(ApiKey.DELETE_RECORDS, 2, counted, lambda *_: None)(0, answer)
    expected = {("DeleteRecords", ErrorCode.OFFSET_OUT_OF_RANGE): 300 * (partitions // 2)} if partitions else {}
    assert counted == Counter(expected)


def test_rows_that_are_missing_are_none() -> None:
    errors: Counter[tuple[str, int]] = Counter()
    counting_errors(ApiKey.CREATE_TOPICS, 7, errors, lambda *_: None)(0, CreateTopicsResponse(topics=[]))
    assert not errors
