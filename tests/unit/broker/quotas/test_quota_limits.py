"""Which quota holds for whom: Kafka's order, from the most special to the most general."""

from __future__ import annotations

import pytest

from lowtide.broker.quotas.quota_entity import CLIENT_ID, IP, USER, QuotaEntity, entity_text
from lowtide.broker.quotas.quota_limits import QuotaLimits, QuotaShare
from lowtide.metadata.config_image import ConfigImage

KEY = "producer_byte_rate"

ORDER: tuple[tuple[QuotaEntity, str | None, str | None], ...] = (
    (((CLIENT_ID, "app"), (USER, "alice")), "alice", "app"),
    (((CLIENT_ID, None), (USER, "alice")), "alice", "app"),
    (((USER, "alice"),), "alice", None),
    (((CLIENT_ID, "app"), (USER, None)), "alice", "app"),
    (((CLIENT_ID, None), (USER, None)), "alice", "app"),
    (((USER, None),), "alice", None),
    (((CLIENT_ID, "app"),), None, "app"),
    (((CLIENT_ID, None),), None, "app"),
)


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_first_in_the_order_that_is_set_holds(first: int) -> None:
    quotas = {entity: {KEY: float(number + 1)} for number, (entity, _, _) in enumerate(ORDER) if number >= first}
    _, user, client_id = ORDER[first]
    assert QuotaLimits(quotas).share(KEY, "alice", "app") == QuotaShare(first + 1.0, user, client_id)


def test_an_entity_without_the_key_is_passed_over() -> None:
    limits = QuotaLimits({((USER, "alice"),): {"request_percentage": 5.0}, ((CLIENT_ID, "app"),): {KEY: 7.0}})
    assert limits.share(KEY, "alice", "app") == QuotaShare(7.0, None, "app")
    assert limits.share(KEY, "alice", "other") is None
    assert limits.share("request_percentage", "bob", "app") is None


def test_an_address_has_its_own_rate_or_the_default() -> None:
    limits = QuotaLimits(
        {((IP, "10.0.0.1"),): {"connection_creation_rate": 3.0}, ((IP, None),): {"connection_creation_rate": 9.0}}
    )
    assert (limits.connection_rate("10.0.0.1"), limits.connection_rate("10.0.0.2")) == (3.0, 9.0)
    assert QuotaLimits({}).connection_rate("10.0.0.1") is None
    assert not limits.has_clients


def test_limits_are_read_from_the_image() -> None:
    entity: QuotaEntity = ((CLIENT_ID, "a&b=c/d %"), (USER, None))
    limits = QuotaLimits.of(
        {entity_text(entity): ConfigImage({KEY: "12.5", "later": "what an older version cannot read"}, 3)}
    )
    assert limits.has_clients
    assert limits.share(KEY, "any", "a&b=c/d %") == QuotaShare(12.5, "any", "a&b=c/d %")
