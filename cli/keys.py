"""`lowtide keys`: prints all configuration keys as a Markdown page, which is `docs/configuration.md`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Final

from lowtide.broker.config.dynamic_config import DYNAMIC_KEYS
from lowtide.broker.config.key import ConfigKey
from lowtide.broker.config.keys_cluster import CLUSTER_KEYS, REMOTE_KEYS
from lowtide.broker.config.keys_groups import GROUP_KEYS
from lowtide.broker.config.keys_of_groups import KEYS_OF_GROUPS
from lowtide.broker.config.keys_own import OWN_KEYS
from lowtide.broker.config.keys_security import SECURITY_KEYS
from lowtide.broker.config.keys_server import SERVER_KEYS
from lowtide.broker.config.keys_topics import TOPIC_KEYS
from lowtide.broker.config.maximum_versions import MAX_VERSION_PREFIX
from lowtide.broker.config.sasl_settings import LOGIN_KEYS
from lowtide.broker.config.tls_settings import STORE_KEYS
from lowtide.protocol.api_keys import API, api_name

_HEAD: Final = """\
# Configuration

All keys, as `lowtide keys` prints them. Names, types, limits and most defaults are those of Apache Kafka 4.4. These
defaults differ:

| key | Lowtide | Kafka |
|---|---|---|
| `broker.heartbeat.interval.ms` | 500 | 2000 |
| `broker.session.timeout.ms` | 4000 | 9000 |
| `log.dirs` | `./data` | none |
| `node.id` | 0 | none |
| `process.roles` | `broker` | none |
| `queued.max.request.bytes` | 256 MiB | no limit |

**Sources.** A broker reads `--config FILE`, then the environment (`LOWTIDE_LOG_DIRS` is `log.dirs`), then
`--set key=value`. Later sources win. A broker does not start with an unknown key or an invalid value.

**Does** says whether Lowtide implements the key. Other keys are checked, but have no effect; a warning at the start
names those that are set. Security keys are the exception (TLS, SASL, tokens, authorizer, policies): a broker does not
start with one that it does not implement, unless its value is the default or empty.

**Changes.** Keys of topics and groups, and keys of brokers that are marked *while running*, can be changed at any time,
with `lowtide configs` or Kafka's tools. `listener.name.<listener>.<key>` sets a security key for one listener. Keys
that are marked *of a listener while running* can be changed in this form, for a single broker.

`inter.broker.protocol.version` comes from older versions of Kafka. Keys such as `config.providers.<name>.<key>`,
`rsm.config.<key>` and `rlmm.config.<key>` are accepted, but have no effect.
"""

_TOPICS: Final = """\
Set when a topic is created, or later. A topic without a key uses the broker's key beside it.

"""

_SINGLE_GROUPS: Final = """\
For consumer groups (KIP-848), share groups (KIP-932) and streams groups (KIP-1071). They may be set before the group
exists, within the limits of the broker's `group.consumer.min.*` and `group.consumer.max.*`, and those for the other
types. A group without a key uses the broker's key beside it.

"""

_BROKER_TABLES: Final = (
    ("The broker and its logs", SERVER_KEYS),
    ("Replication and the cluster", CLUSTER_KEYS),
    ("Groups and transactions", GROUP_KEYS),
    ("Security", SECURITY_KEYS),
    ("Tiered storage", REMOTE_KEYS),
)


def keys(arguments: Sequence[str]) -> int:
    """Runs the command; returns the exit code."""
    argparse.ArgumentParser(
        prog="lowtide keys", description="Print all configuration keys of a broker, as a Markdown page."
    ).parse_args(arguments)
    print(configuration_page(), end="")
    return 0


def configuration_page() -> str:
    """Returns the page, without the keys that Kafka has for its own tests."""
    parts = [_HEAD, "\n## Lowtide's own keys\n\n", _own_keys()]
    parts += ["\n## Topics\n\n", _TOPICS, _table(TOPIC_KEYS, follow_brokers=True)]
    parts += ["\n## Single groups\n\n", _SINGLE_GROUPS, _table(KEYS_OF_GROUPS, follow_brokers=True)]
    for title, table in _BROKER_TABLES:
        parts.append(f"\n## {title}\n\n")
        parts.append(_table(table))
    return "".join(parts)


def _own_keys() -> str:
    rows = ["| key | allowed | meaning |\n|---|---|---|\n"]
    for key, spec in sorted(API.items(), key=lambda item: api_name(item[0])):
        name = api_name(key)
        rows.append(
            f"| `{MAX_VERSION_PREFIX}{name}` | from {spec.min_version} to {spec.max_version} | The highest version "
            f"of {name} to offer; `--max-version {name}={spec.max_version}` says the same. |\n"
        )
    return "".join([*rows, "\n", _table(OWN_KEYS)])


def _table(table: Iterable[ConfigKey], *, follow_brokers: bool = False) -> str:
    extra, line = (" broker's key |", "---|") if follow_brokers else ("", "")
    rows = [f"| key | default | allowed |{extra} does | meaning |\n|---|---|---|{line}---|---|\n"]
    for key in sorted(table, key=lambda key: key.name):
        if key.internal:
            continue
        broker_key = (
            "" if not follow_brokers else f" {_code(key.broker_key) if key.broker_key is not None else 'none'} |"
        )
        does = ("yes" if key.enforced else "no") + ("" if follow_brokers else _while_running(key.name))
        rows.append(f"| `{key.name}` | {_default(key)} | {key.describe_allowed()} |{broker_key} {does} | {key.doc} |\n")
    return "".join(rows)


def _while_running(name: str) -> str:
    """Returns the remark about changes while a broker runs."""
    if name in STORE_KEYS | LOGIN_KEYS:
        return ", *of a listener while running*"
    return ", *while running*" if name in DYNAMIC_KEYS else ""


def _default(key: ConfigKey) -> str:
    if key.default is None:
        return "not set"
    return _code(key.default) if key.default else "empty"


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""
