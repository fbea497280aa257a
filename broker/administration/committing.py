"""Commits a decision of the controller and waits until this broker's image shows it.

Guards: a conflicting change is decided again on a newer image. The client learns the outcome of a change, or that
it is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.errors import ConflictError, FencedError, NotControllerError, SessionError
from lowtide.metadata.session import MetadataSession
from lowtide.metadata.store import AmbiguousError, MetadataStoreError, Revision
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal

MAX_PLANS: Final = 10
"""The most attempts at one change. An attempt fails if a broker came or went, or the controller changed, at the same
moment."""

GIVEN_UP: Final = Refusal(
    ErrorCode.REQUEST_TIMED_OUT, f"The metadata changed at the same time, {MAX_PLANS} times in a row; try again"
)
TOO_LATE: Final = Refusal(
    ErrorCode.REQUEST_TIMED_OUT, "The time was over before the change could be made: nothing was done"
)


class PlannedChange(Protocol):
    """A decision and the plan to carry it out."""

    @property
    def plan(self) -> ChangePlan: ...


P = TypeVar("P", bound=PlannedChange)


def outcome_fields(refusal: Refusal | None) -> dict[str, Any]:
    """Returns the fields of an answer, or of a row, that tell whether it was refused and why."""
    if refusal is None:
        return {"error_code": ErrorCode.NONE, "error_message": None}
    return {"error_code": refusal.error_code, "error_message": refusal.message}


def check_timeout(timeout_ms: int) -> Refusal | None:
    """Refuses a request without any time, before looking at its content, as Kafka does."""
    return (
        Refusal(ErrorCode.REQUEST_TIMED_OUT, f"timeout_ms is {timeout_ms}: nothing was done")
        if timeout_ms <= 0
        else None
    )


async def decide_and_commit(
    metadata: MetadataSession, decide: Callable[[], P | Refusal], deadline: float
) -> P | Refusal:
    """Decides, commits and waits until the image shows the change.

    After a conflict it decides again on a newer image.
    """
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
    """Waits for an image newer than revision `seen`.

    Refusals: REQUEST_TIMED_OUT after the deadline, COORDINATOR_NOT_AVAILABLE if the session ended.
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
    """Writes a plan and waits until the image shows it.

    Refusals: NOT_CONTROLLER, REQUEST_TIMED_OUT if the outcome is unknown, COORDINATOR_NOT_AVAILABLE if the store can't
    be reached. Errors: ConflictError if the plan's image is out of date.
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
