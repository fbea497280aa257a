"""The changes that visitors can rehearse and carry out, by the path of their request.

A rehearsal changes nothing. It keeps its plan in the session and returns the plan's id; a change carries out that plan.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from lowtide.console import (
    access_changes,
    arguments,
    delete_job,
    erasing,
    erasure_ledger,
    erasure_receipt,
    holds,
    offset_changes,
    produce,
    topic_changes,
    topic_settings,
)
from lowtide.console.access_changes import RehearsedQuota, RehearsedRule
from lowtide.console.answers import RefusedError, bad
from lowtide.console.arguments import Parameters
from lowtide.console.delete_job import DeleteJob, RehearsedDelete
from lowtide.console.holds import RehearsedEnd, RehearsedHold
from lowtide.console.offset_changes import RehearsedForget, RehearsedReset
from lowtide.console.person_erasure import RehearsedErasure
from lowtide.console.produce import RehearsedRecords
from lowtide.console.rehearsal import rehearse_delete
from lowtide.console.sessions import ConsolePorts, ConsoleSession
from lowtide.console.topic_changes import RehearsedCreation, RehearsedGrowth
from lowtide.console.topic_deletion import (
    RehearsedTopicDeletion,
    carry_out_topic_deletion,
    rehearse_topic_deletion,
)
from lowtide.console.topic_settings import RehearsedSettings

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient

Change: TypeAlias = Callable[[ConsoleSession, Parameters, ConsolePorts], Awaitable[Any]]
PlanT = TypeVar("PlanT")


def _rehearsal(
    rehearse: Callable[[ConsoleSession, Parameters], Awaitable[PlanT]], value: Callable[[PlanT], Mapping[str, Any]]
) -> Change:
    """Returns the handler of a rehearsal, which keeps the plan and returns its id and its value."""

    async def change(session: ConsoleSession, given: Parameters, _: ConsolePorts) -> Any:
        plan = await rehearse(session, given)
        return {"plan": session.work.keep_plan(plan), **value(plan)}

    return change


async def _delete(session: ConsoleSession, given: Parameters, ports: ConsolePorts) -> Any:
    if not session.work.has_room():
        raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "Too many deletes are running: wait until one is finished.")
    plan = _plan(session, given, RehearsedDelete)
    if not plan.plan.offsets:
        raise bad("There is nothing to delete.")
    job_id = f"{ports.random.getrandbits(64):016x}"
    session.work.begin(job_id, DeleteJob(session.client, plan, ports.clock))
    return {"job": job_id}


def _carried_out(carry_out: Callable[[AdminClient, PlanT], Awaitable[Any]], kind: type[PlanT]) -> Change:
    """Returns the handler of a change, which carries out the plan that was shown."""

    async def change(session: ConsoleSession, given: Parameters, _: ConsolePorts) -> Any:
        return await carry_out(session.client, _plan(session, given, kind))

    return change


async def _rehearse_topic_deletion(session: ConsoleSession, given: Parameters, ports: ConsolePorts) -> Any:
    plan = await rehearse_topic_deletion(session.client, given, ports)
    return {"plan": session.work.keep_plan(plan), **plan.value}


async def _delete_topic(session: ConsoleSession, given: Parameters, _: ConsolePorts) -> Any:
    return await carry_out_topic_deletion(session.client, _plan(session, given, RehearsedTopicDeletion), given)


async def _rehearse_reset(session: ConsoleSession, given: Parameters, ports: ConsolePorts) -> Any:
    plan = await offset_changes.rehearse_reset(session.client, given, ports.clock.wall_ms())
    return {"plan": session.work.keep_plan(plan), **offset_changes.reset_value(plan)}


async def _rehearse_records(session: ConsoleSession, given: Parameters, ports: ConsolePorts) -> Any:
    plan = await produce.rehearse_records(session.client, given, ports)
    return {"plan": session.work.keep_plan(plan), **produce.records_value(plan)}


async def _erase(session: ConsoleSession, given: Parameters, _: ConsolePorts) -> Any:
    return erasing.begin_erasure(session, _plan(session, given, RehearsedErasure), given)


def _plan(session: ConsoleSession, given: Parameters, kind: type[PlanT]) -> PlanT:
    """Takes the plan that was shown. Errors: RefusedError."""
    plan: PlanT | None = session.work.take_plan(arguments.text(given, "plan", longest=64), kind)
    if plan is None:
        reason = "This rehearsal is too old, or was carried out already: rehearse again."
        raise RefusedError(HTTPStatus.CONFLICT, reason)
    return plan


REHEARSALS: Final[Mapping[str, Change]] = {
    "delete/rehearsal": _rehearsal(rehearse_delete, delete_job.plan_value),
    "erase/search": erasing.search_person,
    "erase/cancel": erasing.cancel_search,
    "erase/receipt": erasure_receipt.receipt,
    "erase/rehearsal": _rehearsal(erasing.rehearse_erasure, erasing.rehearsal_value),
    "erasures/export": lambda session, _, __: erasure_ledger.ledger_export(session.client),
    "hold/rehearsal": _rehearsal(holds.rehearse_hold, holds.hold_value),
    "standing/rehearsal": _rehearsal(holds.rehearse_end, holds.end_value),
    "reset/rehearsal": _rehearse_reset,
    "forget/rehearsal": _rehearsal(
        lambda session, given: offset_changes.rehearse_forget(session.client, given), offset_changes.forget_value
    ),
    "creation/rehearsal": _rehearsal(
        lambda session, given: topic_changes.rehearse_creation(session.client, given), topic_changes.creation_value
    ),
    "growth/rehearsal": _rehearsal(
        lambda session, given: topic_changes.rehearse_growth(session.client, given), topic_changes.growth_value
    ),
    "settings/rehearsal": _rehearsal(topic_settings.rehearse_settings, topic_settings.settings_value),
    "topic-deletion/rehearsal": _rehearse_topic_deletion,
    "records/rehearsal": _rehearse_records,
    "acl/rehearsal": _rehearsal(
        lambda session, given: access_changes.rehearse_rule(session.client, given), access_changes.rule_value
    ),
    "quota/rehearsal": _rehearsal(
        lambda session, given: access_changes.rehearse_quota(session.client, given), access_changes.quota_value
    ),
}

CHANGES: Final[Mapping[str, Change]] = {
    "delete": _delete,
    "erase": _erase,
    "erase/confirm": erasure_receipt.confirm,
    "erase/sign": erasure_receipt.signed_receipt,
    "hold": _carried_out(holds.carry_out_hold, RehearsedHold),
    "standing/end": _carried_out(holds.carry_out_end, RehearsedEnd),
    "reset": _carried_out(offset_changes.carry_out_reset, RehearsedReset),
    "forget": _carried_out(offset_changes.carry_out_forget, RehearsedForget),
    "creation": _carried_out(topic_changes.carry_out_creation, RehearsedCreation),
    "growth": _carried_out(topic_changes.carry_out_growth, RehearsedGrowth),
    "settings": _carried_out(topic_settings.carry_out_settings, RehearsedSettings),
    "topic-deletion": _delete_topic,
    "records": _carried_out(produce.carry_out_records, RehearsedRecords),
    "acl": _carried_out(access_changes.carry_out_rule, RehearsedRule),
    "quota": _carried_out(access_changes.carry_out_quota, RehearsedQuota),
}
"""Changes require `console.write`."""
