"""`AdminClient`: what can be asked of a cluster, as methods. Each module beside this one does one kind of work."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from lowtide.admin import (
    acls,
    cluster_description,
    configs,
    delegation_tokens,
    group_offsets,
    groups,
    log_dirs,
    offsets,
    quotas,
    records,
    replicas,
    share_groups,
    topics,
    users,
)
from lowtide.admin.acls import Acl, AclFilter
from lowtide.admin.arguments import each_of, named
from lowtide.admin.brokers import Ports
from lowtide.admin.cluster import Cluster
from lowtide.admin.cluster_description import ClusterDescription
from lowtide.admin.cluster_view import TopicDescription
from lowtide.admin.configs import ConfigChange, ConfigEntry, ConfigResource
from lowtide.admin.delegation_tokens import DelegationToken
from lowtide.admin.delete_records import delete_records, resolve_targets
from lowtide.admin.deletion import DeleteRecordsError, DeleteResult, DeleteTarget
from lowtide.admin.erasing import erase_records
from lowtide.admin.errors import AdminError
from lowtide.admin.group_offsets import CommittedOffset, GroupOffsets
from lowtide.admin.groups import GroupDescription, ListedGroups
from lowtide.admin.log_dirs import LogDir
from lowtide.admin.observing import ObservingClient
from lowtide.admin.offsets import ListedOffset, Place
from lowtide.admin.quotas import QuotaEntity
from lowtide.admin.records import FETCH_BYTES, FetchedRecords
from lowtide.admin.replicas import Reassignment
from lowtide.admin.settings import ClientSettings
from lowtide.admin.topics import CreatedTopic, NewTopic
from lowtide.admin.users import ScramUpsertion
from lowtide.protocol.client.versions import Feature
from lowtide.protocol.scram import ScramMechanism
from lowtide.protocol.types import BrokerId, Offset, TopicId, TopicPartition
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.random import system_random

_LOG = logging.getLogger("lowtide.admin")


class AdminClient(ObservingClient):
    """Administers a cluster: Lowtide's or Apache Kafka's, over the network only.

        async with AdminClient("localhost:9092") as admin:
            results = await admin.delete_records({TopicPartition("flights", 0): Timestamp.of(yesterday)})

    It connects when it is first asked something, to the brokers that the question concerns, and keeps the connections.
    Calls may run side by side on one loop; an object belongs to the loop on which it was first used.
    `BlockingAdminClient` has the same methods for code that isn't asynchronous.

    **Times and retries.** `timeout`, in seconds, bounds a call with all that it needs: connecting, looking up, attempts, pauses between
    them. Without it `default.api.timeout.ms` does, a minute. What Kafka calls retriable is tried again until then.

    **Errors.** A call about several partitions, topics or groups returns a result for each, which is a value or an `AdminError`; it isn't
    raised, so that what worked isn't lost. Raised are errors of the whole call: `AuthenticationFailedError`,
    `DeadlineExceededError` when no broker was reached at all, `UnsupportedVersionError`, `BrokerAnsweredError`, and
    ValueError for arguments that can't be meant.
    """

    def __init__(
        self, bootstrap_servers: str | Iterable[str] | Mapping[str, object] | ClientSettings, ports: Ports | None = None
    ) -> None:
        """Bootstrap servers, or properties by the names of Kafka's clients with these among them, or settings.

        `ports` is for tests.
        Errors: SettingsError.
        """
        settings = (
            bootstrap_servers
            if isinstance(bootstrap_servers, Mapping | ClientSettings)
            else {"bootstrap.servers": bootstrap_servers}
        )
        self.settings = settings if isinstance(settings, ClientSettings) else ClientSettings.of(settings)
        super().__init__(Cluster(self.settings, ports or Ports(SystemClock(), system_random())))
        if self.settings.unused_keys:
            _LOG.warning("these settings mean nothing to this client: %s", ", ".join(self.settings.unused_keys))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Calls that are under way fail."""
        await self.cluster.close()

    # ------------------------------------------------------------------ records
    async def delete_records(
        self,
        targets: Mapping[TopicPartition, DeleteTarget],
        *,
        leader_only: bool = False,
        erase: bool = False,
        timeout: float | None = None,
        topic_ids: Mapping[str, TopicId] | None = None,
    ) -> dict[TopicPartition, DeleteResult]:
        """Delete the records below an offset of each partition: `{TopicPartition("t", 0): 42}`.

        A target is an offset (the first one that stays; -1 for everything that is committed now), a `Timestamp` (what
        is older than the first record at or after that moment), or `Committed(groups)` (what all of these groups have
        consumed). All but offsets are looked up once, before anything is deleted; where that leaves a doubt, nothing of
        the partition is deleted. Attempts repeat the same offset, so they never delete more.

        A delete is done when every live replica has it. With `leader_only` it is done when the leader has it
        (KIP-1343); a broker that doesn't know this gives `LeaderOnlyUnsupportedError`, and nothing is deleted there.

        With `erase` all brokers with a replica then erase the records: none of their files has them any more
        (docs/erasure.md). The result is `ErasedRecords`, which names the brokers that have, and those of which that
        isn't known. A broker that can't erase gives
        `EraseUnsupportedError`, and nothing is deleted.

        `topic_ids` says which topics are meant: one of the same name but another id is left alone. Without it, the topics are those that
        are there when the call begins. The id is checked just before each attempt, at the leader; what remains is a
        topic that is deleted, created again and led by the same broker within that round trip. Brokers that return no
        ids (before Kafka 2.8) can't be asked to check.

        Partitions of one leader go in one request, however many. Returns a result for each partition: `DeletedRecords`,
        or a
        `DeleteRecordsError` with the stage that failed and, when the time ended, whether the leader had deleted.
        Errors: ValueError for targets that can't be meant, and for `erase` with `leader_only`, before anything is sent;
        those of the class.
        """
        deadline = self._deadline(timeout)
        if erase and leader_only:
            message = "erasing concerns all replicas: it isn't possible with leader_only"
            raise ValueError(message)
        if erase:
            return await erase_records(self.cluster, targets, deadline, topic_ids=topic_ids)
        return await delete_records(self.cluster, targets, deadline, leader_only=leader_only, topic_ids=topic_ids)

    async def resolve_delete_targets(
        self, targets: Mapping[TopicPartition, DeleteTarget], *, timeout: float | None = None
    ) -> dict[TopicPartition, Offset | DeleteRecordsError]:
        """The offsets to which `delete_records` would delete now.

        Nothing is deleted: for a rehearsal, or to repeat a delete exactly.
        """
        return await resolve_targets(self.cluster, targets, self._deadline(timeout))

    async def list_offsets(
        self, places: Mapping[TopicPartition, Place], *, read_committed: bool = False, timeout: float | None = None
    ) -> dict[TopicPartition, ListedOffset | AdminError]:
        """The offset at a place of each partition: an `OffsetSpec`, or a `Timestamp` for the first record that isn't older."""
        return await offsets.list_offsets(self.cluster, places, self._deadline(timeout), read_committed=read_committed)

    async def fetch_records(
        self,
        partition: TopicPartition,
        offset: Offset,
        *,
        max_bytes: int = FETCH_BYTES,
        wait_ms: int = 0,
        read_committed: bool = False,
        timeout: float | None = None,
    ) -> FetchedRecords:
        """Batches from `offset` on, about `max_bytes` of them, waiting up to `wait_ms` for any: to look at, `protocol.records` reads them.

        Errors: BrokerAnsweredError (OFFSET_OUT_OF_RANGE for one), DeadlineExceededError.
        """
        options = records.FetchOptions(max_bytes=max_bytes, wait_ms=wait_ms, read_committed=read_committed)
        return await records.fetch_records(self.cluster, partition, offset, options, self._deadline(timeout))

    # ------------------------------------------------------------------ topics
    async def create_topics(
        self, new_topics: Iterable[NewTopic], *, validate_only: bool = False, timeout: float | None = None
    ) -> dict[str, CreatedTopic | AdminError]:
        """Create topics, or with `validate_only` check whether they could be created."""
        deadline = self._deadline(timeout)
        return await topics.create_topics(
            self.cluster,
            each_of(NewTopic, new_topics, 'NewTopic(name="flights")'),
            deadline,
            validate_only=validate_only,
        )

    async def delete_topics(
        self, names: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, AdminError | None]:
        """Delete topics with all their records; None means done."""
        return await topics.delete_topics(self.cluster, named(names), self._deadline(timeout))

    async def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        assignments: Mapping[str, Iterable[tuple[BrokerId, ...]]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> dict[str, AdminError | None]:
        """Let topics have so many partitions in all; `assignments` has the brokers of each new one's replicas."""
        deadline = self._deadline(timeout)
        return await topics.create_partitions(
            self.cluster, counts, deadline, assignments=assignments, validate_only=validate_only
        )

    async def list_topics(
        self, *, include_internal: bool = False, timeout: float | None = None
    ) -> dict[str, TopicDescription]:
        """All topics that may be seen, with their partitions, leaders and ids."""
        found = await topics.describe_topics(self.cluster, None, self._deadline(timeout))
        described = {name: topic for name, topic in found.items() if isinstance(topic, TopicDescription)}
        return {name: topic for name, topic in described.items() if include_internal or not topic.is_internal}

    async def describe_topics(
        self, names: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, TopicDescription | AdminError]:
        """Topics with their partitions, leaders and ids."""
        return await topics.describe_topics(self.cluster, named(names), self._deadline(timeout))

    # ------------------------------------------------------------------ configurations
    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        keys: Iterable[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
        timeout: float | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | AdminError]:
        """The keys of each resource (all, or those in `keys`) with their values and where these come from."""
        deadline = self._deadline(timeout)
        found = each_of(ConfigResource, resources, 'ConfigResource(ResourceType.TOPIC, "flights")')
        wanted = None if keys is None else named(keys)
        return await configs.describe_configs(
            self.cluster, found, deadline, keys=wanted, synonyms=synonyms, documentation=documentation
        )

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Iterable[ConfigChange]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> dict[ConfigResource, AdminError | None]:
        """Change keys, and leave the others as they are (KIP-339). All changes of a resource are applied, or none."""
        found = {
            resource: each_of(ConfigChange, of_resource, 'ConfigChange("retention.ms", "86400000")')
            for resource, of_resource in changes.items()
        }
        return await configs.alter_configs(self.cluster, found, self._deadline(timeout), validate_only=validate_only)

    async def describe_quotas(self, *, timeout: float | None = None) -> dict[QuotaEntity, dict[str, float]]:
        """All quotas that are set, of users, client ids and addresses (KIP-546)."""
        return await quotas.describe_quotas(self.cluster, self._deadline(timeout))

    async def alter_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> dict[QuotaEntity, AdminError | None]:
        """Set quotas by their keys, and remove those whose limit is None; all of an entity, or none.

        The others stay as they are.
        """
        return await quotas.alter_quotas(self.cluster, changes, self._deadline(timeout), validate_only=validate_only)

    # ------------------------------------------------------------------ the cluster
    async def describe_cluster(
        self, *, include_fenced: bool = False, timeout: float | None = None
    ) -> ClusterDescription:
        """The cluster's id, its controller and its brokers; with `include_fenced` also those that may not lead (Kafka 4.0, KIP-1073)."""
        return await cluster_description.describe_cluster(
            self.cluster, self._deadline(timeout), include_fenced=include_fenced
        )

    async def describe_features(self, *, timeout: float | None = None) -> dict[str, Feature]:
        """The features that a broker knows, and the level at which the cluster uses each (KIP-584)."""
        return await cluster_description.describe_features(self.cluster, self._deadline(timeout))

    async def describe_log_dirs(
        self,
        brokers: Collection[BrokerId] | None = None,
        *,
        partitions: Collection[TopicPartition] | None = None,
        timeout: float | None = None,
    ) -> dict[BrokerId, dict[str, LogDir] | AdminError]:
        """The log directories of brokers (all that can be reached) by path, and the replicas in them (all, or of `partitions`)."""
        return await log_dirs.describe_log_dirs(self.cluster, brokers, partitions, self._deadline(timeout))

    async def alter_replica_log_dirs(
        self, wanted: Mapping[tuple[BrokerId, TopicPartition], str], *, timeout: float | None = None
    ) -> dict[tuple[BrokerId, TopicPartition], AdminError | None]:
        """Begin to move replicas of brokers into other log directories, by their absolute paths; None means begun (KIP-113).

        `describe_log_dirs` shows how far each is (`is_future`). To the directory where a replica is ends its move.
        """
        return await log_dirs.alter_replica_log_dirs(self.cluster, wanted, self._deadline(timeout))

    async def elect_leaders(
        self, partitions: Collection[TopicPartition], *, unclean: bool = False, timeout: float | None = None
    ) -> dict[TopicPartition, AdminError | None]:
        """Have the first replica of each partition lead, where it is in sync (KIP-183); None means that it does.

        With `unclean` a partition without a leader gets one that isn't in sync, and loses the records that this one
        lacks (KIP-460).
        """
        return await replicas.elect_leaders(self.cluster, partitions, self._deadline(timeout), unclean=unclean)

    async def alter_reassignments(
        self, wanted: Mapping[TopicPartition, Sequence[BrokerId] | None], *, timeout: float | None = None
    ) -> dict[TopicPartition, AdminError | None]:
        """Begin to give partitions these replicas, the preferred leader first, or cancel that (None); None means begun (KIP-455)."""
        return await replicas.alter_reassignments(self.cluster, wanted, self._deadline(timeout))

    async def list_reassignments(self, *, timeout: float | None = None) -> dict[TopicPartition, Reassignment]:
        """The partitions that are being given other replicas."""
        return await replicas.list_reassignments(self.cluster, self._deadline(timeout))

    async def unregister_broker(self, broker_id: BrokerId, *, timeout: float | None = None) -> None:
        """Have the cluster forget a broker that won't come back (KIP-631).

        Errors: BrokerAnsweredError; INVALID_REQUEST for a live one.
        """
        await replicas.unregister_broker(self.cluster, broker_id, self._deadline(timeout))

    # ------------------------------------------------------------------ rules of access control
    async def describe_acls(self, wanted: AclFilter | None = None, *, timeout: float | None = None) -> list[Acl]:
        """The rules that a filter means, all without one. SECURITY_DISABLED where the cluster has no authorizer."""
        return await acls.describe_acls(self.cluster, wanted or AclFilter(), self._deadline(timeout))

    async def create_acls(self, rules: Iterable[Acl], *, timeout: float | None = None) -> dict[Acl, AdminError | None]:
        """Create rules; one that is there already is created too. They are in force on all brokers then."""
        return await acls.create_acls(self.cluster, each_of(Acl, rules, "Acl(...)"), self._deadline(timeout))

    async def delete_acls(
        self, filters: Iterable[AclFilter], *, timeout: float | None = None
    ) -> dict[AclFilter, list[Acl] | AdminError]:
        """Remove all rules that filters mean; for each filter the rules that were there."""
        return await acls.delete_acls(
            self.cluster, each_of(AclFilter, filters, "AclFilter(...)"), self._deadline(timeout)
        )

    # ------------------------------------------------------------------ users
    async def describe_scram_users(
        self, names: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> dict[str, dict[ScramMechanism, int] | AdminError]:
        """The mechanisms by which users (all, or these) log in by SCRAM, and the iterations of each credential."""
        return await users.describe_scram_users(
            self.cluster, None if names is None else named(names), self._deadline(timeout)
        )

    async def alter_scram_users(
        self, changes: Mapping[str, ScramUpsertion | ScramMechanism], *, timeout: float | None = None
    ) -> dict[str, AdminError | None]:
        """Set the credentials of users, or delete those of a mechanism; None means done.

        Passwords are salted and hashed before.
        """
        return await users.alter_scram_users(self.cluster, changes, self._deadline(timeout))

    # ------------------------------------------------------------------ delegation tokens
    async def create_delegation_token(
        self,
        *,
        owner: str | None = None,
        renewers: Iterable[str] = (),
        lifetime_ms: int = -1,
        timeout: float | None = None,
    ) -> DelegationToken:
        """A token by which clients log in as `owner` (as `User:alice`; this client, where it is None), until it ends (KIP-48, KIP-373).

        `renewers` may renew and end it besides its owner. A `lifetime_ms` above 0 is how long it lasts at most, below what brokers allow.
        """
        return await delegation_tokens.create_delegation_token(
            self.cluster, owner, renewers, lifetime_ms, self._deadline(timeout)
        )

    async def renew_delegation_token(self, hmac: bytes, *, period_ms: int = -1, timeout: float | None = None) -> int:
        """Have a token end in a period above 0, or in the longest one that brokers allow. Returns when it ends."""
        return await delegation_tokens.renew_delegation_token(self.cluster, hmac, period_ms, self._deadline(timeout))

    async def expire_delegation_token(self, hmac: bytes, *, period_ms: int = -1, timeout: float | None = None) -> int:
        """Have a token end in a period, at once with one below 0. Returns when it ends."""
        return await delegation_tokens.expire_delegation_token(self.cluster, hmac, period_ms, self._deadline(timeout))

    async def describe_delegation_tokens(
        self, owners: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> list[DelegationToken]:
        """The tokens that this client may see, with their HMACs: all, or those that concern these principals."""
        return await delegation_tokens.describe_delegation_tokens(self.cluster, owners, self._deadline(timeout))

    # ------------------------------------------------------------------ groups
    async def list_groups(
        self, *, states: Iterable[str] = (), kinds: Iterable[str] = (), timeout: float | None = None
    ) -> ListedGroups:
        """All groups, or those in one of these states (`Stable`, ...) and of these kinds (`classic`, `consumer`)."""
        return await groups.list_groups(self.cluster, self._deadline(timeout), states=named(states), kinds=named(kinds))

    async def describe_groups(
        self, group_ids: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, GroupDescription | AdminError]:
        """Groups with their members and what these read; GROUP_ID_NOT_FOUND for one that isn't there."""
        return await groups.describe_groups(self.cluster, named(group_ids), self._deadline(timeout))

    async def delete_groups(
        self, group_ids: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, AdminError | None]:
        """Delete groups without members, and what they have committed; NON_EMPTY_GROUP while there are members."""
        return await groups.delete_groups(self.cluster, named(group_ids), self._deadline(timeout))

    # ------------------------------------------------------------------ offsets of groups
    async def list_group_offsets(
        self,
        group_ids: Iterable[str] | Mapping[str, Collection[TopicPartition] | None],
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> dict[str, GroupOffsets | AdminError]:
        """What groups have committed: of all partitions, or of those given for a group.

        A partition without a commit isn't in it.
        `require_stable` waits for transactions that are about to commit offsets (KIP-447).
        """
        asked = group_ids if isinstance(group_ids, Mapping) else dict.fromkeys(named(group_ids))
        deadline = self._deadline(timeout)
        return await group_offsets.list_group_offsets(self.cluster, asked, deadline, require_stable=require_stable)

    async def list_share_group_offsets(
        self, group_ids: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, share_groups.ShareOffsets | AdminError]:
        """Where share groups are: the start of each share partition, and its lag.

        GROUP_ID_NOT_FOUND for one that is no share group.
        """
        return await share_groups.list_share_group_offsets(self.cluster, named(group_ids), self._deadline(timeout))

    async def alter_share_group_offsets(
        self, group: str, starts: Mapping[TopicPartition, Offset], *, timeout: float | None = None
    ) -> dict[TopicPartition, AdminError | None]:
        """Set where a share group without members goes on; None means done. With members it is NON_EMPTY_GROUP."""
        return await share_groups.alter_share_group_offsets(self.cluster, group, starts, self._deadline(timeout))

    async def alter_group_offsets(
        self, group: str, committed: Mapping[TopicPartition, CommittedOffset | Offset], *, timeout: float | None = None
    ) -> dict[TopicPartition, AdminError | None]:
        """Commit offsets in the name of a group that has no members; None means done.

        With members it is UNKNOWN_MEMBER_ID.
        """
        given = {
            key: CommittedOffset(offset=value) if isinstance(value, int) else value for key, value in committed.items()
        }
        return await group_offsets.alter_group_offsets(self.cluster, group, given, self._deadline(timeout))

    async def delete_group_offsets(
        self, group: str, partitions: Collection[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, AdminError | None]:
        """Forget what a group has committed for partitions; GROUP_SUBSCRIBED_TO_TOPIC while a member reads the topic."""
        return await group_offsets.delete_group_offsets(self.cluster, group, partitions, self._deadline(timeout))
