"""A member of a consumer group (KIP-848) or a streams group (KIP-1071).

It joins, reports its partitions, revokes them in its own time, and only then accepts new ones; it commits for its
partitions, leaves, permanently or as a static member, and dies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.consumer_group_heartbeat import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.group_load import COMMITTED_MS, NOT_YET_THERE, OUT
from lowtide.simulation.heartbeat_forms import ConsumerForm, HeartbeatForm, MemberReport
from lowtide.simulation.owning_member import GONE, LATE, STALE, OwnedGroup, OwningMember

_FETCH_VERSION: Final = 9
_COMMIT_VERSION: Final = 9


class ConsumerMember(OwningMember):
    """A member whose coordinator assigns its partitions. `form` has the heartbeats of its protocol."""

    def __init__(
        self,
        load: OwnedGroup,
        client: ClusterClient,
        random: Random,
        instance: str | None,
        form: Callable[[OwnedGroup, Random], HeartbeatForm] = ConsumerForm,
    ) -> None:
        super().__init__(load, client, random, instance)
        self.generation_id = -1
        self._assigned: list[int] = []
        """The partitions of the last assignment."""
        self._assigned_s = 0.0
        self._assigned_voids = 0
        """What was assigned before a loss is no ownership after it."""
        self._tells_all = True
        self._gives_back_s = 0.0
        """The earliest time of its next revocation."""
        self._must_since_s = math.inf
        """The time since a partition must be revoked, from which its rebalance timeout counts."""
        self.form = form(load, random)

    async def step(self) -> None:
        if self.is_away:
            self.client.close()
            return
        chance = self.random.random()
        if self.generation_id < 0:
            if self._late is not None and chance < 0.2:  # noqa: PLR2004
                await self.commit_late(_COMMIT_VERSION)
            await self.heartbeat()
        elif self.load.is_calm or chance < 0.5:  # noqa: PLR2004
            await self.heartbeat()
        else:
            await self._work(chance)
        self._reconcile()

    async def _work(self, chance: float) -> None:
        if chance < 0.75 and self.partitions:  # noqa: PLR2004
            partition = self.random.choice(self.partitions)
            since_s = self.load.owners.since_s(self.client.name, partition)
            code = await self.commit_as(partition, self._member_id, self.generation_id, since_s, _COMMIT_VERSION)
            if not self.has("OffsetCommit", code, LATE) and code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._forget()
        elif chance < 0.9:  # noqa: PLR2004
            await self._fetch_own()
        elif chance < 0.92:  # noqa: PLR2004
            await self.commit_late(_COMMIT_VERSION)
        elif chance < 0.94:  # noqa: PLR2004
            self.form.change_subscription()
            self._tells_all = True
        elif chance < 0.97:  # noqa: PLR2004
            await self._leave()
        else:
            self.client.note("dies")
            self._forget(keeps_id=False)
            self.client.close()
            await self.be_silent()

    async def heartbeat(self) -> None:
        """Joins or reports its partitions; receives its assignment."""
        history, joins = self.load.owners, self.generation_id < 0
        if joins and self.form.makes_id and not self._member_id:
            self._member_id = f"{self.client.name} {self.random.getrandbits(64):x}"
        request = self._request(joins=joins)
        given_out, voids, beginnings, asked_s = (
            history.generation_id,
            history.voids,
            history.beginnings,
            self.client.now_s(),
        )
        try:
            answer = await self.ask(request, 1 if self.form.makes_id else 0, timeout_ms=COMMITTED_MS)
        except OSError:
            self._tells_all = True
            self.on_lost()
            raise
        if not self.has(self.form.api, answer.error_code, GONE):
            if answer.error_code in GONE:
                self._forget(keeps_id=answer.error_code == ErrorCode.FENCED_MEMBER_EPOCH)
            self._tells_all = True
            return
        if voids == history.voids:
            history.on_alive(self.client.name, asked_s)
            known = 0 if joins else self.generation_id
            now_s = self.client.now_s()
            history.on_epoch(
                answer.member_epoch, known=known, given_out_before=given_out, beginnings=beginnings, now_s=now_s
            )
        self._on_answer(answer, asked_s, voids, joins=joins)

    def _request(self, *, joins: bool) -> Any:
        tells_all = joins or self._tells_all or self.random.random() < 0.3  # noqa: PLR2004
        self._tells_all = self._tells_all and not tells_all
        is_settled = sorted(self._assigned) == sorted(self.partitions)
        epoch = JOIN_EPOCH if joins else self.generation_id
        partitions = self.partitions if tells_all or is_settled else None
        return self.form.request(
            MemberReport(self.key, self._member_id, epoch, self._instance, partitions, tells_all=tells_all)
        )

    def _on_answer(self, answer: Any, asked_s: float, voids: int, *, joins: bool) -> None:
        self._member_id = answer.member_id or self._member_id
        if answer.member_epoch != self.generation_id:
            self.client.note(f"is in epoch {answer.member_epoch}{' (joins)' if joins else ''} of {self.key}")
        self.generation_id, self._assigned_s, self._assigned_voids = answer.member_epoch, asked_s, voids
        assigned = self.form.assigned(answer)
        if assigned is not None:
            if assigned != self._assigned:
                self.client.note(f"is to have {assigned}, has {self.partitions}")
                slow = self.random.random() < 0.15 and not self.load.is_calm  # noqa: PLR2004 - some are out by that
                self._gives_back_s = asked_s + (self.random.choice((0.5, 1.0, 4.0)) if slow else 0.0)
            self._assigned = assigned
        kept = [number for number in self.partitions if number in self._assigned]
        self._must_since_s = math.inf if len(kept) == len(self.partitions) else min(self._must_since_s, asked_s)
        self.own(kept, min(asked_s, self._must_since_s), voids)

    def _reconcile(self) -> None:
        if (
            sorted(self._assigned) == sorted(self.partitions)
            or self.generation_id < 0
            or self.client.now_s() < self._gives_back_s
        ):
            return
        self.release([number for number in self.partitions if number not in self._assigned])
        self.partitions, self._must_since_s = self._assigned[:], math.inf
        self.client.note(f"has {self.partitions}, in epoch {self.generation_id}")
        self.own(self.partitions, self._assigned_s, self._assigned_voids)

    async def _fetch_own(self) -> None:
        """Fetches the offsets of its partitions, as a member."""
        load, history, partitions = self.load, self.load.history, self.partitions[:]
        wanted = [OffsetFetchRequestTopics(name=load.topic, partition_indexes=partitions)]
        group = OffsetFetchRequestGroup(
            group_id=self.key, member_id=self._member_id, member_epoch=self.generation_id, topics=wanted
        )
        voids, before = history.voids, await self.known_committed(partitions)
        answer = await self.ask(
            OffsetFetchRequest(groups=[group], require_stable=True), _FETCH_VERSION, timeout_ms=COMMITTED_MS
        )
        fetched = answer.groups[0]
        if self.has("OffsetFetch", fetched.error_code, STALE | OUT | {ErrorCode.GROUP_ID_NOT_FOUND}):
            for row in fetched.topics[0].partitions if fetched.topics else ():
                if self.has("OffsetFetch", row.error_code, NOT_YET_THERE):
                    number = row.partition_index
                    history.on_fetched(number, row.committed_offset, committed_before=before[number], voids=voids)

    async def _leave(self) -> None:
        """Leaves; a static member may keep its place."""
        epoch = STATIC_LEAVE_EPOCH if self._instance is not None and self.random.random() < 0.7 else LEAVE_EPOCH  # noqa: PLR2004
        request = self.form.request(MemberReport(self.key, self._member_id, epoch, self._instance, [], tells_all=False))
        self.client.note(f"leaves ({epoch})")
        self.load.owners.on_leaving(self.client.name)
        self._forget(keeps_id=False)
        try:
            answer = await self.ask(request, 1 if self.form.makes_id else 0, timeout_ms=COMMITTED_MS)
        except OSError:
            self.on_lost()
            raise
        self.has("leaving", answer.error_code, GONE)

    def _forget(self, *, keeps_id: bool = True) -> None:
        self.remember_for_late()
        self.release(self.partitions)
        self.generation_id, self.partitions, self._assigned, self._tells_all = -1, [], [], True
        if not keeps_id:
            self._member_id = ""
