"""Members of share groups get records until they acknowledge them, also when leaders and members go."""

from __future__ import annotations

import asyncio

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.share_acknowledge import FINAL_EPOCH

from .share_cluster import ShareCluster, simulate
from .share_member import ACCEPT, REJECT, RELEASE, ShareMember, acquired, produce, values

NONE = ErrorCode.NONE


def test_records_are_delivered_once_and_acknowledged() -> None:
    async def run(cluster: ShareCluster) -> None:
        one, two = ShareMember(cluster, "one"), ShareMember(cluster, "two")
        await one.join()
        assert (await one.fetch()).responses == []
        await produce(cluster, 0, [b"a", b"b", b"c"])
        row = await one.row()
        assert acquired(row) == [(0, 2, 1)]
        assert values(row) == [b"a", b"b", b"c"]
        assert (await two.fetch()).responses == [], "a record is delivered to one member at a time"
        row = await one.row((0, 0, ACCEPT), (2, 2, REJECT))
        assert (row.acknowledge_error_code, acquired(row)) == (NONE, [])
        row = await one.row((1, 1, RELEASE), max_wait_ms=0)
        assert (row.acknowledge_error_code, acquired(row)) == (NONE, [])
        row = await two.row()
        assert acquired(row) == [(1, 1, 2)]
        assert values(row) == [b"b"]
        answer = await two.acknowledge((1, 1, ACCEPT))
        assert answer.responses[0].partitions[0].error_code == NONE
        await produce(cluster, 0, [b"d"])
        assert acquired(await one.row()) == [(3, 3, 1)]

    simulate(run)


def test_a_leader_that_takes_over_delivers_what_was_not_acknowledged() -> None:
    async def run(cluster: ShareCluster) -> None:
        one = ShareMember(cluster, "one")
        await one.join()
        await one.fetch()
        await produce(cluster, 0, [b"%d" % number for number in range(10)])
        assert acquired(await one.row()) == [(0, 9, 1)]
        answer = await one.acknowledge((0, 3, ACCEPT), (6, 6, RELEASE))
        assert answer.responses[0].partitions[0].error_code == NONE
        cluster.kill(one.leader)
        one.leader = -1
        row = await one.row()
        assert acquired(row) == [(4, 5, 1), (6, 6, 2), (7, 9, 1)]
        assert values(row) == [b"4", b"5", b"6", b"7", b"8", b"9"]

    simulate(run, share_coordinator_state_topic_num_partitions="3")


def test_a_lock_that_times_out_and_deliveries_that_are_spent() -> None:
    async def run(cluster: ShareCluster) -> None:
        one, two = ShareMember(cluster, "one"), ShareMember(cluster, "two")
        await one.join()
        await one.fetch()
        await produce(cluster, 0, [b"a", b"b"])
        begun = asyncio.get_running_loop().time()
        for count in (1, 2):
            assert acquired(await two.row()) == [(0, 1, count)]
        assert [acquired(await two.row()) for _ in range(2)] == [[(0, 0, 3)], [(1, 1, 3)]], "for the last time alone"
        assert 59 < asyncio.get_running_loop().time() - begun < 75
        answer = await one.acknowledge((0, 0, ACCEPT))
        assert answer.responses[0].partitions[0].error_code == ErrorCode.INVALID_RECORD_STATE
        await produce(cluster, 0, [b"c"])
        assert acquired(await one.row()) == [(2, 2, 1)]
        assert (await one.acknowledge((2, 2, ACCEPT))).responses[0].partitions[0].error_code == NONE
        while asyncio.get_running_loop().time() - begun < 95:
            assert (await one.fetch()).responses == [], "what was delivered three times is given up"

    simulate(run, group_share_delivery_count_limit="3")


def test_a_session_that_ends_gives_back_what_its_member_has() -> None:
    async def run(cluster: ShareCluster) -> None:
        one, two, three = (ShareMember(cluster, name) for name in ("one", "two", "three"))
        await one.join()
        await one.fetch()
        await produce(cluster, 0, [b"a", b"b", b"c"])
        assert acquired(await one.row()) == [(0, 2, 1)]
        answer = await one.acknowledge((0, 0, ACCEPT), epoch=FINAL_EPOCH)
        assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (NONE, NONE)
        assert (await one.fetch()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert acquired(await two.row()) == [(1, 2, 2)], "the delivery counts"
        cluster.clients[two.leader].close()
        await asyncio.sleep(2)
        await cluster.up()
        assert acquired(await three.row()) == [(1, 2, 3)], "the connection has gone, and the session with it"

    simulate(run)
