"""What the page can ask for: each view by its name, with what it needs of the visitor.

None of them changes anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from lowtide.console import arguments
from lowtide.console.arguments import Given
from lowtide.console.cluster import cluster_page
from lowtide.console.deletes import deletes_page
from lowtide.console.groups import group_page, groups_page
from lowtide.console.insight import history_page, segments_page
from lowtide.console.records import records_page
from lowtide.console.sessions import Session
from lowtide.console.topic import topic_page
from lowtide.console.topics import topics_page

View: TypeAlias = Callable[[Session, Given], Awaitable[Any]]


async def _cluster(session: Session, _: Given) -> Any:
    return await cluster_page(session)


async def _topics(session: Session, given: Given) -> Any:
    internal = arguments.choice(given, "internal", ("0", "1"), "0") == "1"
    return await topics_page(session.client, internal=internal)


async def _topic(session: Session, given: Given) -> Any:
    return await topic_page(session, arguments.topic(given))


async def _groups(session: Session, _: Given) -> Any:
    return await groups_page(session.client)


async def _group(session: Session, given: Given) -> Any:
    return await group_page(session.client, arguments.text(given, "group"))


async def _records(session: Session, given: Given) -> Any:
    return await records_page(session.client, given)


async def _deletes(session: Session, _: Given) -> Any:
    return await deletes_page(session)


async def _segments(session: Session, given: Given) -> Any:
    return await segments_page(session, arguments.partition(given))


async def _history(session: Session, given: Given) -> Any:
    return await history_page(session, arguments.partition(given))


VIEWS: Final[Mapping[str, View]] = {
    "cluster": _cluster,
    "topics": _topics,
    "topic": _topic,
    "segments": _segments,
    "history": _history,
    "deletes": _deletes,
    "groups": _groups,
    "group": _group,
    "records": _records,
}


async def seen(session: Session, name: str, given: Given) -> Any:
    """The value of a view; the same for all that ask within a second. Errors: RefusedError, AdminError."""
    key = (name, *(f"{key}={given[key]}" for key in sorted(given)))
    return await session.work.shared(key, lambda: VIEWS[name](session, given))
