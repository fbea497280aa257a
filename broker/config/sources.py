"""Sources of the configuration: a file in Kafka's `server.properties` syntax, the environment, the command line.

Precedence, lowest first: file, environment, command line. Each value remembers its source for error messages. Texts
only: `broker_config` parses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lowtide.broker.config.key import ConfigError
from lowtide.protocol.native import PURE_VARIABLE
from lowtide.runtime.properties import PropertiesError, read_properties

ENVIRONMENT_PREFIX = "LOWTIDE_"

METADATA_USER = "LOWTIDE_METADATA_USER"
METADATA_PASSWORD = "LOWTIDE_METADATA_PASSWORD"  # noqa: S105 - a name
METADATA_PASSWORD_FILE = "LOWTIDE_METADATA_PASSWORD_FILE"  # noqa: S105 - a name
PROCESSES = "LOWTIDE_PROCESSES"
BOOTSTRAP_SERVER = "LOWTIDE_BOOTSTRAP_SERVER"
COMMAND_CONFIG = ["LOWTIDE_COMMAND_CONFIG", "LOWTIDE_CLIENT_CONFIG"]
"""Either the option's name or the name in the file. The first wins."""

NO_KEYS = frozenset(
    {
        METADATA_USER,
        METADATA_PASSWORD,
        METADATA_PASSWORD_FILE,
        PROCESSES,
        BOOTSTRAP_SERVER,
        *COMMAND_CONFIG,
        PURE_VARIABLE,
    }
)
"""Variables that are not configuration keys: the login at the metadata store, which is needed before there is a
configuration; the number of processes; the cluster of command line tools; and `LOWTIDE_PURE`, which disables compiled
code."""

_SERVICE_LINK = re.compile(r"LOWTIDE_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_.*)?)")
"""Variables that Kubernetes sets in every pod next to a service named lowtide."""


DYNAMIC_BROKER = "the dynamic configuration of this broker"
DYNAMIC_DEFAULT = "the dynamic configuration of all brokers"
"""Sources of values that were set at runtime."""


class Setting(NamedTuple):
    """A configured value as text, and its source: `server.properties line 3`, `LOWTIDE_LOG_DIRS`, `--set`."""

    text: str
    source: str


def merge(*sources: Mapping[str, Setting]) -> dict[str, Setting]:
    """Merges several mappings; later ones win."""
    merged: dict[str, Setting] = {}
    for source in sources:
        merged.update(source)
    return merged


def from_properties(text: str, name: str) -> dict[str, Setting]:
    """Reads Java properties.

    Lines are `key=value`, `key: value` or `key value`, with # and ! comments, escapes and continuations. Errors:
    ConfigError for a line without a key or with an invalid escape, one sentence.
    """
    try:
        return {key: Setting(value, f"{name} line {line}") for key, value, line in read_properties(text, name)}
    except PropertiesError as error:
        raise ConfigError(str(error)) from None


def from_environment(environment: Mapping[str, str], known: Iterable[str]) -> dict[str, Setting]:
    """Reads `LOWTIDE_LOG_RETENTION_MS` as `log.retention.ms`: in upper case, with underscores for dots.

    Lowtide's own keys have the prefix once: `LOWTIDE_MAX_VERSION_DELETERECORDS`. Variables that Kubernetes sets for a
    service named lowtide are ignored. Any other unknown name is refused without showing its value, which may be a
    secret.

    Errors: ConfigError, one sentence.
    """
    names = {key.replace(".", "_").upper(): key for key in known}
    found: dict[str, Setting] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NO_KEYS or _SERVICE_LINK.fullmatch(variable):
            continue
        rest = variable.removeprefix(ENVIRONMENT_PREFIX)
        if rest.startswith("MAX_VERSION_"):
            found[f"lowtide.max.version.{rest.removeprefix('MAX_VERSION_').replace('_', '')}"] = Setting(
                value, variable
            )
            continue
        key = names.get(rest) or names.get(f"{ENVIRONMENT_PREFIX}{rest}")
        if key is None:
            message = (
                f"{variable} is not a broker configuration key: allowed is {ENVIRONMENT_PREFIX} and a key in upper "
                "case."
            )
            raise ConfigError(message)
        found[key] = Setting(value, variable)
    return found


def from_settings(settings: Iterable[str], option: str = "--set", prefix: str = "") -> dict[str, Setting]:
    """Reads `--set key=value` arguments, or those of another option whose keys omit `prefix`.

    Errors: ConfigError.
    """
    found: dict[str, Setting] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            message = (
                f"{option} {setting} has no value: allowed is {option} {'API=version' if prefix else 'key=value'}."
            )
            raise ConfigError(message)
        found[prefix + key.strip()] = Setting(value, f"{option} {key.strip()}")
    return found
