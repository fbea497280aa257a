"""The views of the page by name. None of them changes anything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from lowtide.console import access, arguments, broker
from lowtide.console.arguments import Parameters
from lowtide.console.cluster import cluster_page
from lowtide.console.delete_job import jobs_value
from lowtide.console.erasing import erasures_page, found_view, person_view
from lowtide.console.erasure_ledger import ledger_page
from lowtide.console.groups import group_page, groups_page
from lowtide.console.holds import holds_page
from lowtide.console.insight import deletes_of, history_page, segments_page
from lowtide.console.moves import moves_page
from lowtide.console.names import names_page
from lowtide.console.readers import readers_page
from lowtide.console.records import records_page
from lowtide.console.sessions import ConsoleSession
from lowtide.console.topic import topic_page
from lowtide.console.topic_settings import settings_page
from lowtide.console.topics import topics_page
from lowtide.console.transactions import transactions_page

View: TypeAlias = Callable[[ConsoleSession, Parameters], Awaitable[Any]]


async def _topics(session: ConsoleSession, given: Parameters) -> Any:
    internal = arguments.choice(given, "internal", ("0", "1"), "0") == "1"
    return await topics_page(session.client, internal=internal)


async def _deletes(session: ConsoleSession, _: Parameters) -> Any:
    """Returns the deletes of this session, and the pending and finished deletes of the cluster."""
    return {"own": jobs_value(list(session.work.jobs.items())), **await deletes_of(session)}


VIEWS: Final[Mapping[str, View]] = {
    "access.acls": lambda session, given: access.acls_view(session.client, given),
    "access.quotas": lambda session, _: access.quotas_view(session.client),
    "access.tokens": lambda session, _: access.tokens_view(session.client),
    "access.users": lambda session, _: access.users_view(session.client),
    "broker": broker.broker_page,
    "broker.settings": broker.broker_settings,
    "cluster": lambda session, _: cluster_page(session),
    "moves": lambda session, _: moves_page(session.client),
    "setting": broker.setting_page,
    "transactions": lambda session, _: transactions_page(session.client),
    "topics": _topics,
    "topic": lambda session, given: topic_page(session, arguments.topic(given)),
    "settings": lambda session, given: settings_page(session.client, arguments.topic(given)),
    "segments": lambda session, given: segments_page(session, arguments.partition(given)),
    "history": lambda session, given: history_page(session, arguments.partition(given)),
    "deletes": _deletes,
    "erasures": lambda session, _: erasures_page(session),
    "ledger": lambda session, _: ledger_page(session.client),
    "holds": lambda session, _: holds_page(session),
    "person": person_view,
    "person_found": found_view,
    "groups": lambda session, _: groups_page(session.client),
    "group": lambda session, given: group_page(session.client, arguments.text(given, "group")),
    "names": lambda session, _: names_page(session),
    "readers": lambda session, given: readers_page(session.client, arguments.topic(given)),
    "records": lambda session, given: records_page(session.client, given),
}


async def view_value(session: ConsoleSession, name: str, given: Parameters) -> Any:
    """Returns the value of a view; requests within a second share it. Errors: RefusedError, AdminError."""
    key = (name, *(f"{key}={given[key]}" for key in sorted(given)))
    return await session.work.shared(key, lambda: VIEWS[name](session, given))
