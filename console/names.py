"""The names that the page's search box finds: topics, groups, users, brokers and settings. The page filters them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.configs import ConfigResource
from lowtide.admin.errors import AdminError
from lowtide.console.answers import sentence_of
from lowtide.protocol.config_values import ConfigResourceType

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.console.sessions import ConsoleSession

NAMES_MAX: Final = 20_000
"""Names of each kind; the page says how many are left out."""


async def names_page(session: ConsoleSession) -> dict[str, Any]:
    """Returns the names of each kind; a kind that the user may not see is empty, and has an error."""
    client = session.client
    topics = await _asked(_topics(client))
    groups, users, brokers, settings = await asyncio.gather(
        _asked(_groups(client)), _asked(_users(client)), _asked(_brokers(client)), _asked(_settings(client, topics))
    )
    return {"topics": topics, "groups": groups, "users": users, "brokers": brokers, "settings": settings}


async def _asked(ask: Awaitable[Iterable[str]]) -> dict[str, Any]:
    try:
        names = sorted(await ask)
    except AdminError as error:
        return {"names": [], "left_out": 0, "error": sentence_of(error)}
    return {"names": names[:NAMES_MAX], "left_out": max(0, len(names) - NAMES_MAX), "error": None}


async def _topics(client: AdminClient) -> Iterable[str]:
    return await client.list_topics(include_internal=True)


async def _groups(client: AdminClient) -> Iterable[str]:
    return (await client.list_groups()).groups


async def _users(client: AdminClient) -> Iterable[str]:
    return await client.describe_scram_users()


async def _brokers(client: AdminClient) -> Iterable[str]:
    return [str(broker.broker_id) for broker in (await client.describe_cluster()).brokers]


async def _settings(client: AdminClient, topics: Mapping[str, Any]) -> Iterable[str]:
    """Returns the keys of the configurations of a broker and of a topic, if there is one. Errors: AdminError."""
    brokers = (await client.describe_cluster()).brokers
    resources = [
        *(ConfigResource(ConfigResourceType.BROKER, str(each.broker_id)) for each in brokers[:1]),
        *(ConfigResource(ConfigResourceType.TOPIC, name) for name in topics["names"][:1]),
    ]
    answers = await client.describe_configs(resources)
    found = {key for each in answers.values() if not isinstance(each, AdminError) for key in each}
    errors = [each for each in answers.values() if isinstance(each, AdminError)]
    if errors and not found:
        raise errors[0]
    return found
