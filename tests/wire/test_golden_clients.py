"""Frames of real clients and of Apache Kafka's answers to them, as `golden/capture.py` recorded them (its docstring
explains the files).

They check the codec against independent programs: each frame is read whole and written again byte for byte, and no
shorter or longer one is accepted. Unlike `test_golden_frames.py` the files have no values: equality of the bytes
replaces them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from lowtide.protocol.api_keys import API, ApiKey, response_header_is_flexible
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.headers import read_request_header, read_response_header, request_header, response_header
from tests.each import each
from tests.reference_codec import reference_codec

BYTES_MAX = 160_000


class CapturedFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a file."""

    client: str
    api: str
    version: int
    direction: str
    hex: str

    @property
    def frame(self) -> bytes:
        return bytes.fromhex(self.hex)

    @property
    def key(self) -> ApiKey:
        return ApiKey[self.api]

    def codec(self, codec_of: Any = codec_for) -> Any:
        spec = API[self.key]
        return codec_of(spec.request if self.direction == "request" else spec.response, self.version)

    def split(self, frame: bytes) -> tuple[bytes, int]:
        """Returns the header as Lowtide encodes these values, and the position of the body. Errors: ProtocolError."""
        if self.direction == "request":
            key, version, correlation_id, client_id, position = read_request_header(frame, 0, len(frame))
            assert (key, version) == (self.key, self.version)
            return request_header(key, version, correlation_id, client_id), position
        flexible = response_header_is_flexible(self.key, self.version)
        correlation_id, position = read_response_header(frame, 0, len(frame), flexible=flexible)
        return response_header(correlation_id, flexible), position


def is_longer_than_its_fields(captured: CapturedFrame) -> bool:
    """Returns whether this is librdkafka 2.16's Metadata request for all topics.

    It encodes the null array of a flexible version in four bytes. Kafka reads one of them as the null array, the other
    three as fields, and ignores the rest; so must a broker.
    """
    return (
        captured.client.startswith("confluent-kafka 2.16")
        and captured.api == "METADATA"
        and captured.hex.endswith("00" * 5 + "010000")
    )


FILES = sorted((Path(__file__).parent / "golden" / "captured").glob("*.jsonl"))
CAPTURED = [msgspec.json.decode(line, type=CapturedFrame) for file in FILES for line in file.read_bytes().splitlines()]
EXACT = [captured for captured in CAPTURED if not is_longer_than_its_fields(captured)]
LONGER = [captured for captured in CAPTURED if is_longer_than_its_fields(captured)]


def name(captured: CapturedFrame) -> str:
    """Returns what a failure calls it."""
    return (
        f"{captured.client.split(' ')[0]}-{captured.api}-v{captured.version}-{captured.direction}-{len(captured.frame)}"
    )


@each("captured", EXACT, name)
def test_it_is_read_whole_and_written_again_to_the_same_bytes(captured: CapturedFrame) -> None:
    """Checks the compiled codec and the reference codec."""
    whole = captured.frame
    header, position = captured.split(whole)
    for codec_of in (codec_for, reference_codec):
        codec = captured.codec(codec_of)
        assert header + codec.encode(codec.decode(whole, position, len(whole))) == whole


@each("captured", EXACT, name)
def test_a_shorter_or_longer_frame_is_refused(captured: CapturedFrame) -> None:
    whole = captured.frame
    codec = captured.codec()
    for end in range(len(whole)):
        cut = whole[:end]
        with pytest.raises(ProtocolError):
            codec.decode(cut, captured.split(cut)[1], end)
    with pytest.raises(ProtocolError):
        codec.decode(whole + b"\x00", captured.split(whole)[1], len(whole) + 1)


@each("captured", LONGER, name)
def test_the_fields_of_a_request_with_bytes_behind_them_are_read(captured: CapturedFrame) -> None:
    """Apart from the three surplus bytes, librdkafka 2.16 requests all topics without creation."""
    whole = captured.frame
    _header, position = captured.split(whole)
    request = captured.codec().decode(whole, position, len(whole) - 3)
    assert request.topics is None
    assert not request.allow_auto_topic_creation


BY_HAND_ONLY = {
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    ApiKey.AWAIT_METADATA,
    ApiKey.ENVELOPE,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.DESCRIBE_CONSUMED_OFFSETS,
    ApiKey.DESCRIBE_RETENTION,
    ApiKey.DESCRIBE_DELETES,
    ApiKey.DESCRIBE_SEGMENTS,
    ApiKey.DESCRIBE_HISTORY,
    ApiKey.DESCRIBE_HEALTH,
    ApiKey.ERASE_RECORDS,
    ApiKey.FIND_RECORDS,
    ApiKey.WRITE_ERASURES,
    ApiKey.READ_ERASURES,
    ApiKey.ALTER_STANDING_ERASURES,
    ApiKey.DESCRIBE_STANDING_ERASURES,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.PUSH_TELEMETRY,
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.UPDATE_FEATURES,
    ApiKey.UNREGISTER_BROKER,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SHARE_GROUP_HEARTBEAT,
    ApiKey.SHARE_GROUP_DESCRIBE,
    ApiKey.SHARE_FETCH,
    ApiKey.SHARE_ACKNOWLEDGE,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    ApiKey.STREAMS_GROUP_HEARTBEAT,
    ApiKey.STREAMS_GROUP_DESCRIBE,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
}
"""The requests that need several brokers or an authorizer, or that no Python client sends, are in `by_hand.json`; those
of KIP-848 are in `consumer_groups.json`, those of KIP-932 in `share_groups.json`, and those of streams groups in
`streams_groups.json`."""


def test_the_captures_cover_every_api_and_every_client_and_are_small() -> None:
    """So that an empty capture is detected."""
    assert {captured.key for captured in CAPTURED if captured.direction == "request"} == set(API) - BY_HAND_ONLY
    clients = {captured.client.split(" ")[0] for captured in CAPTURED}
    assert clients == {"kcat", "confluent-kafka", "kafka-python", "aiokafka", "kafka-clients"}
    assert len(LONGER) == 1
    assert sum(file.stat().st_size for file in FILES) < BYTES_MAX
