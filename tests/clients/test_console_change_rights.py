"""Changes in a console that may write: each user has its own rights, and a refusal is a sentence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from lowtide.admin import Acl, AclOperation, AclPattern, AclPermission, AclResourceType
from lowtide.admin.client import AdminClient
from lowtide.admin.topics import NewTopic
from lowtide.admin.users import ScramUpsertion
from lowtide.protocol.scram import ScramMechanism
from lowtide.protocol.types import TopicPartition
from lowtide.testing.cluster import LowtideCluster

from .console_visitor import rehearsed
from .test_console_logins import logged_in

NUMBERS = count()


@pytest.fixture(scope="module")
def secure() -> Iterator[LowtideCluster]:
    with LowtideCluster(secure=True) as cluster:
        yield cluster


@pytest.fixture
async def admin(secure: LowtideCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(secure.for_confluent_kafka) as admin:
        yield admin


async def user(admin: AdminClient, *operations: AclOperation) -> tuple[str, str]:
    """Makes a user with rights on a new topic, and on all groups to describe them. Returns its name and the topic."""
    number = next(NUMBERS)
    name, topic = f"reader-{number}", f"shown-{number}"
    found = await admin.create_topics([NewTopic(name=topic, partitions=1, replication_factor=1)])
    assert not isinstance(found[topic], Exception)
    change = ScramUpsertion(mechanism=ScramMechanism.SHA_512, password="weak", salt=b"0123456789abcdef")
    assert (await admin.alter_scram_users({name: change}))[name] is None
    rules = [_rule(name, AclResourceType.TOPIC, topic, each) for each in operations]
    rules.append(_rule(name, AclResourceType.GROUP, f"group-{number}", AclOperation.DESCRIBE))
    assert set((await admin.create_acls(rules)).values()) == {None}
    await admin.alter_group_offsets(f"group-{number}", {TopicPartition(topic, 0): 0})
    return name, topic


def _rule(name: str, kind: AclResourceType, resource: str, operation: AclOperation) -> Acl:
    return Acl(
        resource_type=kind,
        resource_name=resource,
        pattern=AclPattern.LITERAL,
        principal=f"User:{name}",
        host="*",
        operation=operation,
        permission=AclPermission.ALLOW,
    )


async def test_a_reader_is_refused_with_a_sentence(secure: LowtideCluster, admin: AdminClient):
    name, topic = await user(admin, AclOperation.READ, AclOperation.DESCRIBE_CONFIGS)
    async with logged_in(secure, name, "weak") as (status, page):
        assert status == 200
        assert (await page.view(f"settings?topic={topic}"))["settings"], "it may see them"
        for path, given in {
            "creation/rehearsal": {"topic": f"{topic}-more"},
            "growth/rehearsal": {"topic": topic, "partitions": 2},
            "settings/rehearsal": {"topic": topic, "settings": {"retention.ms": "1"}},
        }.items():
            status, answer = await page.post(path, given)
            assert status == 403, (path, answer)
            assert answer["error"].startswith("The cluster does not let you do this: ")
        records = {"topic": topic, "records": [{"value": {"form": "text", "text": "v"}}]}
        group = topic.replace("shown", "group")
        for path, given in {
            "records": records,
            "topic-deletion": {"topic": topic},
            "forget": {"group": group},
        }.items():
            plan = await rehearsed(page, path, given)
            status, answer = await page.post(path, {"plan": plan["plan"], "name": topic})
            assert status == 403, (path, answer)
            assert answer["error"].startswith("The cluster does not let you do this: ")
        plan = await rehearsed(page, "reset", {"group": group, "to": "latest"})
        status, answer = await page.post("reset", {"plan": plan["plan"]})
        assert status == 403 or "you lack a right on the group" in answer["partitions"][0]["error"], answer
    assert topic in await admin.list_topics()
    assert f"{topic}-more" not in await admin.list_topics()


async def test_a_writer_may_write_and_nothing_else(secure: LowtideCluster, admin: AdminClient):
    name, topic = await user(admin, AclOperation.WRITE)
    async with logged_in(secure, name, "weak") as (_, page):
        plan = await rehearsed(page, "records", {"topic": topic, "records": [{"value": {"form": "text", "text": "v"}}]})
        status, outcome = await page.post("records", {"plan": plan["plan"]})
        assert (status, outcome["partitions"][0]["offset"]) == (200, 0), outcome
        assert (await page.get(f"api/view/settings?topic={topic}")).status == 403
        status, answer = await page.post("settings/rehearsal", {"topic": topic, "settings": {"retention.ms": "1"}})
        assert status == 403, answer


async def test_a_stranger_learns_nothing_of_a_topic(secure: LowtideCluster, admin: AdminClient):
    name, _ = await user(admin, AclOperation.READ)
    _, other = await user(admin, AclOperation.READ)
    async with logged_in(secure, name, "weak") as (_, page):
        for path, given in {
            "growth": {"partitions": 2},
            "settings": {"settings": {"retention.ms": "1"}},
            "records": {"records": [{"value": {"form": "text", "text": "v"}}]},
            "topic-deletion": {},
        }.items():
            status, answer = await page.post(f"{path}/rehearsal", {"topic": other, **given})
            assert status in {403, 404}, (path, answer)
