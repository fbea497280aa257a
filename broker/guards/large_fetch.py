"""A Fetch of very many partitions, until it is handled: looked at, asked for permission and planned some partitions at a time.

The request stays bytes. What it names becomes an object for as long as it is looked at, and stays one where the partition is here, or goes
into a session; few others may (`AWAY_MAX`). Without a session it is fetched by its bytes (`fetch_of_rows`). A session is touched when all
of the request is known to make sense.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

import msgspec

from lowtide.broker.authorizer.resources import CLUSTER, Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.fetching import FetchReaders
from lowtide.broker.network.large_requests import COUNTED_ELSEWHERE
from lowtide.broker.network.request_parts import CutRequest
from lowtide.broker.partitions.delayed.fetch_of_rows import RowsPlan, failed_rows_in_steps, targets_in_steps
from lowtide.broker.partitions.delayed.fetch_reader import is_sound, replica_of
from lowtide.broker.partitions.delayed.fetch_refused import SESSIONS_SINCE, refuse
from lowtide.broker.partitions.delayed.fetch_rules import FetchRules
from lowtide.broker.partitions.fetch_session import (
    CONSUMER,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchPlan,
    FetchSession,
    FetchTarget,
    TargetKey,
    forgotten,
)
from lowtide.broker.partitions.fetch_session_cache import FetchSessionCache
from lowtide.broker.pending import Pending
from lowtide.broker.request_context import RequestContext
from lowtide.broker.slices import PARTITIONS_AT_ONCE
from lowtide.broker.turns import Steps
from lowtide.protocol.api_keys import TOPIC_IDS_SINCE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchRequest, FetchResponse
from lowtide.protocol.types import BrokerEpoch, BrokerId

Answer = FetchResponse | Pending[Any]

FOLLOWED_AT_ONCE: Final = 2_000
"""A follower's fetch of more partitions without a session is answered without a wait. Followers have sessions."""

AWAY_MAX: Final = 1_000
"""Partitions that one request may add to a session although they aren't here, or may not be read: a name costs a client a few bytes."""


class _Named(msgspec.Struct, kw_only=True):
    """What a request names, in its order: partitions that are here, and the first of `away_count` others, which are also in `away`."""

    targets: dict[TargetKey, FetchTarget]
    away: list[TargetKey]
    away_count: int = 0
    is_sound: bool = True


def fetch_steps(
    broker: BrokerContext,
    readers: FetchReaders,
    handle: Callable[[FetchRequest, RequestContext, FetchPlan | None], Answer],
    rows: CutRequest,
    context: RequestContext,
) -> Steps:
    """As `handle`, for a request of very many partitions.

    It gets a plan, or the whole request, where that isn't so many.
    """
    request: FetchRequest = rows.bare
    version, replicas, sessions = context.api_version, broker.replicas, broker.sessions
    replica_id, broker_epoch = replica_of(request)
    if rows.rows <= (FOLLOWED_AT_ONCE if replica_id >= 0 else PARTITIONS_AT_ONCE):
        whole = yield from rows.whole()
        return handle(whole, context, None)
    rules = _rules_of_finding(version, is_follower=replica_id >= 0)
    reader = (
        readers.of_listener[context.connection.listener_name]
        if broker.authorizer.allows_all
        else readers.for_client(context)
    )
    continued = request.session_epoch not in (FINAL_EPOCH, INITIAL_EPOCH)
    named = yield from _named_in_steps(
        rows,
        lambda target: not isinstance(reader.find(target, rules), ErrorCode),
        sessions.by_id.get(request.session_id) if continued else None,
        keeps=not continued,
    )
    if not (named.is_sound and is_sound(request)):
        if version >= SESSIONS_SINCE:
            return refuse(request, version, ErrorCode.INVALID_REQUEST, replicas.traffic.errors)
        return (yield from failed_rows_in_steps(rows, ErrorCode.INVALID_REQUEST, replicas.traffic.errors))
    if replica_id >= 0 and not broker.authorizer.authorize(context, Operation.CLUSTER_ACTION, CLUSTER):
        return (yield from failed_rows_in_steps(rows, ErrorCode.TOPIC_AUTHORIZATION_FAILED, replicas.traffic.errors))
    asker, now_ms = (max(replica_id, CONSUMER), broker_epoch), broker.clock.monotonic_ms()
    if continued:
        plan = yield from _continue_in_steps(sessions, rows, named.away_count, asker, (version, now_ms))
    else:
        opens = version >= SESSIONS_SINCE and (replica_id < 0 or replicas.is_registered(replica_id, broker_epoch))
        plan = _begin(sessions, rows, named, asker, (version, now_ms), opens=opens)
    held = replicas.slices.held
    answer = handle(request, context, plan)
    if replicas.slices.held > held:
        yield COUNTED_ELSEWHERE
    return answer


def _rules_of_finding(version: int, *, is_follower: bool) -> FetchRules:
    return FetchRules(
        api_version=version,
        read_committed=False,
        is_follower=is_follower,
        minimum_bytes=0,
        maximum_bytes=0,
        maximum_wait_ms=0,
    )


def _named_in_steps(
    rows: CutRequest, is_here: Callable[[FetchTarget], bool], session: FetchSession | None, *, keeps: bool
) -> Generator[None, None, _Named]:
    """What the request names that `session` doesn't have. Nothing is kept without `keeps`."""
    found = _Named(targets={}, away=[])
    for named in targets_in_steps(rows):
        yield
        for key, target in (named or {}).items():
            if target.maximum_bytes < 0:
                found.is_sound = False
                return found
            if session is not None and key in session.targets:
                continue
            if not is_here(target):
                if key in found.targets:
                    found.targets[key] = target
                    continue
                found.away_count += 1
                if found.away_count > AWAY_MAX:
                    continue
                found.away.append(key)
            if keeps:
                found.targets[key] = target
    return found


def _begin(
    sessions: FetchSessionCache,
    rows: CutRequest,
    named: _Named,
    asker: tuple[BrokerId, BrokerEpoch],
    asked: tuple[int, int],
    *,
    opens: bool,
) -> FetchPlan:
    """The plan of a request that names all it fetches: by a new session, or by its rows.

    `asked` is the version, and when.
    """
    plan = sessions.plan(
        rows.bare,
        *asked,
        replica_id=asker[0],
        broker_epoch=asker[1],
        opens=opens and named.away_count <= AWAY_MAX,
        targets=named.targets,
    )
    if plan.session is not None:
        return plan
    for key in named.away:
        del named.targets[key]
    return RowsPlan(rows=rows, here=named.targets)


def _continue_in_steps(
    sessions: FetchSessionCache,
    rows: CutRequest,
    away_count: int,
    asker: tuple[BrokerId, BrokerEpoch],
    asked: tuple[int, int],
) -> Generator[None, None, FetchPlan]:
    """The plan of a request that changes its session, which it may find gone meanwhile.

    `asked` is the version, and when.
    """
    version, now_ms = asked
    session = sessions.resume(rows.bare, now_ms, asker, uses_topic_ids=version >= TOPIC_IDS_SINCE)
    if not isinstance(session, FetchSession):
        return FetchPlan(error_code=session)
    if away_count > AWAY_MAX:
        return sessions.close(session)
    before = len(session.targets)
    for named in targets_in_steps(rows):
        sessions.update(session, (named or {}).items())
        yield
        if sessions.by_id.get(session.session_id) is not session:
            return FetchPlan(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    for topics in rows.apart():
        sessions.forget(session, forgotten(topics or ()))
        yield
        if sessions.by_id.get(session.session_id) is not session:
            return FetchPlan(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    return sessions.updated(session, before)
