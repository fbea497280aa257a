"""From a decision of the controller to a change that this broker's image shows.

Guards: what conflicts is decided again, on a newer image; the outcome of a change is known, or the client learns that
it isn't.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.errors import ConflictError, FencedError, NotControllerError, SessionError
from lowtide.metadata.session import MetadataSession
from lowtide.metadata.store import AmbiguousError, MetadataStoreError, Revision
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal

MAX_PLANS: Final = 10
"""Attempts to make one change. Each that fails means that a broker came or went, or the controller changed, in the same moment."""

GIVEN_UP: Final = Refusal(
    ErrorCode.REQUEST_TIMED_OUT, f"The metadata changed at the same time, {MAX_PLANS} times in a row; try again"
)
TOO_LATE: Final = Refusal(
    ErrorCode.REQUEST_TIMED_OUT, "The time was over before the change could be made: nothing was done"
)


class Planned(Protocol):
    """A decision with the changes that carry it out."""

    @property
    def plan(self) -> ChangePlan:
        """The changes."""


P = TypeVar("P", bound=Planned)


def check_timeout(timeout_ms: int) -> Refusal | None:
    """Whether a request has any time to be carried out in.

    Kafka refuses one that has none, before it looks at what is asked.
    """
    return (
        Refusal(ErrorCode.REQUEST_TIMED_OUT, f"timeout_ms is {timeout_ms}: nothing was done")
        if timeout_ms <= 0
        else None
    )


async def decide_and_commit(
    metadata: MetadataSession, decide: Callable[[], P | Refusal], deadline: float
) -> P | Refusal:
    """Decide, commit, and wait until the image shows it. What conflicts is decided again, on a newer image."""
    for _ in range(MAX_PLANS):
        seen = metadata.image.revision
        planned = decide()
        if isinstance(planned, Refusal):
            return planned
        try:
            refusal = await commit(metadata, planned.plan)
        except ConflictError:
            refusal = await newer_image(metadata, seen, deadline)
            if refusal is None:
                continue
        return planned if refusal is None else refusal
    return GIVEN_UP


async def newer_image(metadata: MetadataSession, seen: Revision, deadline: float) -> Refusal | None:
    """Wait for an image after the one of revision `seen`.

    Refusals: too late, or COORDINATOR_NOT_AVAILABLE when the session ended.
    """
    try:
        async with asyncio.timeout_at(deadline):
            await metadata.wait_for(seen + 1)
    except TimeoutError:
        return TOO_LATE
    except SessionError as error:
        return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
    return None


async def commit(metadata: MetadataSession, plan: ChangePlan) -> Refusal | None:
    """Write a plan and wait until the image shows it.

    Refusals: NOT_CONTROLLER, REQUEST_TIMED_OUT when the store can't say, COORDINATOR_NOT_AVAILABLE when it can't be
    reached. Errors: ConflictError when it was decided on an image that is no longer true.
    """
    try:
        await metadata.wait_for(await metadata.commit(plan))
    except ConflictError:
        raise
    except (NotControllerError, FencedError) as error:
        return Refusal(ErrorCode.NOT_CONTROLLER, str(error))
    except AmbiguousError as error:
        return Refusal(ErrorCode.REQUEST_TIMED_OUT, str(error))
    except (SessionError, MetadataStoreError) as error:
        return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
    return None
