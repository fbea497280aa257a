"""Creates, finds and removes access rules, and answers when every broker decides by them.

Any broker may change them. All changes of a request are made together, or none (`replication/acl_changes`).

Guards: a change is answered when this broker and all other registered brokers act on it (`spread`). Sources:
Kafka's `AclControlManager`, `AclApis`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from lowtide.broker.administration.committing import GIVEN_UP, MAX_PLANS, decide_and_commit
from lowtide.broker.administration.spread import Spread
from lowtide.broker.authorizer.acls import AclSelector
from lowtide.broker.context import BrokerContext
from lowtide.metadata.changes import NOTHING_TO_WRITE, ChangePlan
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import AclRecord
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.acl_changes import plan_new_acls, plan_removed_acls, plan_rest_of_change
from lowtide.replication.refusal import Refusal

WHAT: Final = "access rules"

TIMEOUT_MS: Final = 30_000
"""The time limit of a change. Requests have no field for one."""

REMOVED_MAX: Final = 10_000
"""The most rules that a request may remove. Source: Kafka's `MAX_RECORDS_PER_USER_OP`."""

TOO_MANY: Final = Refusal(
    ErrorCode.UNKNOWN_SERVER_ERROR, f"Cannot remove more than {REMOVED_MAX} acls in a single delete operation."
)
"""Kafka's answer."""

_STEP_ACLS: Final = 500
"""The rules compared with a filter in one step, about 0.2 ms."""


class _AclPlan(msgspec.Struct, frozen=True):
    plan: ChangePlan
    is_of_another: bool = False
    """Whether the plan finishes an earlier change first, so that the wanted change remains to be done."""


class AclAdministrator:
    """Changes the access rules of the cluster from this broker."""

    def __init__(self, broker: BrokerContext, spread: Spread) -> None:
        """Waits through `spread` until the other brokers confirm a change."""
        self.broker = broker
        self._spread = spread

    @property
    def is_enabled(self) -> bool:
        """Whether access rules have any effect."""
        return not self.broker.authorizer.allows_all

    async def find(self, wanted: AclSelector) -> dict[bytes, AclRecord]:
        """Returns the rules that match a filter, by key."""
        found: dict[bytes, AclRecord] = {}
        await self.broker.turns.walk(self._steps(wanted, found))
        return found

    async def create(self, acls: Sequence[AclRecord]) -> list[Refusal | None]:
        """Creates all of these rules, or none. Rules that exist already are accepted.

        Refusals: POLICY_VIOLATION, and those of `decide_and_commit`.
        """
        refusal = await self._commit(lambda image: plan_new_acls(image, acls))
        await self._spread.reach_all(self.broker.metadata.image.revision, WHAT)
        return [refusal] * len(acls)

    async def remove(self, filters: Sequence[AclSelector]) -> list[dict[bytes, AclRecord] | Refusal]:
        """Removes the rules that the filters match. Returns the removed rules of each filter, by key.

        A rule that several filters match is returned for each of them. Refusals: INVALID_REQUEST, UNKNOWN_SERVER_ERROR
        for too many rules. Those of `plan_removed_acls` and `decide_and_commit` apply to all filters with matches.
        """
        found: list[dict[bytes, AclRecord] | Refusal] = []
        wanted: dict[bytes, AclRecord] = {}
        for each in filters:
            meant = Refusal(ErrorCode.INVALID_REQUEST, each.fault) if each.fault is not None else await self.find(each)
            if not isinstance(meant, Refusal):
                if len(wanted.keys() | meant.keys()) > REMOVED_MAX:
                    meant = TOO_MANY
                else:
                    wanted.update(meant)
            found.append(meant)
        refusal = None
        if wanted:
            refusal = await self._commit(lambda image: plan_removed_acls(image, wanted))
            await self._spread.reach_all(self.broker.metadata.image.revision, WHAT)
        return [(refusal if each and refusal is not None else each) for each in found]

    async def _commit(self, plan: Callable[[MetadataImage], ChangePlan | Refusal]) -> Refusal | None:
        """Finishes an earlier change if there is one, makes this change, then writes its individual rules."""
        deadline = asyncio.get_running_loop().time() + TIMEOUT_MS / 1000

        def decide() -> _AclPlan | Refusal:
            image = self.broker.metadata.image
            if image.acl_change is not None:
                return _AclPlan(plan_rest_of_change(image.acl_change), is_of_another=True)
            planned = plan(image)
            return planned if isinstance(planned, Refusal) else _AclPlan(planned)

        for _ in range(MAX_PLANS):
            outcome = await decide_and_commit(self.broker.metadata, decide, deadline)
            if isinstance(outcome, Refusal):
                return outcome
            if not outcome.is_of_another:
                await self._write_rest(deadline)
                return None
        return GIVEN_UP

    async def _write_rest(self, deadline: float) -> None:
        """Writes the rules of a change one by one. If this fails, the next change or the next controller does it."""

        def decide() -> _AclPlan:
            change = self.broker.metadata.image.acl_change
            return _AclPlan(NOTHING_TO_WRITE if change is None else plan_rest_of_change(change))

        refusal = await decide_and_commit(self.broker.metadata, decide, deadline)
        if isinstance(refusal, Refusal):
            self.broker.log.warning("access rules are in force, and not written one by one yet", reason=refusal.message)

    def _steps(self, wanted: AclSelector, found: dict[bytes, AclRecord]) -> Iterator[None]:
        for number, (key, each) in enumerate(self.broker.metadata.image.acls.items(), 1):
            if wanted.matches(each.acl):
                found[key] = each.acl
            if number % _STEP_ACLS == 0:
                yield
