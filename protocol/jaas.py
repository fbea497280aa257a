"""One line of Java's login configuration, as `sasl.jaas.config` has it: `module required key="value" ...;`.

Clients name themselves in it, brokers also their users: `user_alice="secret"`. Values may stand in double or single
quotes, or in none, and a backslash in quotes takes the next character as it is. Messages never show a value, which may
be a secret.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_START: Final = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)(?=[\s;]|$)", re.IGNORECASE)
_OPTION: Final = re.compile(
    r"""\s*([^\s="';]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))""", re.DOTALL
)


class JaasError(ValueError):
    """What a line has wrong: words that follow the name of its key."""


class LoginModule(NamedTuple):
    """What a line says."""

    name: str
    """The class, with its package."""
    options: dict[str, str]

    @property
    def simple_name(self) -> str:
        """The class without its package."""
        return self.name.rpartition(".")[2]

    def __repr__(self) -> str:
        """Without the values."""
        return f"LoginModule({self.name}, {sorted(self.options)})"


def scram_login(username: str, password: str) -> str:
    """The line by which a client logs in by SCRAM. `parse_jaas` reads it, and Java does."""
    user, secret = (re.sub(r'([\\"])', r"\\\1", text) for text in (username, password))
    return f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{user}" password="{secret}";'


def parse_jaas(text: str) -> LoginModule:
    """Read a line with one login module. Errors: JaasError."""
    start = _START.match(text)
    if start is None:
        raise JaasError('allowed is `module required username="..." password="...";`')
    options: dict[str, str] = {}
    position = start.end()
    while (option := _OPTION.match(text, position)) is not None:
        quoted = option[2] if option[2] is not None else option[3]
        options[option[1]] = option[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        position = option.end()
    if text[position:].strip() not in ("", ";"):
        raise JaasError(f"the part after its {len(options)} options can't be read")
    return LoginModule(start[1], options)
