"""Features reported to clients: a feature is listed only while all APIs behind it are offered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lowtide.broker.handlers import api_versions
from lowtide.broker.network.routing.features import FEATURES, features_of, finalized, serves_consumer_groups, supported
from lowtide.broker.network.routing.routes import VersionRange
from lowtide.metadata.config_image import NOTHING_SET
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import ERASURES_LEVEL, FeaturesRecord
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

NEEDED = {key: VersionRange(0, version) for feature in FEATURES for key, version in feature.needs.items()}
BROKER: Any = SimpleNamespace(replicas=SimpleNamespace(broker_id=1))
AGREED = MetadataImage(revision=9, features=FeaturesRecord(1, 1, required_level=ERASURES_LEVEL), features_revision=7)


def ask(version: int, advertised: dict[ApiKey, VersionRange], image: MetadataImage = AGREED) -> Any:
    """The response as a client reads it."""
    handle: Any = api_versions.handler(advertised, lambda: image, BROKER).handle
    context: Any = SimpleNamespace(api_version=version, connection=SimpleNamespace(software=("", "")))
    response = handle(ApiVersionsRequest(client_software_name="test", client_software_version="1"), context)
    codec = codec_for(ApiVersionsResponse, version)
    body = bytes(codec.encode(response))
    return codec.decode(body, 0, len(body))


def test_all_features_are_listed_with_their_levels() -> None:
    answer = ask(4, NEEDED)
    assert [(row.name, row.max_version_level) for row in answer.finalized_features] == [
        ("eligible.leader.replicas.version", 1),
        ("group.version", 1),
        ("kraft.version", 1),
        ("lowtide.metadata.version", 3),
        ("metadata.version", 33),
        ("share.version", 2),
        ("streams.version", 1),
        ("transaction.version", 2),
    ]
    assert [(row.name, row.min_version, row.max_version) for row in answer.supported_features] == [
        ("eligible.leader.replicas.version", 0, 1),
        ("group.version", 0, 1),
        ("kraft.version", 1, 1),
        ("lowtide.metadata.version", 0, 3),
        ("metadata.version", 33, 33),
        ("share.version", 0, 2),
        ("streams.version", 0, 1),
        ("transaction.version", 0, 2),
    ]
    assert answer.finalized_features_epoch == 7


def test_what_the_brokers_have_not_agreed_on_is_off() -> None:
    reporting = msgspec.structs.replace(AGREED, features=FeaturesRecord(1))
    levels = {row.name: row.max_version_level for row in ask(4, NEEDED, reporting).finalized_features}
    assert (levels["lowtide.metadata.version"], "eligible.leader.replicas.version" in levels) == (1, False)
    assert "lowtide.metadata.version" not in {row.name for row in ask(4, NEEDED, MetadataImage()).finalized_features}


def test_levels_are_those_of_the_metadata() -> None:
    """A client believes the newest epoch; a group's partitions are assigned by the broker only from level 1 on."""
    lowered = msgspec.structs.replace(
        AGREED, features=FeaturesRecord(1, 1, {"group.version": 0, "transaction.version": 1})
    )
    levels = {row.name: row.max_version_level for row in ask(4, NEEDED, lowered).finalized_features}
    assert ("group.version" in levels, levels["transaction.version"]) == (False, 1)
    assert [serves_consumer_groups(image) for image in (AGREED, lowered)] == [True, False]


def test_one_handler_follows_the_metadata() -> None:
    seen = [AGREED]
    handle: Any = api_versions.handler(NEEDED, lambda: seen[-1], BROKER).handle
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    context: Any = SimpleNamespace(api_version=4, connection=SimpleNamespace(software=("", "")))
    before = handle(request, context)
    seen.append(
        msgspec.structs.replace(AGREED, features=FeaturesRecord(1, 1, {"transaction.version": 0}), features_revision=8)
    )
    after = handle(request, context)
    assert [each.finalized_features_epoch for each in (before, after)] == [7, 8]
    assert ["transaction.version" in {row.name for row in each.finalized_features} for each in (before, after)] == [
        True,
        False,
    ]


def test_clients_that_cannot_read_level_0_see_only_what_cannot_be_off() -> None:
    answer = ask(3, NEEDED)
    assert [row.name for row in answer.supported_features] == ["kraft.version", "metadata.version"]
    assert len(answer.finalized_features) == len(features_of(AGREED, NEEDED))
    assert ask(2, NEEDED).finalized_features == []


@pytest.mark.parametrize(("feature", "key"), [(feature.name, key) for feature in FEATURES for key in feature.needs])
def test_a_feature_disappears_with_an_api_that_is_capped_or_missing(feature: str, key: ApiKey) -> None:
    missing = {each: served for each, served in NEEDED.items() if each is not key}
    for advertised in (missing, missing | {key: VersionRange(0, NEEDED[key].maximum - 1)}):
        features = features_of(AGREED, advertised)
        assert feature not in [row.name for row in finalized(features)]
        assert feature not in [row.name for row in supported(features, from_0=True)]


@pytest.mark.parametrize("version", [0, 3, 4])
def test_clients_see_where_to_push_their_metrics_only_while_any_are_wanted(version: int) -> None:
    """They ask at once for what they see, and librdkafka writes a line about it."""
    telemetry = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
    advertised = NEEDED | {key: VersionRange(0, 0) for key in telemetry}
    images = {False: AGREED, True: msgspec.structs.replace(AGREED, client_metrics={"all": NOTHING_SET})}
    seen = {
        wanted: {row.api_key for row in ask(version, advertised, image).api_keys} for wanted, image in images.items()
    }
    assert seen == {False: set(NEEDED), True: set(advertised)}
