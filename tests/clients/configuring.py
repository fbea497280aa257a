"""One interface to the clients that can describe and change configurations.

confluent-kafka and kafka-python use IncrementalAlterConfigs and AlterConfigs, aiokafka only the latter; its tests skip
the rest.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Literal, NamedTuple, Protocol

import aiokafka.errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource as AiokafkaResource
from aiokafka.admin.config_resource import ConfigResourceType as AiokafkaType
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from .driver import DEADLINE_S
from .driver_kafka_python import DEADLINE_MS

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    import kafka.errors
    from kafka import KafkaAdminClient
    from kafka.admin import ConfigResource as KafkaPythonResource

Kind = Literal["TOPIC", "BROKER"]
Change = tuple[Literal["SET", "DELETE", "APPEND", "SUBTRACT"], str]


class ConfigDescription(NamedTuple):
    """One key. `source` has Kafka's name."""

    value: str | None
    source: str
    is_read_only: bool
    is_sensitive: bool


class Configurer(Protocol):
    """A client that describes and changes configurations.

    Errors: the client's own, which contain Kafka's name of the error.
    """

    name: str
    is_incremental: bool
    """Whether the client has `alter`."""
    replaces: bool
    """Whether `replace` deletes keys that are not named. kafka-python sends the current keys as well."""

    def describe(self, kind: Kind, name: str, keys: Sequence[str] | None = None) -> dict[str, ConfigDescription]:
        """Returns the keys of a resource; a client that cannot request some requests all."""

    def alter(self, kind: Kind, name: str, changes: Mapping[str, Change]) -> None:
        """Changes some keys."""

    def replace(self, kind: Kind, name: str, configs: Mapping[str, str]) -> None:
        """Sets these keys and no others."""


class ConfluentConfigurer:
    """confluent-kafka."""

    name = "confluent-kafka"
    is_incremental = True
    replaces = True

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "broker.address.family": "v4"})

    def describe(self, kind: Kind, name: str, keys: Sequence[str] | None = None) -> dict[str, ConfigDescription]:
        resource = ConfigResource(ResourceType[kind], name)
        found = self._admin.describe_configs([resource], request_timeout=DEADLINE_S)[resource].result(DEADLINE_S)
        return {
            key: ConfigDescription(entry.value, ConfigSource(entry.source).name, entry.is_read_only, entry.is_sensitive)
            for key, entry in found.items()
            if keys is None or key in keys
        }

    def alter(self, kind: Kind, name: str, changes: Mapping[str, Change]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType[op]) for key, (op, value) in changes.items()
        ]
        resource = ConfigResource(ResourceType[kind], name, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource], request_timeout=DEADLINE_S)[resource].result(DEADLINE_S)

    def replace(self, kind: Kind, name: str, configs: Mapping[str, str]) -> None:
        resource = ConfigResource(ResourceType[kind], name, set_config=dict(configs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self._admin.alter_configs([resource], request_timeout=DEADLINE_S)[resource].result(DEADLINE_S)


class KafkaPythonConfigurer:
    """kafka-python 3.x."""

    name = "kafka-python"
    is_incremental = True
    replaces = False

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def _admin(self) -> Any:
        return closing(KafkaAdminClient(bootstrap_servers=self._bootstrap, request_timeout_ms=DEADLINE_MS))

    def describe(self, kind: Kind, name: str, keys: Sequence[str] | None = None) -> dict[str, ConfigDescription]:
        resource = KafkaPythonResource(kind, name, None if keys is None else dict.fromkeys(keys))
        with self._admin() as admin:
            found = admin.describe_configs([resource], include_synonyms=True, config_filter="all")
        return {
            key: ConfigDescription(entry["value"], entry["config_source"], entry["read_only"], entry["is_sensitive"])
            for key, entry in found[kind.lower()][name].items()
        }

    def alter(self, kind: Kind, name: str, changes: Mapping[str, Change]) -> None:
        with self._admin() as admin:
            self._check(admin.alter_configs([KafkaPythonResource(kind, name, dict(changes))], incremental=True))

    def replace(self, kind: Kind, name: str, configs: Mapping[str, str]) -> None:
        with self._admin() as admin:
            self._check(admin.alter_configs([KafkaPythonResource(kind, name, dict(configs))], incremental=False))

    def list(self) -> dict[str, list[str]]:
        """Returns all configurable resources, by type."""
        with self._admin() as admin:
            found: dict[str, list[str]] = admin.list_config_resources()
        return found

    @staticmethod
    def _check(answers: Any) -> None:
        for of_kind in answers.values():
            for answer in of_kind.values():
                if answer not in (None, "OK"):
                    raise kafka.errors.KafkaError(str(answer))


class AiokafkaConfigurer:
    """aiokafka."""

    name = "aiokafka"
    is_incremental = False
    replaces = True

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    async def _ask(self, method: str, resource: AiokafkaResource) -> list[Any]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap, request_timeout_ms=DEADLINE_MS)
        await admin.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                answers: list[Any] = await getattr(admin, method)([resource])
        finally:
            await admin.close()
        return [row for answer in answers for row in answer.resources]

    def describe(self, kind: Kind, name: str, keys: Sequence[str] | None = None) -> dict[str, ConfigDescription]:
        resource = AiokafkaResource(AiokafkaType[kind], name, None if keys is None else dict.fromkeys(keys))
        [(code, message, _type, _name, entries)] = asyncio.run(self._ask("describe_configs", resource))
        if code:
            raise aiokafka.errors.for_code(code)(message)
        return {
            key: ConfigDescription(value, ConfigSource(source).name, bool(read_only), bool(sensitive))
            for key, value, read_only, source, sensitive, _synonyms in entries
        }

    def alter(self, kind: Kind, name: str, changes: Mapping[str, Change]) -> None:
        raise NotImplementedError

    def replace(self, kind: Kind, name: str, configs: Mapping[str, str]) -> None:
        resource = AiokafkaResource(AiokafkaType[kind], name, dict(configs))
        for code, message, _type, _name in asyncio.run(self._ask("alter_configs", resource)):
            if code:
                raise aiokafka.errors.for_code(code)(message)
