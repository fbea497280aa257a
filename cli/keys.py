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

Every key, as `lowtide keys` prints it. Names, types, defaults and limits are those of Apache Kafka 4.3, but for these
defaults: `node.id` is 0, `process.roles` is broker, `log.dirs` is ./data, `queued.max.request.bytes` is 256 MiB,
`broker.session.timeout.ms` is 4000 (Kafka's 9000) and `broker.heartbeat.interval.ms` 500 (2000).
`inter.broker.protocol.version` is one that Kafka has no more.

A broker takes its keys, from weak to strong, from `--config FILE`, from the environment (`LOWTIDE_LOG_DIRS` is
`log.dirs`) and from `--set key=value`. An unknown key or an impossible value keeps it from starting. **Does** says
whether Lowtide does what the key says; the other keys are checked and kept, and named in one warning at the start when
they are set. Keys that ask for protection (TLS, SASL, tokens, an authorizer, policies) are no such case: while Lowtide
does not do what one says, a broker on which it is set refuses to start, unless the value is the default or empty. A
topic's and a group's keys, and those of a broker that are marked *while running*, can be changed at any time with the
tools and clients that change Kafka's.

Also taken, and checked as their last part: `listener.name.<listener>.<key>`, which has an effect where the key is one
of security; those marked *of a listener while running* can be changed in this form, on a single broker. Without effect
yet: `config.providers.<name>.<key>`, `rsm.config.<key>` and `rlmm.config.<key>`.
"""

_TOPICS: Final = """\
Given when a topic is created, or later. A topic that doesn't set a key follows the broker's key beside it.

"""

_SINGLE_GROUPS: Final = """\
Set on a group whose partitions the broker assigns, before it is there or later, within the broker's
`group.consumer.min.*` and `group.consumer.max.*`, or `group.share.min.*` and `group.share.max.*`. A group that doesn't
set a key follows the broker's key beside it.

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
