"""Elects leaders and reassigns replicas for clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from lowtide.broker.administration.committing import GIVEN_UP, MAX_PLANS, check_timeout, commit, newer_image
from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.context import BrokerContext
from lowtide.metadata.errors import ConflictError
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.controller import ControllerSettings
from lowtide.replication.elections import Election
from lowtide.replication.reassignments import PartitionsPlan, Reassignment, plan_reassignments
from lowtide.replication.refusal import Refusal
from lowtide.replication.requested_elections import plan_elections

Outcomes = list[Refusal | None]
"""The outcome of each wish. None is a success."""


def controller_settings(config: BrokerConfig) -> ControllerSettings:
    """Returns the settings that a broker has as controller."""
    interval_s = config.values["leader.imbalance.check.interval.seconds"]
    assert isinstance(interval_s, int), interval_s
    least = config.topic_defaults["min.insync.replicas"]
    assert isinstance(least, int), least
    return ControllerSettings(
        elects_unclean=config.topic_defaults["unclean.leader.election.enable"] is True,
        min_insync_replicas=least,
        rebalances=config.values["auto.leader.rebalance.enable"] is True,
        rebalance_interval_ms=interval_s * 1000,
    )


class PartitionAdministrator:
    """Changes the partitions of the cluster, on the controller."""

    def __init__(self, broker: BrokerContext) -> None:
        self.broker = broker

    async def elect(self, wanted: Sequence[tuple[str, int]], election: Election, timeout_ms: int) -> Outcomes:
        """Elects leaders of partitions. Refusals: those of `plan_elections` and `commit`."""
        metadata = self.broker.metadata
        return await self._change(
            len(wanted),
            lambda: plan_elections(metadata.image, wanted, election, controller_settings(self.broker.config)),
            timeout_ms,
            {ErrorCode.ELECTION_NOT_NEEDED},
        )

    async def reassign(self, wanted: Sequence[Reassignment], timeout_ms: int, *, may_change_factor: bool) -> Outcomes:
        """Begins and cancels reassignments. Refusals: those of `plan_reassignments` and `commit`."""

        def decide() -> PartitionsPlan:
            settings = controller_settings(self.broker.config)
            return plan_reassignments(self.broker.metadata.image, wanted, settings, may_change_factor=may_change_factor)

        return await self._change(len(wanted), decide, timeout_ms, {ErrorCode.NO_REASSIGNMENT_IN_PROGRESS})

    async def _change(
        self, count: int, decide: Callable[[], PartitionsPlan], timeout_ms: int, done_already: Collection[ErrorCode]
    ) -> Outcomes:
        """Decides and commits.

        After a conflict it decides again on a newer image. If a later attempt is refused with a code of `done_already`,
        the first one counts as a success.
        """
        if (too_late := check_timeout(timeout_ms)) is not None:
            return [too_late] * count
        metadata = self.broker.metadata
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        tried: set[int] = set()
        outcomes: Outcomes = []
        for _ in range(MAX_PLANS):
            seen = metadata.image.revision
            planned = decide()
            outcomes = [
                None if number in tried and outcome is not None and outcome.error_code in done_already else outcome
                for number, outcome in enumerate(planned.outcomes)
            ]
            tried |= {number for number, outcome in enumerate(outcomes) if outcome is None}
            try:
                failure = await commit(metadata, planned.plan)
            except ConflictError:
                failure = await newer_image(metadata, seen, deadline)
                if failure is None:
                    continue
            return [failure if outcome is None and failure is not None else outcome for outcome in outcomes]
        return [GIVEN_UP if outcome is None else outcome for outcome in outcomes]
