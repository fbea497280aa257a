"""The versions of a broker, the choice of a version, and the codecs of a request and its response."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowtide.protocol.api_keys import API, ApiKey, api_name, response_header_is_flexible
from lowtide.protocol.client.refused import ClientFailure, ClientFailureKind
from lowtide.protocol.compiler import Codec, codec_for
from lowtide.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from lowtide.protocol.messages.api_versions import ApiVersionsResponse
    from lowtide.protocol.primitives import Buffer
    from lowtide.protocol.schema import ApiMessage

_KEYS: Final[Mapping[type[ApiMessage], ApiKey]] = {spec.request: key for key, spec in API.items()}
_ERROR_CODE: Final = struct.Struct(">h")


class Feature(NamedTuple):
    """A feature of a broker, and its level in the cluster; 0 if disabled."""

    name: str
    min_level: int
    max_level: int
    finalized_level: int


class ApiExchange(NamedTuple):
    """A request type in one version, and its response."""

    key: ApiKey
    version: int
    request: Codec[Any]
    decode: Callable[[Buffer, int, int], Any]
    """Decodes the response, as `Codec.decode`."""
    answer_is_flexible: bool
    has_records: bool
    """Whether fields of the response can be views of the receive buffer."""


@functools.cache
def exchange_of(request: type[ApiMessage], version: int) -> ApiExchange:
    """Returns the codecs of a request in a version. Errors: ValueError for an unsupported version."""
    key = _KEYS[request]
    decode = codec_for(API[key].response, version).decode
    if key == ApiKey.API_VERSIONS:
        decode = functools.partial(_decode_versions, decode)
    flexible = response_header_is_flexible(key, version)
    return ApiExchange(key, version, codec_for(request, version), decode, flexible, has_records=key == ApiKey.FETCH)


def _decode_versions(decode: Callable[[Buffer, int, int], Any], buffer: Buffer, start: int, end: int) -> Any:
    """Decodes an ApiVersions response. A broker sends UNSUPPORTED_VERSION in version 0 always (KIP-511)."""
    if end >= start + _ERROR_CODE.size and _ERROR_CODE.unpack_from(buffer, start)[0] == ErrorCode.UNSUPPORTED_VERSION:
        decode = codec_for(API[ApiKey.API_VERSIONS].response, 0).decode
    return decode(buffer, start, end)


class ApiVersions:
    """The versions of one broker. Both ends of a range are inclusive."""

    __slots__ = ("_ranges", "features", "features_epoch")

    def __init__(
        self, ranges: Mapping[int, tuple[int, int]], features: Iterable[Feature] = (), features_epoch: int = -1
    ) -> None:
        self._ranges = dict(ranges)
        self.features = tuple(features)
        self.features_epoch = features_epoch

    @classmethod
    def of(cls, response: ApiVersionsResponse) -> ApiVersions:
        finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
        features = [
            Feature(feature.name, feature.min_version, feature.max_version, finalized.get(feature.name, 0))
            for feature in response.supported_features
        ]
        ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        return cls(ranges, features, response.finalized_features_epoch)

    def highest(self, key: ApiKey) -> int:
        """Returns the broker's highest version; -1 if it does not have the API."""
        return self._ranges.get(key, (0, -1))[1]

    def choose(
        self, request: type[ApiMessage], *, at_least: int = 0, at_most: int | None = None
    ) -> int | ClientFailure:
        """Returns the highest common version of a request, or why there is none.

        `at_least` is the caller's minimum, `at_most` the last version whose fields the caller sets.
        """
        spec = API[_KEYS[request]]
        low, high = self._ranges.get(spec.key, (0, -1))
        newest = spec.max_version if at_most is None else min(at_most, spec.max_version)
        chosen = min(high, newest)
        if high >= 0 and chosen >= max(low, spec.min_version, at_least):
            return chosen
        if high < 0:
            return ClientFailure(ClientFailureKind.VERSION, f"the broker does not support {api_name(spec.key)}")
        ours = f"{max(at_least, spec.min_version)} to {spec.max_version if at_most is None else at_most}"
        versions = f"the broker supports {api_name(spec.key)} in versions {low} to {high}"
        return ClientFailure(ClientFailureKind.VERSION, f"{versions}, but the request needs {ours}")
