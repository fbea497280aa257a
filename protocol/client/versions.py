"""Which versions a broker speaks, the one in which to ask, and what a request and its answer look like in it."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lowtide.protocol.api_keys import API, ApiKey, response_header_is_flexible
from lowtide.protocol.client.refused import Refusal, Refused
from lowtide.protocol.compiler import Codec, codec_for
from lowtide.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from lowtide.protocol.messages.api_versions import ApiVersionsResponse
    from lowtide.protocol.primitives import Buffer
    from lowtide.protocol.schema import ApiMessage

_KEYS: Final[Mapping[type[ApiMessage], ApiKey]] = {spec.request: key for key, spec in API.items()}
_ERROR_CODE: Final = struct.Struct(">h")


class Feature(NamedTuple):
    """A feature that a broker could use, and the level at which the cluster uses it; 0 stands for not at all."""

    name: str
    min_level: int
    max_level: int
    finalized_level: int


class Exchange(NamedTuple):
    """A request of one kind and version, and its answer."""

    key: ApiKey
    version: int
    request: Codec[Any]
    decode: Callable[[Buffer, int, int], Any]
    """As `Codec.decode`, of the answer."""
    answer_is_flexible: bool
    has_records: bool
    """Whether fields of the answer may be views of the buffer that it was decoded from."""


@functools.cache
def exchange_of(request: type[ApiMessage], version: int) -> Exchange:
    """How to ask this in this version. Errors: ValueError for a version that Lowtide doesn't speak."""
    key = _KEYS[request]
    decode = codec_for(API[key].response, version).decode
    if key == ApiKey.API_VERSIONS:
        decode = functools.partial(_decode_versions, decode)
    flexible = response_header_is_flexible(key, version)
    return Exchange(key, version, codec_for(request, version), decode, flexible, has_records=key == ApiKey.FETCH)


def _decode_versions(decode: Callable[[Buffer, int, int], Any], buffer: Buffer, start: int, end: int) -> Any:
    """A broker answers a version of ApiVersions that it doesn't know in version 0, with UNSUPPORTED_VERSION (KIP-511)."""
    if end >= start + _ERROR_CODE.size and _ERROR_CODE.unpack_from(buffer, start)[0] == ErrorCode.UNSUPPORTED_VERSION:
        decode = codec_for(API[ApiKey.API_VERSIONS].response, 0).decode
    return decode(buffer, start, end)


class ApiVersions:
    """What one broker speaks. Both ends of a range are inclusive."""

    __slots__ = ("_ranges", "features", "features_epoch")

    def __init__(
        self, ranges: Mapping[int, tuple[int, int]], features: Iterable[Feature] = (), features_epoch: int = -1
    ) -> None:
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

    def choose(self, request: type[ApiMessage], *, at_least: int = 0, at_most: int | None = None) -> int | Refused:
        """The highest version of a request that both sides speak, or why there is none.

        `at_least` is what the caller's question needs, `at_most` the last version whose fields the caller fills in.
        """
        spec = API[_KEYS[request]]
        low, high = self._ranges.get(spec.key, (0, -1))
        newest = spec.max_version if at_most is None else min(at_most, spec.max_version)
        chosen = min(high, newest)
        if high >= 0 and chosen >= max(low, spec.min_version, at_least):
            return chosen
        if high < 0:
            return Refused(Refusal.VERSION, f"the broker doesn't have {api_name(spec.key)}")
        ours = f"{max(at_least, spec.min_version)} to {spec.max_version if at_most is None else at_most}"
        versions = f"the broker speaks {api_name(spec.key)} in versions {low} to {high}"
        return Refused(Refusal.VERSION, f"{versions}, and what was asked for needs one of {ours}")


def api_name(key: ApiKey) -> str:
    """`DELETE_RECORDS` as `DeleteRecords`."""
    return key.name.title().replace("_", "")
