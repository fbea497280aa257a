"""What the console shows of access rules, users, quotas and tokens, to users with and without the right to see them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

import pytest

from lowtide.admin import (
    DEFAULT_NAME,
    Acl,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResourceType,
    AdminClient,
    QuotaEntity,
)
from lowtide.admin.users import ScramUpsertion
from lowtide.protocol.scram import ScramMechanism
from lowtide.testing.cluster import LowtideCluster

from .console_visitor import OWN, Page, console_of


@pytest.fixture(scope="module")
def secure() -> Iterator[LowtideCluster]:
    config = {"delegation.token.secret.key": "a key that only this test has"}
    with LowtideCluster(secure=True, config=config) as cluster:
        yield cluster


@pytest.fixture
async def admin(secure: LowtideCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(secure.for_confluent_kafka) as admin:
        yield admin


@pytest.fixture
async def page(secure: LowtideCluster) -> AsyncIterator[Page]:
    async with console_of(secure.for_confluent_kafka) as page:
        yield page


async def test_who_may_do_what_with_a_topic(page: Page, admin: AdminClient):
    def rule(who: str, operation: AclOperation, name: str, *, prefixed: bool = False, denies: bool = False) -> Acl:
        pattern = AclPattern.PREFIXED if prefixed else AclPattern.LITERAL
        permission = AclPermission.DENY if denies else AclPermission.ALLOW
        return Acl(AclResourceType.TOPIC, name, pattern, f"User:{who}", "*", operation, permission)

    outcomes = await admin.create_acls(
        [
            rule("etl", AclOperation.READ, "flights"),
            rule("app", AclOperation.WRITE, "fl", prefixed=True),
            rule("audit", AclOperation.ALL, "*"),
            rule("audit", AclOperation.WRITE, "flights", denies=True),
            rule("other", AclOperation.READ, "orders"),
        ]
    )
    assert set(outcomes.values()) == {None}
    assert {row["principal"] for row in (await page.view("access.acls"))["acls"]} >= {"User:etl", "User:other"}
    found = await page.view("access.acls?type=topic&name=flights")
    rights = {row["principal"]: row for row in found["rights"]}
    assert rights["User:etl"]["may"] == ["READ", "DESCRIBE"]
    assert rights["User:app"]["may"] == ["WRITE", "DESCRIBE"]
    assert rights["User:audit"]["may_not"] == ["WRITE"]
    assert len(rights["User:audit"]["may"]) == 7
    assert "User:other" not in rights


async def test_users_quotas_and_tokens_without_secrets(page: Page, admin: AdminClient, secure: LowtideCluster):
    await admin.alter_quotas({QuotaEntity(user="etl"): {"consumer_byte_rate": 1000.0}})
    token = await admin.create_delegation_token(renewers=["User:etl"])
    users = {row["user"]: row for row in (await page.view("access.users"))["users"]}
    user = users[secure.for_confluent_kafka["sasl.username"]]
    assert [each["name"] for each in user["mechanisms"]] == ["SCRAM-SHA-512"]
    (quota,) = (await page.view("access.quotas"))["quotas"]
    assert quota["limits"] == [{"key": "consumer_byte_rate", "value": 1000.0}]
    found = await page.view("access.tokens")
    (row,) = found["tokens"]
    assert (row["id"], row["renewers"]) == (token.token_id, ["User:etl"])
    assert token.password not in json.dumps(found)


async def test_a_user_without_rights_gets_a_sentence(secure: LowtideCluster, admin: AdminClient):
    """The search box says what it could not search; pages answer with the reason, and the rest is shown."""
    change = ScramUpsertion(mechanism=ScramMechanism.SHA_512, password="weak", salt=b"0123456789abcdef")
    assert (await admin.alter_scram_users({"mallory": change}))["mallory"] is None
    settings = {**secure.for_confluent_kafka, "sasl.username": "mallory", "sasl.password": "weak"}
    async with console_of(settings) as page:
        names = await page.view("names")
        assert names["topics"] == names["groups"] == {"names": [], "left_out": 0, "error": None}
        assert "you lack a right on the cluster" in names["users"]["error"]
        assert names["brokers"]["names"]
        for view in ("access.acls", "access.users", "access.quotas"):
            answer = await page.get(f"api/view/{view}", **OWN)
            assert (answer.status, b"ou lack a right on the cluster" in answer.body) == (403, True), view
        assert (await page.view("access.tokens"))["tokens"] == []
        assert (await page.view("transactions"))["transactions"] == []
        moves = await page.view("moves")
        assert moves["moves"] == []
        assert "ou lack a right on the cluster" in moves["errors"][0]
        (broker,) = names["brokers"]["names"]
        found = await page.view(f"broker?broker={broker}")
        assert (found["known"], found["replicas"]) == (True, 0)
        answer = await page.get(f"api/view/broker.settings?broker={broker}", **OWN)
        assert answer.status == 403


async def test_an_acl_is_added_and_removed_after_a_rehearsal(secure: LowtideCluster, admin: AdminClient):
    given = {
        "type": "topic",
        "name": "changed",
        "principal": "User:ann",
        "operation": "READ",
        "allows": True,
        "prefixed": False,
    }
    async with console_of(secure.for_confluent_kafka, write=True) as page:
        status, plan = await page.post("acl/rehearsal", {"act": "add", **given})
        assert (status, plan["before"]["may"], plan["after"]["may"]) == (200, [], ["READ", "DESCRIBE"])
        assert [each for each in await admin.describe_acls() if each.resource_name == "changed"] == []
        assert (await page.post("acl", {"plan": plan["plan"]}))[0] == 200
        (acl,) = [each for each in await admin.describe_acls() if each.resource_name == "changed"]
        assert (acl.principal, acl.host) == ("User:ann", "*")
        assert (await page.post("acl", {"plan": plan["plan"]}))[0] == 409
        status, again = await page.post("acl/rehearsal", {"act": "add", **given})
        assert (status, again["error"]) == (400, "This ACL exists already.")
        status, plan = await page.post("acl/rehearsal", {"act": "remove", **given})
        assert (status, plan["before"]["may"], plan["after"]["may"]) == (200, ["READ", "DESCRIBE"], [])
        assert (await page.post("acl", {"plan": plan["plan"]}))[0] == 200
        assert [each for each in await admin.describe_acls() if each.resource_name == "changed"] == []
        status, none = await page.post("acl/rehearsal", {"act": "remove", **given})
        assert (status, none["error"]) == (400, "There is no such ACL.")
        status, wrong = await page.post("acl/rehearsal", {"act": "add", **given, "principal": "ann"})
        assert (status, "such as User:alice" in wrong["error"]) == (400, True)


async def test_a_quota_is_set_and_removed_after_a_rehearsal(secure: LowtideCluster, admin: AdminClient):
    entity = QuotaEntity(user="bob", client_id=DEFAULT_NAME)
    given = {"user": "bob", "client_id": {"default": True}, "ip": None, "key": "producer_byte_rate"}
    async with console_of(secure.for_confluent_kafka, write=True) as page:
        status, plan = await page.post("quota/rehearsal", {**given, "limit": "5000"})
        assert (status, plan["old"], plan["new"]) == (200, None, 5000.0)
        assert entity not in await admin.describe_quotas()
        assert (await page.post("quota", {"plan": plan["plan"]}))[0] == 200
        assert (await admin.describe_quotas())[entity] == {"producer_byte_rate": 5000.0}
        status, plan = await page.post("quota/rehearsal", {**given, "limit": ""})
        assert (status, plan["old"], plan["new"]) == (200, 5000.0, None)
        await admin.alter_quotas({entity: {"producer_byte_rate": 6000.0}})
        status, refused = await page.post("quota", {"plan": plan["plan"]})
        assert (status, "meanwhile" in refused["error"]) == (400, True)
        status, plan = await page.post("quota/rehearsal", {**given, "limit": ""})
        assert (await page.post("quota", {"plan": plan["plan"]}))[0] == 200
        assert entity not in await admin.describe_quotas()
        for wrong in ({"limit": "-1"}, {"limit": "many"}, {"limit": "9", "user": None, "client_id": None}):
            assert (await page.post("quota/rehearsal", {**given, **wrong}))[0] == 400, wrong
        assert (await page.post("quota/rehearsal", {**given, "key": "no_such_rate", "limit": "9"}))[0] == 409


async def test_without_write_nothing_of_access_changes(secure: LowtideCluster):
    async with console_of(secure.for_confluent_kafka) as page:
        assert (await page.post("acl", {"plan": "x"}))[0] == 403
        assert (await page.post("quota", {"plan": "x"}))[0] == 403
