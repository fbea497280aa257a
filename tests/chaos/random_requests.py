"""Requests that no client would send: valid ones with unusual values, which reach the handlers, and frames with damaged
bytes.

All randomness comes from the given seed. Requests are built from the construct tree of each message, so new fields and
APIs are covered.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.compression import Compression
from lowtide.protocol.constructs import Blob, CountedArray, Entity, NullableEntity, Text, fixed_format
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.headers import read_request_header, request_header
from lowtide.protocol.records import TimestampType
from lowtide.protocol.schema import wire_form

SERVED = [(spec.key, version) for spec in API.values() for version in range(spec.min_version, spec.max_version + 1)]
ZERO_ID = bytes(16)
BEARABLE_PARTITIONS = 40
"""A request for more is valid and would be served for seconds, without testing anything more."""

NOW_MS = 1_700_000_000_000
_LIMITS = {"b": 7, "h": 15, "i": 31, "q": 63}
_CRC_POSITION, _CRC_START = 17, 21
_ODD_INTS = (-(2**31), -2, -1, 0, 1, 2, 127, 128, 255, 65_535, 100_000, 2**31 - 1)
_CONFIGS = {
    "retention.ms": ("1", "-1", "x", "", "99999999999999999999"),
    "cleanup.policy": ("compact", "delete", "compact,delete", "none"),
    "compression.type": ("gzip", "zstd", "lz4", "snappy", "producer", "brotli"),
    "message.timestamp.type": ("LogAppendTime", "CreateTime", "never"),
    "max.message.bytes": ("0", "100", "-5", "2000000000"),
    "internal.segment.bytes": ("14", "1000", "20000", "0"),
    "flush.messages": ("1", "0", "3"),
    "min.insync.replicas": ("1", "2", "0"),
    "no.such.key": ("1",),
}
_USUAL = 0.75
"""The share of fields with their first, valid value: one invalid value would hide the effect of the others."""

_VALUES: dict[str, tuple[int, ...]] = {
    "acks": (-1, 1, 0, 2),
    "max_wait_ms": (0, 1, 5, 20, -1),
    "timeout_ms": (1000, 0, 1, -1, -(2**31)),
    "num_partitions": (2, -1, 0, 1, -2, 20_000, 2**31 - 1),
    "count": (3, -1, 0, 1, 2, 4, 20_000, 2**31 - 1),
    "replication_factor": (1, -1, 0, 2, -2, 2**15 - 1),
    "replica_id": (-1, -2, 0, 1),
    "resource_type": (2, 4, 0, 2, 8, 16, 32, -1),
    "config_operation": (0, 1, 2, 3, 4, -1),
    "replica_epoch": (-1, 0, 1),
    "broker_ids": (0, 1, -1),
    "session_epoch": (0, -1, 1, 1, 2, 3, 2**31 - 1),
    "isolation_level": (0, 1, 2, -1),
    "min_bytes": (0, 1, 100, -1, 2**31 - 1),
    "max_bytes": (2**20, 100, 0, 1, -1, 2**31 - 1),
    "partition_max_bytes": (2**20, 100, 0, 1, -1, 2**31 - 1),
    "timestamp": (NOW_MS, -1, -2, -3, -4, -5, -6, -7, 0, NOW_MS + 3, 2**63 - 1, -(2**63)),
    "current_leader_epoch": (-1, 0, 0, 1, 5, -2),
    "last_fetched_epoch": (-1, 0, 1, -2),
    "leader_epoch": (0, -1, 1, 2**31 - 1, -2),
    "log_start_offset": (-1, 0, 3),
    "producer_id": (-1, 0, 1, 1000),
    "producer_epoch": (-1, 0, 1),
}
_MAKES_PARTITIONS = (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS)
_PARTITION_FIELDS = frozenset({"index", "partition", "partition_index", "partitions", "partition_indexes"})


class RandomRequests:
    """Valid requests of every API and version whose values are unusual, and often enough valid."""

    def __init__(self, seed: str, topics: Mapping[str, bytes]) -> None:
        """`topics` are names and ids of existing topics that may be damaged."""
        self.random = random.Random(seed)
        self.sessions = [0]
        """Fetch sessions that the broker has opened: callers add those from responses."""
        self._names: list[str] = []
        self._ids: list[bytes] = []
        self.know(topics)

    def know(self, topics: Mapping[str, bytes]) -> None:
        """Uses these topics from now on."""
        self._names = list(topics)
        self._ids = list(topics.values())

    def request(self, key: ApiKey, version: int) -> Any:
        """Returns a request message."""
        return self._entity(wire_form(API[key].request, version))

    def frame(self, key: ApiKey, version: int, correlation_id: int) -> bytes:
        """Returns the same on the wire, without its length."""
        return request_header(key, version, correlation_id, self.random.choice(("fuzz", None, ""))) + codec_for(
            API[key].request, version
        ).encode(self.request(key, version))

    def _entity(self, entity: Entity) -> Any:
        of = entity.make.__name__
        values = {name: self._value(content, name, of) for name, content in entity.fields}
        for field in entity.tags.fields.values() if entity.tags else ():
            if self.random.random() < 0.2:
                values[field.name] = self._value(field.content, field.name, of)
        if of in ("CreatableTopicConfig", "AlterableConfig") and self._is_usual():
            values["name"] = self.random.choice(list(_CONFIGS))
            values["value"] = self.random.choice(_CONFIGS[values["name"]])
        if of == "CreatableTopic" and self._is_usual():
            values["assignments"] = []
            values["configs"] = values["configs"] if self.random.random() < 0.5 else []
        return entity.make(**values)

    def _is_usual(self) -> bool:
        return self.random.random() < _USUAL

    def _value(self, content: Any, name: str, of: str) -> Any:
        rng = self.random
        if isinstance(content, NullableEntity) and rng.random() < 0.5:
            return None
        if isinstance(content, Entity):
            return self._entity(content)
        if (
            isinstance(content, Text | Blob | CountedArray)
            and content.nullable
            and rng.random() < (0.9 if name == "transactional_id" else 0.1)
        ):
            return None
        if isinstance(content, CountedArray):
            return [self._value(content.element, name, of) for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3)))]
        if isinstance(content, Text):
            return self._text(name, of)
        if isinstance(content, Blob):
            return self.records()
        return self._number(fixed_format(content) or "", name, of)

    def _text(self, name: str, of: str) -> str:
        rng = self.random
        if name in ("name", "topic", "topic_names", "resource_name") and rng.random() < 0.9:
            return rng.choice(self._names_for(of))
        if name.startswith("client_software"):
            return rng.choice(("chaos", "1.0", "", " ", "é"))
        return rng.choice(("", ".", "..", "f" * 249, "f" * 250, "a b", "\0", "é", "__consumer_offsets", "../../x"))

    def _names_for(self, of: str) -> list[str]:
        """Topics are created and deleted under temporary names; only sometimes a topic is deleted that others need."""
        passing = [f"passing-{number}" for number in range(4)]
        return (
            passing
            if of.startswith(("Creat", "Delete", "Deletable")) and "Records" not in of and self.random.random() < 0.995
            else self._names
        )

    def _number(self, form: str, name: str, of: str) -> Any:
        rng = self.random
        if form == "16s":
            if of.startswith("DeleteTopic") and rng.random() < 0.995:
                return ZERO_ID
            return rng.choice(self._ids) if self._is_usual() else rng.choice((ZERO_ID, rng.randbytes(16)))
        if form == "?":
            return rng.random() < 0.5
        if form == "d":
            return rng.choice((0.0, -1.5, 1e9, 1e308, float("nan"), float("inf"), rng.random()))
        if form == "H":
            return rng.choice((0, 1, 1 << 15, (1 << 16) - 1))
        high = 1 << _LIMITS[form]
        if name == "session_id":
            return rng.choice(self.sessions[-6:])
        if name in _PARTITION_FIELDS:
            return rng.choice((2, -1, high - 1)) if rng.random() < 0.1 else rng.choice((0, 1))
        if name in _VALUES:
            return _VALUES[name][0] if self._is_usual() else rng.choice(_VALUES[name])
        if rng.random() < 0.1:
            return rng.choice((-high, high - 1, rng.randrange(-high, high)))
        return rng.choice((-1, 0, 0, 1, 2, rng.randrange(60)))

    # ------------------------------------------------------------------ records
    def records(self) -> bytes:
        """Returns a batch, mostly an invalid one; the CRC is often right, so that the later checks are reached."""
        rng = self.random
        batch = bytearray(self._batch())
        chance = rng.random()
        if chance < 0.35:
            return bytes(batch)
        if chance < 0.75:
            for _ in range(rng.choice((1, 1, 2, 5))):
                batch[rng.randrange(12, len(batch))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
            batch[_CRC_POSITION:_CRC_START] = struct.pack(">I", crc32c(bytes(batch[_CRC_START:])))
            return bytes(batch)
        if chance < 0.85:
            return mutated(bytes(batch), rng)
        if chance < 0.95:
            return bytes(batch[: rng.randrange(len(batch))])
        return bytes(batch + self._batch())

    def _batch(self) -> bytes:
        rng = self.random
        is_idempotent = rng.random() < 0.4
        rows = [
            (
                NOW_MS + rng.randrange(-5, 5),
                rng.choice((None, b"", b"key")),
                rng.choice((None, b"", rng.randbytes(rng.randrange(90)))),
                (),
            )
            for _ in range(rng.choice((1, 1, 2, 7)))
        ]
        return build_batch(
            rows,
            base_offset=rng.choice((0, 0, 5)),
            compression=rng.choice((Compression.NONE, Compression.NONE, *Compression)),
            producer_id=rng.randrange(3) if is_idempotent else -1,
            producer_epoch=rng.randrange(2) if is_idempotent else -1,
            base_sequence=rng.choice((0, 0, 1, 2, 7, 2**31 - 1)) if is_idempotent else -1,
            is_transactional=rng.random() < 0.1,
            is_control=rng.random() < 0.05,
            timestamp_type=rng.choice(list(TimestampType)) if rng.random() < 0.1 else TimestampType.CREATE_TIME,
        )


def mutated(frame: bytes, rng: random.Random) -> bytes:
    """Returns the frame with one to three damages: bits, bytes, numbers, pieces lost, doubled or put in."""
    damaged = bytearray(frame)
    for _ in range(rng.choice((1, 1, 2, 3))):
        place = rng.randrange(len(damaged) + 1)
        length = rng.choice((1, 2, 4, rng.randrange(1, 40)))
        kind = rng.randrange(7)
        if kind == 0 and place < len(damaged):
            damaged[place] ^= 1 << rng.randrange(8)
        elif kind == 1 and place < len(damaged):
            damaged[place] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        elif kind == 2:
            damaged[place : place + 4] = struct.pack(">i", rng.choice(_ODD_INTS))
        elif kind == 3:
            del damaged[place : place + length]
        elif kind == 4:
            damaged[place:place] = damaged[place : place + length]
        elif kind == 5:
            damaged[place:place] = rng.randbytes(length)
        else:
            del damaged[place:]
    return bytes(damaged)


def is_bearable(frame: bytes) -> bool:
    """Returns whether a damaged frame can't be a valid request that harms others rightly.

    Such are one for so many partitions that serving it takes long, and one that gives every client a quota of nearly
    nothing.
    """
    try:
        key, version, _, _, position = read_request_header(frame, 0, len(frame))
        if key not in (*_MAKES_PARTITIONS, ApiKey.ALTER_CLIENT_QUOTAS) or key not in API:
            return True
        request: Any = codec_for(API[ApiKey(key)].request, version).decode(frame, position, len(frame))
    except (ProtocolError, ValueError, struct.error):
        return True
    if key == ApiKey.ALTER_CLIENT_QUOTAS:
        return False
    wanted = sum(
        max(topic.num_partitions if key == ApiKey.CREATE_TOPICS else topic.count, len(topic.assignments or ()))
        for topic in request.topics
    )
    return not BEARABLE_PARTITIONS < wanted <= 10_000


def are_bearable(stream: bytes) -> bool:
    """Returns whether none of the frames harms others rightly, as a broker splits the bytes by their lengths."""
    position = 0
    while (end := position + 4) <= len(stream):
        end += max(int.from_bytes(stream[position:end], "big", signed=True), 0)
        if end > len(stream):
            break
        if not is_bearable(stream[position + 4 : end]):
            return False
        position = end
    return True


def seeds_of(requests: RandomRequests, golden: Sequence[bytes]) -> list[bytes]:
    """Frames to damage: those of real clients, and one of each API and version."""
    return [*golden, *(requests.frame(key, version, 1) for key, version in SERVED)]
