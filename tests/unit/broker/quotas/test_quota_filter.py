"""DescribeClientQuotas: which entities a filter matches, and which filters make no sense."""

from __future__ import annotations

import pytest

from lowtide.broker.quotas.quota_entity import QuotaEntity
from lowtide.broker.quotas.quota_filter import filter_of, matches
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_client_quotas import DescribeClientQuotasComponent as Component
from lowtide.replication.refusal import Refusal

ALICE: QuotaEntity = (("user", "alice"),)
ALICE_APP: QuotaEntity = (("client-id", "app"), ("user", "alice"))
DEFAULT_USER: QuotaEntity = (("user", None),)
APP: QuotaEntity = (("client-id", "app"),)
ALL = (ALICE, ALICE_APP, DEFAULT_USER, APP)


def component(kind: str, match_type: int, match: str | None = None) -> Component:
    return Component(entity_type=kind, match_type=match_type, match=match)


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, ALL),
        ([component("user", 0, "alice")], False, (ALICE, ALICE_APP)),
        ([component("user", 0, "alice")], True, (ALICE,)),
        ([component("user", 1)], False, (DEFAULT_USER,)),
        ([component("user", 2)], False, (ALICE, ALICE_APP, DEFAULT_USER)),
        ([component("user", 2), component("client-id", 0, "app")], True, (ALICE_APP,)),
        ([component("ip", 2)], False, ()),
    ],
)
def test_what_a_filter_matches(components: list[Component], *, strict: bool, found: tuple[QuotaEntity, ...]) -> None:
    wanted = filter_of(components)
    assert not isinstance(wanted, Refusal)
    assert tuple(entity for entity in ALL if matches(entity, wanted, strict=strict)) == found


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([component("", 0, "a")], ErrorCode.INVALID_REQUEST),
        ([component("user", 0, "a"), component("user", 2)], ErrorCode.INVALID_REQUEST),
        ([component("group", 0, "a")], ErrorCode.UNSUPPORTED_VERSION),
        ([component("user", 0)], ErrorCode.INVALID_REQUEST),
        ([component("user", 1, "a")], ErrorCode.INVALID_REQUEST),
        ([component("user", 2, "a")], ErrorCode.INVALID_REQUEST),
        ([component("user", 3)], ErrorCode.INVALID_REQUEST),
        ([component("user", 2), component("ip", 2)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_filters_that_make_no_sense(components: list[Component], code: ErrorCode) -> None:
    refusal = filter_of(components)
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == code
