"""Features reported to clients: a feature is listed only while all APIs behind it are offered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.handlers import api_versions
from lowtide.broker.network.features import FEATURES, finalized, supported
from lowtide.broker.network.routes import VersionRange
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

NEEDED = {key: VersionRange(0, version) for feature in FEATURES for key, version in feature.needs.items()}


def ask(version: int, advertised: dict[ApiKey, VersionRange], *, wants_telemetry: bool = False) -> Any:
    """The response as a client reads it."""
    handle: Any = api_versions.handler(advertised, lambda: wants_telemetry).handle
    context: Any = SimpleNamespace(api_version=version, connection=SimpleNamespace())
    response = handle(ApiVersionsRequest(client_software_name="test", client_software_version="1"), context)
    codec = codec_for(ApiVersionsResponse, version)
    body = bytes(codec.encode(response))
    return codec.decode(body, 0, len(body))


def test_all_features_are_listed_with_their_levels() -> None:
    levels = [("group.version", 1), ("transaction.version", 2)]
    answer = ask(4, NEEDED)
    assert [(row.name, row.max_version_level) for row in answer.finalized_features] == levels
    assert [(row.name, row.max_version) for row in answer.supported_features] == levels
    assert {row.min_version for row in answer.supported_features} == {0}
    assert answer.finalized_features_epoch >= 0


def test_clients_that_cannot_read_level_0_receive_no_supported_features() -> None:
    answer = ask(3, NEEDED)
    assert answer.supported_features == []
    assert len(answer.finalized_features) == len(FEATURES)
    assert ask(2, NEEDED).finalized_features == []


@pytest.mark.parametrize(("feature", "key"), [(feature.name, key) for feature in FEATURES for key in feature.needs])
def test_a_feature_disappears_with_an_api_that_is_capped_or_missing(feature: str, key: ApiKey) -> None:
    missing = {each: served for each, served in NEEDED.items() if each is not key}
    for advertised in (missing, missing | {key: VersionRange(0, NEEDED[key].maximum - 1)}):
        assert feature not in [row.name for row in finalized(advertised)]
        assert feature not in [row.name for row in supported(advertised)]


@pytest.mark.parametrize("version", [0, 3, 4])
def test_clients_see_where_to_push_their_metrics_only_while_any_are_wanted(version: int) -> None:
    """They ask at once for what they see, and librdkafka writes a line about it."""
    telemetry = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
    advertised = NEEDED | {key: VersionRange(0, 0) for key in telemetry}
    seen = {wanted: {row.api_key for row in ask(version, advertised, wants_telemetry=wanted).api_keys} for wanted in (False, True)}
    assert seen == {False: set(NEEDED), True: set(advertised)}
