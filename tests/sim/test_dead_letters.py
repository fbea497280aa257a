"""Records that a share group gives up become dead letters (KIP-1191)."""

from __future__ import annotations

import asyncio

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from lowtide.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from lowtide.simulation.machines import State

from .dead_letter_world import (
    COPIES,
    ENABLES,
    LETTERS,
    REJECTED,
    SPENT,
    TOPIC_NAME,
    headers,
    leaders_of_letters,
    letters,
    make_letters_topic,
    until_letters,
)
from .share_cluster import ShareCluster, simulate
from .share_member import ACCEPT, REJECT, RELEASE, ShareMember, acquired, leader_of, produce
from .test_share_settings import delete, set_on_group, set_share_version

NONE = ErrorCode.NONE
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TOPIC, READ, WRITE, DENY, ALLOW = 2, 3, 4, 2, 3
"""Codes in CreateAcls."""
PARTITIONS = 2


async def member(cluster: ShareCluster, count: int, partition: int = 0) -> ShareMember:
    """Returns a member that has acquired so many records."""
    one = ShareMember(cluster, "one", partition)
    await one.join()
    await one.fetch()
    await produce(cluster, partition, [b"%d" % number for number in range(count)])
    assert acquired(await one.row()) == [(0, count - 1, 1)]
    return one


async def acknowledge(one: ShareMember, *ranges: tuple[int, int, int]) -> None:
    answer = await one.acknowledge(*ranges)
    assert answer.responses[0].partitions[0].error_code == NONE


def test_rejected_and_spent_records_get_dead_letters_with_their_origin() -> None:
    async def run(cluster: ShareCluster) -> None:
        await make_letters_topic(cluster)
        await set_on_group(cluster, "share.delivery.count.limit", "2")
        one = await member(cluster, 4, partition=1)
        await acknowledge(one, (0, 0, ACCEPT), (1, 1, REJECT), (2, 2, RELEASE), (3, 3, ACCEPT))
        assert acquired(await one.row()) == [(2, 2, 2)]
        await acknowledge(one, (2, 2, RELEASE))
        await until_letters(cluster, 2)
        found = await letters(cluster)
        assert found[0] == []
        common = {"topic": b"t", "partition": b"1", "group": b"g"}
        assert [headers(letter) for letter in found[1]] == [
            common | {"offset": b"1", "delivery.count": b"1", "message": REJECTED},
            common | {"offset": b"2", "delivery.count": b"2", "message": SPENT},
        ]
        assert [(letter.key, letter.value) for letter in found[1]] == [(None, None)] * 2
        await produce(cluster, 1, [b"4"])
        assert acquired(await one.row()) == [(4, 4, 1)]

    simulate(run)


def test_dead_letters_copy_records_on_request() -> None:
    async def run(cluster: ShareCluster) -> None:
        await make_letters_topic(cluster)
        await set_on_group(cluster, COPIES, "true")
        one = await member(cluster, 10)
        await acknowledge(one, *((number, number, REJECT if number % 2 else ACCEPT) for number in range(10)))
        found = await until_letters(cluster, 5)
        assert [(headers(letter)["offset"], letter.value) for letter in found] == [
            (b"%d" % number, b"%d" % number) for number in range(1, 10, 2)
        ]

    simulate(run)


def test_deleted_records_get_no_dead_letter_and_hold_up_no_delete() -> None:
    """The dead-letter topic can't take any: its replicas are too few. A delete ends what waits for it."""

    async def run(cluster: ShareCluster) -> None:
        await make_letters_topic(cluster, min_insync_replicas="3")
        one = await member(cluster, 4)
        stopped = next(number for number in (1, 2, 3) if number != one.leader)
        cluster.kill(stopped)
        await asyncio.sleep(20)
        await acknowledge(one, (0, 3, REJECT))
        await asyncio.sleep(5)
        await delete(cluster, 3)
        cluster.machines[stopped - 1].start()
        await cluster.up()
        found = await until_letters(cluster, 1)
        await asyncio.sleep(40)
        assert {headers(letter)["offset"] for letter in await until_letters(cluster, 1)} == {b"3"}, found

    simulate(run)


def test_a_group_without_a_usable_topic_gives_records_up_as_before() -> None:
    """A missing topic, one that does not allow dead letters, a wrong prefix, no topic: the group goes on at once."""

    async def run(cluster: ShareCluster) -> None:
        await cluster.create("dlq.refuses", 1)
        one = await member(cluster, 1)
        offset = 0
        for name in ("dlq.missing", "dlq.refuses", "t", ""):
            await set_on_group(cluster, TOPIC_NAME, name)
            await asyncio.sleep(1)
            await acknowledge(one, (offset, offset, REJECT))
            await produce(cluster, 0, [b"next"])
            offset += 1
            assert acquired(await one.row()) == [(offset, offset, 1)]
        started = asyncio.get_running_loop().time()
        await set_on_group(cluster, TOPIC_NAME, "dlq.missing")
        await asyncio.sleep(1)
        await acknowledge(one, (offset, offset, REJECT))
        await delete(cluster, offset + 1)
        assert asyncio.get_running_loop().time() - started < 10

    simulate(run)


def test_the_topic_is_created_if_the_brokers_allow_it() -> None:
    async def run(cluster: ShareCluster) -> None:
        await set_on_group(cluster, TOPIC_NAME, LETTERS)
        one = await member(cluster, 2)
        await acknowledge(one, (0, 1, REJECT))
        assert len(await until_letters(cluster, 2)) == 2
        configs = await described_topic(cluster, LETTERS)
        assert (configs[ENABLES], configs["message.timestamp.type"]) == ("true", "CreateTime")

    simulate(run, errors_deadletterqueue_auto_create_topics_enable="true")


async def described_topic(cluster: ShareCluster, name: str) -> dict[str, str | None]:
    rows = [DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)]
    answer = await cluster.clients[1].request(DescribeConfigsRequest(resources=rows), 4)
    return {each.name: each.value for each in answer.results[0].configs}


def test_the_first_level_of_the_feature_has_no_dead_letters() -> None:
    async def run(cluster: ShareCluster) -> None:
        await make_letters_topic(cluster)
        one = await member(cluster, 3)
        for offset, level in enumerate((1, 2)):
            await set_share_version(cluster, level)
            await asyncio.sleep(1)
            await acknowledge(one, (offset, offset, REJECT))
        assert [headers(letter)["offset"] for letter in await until_letters(cluster, 1)] == [b"1"]

    simulate(run)


@pytest.mark.parametrize("loses", ["leader", "topic's leader"])
def test_a_leader_that_is_killed_loses_no_dead_letter(loses: str) -> None:
    """The next leader writes those that are decided; until the topic can be written to, they wait."""

    async def run(cluster: ShareCluster) -> None:
        await make_letters_topic(cluster, 1, min_insync_replicas="3")
        one = await member(cluster, 4)
        cluster.kill(next(number for number in (1, 2, 3) if number != one.leader))
        await asyncio.sleep(20)
        await acknowledge(one, (0, 1, REJECT), (2, 3, ACCEPT))
        if loses == "leader":
            cluster.kill(one.leader)
            await asyncio.sleep(10)
        for machine in cluster.machines:
            if machine.state is not State.UP:
                machine.start()
        await cluster.up()
        two = ShareMember(cluster, "two")
        await produce(cluster, 0, [b"next"])
        row = await two.row() if loses == "leader" else await one.row()
        assert acquired(row) == [(4, 4, 1)], "what is given up is not delivered"
        found = [(headers(letter)["offset"], headers(letter)["message"]) for letter in await until_letters(cluster, 2)]
        assert set(found) == {(b"0", REJECTED), (b"1", REJECTED)}

    simulate(run)


def test_without_the_right_to_write_records_are_given_up_without_dead_letters() -> None:
    """The leader of the topic asks its authorizer about the broker that sends, which has the clients' name here."""

    async def run(cluster: ShareCluster) -> None:
        await make_letters_topic(cluster, PARTITIONS)
        number, one = await elsewhere(cluster)
        rules = [
            AclCreation(
                resource_type=TOPIC, resource_name=LETTERS, principal="User:ANONYMOUS", host="*", operation=operation,
                permission_type=permission,
            )
            for operation, permission in ((WRITE, DENY), (READ, ALLOW))
        ]  # fmt: skip
        answer = await cluster.clients[1].request(CreateAclsRequest(creations=rules), 3)
        assert {row.error_code for row in answer.results} == {NONE}
        await asyncio.sleep(1)
        await acknowledge(one, (0, 0, REJECT))
        await produce(cluster, number, [b"next"])
        assert acquired(await one.row()) == [(1, 1, 1)]
        await asyncio.sleep(1)
        assert not any((await letters(cluster)).values())

    everyone = {"allow.everyone.if.no.acl.found": "true", "authorizer.class.name": AUTHORIZER}
    simulate(run, **everyone)


async def elsewhere(cluster: ShareCluster) -> tuple[int, ShareMember]:
    """Returns a partition whose dead letters go to another broker, and a member that has a record of it."""
    leaders = await leaders_of_letters(cluster)
    origins = [await leader_of(cluster, number) for number in range(PARTITIONS)]
    number = next(each for each in range(PARTITIONS) if leaders[each] != origins[each])
    return number, await member(cluster, 1, number)
