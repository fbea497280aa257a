"""Where configuration comes from: a file in Kafka's `server.properties` syntax, the environment, the command line.

From weak to strong: file, environment, command line. Each value remembers its source, for the sentence that refuses it. Texts only: what
they mean is `config`'s part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lowtide.broker.config_key import ConfigError

ENVIRONMENT_PREFIX = "LOWTIDE_"


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

    Errors: ConfigError for a line without a key, one sentence without its full stop.
    """
    found: dict[str, Given] = {}
    for number, line in _logical_lines(text):
        key, value = _split(line)
        if not key:
            message = f"{name} line {number} has no key: {line!r}; allowed is key=value"
            raise ConfigError(message)
        found[key] = Given(value, f"{name} line {number}")
    return found


def from_environment(environment: Mapping[str, str], known: Iterable[str]) -> dict[str, Given]:
    """Read `LOWTIDE_LOG_RETENTION_MS` as `log.retention.ms`: dots are underscores, all letters large.

    A name that no key has is refused like any unknown key. Errors: ConfigError.
    """
    names = {key.replace(".", "_").replace("-", "_").upper(): key for key in known}
    found: dict[str, Given] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        rest = variable.removeprefix(ENVIRONMENT_PREFIX)
        if rest.startswith("MAX_VERSION_"):
            found[f"lowtide.max.version.{rest.removeprefix('MAX_VERSION_').replace('_', '')}"] = Given(value, variable)
            continue
        key = names.get(rest)
        if key is None:
            message = (
                f"{variable}={value} stands for no key of a broker's configuration: allowed is {ENVIRONMENT_PREFIX} and a key in capitals"
            )
            raise ConfigError(message)
        found[key] = Given(value, variable)
    return found


def from_settings(settings: Iterable[str]) -> dict[str, Given]:
    """Read `--set key=value` arguments. Errors: ConfigError."""
    found: dict[str, Given] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            message = f"--set {setting} has no value: allowed is --set key=value"
            raise ConfigError(message)
        found[key.strip()] = Given(value, f"--set {key.strip()}")
    return found


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Lines that say something, joined where they are continued, with the number of their first."""
    pending, started = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.lstrip()
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
        if escaped == "u" and len(text) >= position + 4:
            out.append(chr(int(text[position : position + 4], 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)
