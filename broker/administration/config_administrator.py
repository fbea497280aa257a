"""Changes and describes configurations.

A change is checked in Kafka's order, and written together with a comparison of the state that it was decided on. It is
answered when this broker applies it. If another broker changed the same resource in the meantime, the change is decided
again on the new state. Certificates named in a change are read and checked before it is written, even if the setting
stays the same: this is how Kafka reloads renewed files. The same applies to token keys when a change enables logins
with them.

Topics, brokers, groups and subscriptions to client metrics can be configured. A group need not exist.

Sources: KIP-226, KIP-339, KIP-848; Kafka's `ConfigAdminManager`, `ConfigurationControlManager`,
`ControllerConfigurationValidator`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from lowtide.broker.administration.committing import commit, newer_image, outcome_fields
from lowtide.broker.client_waits import client_wait
from lowtide.broker.config.broker_config import BROKER_KEYS, BrokerConfig
from lowtide.broker.config.client_metrics import LISTS as SUBSCRIPTION_LISTS
from lowtide.broker.config.client_metrics import validate_client_metrics
from lowtide.broker.config.described import (
    DescribedConfig,
    describe_all_brokers,
    describe_broker,
    describe_client_metrics,
    describe_group,
    describe_loggers,
    describe_topic,
    describe_topic_defaults,
    log_changes,
)
from lowtide.broker.config.dynamic_config import CLUSTER_WIDE, part_of
from lowtide.broker.config.group_config import validate_group_configs
from lowtide.broker.config.key import ConfigError, Type
from lowtide.broker.config.log_levels import LogLevels, check_logger_changes
from lowtide.broker.config.resources import (
    REPEATED,
    RESOURCES_AT_ONCE,
    ConfiguredResource,
    check_node_id,
    repeated_resources,
)
from lowtide.broker.config.topic_config import TOPIC_KEYS_BY_NAME, TopicConfigFault, validate_topic_configs
from lowtide.broker.context import BrokerContext
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.config_image import NOTHING_SET
from lowtide.metadata.errors import ConflictError
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.config_changes import (
    KeyChange,
    change_configs,
    plan_broker_configs,
    plan_client_metrics,
    plan_group_configs,
    plan_topic_configs,
)
from lowtide.replication.refusal import Refusal
from lowtide.replication.topic_names import check_topic_name

ATTEMPTS: Final = 20
"""The most attempts at a change while other brokers change the same resource. Of concurrent attempts, one succeeds each
time."""

NEWER_IMAGE_S: Final = 5.0
"""How long a broker waits for the image with a concurrent change."""

SETTLING_S: Final = 10.0
"""How long the answer waits until the logs apply the change, which is in force already."""

Decide = Callable[[Mapping[str, str]], "dict[str, str] | Refusal"]
"""Computes the new settings of a resource from its present ones."""


class ListenerParts(Protocol):
    """The certificates of this broker's listeners, or their logins."""

    async def prepare(self, config: BrokerConfig, named: Collection[str]) -> Callable[[], None]:
        """Reads and checks what a configuration names; files of `named` keys are read again.

        Returns what to call when the configuration is in force. Errors: ConfigError.
        """


class NamedResource(Protocol):
    """A row of a request to change configurations."""

    @property
    def resource_type(self) -> int: ...

    @property
    def resource_name(self) -> str: ...


RowT = TypeVar("RowT", bound=NamedResource)
AnswerT = TypeVar("AnswerT")


async def change_each(
    rows: Sequence[RowT],
    change: Callable[[RowT], Awaitable[Refusal | None]],
    lane: asyncio.Lock,
    answer_row: Callable[..., AnswerT],
) -> list[AnswerT]:
    """Changes the resources of a request one after the other. Returns the rows of the answer.

    The loop serves others in between. Requests of more than `RESOURCES_AT_ONCE` rows take turns in the broker's `lane`,
    so that fifty of them block the loop no longer than one. Refusals: those of `change`, and INVALID_REQUEST for every
    row of a repeated resource.
    """
    twice = repeated_resources((row.resource_type, row.resource_name) for row in rows)
    outcomes: list[AnswerT] = []

    async def change_some(some: Sequence[RowT]) -> None:
        for row in some:
            refusal = REPEATED if (row.resource_type, row.resource_name) in twice else await change(row)
            outcome = outcome_fields(refusal)
            outcomes.append(answer_row(**outcome, resource_type=row.resource_type, resource_name=row.resource_name))

    if len(rows) <= RESOURCES_AT_ONCE:
        await change_some(rows)
        return outcomes
    for start in range(0, len(rows), RESOURCES_AT_ONCE):
        async with lane:
            await change_some(rows[start : start + RESOURCES_AT_ONCE])
            await asyncio.sleep(0)  # In the lane: the next request begins in a later pass of the loop.
    return outcomes


class ConfigAdministrator:
    """Changes and describes the configurations of the cluster from this broker."""

    def __init__(self, broker: BrokerContext, listener_parts: Sequence[ListenerParts]) -> None:
        self.broker = broker
        self._listener_parts = listener_parts
        self._configs = broker.configs
        self._node_id = broker.configs.started_with.node_id
        self.lane = asyncio.Lock()
        """Serializes requests that change many resources."""
        self._turns: WeakValueDictionary[ConfiguredResource, asyncio.Lock] = WeakValueDictionary()

    async def alter(
        self, resource: ConfiguredResource, changes: Sequence[KeyChange], *, validate_only: bool
    ) -> Refusal | None:
        """Changes keys of a resource. Refusals: those of `resources`, of the resource's plan, and of `_carry_out`."""
        if resource.type is ConfigResourceType.BROKER_LOGGER:
            return self._alter_loggers(resource.name, changes, validate_only=validate_only)

        def decide(current: Mapping[str, str]) -> dict[str, str] | Refusal:
            return change_configs(current, changes, lambda name: _list_default(resource.type, name))

        return await self._change(resource, decide, [change.name for change in changes], validate_only=validate_only)

    def _alter_loggers(self, name: str, changes: Sequence[KeyChange], *, validate_only: bool) -> Refusal | None:
        """Changes logger levels of this broker until it stops. Refusals: INVALID_REQUEST, INVALID_CONFIG."""
        refusal = check_node_id(name, self._node_id) or check_logger_changes(changes)
        if refusal is None and not validate_only:
            levels: LogLevels = self.broker.log.levels
            levels.change(changes)
            for each in changes:
                self.broker.log.info("level of a logger is changed", logger=each.name, level=each.value)
        return refusal

    async def replace(
        self, resource: ConfiguredResource, wanted: Mapping[str, str], *, validate_only: bool
    ) -> Refusal | None:
        """Replaces all settings of a resource. Refusals: as for `alter`."""
        return await self._change(resource, lambda _current: dict(wanted), list(wanted), validate_only=validate_only)

    async def _change(
        self, resource: ConfiguredResource, decide: Decide, named: Collection[str], *, validate_only: bool
    ) -> Refusal | None:
        """Changes one resource. Requests to this broker change it one at a time; another broker may interfere.

        `named` are the keys in the request.
        """
        turn = self._turns.setdefault(resource, asyncio.Lock())
        decided: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})

        def noted(current: Mapping[str, str]) -> dict[str, str] | Refusal:
            nonlocal decided
            wanted = decide(current)
            decided = (current, {} if isinstance(wanted, Refusal) else wanted)
            return wanted

        async with turn:
            for _ in range(ATTEMPTS):
                image = self.broker.metadata.image
                plan = self._plan(image, resource, noted)
                if isinstance(plan, Refusal):
                    return plan
                put_in_force = await self._prepare(resource, decided[1], named)
                if isinstance(put_in_force, Refusal):
                    return put_in_force
                if validate_only:
                    return None
                with suppress(ConflictError):
                    refusal = None if plan.is_empty else await self._carry_out(plan, resource, decided)
                    if refusal is None:
                        put_in_force()
                    return refusal
                deadline = asyncio.get_running_loop().time() + NEWER_IMAGE_S
                if await newer_image(self.broker.metadata, image.revision, deadline) is not None:
                    break
        return Refusal(ErrorCode.REQUEST_TIMED_OUT, f"{resource.name} is changed by others at the same time; try again")

    async def _prepare(
        self, resource: ConfiguredResource, wanted: Mapping[str, str], named: Collection[str]
    ) -> Callable[[], None] | Refusal:
        """Prepares this broker's listeners for the wanted settings.

        Refusals: INVALID_REQUEST for settings that can't be used.
        """
        now = self._configs.of_this
        if (
            resource.type is not ConfigResourceType.BROKER
            or not resource.name
            or not any(map(part_of, {*wanted, *named, *now}))
        ):
            return lambda: None
        try:
            config = self._configs.check(wanted, of_all=False)
            prepared = [await each.prepare(config, named) for each in self._listener_parts]
        except ConfigError as error:
            return Refusal(ErrorCode.INVALID_REQUEST, str(error))

        def put_in_force() -> None:
            for each in prepared:
                each()

        return put_in_force

    def _plan(self, image: MetadataImage, resource: ConfiguredResource, decide: Decide) -> ChangePlan | Refusal:
        """Plans the settings that `decide` computes."""
        if resource.type is ConfigResourceType.TOPIC:
            return self._plan_topic(image, resource.name, decide)
        if resource.type is ConfigResourceType.BROKER:
            return self._plan_broker(image, resource.name, decide)
        if resource.type is ConfigResourceType.GROUP:
            return self._plan_group(image, resource.name, decide)
        return _plan_client_metrics(image, resource.name, decide)

    def _plan_topic(self, image: MetadataImage, name: str, decide: Decide) -> ChangePlan | Refusal:
        """Plans a topic's settings.

        Refusals: INVALID_REQUEST without a name, INVALID_TOPIC_EXCEPTION, INVALID_CONFIG, UNKNOWN_TOPIC_OR_PARTITION,
        in this order.
        """
        topic = image.topics.get(name)
        wanted = decide({} if topic is None else topic.configs)
        if isinstance(wanted, Refusal):
            return wanted
        if not name:
            return Refusal(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        reason = check_topic_name(name)
        if reason is not None:
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        checked = validate_topic_configs(self._configs.current, wanted)
        if isinstance(checked, TopicConfigFault):
            return Refusal(*checked)
        if topic is None:
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return plan_topic_configs(topic, checked)

    def _plan_broker(self, image: MetadataImage, name: str, decide: Decide) -> ChangePlan | Refusal:
        """Plans the settings of this broker, or of all brokers if `name` is empty.

        Refusals: INVALID_REQUEST for another broker and for settings that can't work here, INVALID_CONFIG for a
        cluster-wide key.
        """
        refusal = check_node_id(name, self._node_id) if name else None
        if refusal is not None:
            return refusal
        own_name = str(self._node_id) if name else ""
        current = image.broker_configs.get(own_name, NOTHING_SET).configs
        wanted = decide(current)
        if isinstance(wanted, Refusal):
            return wanted
        if (
            name
            and image.has_eligible_leaders
            and wanted.get(CLUSTER_WIDE, current.get(CLUSTER_WIDE)) != current.get(CLUSTER_WIDE)
        ):
            return Refusal(
                ErrorCode.INVALID_CONFIG, f"Broker-level {CLUSTER_WIDE} cannot be altered while ELR is enabled."
            )
        try:
            self._configs.check(wanted, of_all=not name)
        except ConfigError as error:
            return Refusal(ErrorCode.INVALID_REQUEST, str(error))
        return plan_broker_configs(image, own_name, wanted)

    def _plan_group(self, image: MetadataImage, group_id: str, decide: Decide) -> ChangePlan | Refusal:
        """Plans a group's settings. Refusals: INVALID_REQUEST without an id, INVALID_CONFIG, POLICY_VIOLATION."""
        wanted = decide(image.group_configs.get(group_id, NOTHING_SET).configs)
        if isinstance(wanted, Refusal):
            return wanted
        if not group_id:
            return Refusal(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        checked = validate_group_configs(self._configs.current.values, wanted)
        return checked if isinstance(checked, Refusal) else plan_group_configs(image, group_id, checked)

    async def _carry_out(
        self, plan: ChangePlan, resource: ConfiguredResource, decided: tuple[Mapping[str, str], Mapping[str, str]]
    ) -> Refusal | None:
        """Writes a plan and waits until this broker and its logs apply it.

        `decided`: the settings before and after. Refusals: those of `commit`. Errors: ConflictError.
        """
        refusal = await commit(self.broker.metadata, plan)
        if refusal is not None:
            return refusal
        log_changes(resource, *decided, self.broker.log)
        with suppress(TimeoutError):
            async with client_wait(asyncio.get_running_loop().time() + SETTLING_S):
                await self.broker.assigned.settled()
        return None

    def describe_topic_defaults(self) -> Mapping[str, DescribedConfig]:
        """Returns the default settings of topics, which `describe` needs. They are valid for one request."""
        return describe_topic_defaults(self._configs)

    def describe(
        self, resource: ConfiguredResource, wanted: Sequence[str] | None, topic_defaults: Mapping[str, DescribedConfig]
    ) -> list[DescribedConfig] | Refusal:
        """Returns the keys of a resource, or only the `wanted` ones.

        Refusals: INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST for another broker or a missing
        name.
        """
        name = resource.name
        if resource.type is ConfigResourceType.TOPIC:
            return self._describe_topic(name, wanted, topic_defaults)
        if resource.type is ConfigResourceType.BROKER:
            return self._describe_broker(name, wanted)
        if resource.type is ConfigResourceType.BROKER_LOGGER:
            return check_node_id(name, self._node_id) or describe_loggers(self.broker.log.levels.shown(), wanted)
        if not name:
            return Refusal(ErrorCode.INVALID_REQUEST, f"The name of a {resource.type.name} must not be empty")
        if resource.type is ConfigResourceType.GROUP:
            return describe_group(
                self._configs, self.broker.metadata.image.group_configs.get(name, NOTHING_SET).configs, wanted
            )
        return describe_client_metrics(self.broker.metadata.image.client_metrics.get(name, NOTHING_SET).configs, wanted)

    def _describe_topic(
        self, name: str, wanted: Sequence[str] | None, topic_defaults: Mapping[str, DescribedConfig]
    ) -> list[DescribedConfig] | Refusal:
        reason = check_topic_name(name)
        if reason is not None:
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        topic = self.broker.metadata.image.topics.get(name)
        if topic is None:
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return describe_topic(topic_defaults, topic.configs, wanted)

    def _describe_broker(self, name: str, wanted: Sequence[str] | None) -> list[DescribedConfig] | Refusal:
        if not name:
            return describe_all_brokers(self._configs, wanted)
        return check_node_id(name, self._node_id) or describe_broker(self._configs, wanted)

    def list(self, wanted: frozenset[ConfigResourceType]) -> list[ConfiguredResource]:
        """Lists the resources of these types. Of groups and client metrics, only those with settings are listed."""
        image = self.broker.metadata.image
        names: dict[ConfigResourceType, list[str]] = {
            ConfigResourceType.BROKER_LOGGER: [str(broker_id) for broker_id in image.brokers],
            ConfigResourceType.BROKER: [str(broker_id) for broker_id in image.brokers],
            ConfigResourceType.TOPIC: list(image.topics),
            ConfigResourceType.GROUP: list(image.group_configs),
            ConfigResourceType.CLIENT_METRICS: list(image.client_metrics),
        }
        return [ConfiguredResource(kind, name) for kind, of_kind in names.items() if kind in wanted for name in of_kind]


def _plan_client_metrics(image: MetadataImage, name: str, decide: Decide) -> ChangePlan | Refusal:
    """Plans a subscription to clients' metrics. Refusals: INVALID_REQUEST, INVALID_CONFIG, POLICY_VIOLATION."""
    wanted = decide(image.client_metrics.get(name, NOTHING_SET).configs)
    refusal = wanted if isinstance(wanted, Refusal) else validate_client_metrics(name, wanted)
    if refusal is not None:
        return refusal
    assert not isinstance(wanted, Refusal)
    return plan_client_metrics(image, name, wanted)


def _list_default(kind: ConfigResourceType, name: str) -> str | None:
    """Returns the default of a key whose value is a list, else None."""
    if kind is ConfigResourceType.CLIENT_METRICS:
        return "" if name in SUBSCRIPTION_LISTS else None
    table = {ConfigResourceType.TOPIC: TOPIC_KEYS_BY_NAME, ConfigResourceType.BROKER: BROKER_KEYS}.get(kind, {})
    key = table.get(name)
    return key.default or "" if key is not None and key.type is Type.LIST else None
