"""The configuration of each of several brokers of one machine: its id, its ports, its folders.

The first broker uses the log directories as configured, so one broker and the first of several are interchangeable. The
others have a folder in each, `lowtide-processes/<id>`. Ports are those of the first broker and the following ones.
Pure, except for `check_others`, which lists directories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lowtide.broker.config.broker_config import BrokerConfig, ConfigError, Setting, load_config
from lowtide.broker.config.http_listeners import HTTP_LISTENERS
from lowtide.broker.config.listeners import ConfiguredListener
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.errors import RefusedDirectoryError
from lowtide.storage.folder_names import parse_folder_name
from lowtide.storage.log_directory import PROCESSES_FOLDER

PROCESSES_MAX: Final = 64
"""More brokers need more machines."""

SOURCE: Final = "--processes"

_PORT_MAX: Final = 65_535
_NAMED_MAX: Final = 3
_INTERNAL_FACTORS: Final = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "share.coordinator.state.topic.replication.factor",
)


class BrokerShare(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one broker of the machine. `given` is complete, as for `load_config`."""

    node_id: int
    log_dirs: tuple[str, ...]
    given: Mapping[str, Setting]


def shares(config: BrokerConfig, count: int, *, host_name: str, is_alone: bool) -> list[BrokerShare]:
    """Returns the configurations of `count` brokers; only the first has the HTTP listeners.

    `is_alone`: the cluster has no other machine. Without `broker.rack` the rack is `host_name`, because the machine
    fails as a whole. Errors: ConfigError, one sentence.
    """
    _check_ports(config, count)
    common = {name: value for name, value in config.given.items() if name not in ("broker.id", "log.dir")}
    if config.broker_rack is None:
        common["broker.rack"] = Setting(host_name, SOURCE)
    if is_alone:
        # They all fail with the machine, so more replicas would add cost without safety.
        common = {**{name: Setting("1", SOURCE) for name in _INTERNAL_FACTORS}, **common}
    return [_share(config, common, index, host_name) for index in range(count)]


def _share(config: BrokerConfig, common: Mapping[str, Setting], index: int, host_name: str) -> BrokerShare:
    node_id = config.node_id + index
    directories = log_directories(config, index)
    own = {"node.id": str(node_id), "log.dirs": ",".join(directories), "listeners": _moved(config.listeners, index)}
    if "advertised.listeners" in config.given:
        own["advertised.listeners"] = _moved(config.advertised_listeners, index)
    if index:
        own[HTTP_LISTENERS] = ""
    source = f"{SOURCE}, broker {node_id}"
    given = {**common, **{name: Setting(text, source) for name, text in own.items()}}
    load_config(given=given, host_name=host_name)
    return BrokerShare(node_id=node_id, log_dirs=directories, given=given)


def log_directories(config: BrokerConfig, index: int) -> tuple[str, ...]:
    """Returns the log directories of one of the brokers, in the order of the configuration."""
    if index == 0:
        return config.log_dirs
    return tuple(f"{directory}/{PROCESSES_FOLDER}/{config.node_id + index}" for directory in config.log_dirs)


def _moved(listeners: Sequence[ConfiguredListener], index: int) -> str:
    return ",".join(each._replace(port=each.port and each.port + index).text for each in listeners)


def _check_ports(config: BrokerConfig, count: int) -> None:
    """Checks that no port is out of range or used twice. Errors: ConfigError."""
    taken: dict[int, str] = {each.port: f"the HTTP listener {each.text}" for each in config.http_listeners if each.port}
    for index in range(count):
        mine: dict[int, str] = {}
        for listener in config.listeners:
            port = listener.port + index
            if not listener.port:
                continue
            name = f"the listener {listener.name} of broker {config.node_id + index}"
            if port > _PORT_MAX:
                raise ConfigError(
                    f"{SOURCE} {count} is invalid: {name} would have port {port}, the last one is {_PORT_MAX}."
                )
            if port in taken:
                raise ConfigError(
                    f"{SOURCE} {count} is invalid: {name} would have port {port}, as {taken[port]}; "
                    f"leave {count} ports from each listener's on."
                )
            mine[port] = name
        taken |= mine


def check_others(filesystem: FileSystem, config: BrokerConfig, count: int) -> None:
    """Refuses to start fewer brokers than have partitions in the log directories. Errors: RefusedDirectoryError."""
    first, last = config.node_id, config.node_id + count - 1
    held: dict[int, list[str]] = {}
    for directory in config.log_dirs:
        for name in _names(filesystem, f"{directory}/{PROCESSES_FOLDER}"):
            if name.isdecimal() and not first < int(name) <= last:
                partitions = [
                    each
                    for each in _names(filesystem, f"{directory}/{PROCESSES_FOLDER}/{name}")
                    if parse_folder_name(each)
                ]
                if partitions:
                    held.setdefault(int(name), []).extend(partitions)
    if held:
        broker, partitions = max(held.items())
        named = ", ".join(partitions[:_NAMED_MAX]) + (", …" if len(partitions) > _NAMED_MAX else "")
        started = f"brokers {first} to {last} are" if count > 1 else f"only broker {last} is"
        others = (
            "" if len(held) == 1 else f", as brokers {', '.join(str(each) for each in sorted(held)[:-1])} have others"
        )
        raise RefusedDirectoryError(
            f"{config.log_dirs[0]}/{PROCESSES_FOLDER}",
            f"broker {broker} has {len(partitions)} partition(s) here ({named}){others}, and {started} to be started; "
            "start with "
            f"{SOURCE} {broker - first + 1}, give them to one that stays with `lowtide cluster replace {broker} "
            f"{first}`, stop, and start "
            "with fewer then",
        )


def _names(filesystem: FileSystem, folder: str) -> list[str]:
    """Returns the names in a folder; nothing if it cannot be listed, which its broker reports."""
    try:
        return sorted(filesystem.listdir(folder))
    except OSError:
        return []
