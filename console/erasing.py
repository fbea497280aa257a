"""The page that erases a person: a search, its rehearsal, and the erasure, each by the erasure's id.

Keys are in bodies of POST requests only. A visitor sees only the erasures of the own session.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from lowtide.console import arguments
from lowtide.console.answers import RefusedError, bad
from lowtide.console.holds import standing_page
from lowtide.console.insight import asked_lowtide
from lowtide.console.person import person_scope
from lowtide.console.person_erasure import ErasureStage, PersonErasure, RehearsedErasure, rehearsal_sentences
from lowtide.console.tombstones import keys_by_place

if TYPE_CHECKING:
    from lowtide.console.arguments import Parameters
    from lowtide.console.sessions import ConsolePorts, ConsoleSession

SEARCHING_MAX: Final = 2
"""Searches of one session at a time: each has its own process at every leader."""

RUNNING_ERASURES_MAX: Final = 16
NOT_LOWTIDE: Final = "The brokers of this cluster can't erase records from the middle of a log: only Lowtide's can."
DAYS_MAX: Final = 3_650
DAY_MS: Final = 86_400_000


async def search_person(session: ConsoleSession, given: Parameters, ports: ConsolePorts) -> dict[str, Any]:
    """Begins a search; returns its id. Errors: RefusedError, AdminError."""
    jobs = session.work.erasures.values()
    if sum(job.stage is ErasureStage.SEARCHING for job in jobs) >= SEARCHING_MAX:
        raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, f"{SEARCHING_MAX} searches are running: wait or cancel one.")
    if sum(not job.is_over for job in jobs) >= RUNNING_ERASURES_MAX:
        raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "Too many erasures wait for brokers in this session.")
    if not await can_erase(session):
        raise RefusedError(HTTPStatus.NOT_IMPLEMENTED, NOT_LOWTIDE)
    scope = await person_scope(session.client, given)
    job = PersonErasure(session.client, ports.clock, ports.random, scope)
    session.work.begin_search(str(job.erasure_id), job)
    return {"id": str(job.erasure_id)}


async def can_erase(session: ConsoleSession) -> bool:
    """Returns whether the brokers can erase single records."""
    if session.work.speaks_lowtide is None:
        await asked_lowtide(session, lambda client: client.describe_deletes())
    return session.work.speaks_lowtide is not False


def job_of(session: ConsoleSession, given: Parameters) -> PersonErasure:
    """Returns an erasure of this session. Errors: RefusedError."""
    job = session.work.erasures.get(arguments.text(given, "id", longest=64))
    if job is None:
        raise RefusedError(HTTPStatus.NOT_FOUND, "This session has no erasure with this id.")
    return job


async def person_view(session: ConsoleSession, given: Parameters) -> dict[str, Any]:
    """Returns the progress of an erasure. Errors: RefusedError."""
    return job_of(session, given).value()


async def found_view(session: ConsoleSession, given: Parameters) -> dict[str, Any]:
    """Returns what a search has found, and what an erasure would meet. Errors: RefusedError."""
    job = job_of(session, given)
    if job.reach is None:
        raise RefusedError(HTTPStatus.CONFLICT, "The search is not finished.")
    return {**await job.searching.value(), "reach": job.reach}


async def cancel_search(session: ConsoleSession, given: Parameters, _: ConsolePorts) -> dict[str, Any]:
    """Cancels a search. Errors: RefusedError."""
    job = job_of(session, given)
    if job.stage is not ErasureStage.SEARCHING:
        raise RefusedError(HTTPStatus.CONFLICT, "The search has ended already.")
    session.work.cancel_search(str(job.erasure_id))
    return {}


async def rehearse_erasure(session: ConsoleSession, given: Parameters) -> RehearsedErasure:
    """Plans an erasure. Errors: RefusedError."""
    job = job_of(session, given)
    scope = job.scope
    if job.stage is not ErasureStage.FOUND or scope is None:
        raise RefusedError(HTTPStatus.CONFLICT, "This search can't be erased any more: search again.")
    days = arguments.number(given, "standing_days", 0, DAYS_MAX, default=0)
    if days and not scope.query.keys:
        raise bad("Only an erasure by key can stand.")
    tombstone = arguments.flag(given, "tombstone")
    if tombstone and (days or not scope.query.keys):
        raise bad("A tombstone needs a key, and an erasure that stands would erase it.")
    partitions = job.erasable()
    if not partitions:
        raise bad("There is no partition in which anything may be erased.")
    placed = await keys_by_place(scope.query.keys if tombstone else (), scope.partition_counts, partitions)
    found, chosen = job.searching.found(), set(partitions)
    return RehearsedErasure(
        job=job,
        partitions=partitions,
        records=sum(each.count for key, each in found.items() if key in chosen),
        standing_ms=days * DAY_MS or None,
        tombstones=sum(map(len, placed.values())),
    )


def rehearsal_value(plan: RehearsedErasure) -> dict[str, Any]:
    """Returns the plan for the page."""
    days = None if plan.standing_ms is None else plan.standing_ms // DAY_MS
    standing = None if days is None else f"{days:,} day{'' if days == 1 else 's'}"
    return {
        "records": plan.records,
        "partitions": len(plan.partitions),
        "sentences": rehearsal_sentences(plan, standing),
    }


def begin_erasure(session: ConsoleSession, plan: RehearsedErasure, given: Parameters) -> dict[str, Any]:
    """Begins what was shown. Errors: RefusedError if the number of records is another one, or it was begun already."""
    job = plan.job
    if arguments.number(given, "records", 0, 2**53) != plan.records:
        raise bad(f"Type the number of records that will be erased: {plan.records}.")
    if job.stage is not ErasureStage.FOUND:
        raise RefusedError(HTTPStatus.CONFLICT, "This search can't be erased any more: search again.")
    job.begin(plan)
    session.work.begin_erasing(str(job.erasure_id))
    return {"id": str(job.erasure_id)}


async def erasures_page(session: ConsoleSession) -> dict[str, Any]:
    """Returns the erasures of this session, and the standing ones of the cluster. Errors: AdminError."""
    able = await can_erase(session)
    own = [job.value() for job in reversed(session.work.erasures.values())]
    for each in own:
        if each["erasure"] is not None:
            each["erasure"] = {key: value for key, value in each["erasure"].items() if key not in {"missing", "failed"}}
    standing = await standing_page(session.client) if able else {"trouble": None, "rows": []}
    return {"trouble": None if able else NOT_LOWTIDE, "own": own, "standing": standing}
