"""A line of Java's login configuration, as in `sasl.jaas.config`: `module required key="value" ...;`.

Clients have their credentials in it, and brokers also their users: `user_alice="secret"`. Values have double, single or
no quotes; in quotes a backslash escapes the next character. Messages never show values, which may be secrets.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_START: Final = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)(?=[\s;]|$)", re.IGNORECASE)
_OPTION: Final = re.compile(
    r"""\s*([^\s="';]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))""", re.DOTALL
)


class JaasError(ValueError):
    """An invalid line; the message follows the name of its key."""


class LoginModule(NamedTuple):
    """A parsed line."""

    name: str
    """The class name with its package."""
    options: dict[str, str]

    @property
    def simple_name(self) -> str:
        return self.name.rpartition(".")[2]

    def __repr__(self) -> str:
        return f"LoginModule({self.name}, {sorted(self.options)})"


def scram_login(username: str, password: str) -> str:
    """Returns the line of a SCRAM login, for Java and `parse_jaas`."""
    user, secret = (re.sub(r'([\\"])', r"\\\1", text) for text in (username, password))
    return f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{user}" password="{secret}";'


def parse_jaas(text: str) -> LoginModule:
    """Parses a line with one login module. Errors: JaasError."""
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
        raise JaasError(f"the text after its {len(options)} options is invalid")
    return LoginModule(start[1], options)
