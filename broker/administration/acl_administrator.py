"""Rules of access control: created, found and removed, and answered when every broker decides by them.

Any broker may change them. All that a request changes is made at once, or not at all (`replication/acl_changes`).

Guards: a change is answered when this broker and all others that are registered act on it (`spread`).
Sources: Kafka's `AclControlManager`, `AclApis`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from lowtide.broker.administration.committing import GIVEN_UP, MAX_PLANS, decide_and_commit
from lowtide.broker.administration.spread import Spread
from lowtide.broker.authorizer.acls import AclFilter
from lowtide.broker.context import BrokerContext
from lowtide.broker.slices import walk_in_slices
from lowtide.metadata.changes import NOTHING_TO_WRITE, ChangePlan
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import AclRecord
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.acl_changes import plan_new_acls, plan_removed_acls, plan_rest_of_change
from lowtide.replication.refusal import Refusal

WHAT: Final = "access rules"

TIMEOUT_MS: Final = 30_000
"""How long a change may take: requests don't say."""

REMOVED_MAX: Final = 10_000
"""Rules that one request may remove. Source: Kafka's `MAX_RECORDS_PER_USER_OP`."""

TOO_MANY: Final = Refusal(
    ErrorCode.UNKNOWN_SERVER_ERROR, f"Cannot remove more than {REMOVED_MAX} acls in a single delete operation."
)
"""As in Kafka, which answers so too."""

_STEP_ACLS: Final = 500
"""Rules that are compared with a filter at a time: some two tenths of a millisecond."""


class _Decided(msgspec.Struct, frozen=True):
    plan: ChangePlan
    is_of_another: bool = False
    """It brings an earlier change to its end; what is wanted is still to be done."""


class AclAdministrator:
    """The rules of one cluster, as changed by this broker."""

    def __init__(self, broker: BrokerContext, spread: Spread) -> None:
        """`spread` has the other brokers confirm what is changed."""
        self.broker = broker
        self._spread = spread

    @property
    def is_enabled(self) -> bool:
        """Whether rules have any effect."""
        return not self.broker.authorizer.allows_all

    async def find(self, wanted: AclFilter) -> dict[bytes, AclRecord]:
        """The rules that a filter means, by their keys."""
        found: dict[bytes, AclRecord] = {}
        await walk_in_slices(self.broker.turns, self._steps(wanted, found))
        return found

    async def create(self, acls: Sequence[AclRecord]) -> list[Refusal | None]:
        """Create all of these rules, or none; those that are there already are not refused.

        Refusals: POLICY_VIOLATION, and those of `decide_and_commit`.
        """
        refusal = await self._commit(lambda image: plan_new_acls(image, acls))
        await self._spread.reach_all(self.broker.metadata.image.revision, WHAT)
        return [refusal] * len(acls)

    async def remove(self, filters: Sequence[AclFilter]) -> list[dict[bytes, AclRecord] | Refusal]:
        """Remove the rules that filters mean: of each the rules that were there, by their keys.

        A rule that several mean is in each. Refusals: INVALID_REQUEST, UNKNOWN_SERVER_ERROR for too many; for all
        filters that a rule is of, those of `plan_removed_acls` and of
        `decide_and_commit`.
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
        """Make a change, after what is left of an earlier one; then write what is left of it."""
        deadline = asyncio.get_running_loop().time() + TIMEOUT_MS / 1000

        def decide() -> _Decided | Refusal:
            image = self.broker.metadata.image
            if image.acl_change is not None:
                return _Decided(plan_rest_of_change(image.acl_change), is_of_another=True)
            planned = plan(image)
            return planned if isinstance(planned, Refusal) else _Decided(planned)

        for _ in range(MAX_PLANS):
            outcome = await decide_and_commit(self.broker.metadata, decide, deadline)
            if isinstance(outcome, Refusal):
                return outcome
            if not outcome.is_of_another:
                await self._write_rest(deadline)
                return None
        return GIVEN_UP

    async def _write_rest(self, deadline: float) -> None:
        """What is in force is written rule by rule. If that fails, the next change does it, or the next controller."""

        def decide() -> _Decided:
            change = self.broker.metadata.image.acl_change
            return _Decided(NOTHING_TO_WRITE if change is None else plan_rest_of_change(change))

        refusal = await decide_and_commit(self.broker.metadata, decide, deadline)
        if isinstance(refusal, Refusal):
            self.broker.log.warning("access rules are in force, and not written one by one yet", reason=refusal.message)

    def _steps(self, wanted: AclFilter, found: dict[bytes, AclRecord]) -> Iterator[None]:
        for number, (key, each) in enumerate(self.broker.metadata.image.acls.items(), 1):
            if wanted.matches(each.acl):
                found[key] = each.acl
            if number % _STEP_ACLS == 0:
                yield
