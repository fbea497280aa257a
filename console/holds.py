"""Holds on topics, and standing erasures: lists, and rehearsed changes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.configs import ConfigChange, ConfigOperation, ConfigResource
from lowtide.admin.errors import AdminError, BrokerAnsweredError, UnsupportedVersionError
from lowtide.admin.receipts.statement import rfc3339
from lowtide.admin.wanted_offsets import parse_time
from lowtide.console import arguments
from lowtide.console.answers import RefusedError, bad, sentence_of
from lowtide.console.erasure_ledger import NO_RIGHT
from lowtide.console.erasure_reach import HOLD_REASON, HOLD_UNTIL, hold_of, topic_configs
from lowtide.console.erasure_receipt import uuid_of
from lowtide.console.person import chosen_topics
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.standing import StandingErasureDescription
    from lowtide.console.arguments import Parameters
    from lowtide.console.sessions import ConsoleSession

AT_ONCE: Final = 200
"""Topics in one question about configurations."""

HELD_MAX: Final = 1_000
"""Topics on the page, and in one change."""

REASON_CHARACTERS_MAX: Final = 1_000


# ---------------------------------------------------------------------- holds
@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedHold:
    """Holds to set, or with `until_ms` None to end, as they were shown."""

    topics: tuple[str, ...]
    until_ms: int | None
    reason: str
    before: Mapping[str, Mapping[str, Any] | None]
    """The holds of now."""


async def holds_page(session: ConsoleSession) -> dict[str, Any]:
    """Returns the topics that are held, those first whose hold ends first. Errors: AdminError."""
    client, now_ms = session.client, session.work.wall_ms()
    view = await client.call().view(None)
    names = sorted(name for name, topic in view.topics.items() if not topic.is_internal)
    found, unknown = await _holds(client, names, now_ms)
    rows = sorted((each for each in found.values() if each is not None), key=lambda row: row["until_ms"])
    return {"holds": rows[:HELD_MAX], "left_out": max(0, len(rows) - HELD_MAX), "unknown": unknown}


async def _holds(
    client: AdminClient, names: Sequence[str], now_ms: int
) -> tuple[dict[str, dict[str, Any] | None], list[str]]:
    """Returns the holds of topics, and what could not be looked up."""
    found: dict[str, dict[str, Any] | None] = {}
    unknown: list[str] = []
    for start in range(0, len(names), AT_ONCE):
        configs = await topic_configs(client, names[start : start + AT_ONCE], unknown)
        found |= {name: hold_of(name, config, now_ms) for name, config in configs.items()}
        await asyncio.sleep(0)
    return found, unknown[:1]


async def rehearse_hold(session: ConsoleSession, given: Parameters) -> RehearsedHold:
    """Plans to hold topics or to end their holds. Errors: RefusedError, AdminError."""
    until_ms, reason, now_ms = None, "", session.work.wall_ms()
    names = [each.strip() for each in arguments.texts(given, "topics", HELD_MAX)]
    if not arguments.flag(given, "remove"):
        until_ms = _time(given)
        reason = arguments.optional_text(given, "reason", longest=REASON_CHARACTERS_MAX) or ""
        if until_ms <= now_ms:
            raise bad("The hold must end in the future.")
    view = await session.client.call().view(None)
    plain = [each for each in names if not set(each) & set("*?[")]
    topics = chosen_topics(view, plain, [each for each in names if each not in plain], everything=False)
    if len(topics) > HELD_MAX:
        raise bad(f"These are {len(topics)} topics, and one change has at most {HELD_MAX}.")
    chosen = [topic.name for topic in topics]
    before, unknown = await _holds(session.client, chosen, now_ms)
    if unknown:
        raise RefusedError(HTTPStatus.FORBIDDEN, unknown[0])
    if until_ms is None:
        chosen = [name for name in chosen if before.get(name) is not None]
        if not chosen:
            raise bad("None of these topics is held.")
    return RehearsedHold(topics=tuple(chosen), until_ms=until_ms, reason=reason, before=before)


def _time(given: Parameters) -> int:
    try:
        until_ms = parse_time(arguments.text(given, "until", longest=64))
        rfc3339(until_ms)
        return until_ms
    except ValueError as error:
        raise bad(sentence_of(error)) from None


def hold_value(plan: RehearsedHold, errors: Mapping[str, AdminError | None] | None = None) -> dict[str, Any]:
    """Returns a change of holds for the page."""
    rows = []
    for name in plan.topics:
        before, error = plan.before.get(name), None if errors is None else errors.get(name)
        rows.append(
            {
                "topic": name,
                "until_ms": None if before is None else before["until_ms"],
                "reason": "" if before is None else before["reason"],
                "new_until_ms": plan.until_ms,
                "shortens": before is not None and (plan.until_ms is None or plan.until_ms < before["until_ms"]),
                "error": None if error is None else sentence_of(error),
            }
        )
    return {"topics": rows, "until_ms": plan.until_ms, "reason": plan.reason, "sentences": hold_sentences(plan, rows)}


def hold_sentences(plan: RehearsedHold, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns what the change does, in sentences."""
    several = len(plan.topics) != 1
    topics = f"{len(plan.topics):,} topics" if several else plan.topics[0]
    if plan.until_ms is None:
        sentences = [
            f"The hold of {topics} ends at once.",
            "Retention and compaction then delete what is due, and deletes and erasures are possible again.",
        ]
    else:
        until = rfc3339(plan.until_ms)
        sentences = [
            f"All records of {topics} stay until {until}.",
            "Meanwhile there is no delete, erasure, retention or compaction, and the topic can't be deleted.",
            "What was deleted before stays deleted. Disks may fill: nothing else frees space there.",
        ]
    if any(row["shortens"] for row in rows):
        sentences.append("To end or to shorten a hold needs ALTER on the cluster.")
    return sentences


async def carry_out_hold(client: AdminClient, plan: RehearsedHold) -> dict[str, Any]:
    """Sets or ends the holds. Errors: AdminError."""
    changes = [ConfigChange(key, operation=ConfigOperation.DELETE) for key in (HOLD_UNTIL, HOLD_REASON)]
    if plan.until_ms is not None:
        changes = [ConfigChange(HOLD_UNTIL, str(plan.until_ms)), ConfigChange(HOLD_REASON, plan.reason)]
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in plan.topics]
    outcomes = await client.alter_configs(dict.fromkeys(resources, changes))
    return hold_value(plan, {each.name: error for each, error in outcomes.items()})


# ---------------------------------------------------------------------- standing erasures
@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedEnd:
    """A standing erasure to end, as it was shown."""

    standing: StandingErasureDescription


async def standing_page(client: AdminClient) -> dict[str, Any]:
    """Returns the standing erasures; without the right, or from other brokers, a sentence. Errors: AdminError."""
    try:
        found = await client.describe_standing_erasures()
    except UnsupportedVersionError:
        return {"trouble": "These brokers have no standing erasures: only Lowtide's do.", "rows": []}
    except BrokerAnsweredError as error:
        denied = error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return {"trouble": NO_RIGHT if denied else sentence_of(error), "rows": []}
    return {"trouble": None, "rows": [_standing(each) for each in sorted(found, key=lambda each: each.begun_ms)]}


def _standing(each: StandingErasureDescription) -> dict[str, Any]:
    return {
        "id": str(each.erasure_id),
        "topics": list(each.topics[:HELD_MAX]),
        "patterns": list(each.patterns),
        "principal": each.principal,
        "begun_ms": each.begun_ms,
        "ends_ms": each.ends_ms,
        "keys": each.key_count,
    }


async def rehearse_end(session: ConsoleSession, given: Parameters) -> RehearsedEnd:
    """Plans to end a standing erasure. Errors: RefusedError, AdminError."""
    wanted = uuid_of(given)
    for each in await session.client.describe_standing_erasures():
        if each.erasure_id == wanted:
            return RehearsedEnd(standing=each)
    raise RefusedError(HTTPStatus.NOT_FOUND, "There is no standing erasure with this id: it may have ended.")


def end_value(plan: RehearsedEnd) -> dict[str, Any]:
    """Returns the end of a standing erasure for the page."""
    keys = f"{plan.standing.key_count:,} {'key' if plan.standing.key_count == 1 else 'keys'}"
    return {
        **_standing(plan.standing),
        "sentences": [
            f"The brokers stop looking for {keys}, and forget their digests.",
            "What was erased stays erased. Records of the person that arrive later stay.",
        ],
    }


async def carry_out_end(client: AdminClient, plan: RehearsedEnd) -> dict[str, Any]:
    """Ends it. Errors: AdminError."""
    await client.end_standing_erasure(plan.standing.erasure_id)
    return {"id": str(plan.standing.erasure_id)}
