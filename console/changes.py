"""What a visitor can rehearse, and what can be carried out: rows by the path of their request.

A rehearsal changes nothing, keeps its plan in the session and returns the plan's id; what is carried out is that plan.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeAlias, TypeVar

from lowtide.console import arguments, delete_job, groups
from lowtide.console.answers import RefusedError, bad
from lowtide.console.arguments import Given
from lowtide.console.delete_job import DeleteJob, DeletePlan
from lowtide.console.groups import ForgetPlan, ResetPlan
from lowtide.console.rehearsal import rehearse_delete
from lowtide.console.sessions import Ports, Session

Change: TypeAlias = Callable[[Session, Given, Ports], Awaitable[Any]]
PlanT = TypeVar("PlanT")


async def _rehearse_delete(session: Session, given: Given, _: Ports) -> Any:
    plan = await rehearse_delete(session, given)
    return {"plan": session.work.keep_plan(plan), **delete_job.plan_value(plan)}


async def _delete(session: Session, given: Given, ports: Ports) -> Any:
    if not session.work.has_room():
        raise RefusedError(
            HTTPStatus.TOO_MANY_REQUESTS, "Some deletes are still under way: begin this one when they are over."
        )
    plan = _plan(session, given, DeletePlan)
    if not plan.plan.offsets:
        raise bad("There is nothing to delete.")
    job_id = f"{ports.random.getrandbits(64):016x}"
    session.work.begin(job_id, DeleteJob(session.client, plan, ports.clock))
    return {"job": job_id}


async def _rehearse_reset(session: Session, given: Given, _: Ports) -> Any:
    plan = await groups.rehearse_reset(session.client, given)
    return {"plan": session.work.keep_plan(plan), **groups.reset_value(plan)}


async def _reset(session: Session, given: Given, _: Ports) -> Any:
    return await groups.carry_out_reset(session.client, _plan(session, given, ResetPlan))


async def _rehearse_forget(session: Session, given: Given, _: Ports) -> Any:
    plan = await groups.rehearse_forget(session.client, given)
    return {"plan": session.work.keep_plan(plan), **groups.forget_value(plan)}


async def _forget(session: Session, given: Given, _: Ports) -> Any:
    return await groups.carry_out_forget(session.client, _plan(session, given, ForgetPlan))


def _plan(session: Session, given: Given, kind: type[PlanT]) -> PlanT:
    """The plan that was shown. Errors: RefusedError."""
    plan: PlanT | None = session.work.take_plan(arguments.text(given, "plan", longest=64), kind)
    if plan is None:
        raise RefusedError(
            HTTPStatus.CONFLICT, "This rehearsal is too old, or was carried out before: rehearse it again."
        )
    return plan


REHEARSALS: Final[Mapping[str, Change]] = {
    "delete/rehearsal": _rehearse_delete,
    "reset/rehearsal": _rehearse_reset,
    "forget/rehearsal": _rehearse_forget,
}

CHANGES: Final[Mapping[str, Change]] = {"delete": _delete, "reset": _reset, "forget": _forget}
"""They need `console.write`."""
