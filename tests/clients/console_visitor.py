"""A console over a cluster, and a visitor who speaks HTTP with it as a browser's page does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from lowtide.admin.settings import ClientSettings
from lowtide.cli.console_server import ConsoleServer
from lowtide.console.settings import ConsoleSettings, LoginKind, console_client
from tests.http_visitor import Answer, Visitor

OWN = {"X_Lowtide_Console": "1", "Content_Type": "application/json", "Sec_Fetch_Site": "same-origin"}


class Page(NamedTuple):
    """The behaviour of a page."""

    visitor: Visitor
    cookie: str = ""

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.visitor.ask(f"/console/{path}", **self._cookie() | headers)

    async def view(self, path: str) -> Any:
        answer = await self.get(f"api/view/{path}", **OWN)
        assert answer.status == 200, (answer.status, answer.body)
        return json.loads(answer.body)

    async def post(self, path: str, given: Any = None, **headers: str) -> tuple[int, Any]:
        body = given if isinstance(given, bytes) else json.dumps(given if given is not None else {}).encode()
        answer = await self.visitor.ask(f"/console/api/{path}", "POST", body, **OWN | self._cookie() | headers)
        return answer.status, json.loads(answer.body) if answer.headers.get("content-type", "").startswith(
            "application/json"
        ) else answer.body

    def _cookie(self) -> dict[str, str]:
        return {"Cookie": f"lowtide-console={self.cookie}"} if self.cookie else {}


@asynccontextmanager
async def console_of(
    properties: Mapping[str, Any], login: LoginKind = LoginKind.NONE, *, write: bool = False, **more: Any
) -> AsyncIterator[Page]:
    """A console over a cluster, visited."""
    client = console_client(ClientSettings.of(properties))
    server = ConsoleServer(ConsoleSettings(client=client, login=login, write=write, **more))
    url = (await server.listen(0)).partition("/console/")[0]
    try:
        async with Visitor(url) as visitor:
            yield Page(visitor)
    finally:
        await server.close()


async def rehearsed(page: Page, path: str, given: object) -> Any:
    """Returns the plan of a change."""
    status, plan = await page.post(f"{path}/rehearsal", given)
    assert status == 200, plan
    return plan


async def carried(page: Page, path: str, plan: Mapping[str, Any], **more: object) -> Any:
    """Carries out a plan; returns the outcome."""
    status, outcome = await page.post(path, {"plan": plan["plan"], **more})
    assert status == 200, outcome
    return outcome
