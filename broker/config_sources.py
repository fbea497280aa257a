"""Where configuration comes from: a file in Kafka's `server.properties` syntax, the environment, the command line.

From weak to strong: file, environment, command line. Each value remembers its source, for the sentence that refuses it. Texts only: what
they mean is `config`'s part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lowtide.broker.config_key import ConfigError

ENVIRONMENT_PREFIX = "LOWTIDE_"

METADATA_USER = "LOWTIDE_METADATA_USER"
METADATA_PASSWORD = "LOWTIDE_METADATA_PASSWORD"  # noqa: S105 - a name
METADATA_PASSWORD_FILE = "LOWTIDE_METADATA_PASSWORD_FILE"  # noqa: S105 - a name
NO_KEYS = frozenset({METADATA_USER, METADATA_PASSWORD, METADATA_PASSWORD_FILE})
"""Variables that stand for no key: who the broker is to its metadata store, which is asked for before there is a configuration."""

_SERVICE_LINK = re.compile(r"LOWTIDE_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_.*)?)")
"""What Kubernetes puts into the environment of every pod beside a service named lowtide."""

_LINE_END = re.compile(r"\r\n|\r|\n")


DYNAMIC_BROKER = "what is set on this broker"
DYNAMIC_DEFAULT = "what is set on all brokers"
"""Sources of values that were set while the broker ran."""


class Given(NamedTuple):
    """A value that somebody gave, as text, and where: `server.properties line 3`, `LOWTIDE_LOG_DIRS`, `--set`."""

    text: str
    source: str


def merge(*sources: Mapping[str, Given]) -> dict[str, Given]:
    """One mapping of several, the later ones stronger."""
    merged: dict[str, Given] = {}
    for source in sources:
        merged.update(source)
    return merged


def from_properties(text: str, name: str) -> dict[str, Given]:
    """Read Java properties: `key=value`, `key: value` or `key value`; # and ! comments, backslash escapes and continued lines.

    Errors: ConfigError for a line without a key or with a broken escape, one sentence.
    """
    found: dict[str, Given] = {}
    for number, line in _logical_lines(text):
        try:
            key, value = _split(line)
        except ValueError:
            message = f"{name} line {number} has a broken escape: allowed after \\u are four hexadecimal digits."
            raise ConfigError(message) from None
        if not key:
            message = f"{name} line {number} has no key: allowed is key=value."
            raise ConfigError(message)
        found[key] = Given(value, f"{name} line {number}")
    return found


def from_environment(environment: Mapping[str, str], known: Iterable[str]) -> dict[str, Given]:
    """Read `LOWTIDE_LOG_RETENTION_MS` as `log.retention.ms`: dots are underscores, all letters large.

    Lowtide's own keys have their first word once: `LOWTIDE_MAX_VERSION_DELETERECORDS`. What Kubernetes sets for a service named lowtide is
    left aside. A name that no key has is refused like any unknown key; its value is not shown, for it may be a secret.

    Errors: ConfigError, one sentence.
    """
    names = {key.replace(".", "_").upper(): key for key in known}
    found: dict[str, Given] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NO_KEYS or _SERVICE_LINK.fullmatch(variable):
            continue
        rest = variable.removeprefix(ENVIRONMENT_PREFIX)
        if rest.startswith("MAX_VERSION_"):
            found[f"lowtide.max.version.{rest.removeprefix('MAX_VERSION_').replace('_', '')}"] = Given(value, variable)
            continue
        key = names.get(rest)
        if key is None:
            message = f"{variable} stands for no key of a broker's configuration: allowed is {ENVIRONMENT_PREFIX} and a key in capitals."
            raise ConfigError(message)
        found[key] = Given(value, variable)
    return found


def from_settings(settings: Iterable[str], option: str = "--set", prefix: str = "") -> dict[str, Given]:
    """Read `--set key=value` arguments, or those of another option, whose keys stand without the `prefix` that they have.

    Errors: ConfigError.
    """
    found: dict[str, Given] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            message = f"{option} {setting} has no value: allowed is {option} {'API=version' if prefix else 'key=value'}."
            raise ConfigError(message)
        found[prefix + key.strip()] = Given(value, f"{option} {key.strip()}")
    return found


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Lines that say something, joined where they are continued, with the number of their first."""
    pending, started = "", 0
    for number, raw in enumerate(_LINE_END.split(text), 1):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        started = started if pending else number
        trailing = len(line) - len(line.rstrip("\\"))
        if trailing % 2:
            pending += line[:-1]
            continue
        yield started, pending + line
        pending = ""
    if pending:
        yield started, pending


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _split(line: str) -> tuple[str, str]:
    """Key and value of a logical line: the first unescaped `=`, `:` or white space ends the key."""
    key: list[str] = []
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        step = 2 if line[position] == "\\" else 1
        key.append(line[position : position + step])
        position += step
    rest = line[position:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return _unescape("".join(key)), _unescape(rest)


def _unescape(text: str) -> str:
    """Resolve backslash escapes. Errors: ValueError for a broken one."""
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position >= len(text):
            out.append(char)
            continue
        escaped = text[position]
        position += 1
        if escaped == "u":
            out.append(_code_point(text[position : position + 4]))
            position += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)


def _code_point(digits: str) -> str:
    """The character that four hexadecimal digits stand for. Errors: ValueError."""
    if re.fullmatch(r"[0-9A-Fa-f]{4}", digits) is None:
        raise ValueError(digits)
    return chr(int(digits, 16))
