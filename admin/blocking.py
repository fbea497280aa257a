"""`BlockingAdminClient`: the client for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from lowtide.admin.brokers import ClientPorts
from lowtide.admin.client import AdminClient
from lowtide.admin.errors import ClientClosedError
from lowtide.admin.settings import ClientSettings
from lowtide.runtime.loop_thread import LoopThread

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[AdminClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingAdminClient, P], T]:
    """Returns a method that waits for the result of one of `AdminClient`."""

    @wraps(method)
    def call(self: BlockingAdminClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed:
            raise ClientClosedError("the client is closed")
        try:
            return self._thread.run(method(self._admin, *args, **kwargs))
        except (CancelledError, RuntimeError):
            if self._closed:  # Another thread closed it during the call.
                raise ClientClosedError("the client was closed") from None
            raise

    return call


class BlockingAdminClient:
    """`AdminClient` without `await`: each method waits for its result.

        with BlockingAdminClient("localhost:9092") as admin:
            results = admin.delete_records({TopicPartition("flights", 0): 42})

    Its event loop runs in its own thread. So it works in a notebook, where a loop is running, and several threads may
    share it. Ctrl-C cancels a call. After a fork (multiprocessing, a Spark worker) the child process needs its own
    client: the inherited one raises RuntimeError. Settings can be pickled, clients can't.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Mapping[str, object] | ClientSettings,
        ports: ClientPorts | None = None,
    ) -> None:
        """Takes the arguments of `AdminClient`. Errors: SettingsError."""
        self._admin = AdminClient(bootstrap_servers, ports)
        self._thread = LoopThread("lowtide-admin")
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def settings(self) -> ClientSettings:
        """The client's settings."""
        return self._admin.settings

    def close(self) -> None:
        """Closes all connections and ends the thread. Calls of other threads fail. A second call does nothing."""
        self._closed = True
        if not self._thread.is_closed:
            self._thread.run(self._admin.close())
            self._thread.close()

    delete_records = _blocking(AdminClient.delete_records)
    resolve_delete_targets = _blocking(AdminClient.resolve_delete_targets)
    list_offsets = _blocking(AdminClient.list_offsets)
    fetch_records = _blocking(AdminClient.fetch_records)
    find_records = _blocking(AdminClient.find_records)
    produce_records = _blocking(AdminClient.produce_records)
    erase_records = _blocking(AdminClient.erase_records)
    describe_standing_erasures = _blocking(AdminClient.describe_standing_erasures)
    end_standing_erasure = _blocking(AdminClient.end_standing_erasure)
    create_topics = _blocking(AdminClient.create_topics)
    delete_topics = _blocking(AdminClient.delete_topics)
    create_partitions = _blocking(AdminClient.create_partitions)
    list_topics = _blocking(AdminClient.list_topics)
    describe_topics = _blocking(AdminClient.describe_topics)
    describe_configs = _blocking(AdminClient.describe_configs)
    alter_configs = _blocking(AdminClient.alter_configs)
    describe_cluster = _blocking(AdminClient.describe_cluster)
    describe_features = _blocking(AdminClient.describe_features)
    elect_leaders = _blocking(AdminClient.elect_leaders)
    alter_reassignments = _blocking(AdminClient.alter_reassignments)
    list_reassignments = _blocking(AdminClient.list_reassignments)
    unregister_broker = _blocking(AdminClient.unregister_broker)
    describe_quotas = _blocking(AdminClient.describe_quotas)
    alter_quotas = _blocking(AdminClient.alter_quotas)
    alter_replica_log_dirs = _blocking(AdminClient.alter_replica_log_dirs)
    describe_log_dirs = _blocking(AdminClient.describe_log_dirs)
    describe_deletes = _blocking(AdminClient.describe_deletes)
    describe_segments = _blocking(AdminClient.describe_segments)
    describe_history = _blocking(AdminClient.describe_history)
    describe_health = _blocking(AdminClient.describe_health)
    describe_acls = _blocking(AdminClient.describe_acls)
    create_acls = _blocking(AdminClient.create_acls)
    delete_acls = _blocking(AdminClient.delete_acls)
    describe_scram_users = _blocking(AdminClient.describe_scram_users)
    alter_scram_users = _blocking(AdminClient.alter_scram_users)
    create_delegation_token = _blocking(AdminClient.create_delegation_token)
    renew_delegation_token = _blocking(AdminClient.renew_delegation_token)
    expire_delegation_token = _blocking(AdminClient.expire_delegation_token)
    describe_delegation_tokens = _blocking(AdminClient.describe_delegation_tokens)
    list_groups = _blocking(AdminClient.list_groups)
    describe_groups = _blocking(AdminClient.describe_groups)
    delete_groups = _blocking(AdminClient.delete_groups)
    list_group_offsets = _blocking(AdminClient.list_group_offsets)
    list_share_group_offsets = _blocking(AdminClient.list_share_group_offsets)
    alter_share_group_offsets = _blocking(AdminClient.alter_share_group_offsets)
    alter_group_offsets = _blocking(AdminClient.alter_group_offsets)
    delete_group_offsets = _blocking(AdminClient.delete_group_offsets)
    list_transactions = _blocking(AdminClient.list_transactions)
    describe_transactions = _blocking(AdminClient.describe_transactions)
    describe_producers = _blocking(AdminClient.describe_producers)
