"""Requests and responses as bytes, and the versions in which a client and a broker can talk. No sockets: bytes and values only.

Whoever owns a socket, an asyncio one here or a blocking one in a pipeline's worker, sends what `encode_request` gives, reads one frame,
and hands it to `decode_response`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowtide.admin.errors import UnsupportedVersionError
from lowtide.protocol.api_keys import API_ASKED, ApiKey, response_header_is_flexible
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.framing import frame
from lowtide.protocol.headers import read_response_header, request_header

if TYPE_CHECKING:
    from lowtide.protocol.messages.api_versions import ApiVersionsResponse
    from lowtide.protocol.schema import ApiMessage

_KEYS: Final[Mapping[type[ApiMessage], ApiKey]] = {spec.request: key for key, spec in API_ASKED.items()}
_ERROR_CODE = struct.Struct(">h")


def api_key_of(request: type[ApiMessage] | ApiMessage) -> ApiKey:
    """The API that a request belongs to."""
    return _KEYS[request if isinstance(request, type) else type(request)]


def encode_request(request: ApiMessage, version: int, correlation_id: int, client_id: str) -> bytes:
    """A request as the frame that goes out."""
    return frame(request_header(api_key_of(request), version, correlation_id, client_id), codec_for(type(request), version).encode(request))


def decode_response(request: type[ApiMessage], version: int, payload: bytes) -> tuple[int, Any]:
    """Correlation id and message of a frame's content, which answers a request of this kind and version.

    Records in it are views of `payload`. An ApiVersions request of a version that the broker doesn't know is answered in version 0
    (KIP-511); the answer then has UNSUPPORTED_VERSION as its error code. Errors: ProtocolError.
    """
    key = _KEYS[request]
    end = len(payload)
    correlation_id, position = read_response_header(payload, 0, end, flexible=response_header_is_flexible(key, version))
    if key == ApiKey.API_VERSIONS and end >= position + _ERROR_CODE.size:
        (code,) = _ERROR_CODE.unpack_from(payload, position)
        version = 0 if code == ErrorCode.UNSUPPORTED_VERSION else version
    return correlation_id, codec_for(API_ASKED[key].response, version).decode(payload, position, end)


class Feature(NamedTuple):
    """A feature that a broker could use, and the level at which the cluster uses it; 0 stands for not at all."""

    name: str
    min_level: int
    max_level: int
    finalized_level: int


class ApiVersions:
    """What one broker speaks. Both ends of a range are inclusive."""

    __slots__ = ("_ranges", "features", "features_epoch")

    def __init__(self, ranges: Mapping[int, tuple[int, int]], features: Iterable[Feature] = (), features_epoch: int = -1) -> None:
        self._ranges = dict(ranges)
        self.features = tuple(features)
        self.features_epoch = features_epoch

    @classmethod
    def of(cls, response: ApiVersionsResponse) -> ApiVersions:
        """What the answer to an ApiVersions request says."""
        finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
        features = [
            Feature(feature.name, feature.min_version, feature.max_version, finalized.get(feature.name, 0))
            for feature in response.supported_features
        ]
        ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        return cls(ranges, features, response.finalized_features_epoch)

    def highest(self, key: ApiKey) -> int:
        """The highest version that the broker speaks, whether or not we do; -1 where it doesn't have the API."""
        return self._ranges.get(key, (0, -1))[1]

    def choose(self, request: type[ApiMessage] | ApiMessage, *, at_least: int = 0, at_most: int | None = None) -> int:
        """The highest version of a request that both sides speak.

        `at_least` is what the caller's question needs, `at_most` how far the caller knows its fields. Errors: UnsupportedVersionError.
        """
        key = api_key_of(request)
        spec = API_ASKED[key]
        low, high = self._ranges.get(key, (0, -1))
        chosen = min(high, spec.max_version if at_most is None else min(at_most, spec.max_version))
        if high < 0:
            message = f"the broker doesn't have {api_name(key)}"
            raise UnsupportedVersionError(message)
        if chosen < max(low, spec.min_version, at_least):
            ours = f"{max(at_least, spec.min_version)} to {spec.max_version if at_most is None else at_most}"
            message = f"the broker speaks {api_name(key)} in versions {low} to {high}, and what was asked for needs one of {ours}"
            raise UnsupportedVersionError(message)
        return chosen


def api_name(key: ApiKey) -> str:
    """`DELETE_RECORDS` as `DeleteRecords`."""
    return key.name.title().replace("_", "")


def check_correlation(expected: int, found: int) -> None:
    """Errors: ProtocolError, when the answer is to another request."""
    if expected != found:
        message = f"answer {found} instead of {expected}"
        raise ProtocolError(message)
