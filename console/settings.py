"""The settings of a console: its cluster, the logins of visitors, and whether they may make changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from lowtide.admin.client import AdminClient
from lowtide.admin.settings import ClientSettings
from lowtide.console.own_users import OwnUsers

PASSWORD_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
"""Mechanisms for the logins of visitors, the best first."""

CALL_MS: Final = 15_000
"""How long a call to the cluster may take with its retries."""

REQUEST_MS: Final = 10_000


class LoginKind(Enum):
    """The login of visitors."""

    NONE = "none"
    """Visitors need no login."""
    PASSWORD = "password"  # noqa: S105 - a kind
    """Visitors enter the name and password of a user of the cluster."""
    USERS = "users"
    """Visitors enter the name and password of a user of the console. The console uses the command's login."""
    TOKEN = "token"  # noqa: S105 - a kind
    """The URL that the command prints contains a token. The console uses the command's login."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """All settings. With `LoginKind.PASSWORD` each visitor's name and password are added to `client`."""

    client: ClientSettings
    login: LoginKind
    write: bool = False
    mechanisms: tuple[str, ...] = PASSWORD_MECHANISMS
    token: str | None = field(default=None, repr=False)
    users: OwnUsers | None = None
    """The users of the console, with `LoginKind.USERS`."""
    is_local_only: bool = False
    """Whether only visitors of this machine are accepted, on all addresses of the server."""
    version: str = ""
    signing_key: str | None = None
    """The file of the private key that signs receipts of erasures."""
    registry: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Settings of the schema registry that reads values, by name; none without one."""
    make_client: Callable[[Any], AdminClient] = AdminClient
    """Creates the client of a session; tests replace it."""


def console_client(settings: ClientSettings) -> ClientSettings:
    """Returns the settings with the timeouts of a page."""
    return replace(settings, client_id="lowtide-console", default_api_timeout_ms=CALL_MS, request_timeout_ms=REQUEST_MS)
