"""Where configuration comes from: a file in Kafka's `server.properties` syntax, the environment, the command line.

From weak to strong: file, environment, command line. Each value remembers its source, for the sentence that refuses it.
Texts only: what they mean is `broker_config`'s part.
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
"""Either: by the option's name, or by what the file has. The first counts."""

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
"""Variables that stand for no key: who the broker is to its metadata store, which is asked for before there is a configuration; how many
brokers are started; where the command line finds a cluster, which may be set where a broker is started too; and `LOWTIDE_PURE`, which does
without compiled code."""

_SERVICE_LINK = re.compile(r"LOWTIDE_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_.*)?)")
"""What Kubernetes puts into the environment of every pod beside a service named lowtide."""


DYNAMIC_BROKER = "what is set on this broker"
DYNAMIC_DEFAULT = "what is set on all brokers"
"""Sources of values that were set while the broker ran."""


class Given(NamedTuple):
    """A value that was given, as text, and where: `server.properties line 3`, `LOWTIDE_LOG_DIRS`, `--set`."""

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
    try:
        return {key: Given(value, f"{name} line {line}") for key, value, line in read_properties(text, name)}
    except PropertiesError as error:
        raise ConfigError(str(error)) from None


def from_environment(environment: Mapping[str, str], known: Iterable[str]) -> dict[str, Given]:
    """Read `LOWTIDE_LOG_RETENTION_MS` as `log.retention.ms`: dots are underscores, all letters large.

    Lowtide's own keys have their first word once: `LOWTIDE_MAX_VERSION_DELETERECORDS`. What Kubernetes sets for a
    service named lowtide is left aside. A name that no key has is refused like any unknown key; its value is not shown,
    for it may be a secret.

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
        key = names.get(rest) or names.get(f"{ENVIRONMENT_PREFIX}{rest}")
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
            message = (
                f"{option} {setting} has no value: allowed is {option} {'API=version' if prefix else 'key=value'}."
            )
            raise ConfigError(message)
        found[prefix + key.strip()] = Given(value, f"{option} {key.strip()}")
    return found
