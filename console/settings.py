"""How a console is set up: which cluster, how visitors log in, whether they may change anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from lowtide.admin.client import AdminClient
from lowtide.admin.settings import ClientSettings

PASSWORD_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
"""By which a visitor can log in, the best first."""

CALL_MS: Final = 15_000
"""How long a question of the page to the cluster may take with all attempts."""

REQUEST_MS: Final = 10_000


class Login(Enum):
    """What a visitor has to show."""

    NONE = "none"
    """Nothing: no login is needed to reach the cluster."""
    PASSWORD = "password"  # noqa: S105 - a kind
    """Name and password of a user of the cluster."""
    TOKEN = "token"  # noqa: S105 - a kind
    """The token in the address that the command prints: its own login is used, and only the user that started it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """All settings.

    `client` is how brokers are reached; with `Login.PASSWORD` each visitor's name and password are put into it.
    """

    client: ClientSettings
    login: Login
    write: bool = False
    mechanisms: tuple[str, ...] = PASSWORD_MECHANISMS
    token: str | None = field(default=None, repr=False)
    is_local_only: bool = False
    """Whether only visitors of this machine are answered, wherever the server listens."""
    version: str = ""
    make_client: Callable[[Any], AdminClient] = AdminClient
    """How a session gets its client; tests count them."""


def console_client(settings: ClientSettings) -> ClientSettings:
    """The same, with the patience of a page."""
    return replace(settings, client_id="lowtide-console", default_api_timeout_ms=CALL_MS, request_timeout_ms=REQUEST_MS)
