"""The names that the page's search box finds: topics, groups, users, brokers and settings. The page filters them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
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
    kinds = ("topics", "groups", "users", "brokers", "settings")
    asks = (_topics, _groups, _users, _brokers, _settings)
    answers = await asyncio.gather(*(_asked(session.client, ask) for ask in asks))
    return dict(zip(kinds, answers, strict=True))


async def _asked(client: AdminClient, ask: Callable[[AdminClient], Awaitable[Iterable[str]]]) -> dict[str, Any]:
    try:
        names = sorted(await ask(client))
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


async def _settings(client: AdminClient) -> Iterable[str]:
    """Returns the keys of a broker's configuration: those of topics are among them, as their defaults."""
    brokers = (await client.describe_cluster()).brokers
    resources = [ConfigResource(ConfigResourceType.BROKER, str(each.broker_id)) for each in islice(brokers, 1)]
    answers = await client.describe_configs(resources)
    found: set[str] = set()
    for entries in answers.values():
        if isinstance(entries, AdminError):
            raise entries
        found.update(entries)
    return found
