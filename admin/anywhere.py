"""Requests that belong to no partition and no group: to the controller, to a certain broker, or to whichever broker there is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lowtide.admin.attempts import Located, Retry
from lowtide.admin.errors import AdminError, BrokerAnsweredError, code_name
from lowtide.protocol.client.retries import is_retriable
from lowtide.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from lowtide.admin.cluster import Cluster
    from lowtide.admin.patience import Deadline
    from lowtide.protocol.types import BrokerId

K = TypeVar("K", bound=Hashable)

ANSWER_MS: Final = 500
"""How much earlier than we the broker stops waiting, at most, so that its answer comes in time; a tenth where the time is short."""


def to_the_controller(
    cluster: Cluster, deadline: Deadline
) -> Callable[[Collection[Any], int], Awaitable[Located[Any]]]:
    """Everything to the controller; brokers of Lowtide, and of Kafka without ZooKeeper, pass on what reaches another one."""

    async def locate(items: Collection[K], _: int) -> Located[K]:
        return Located[K](placed={await cluster.controller(deadline): list(items)})

    return locate


def to_a_broker(
    cluster: Cluster, deadline: Deadline, own: Callable[[Any], BrokerId | None] = lambda _: None
) -> Callable[[Collection[Any], int], Awaitable[Located[Any]]]:
    """What has a broker of its own to that one, everything else to any."""

    async def locate(items: Collection[K], _: int) -> Located[K]:
        located = Located[K]()
        brokers = await cluster.brokers(deadline)
        some = cluster.any_of_last_view(cluster.ports.random.choice(brokers)) if brokers else None
        for item in items:
            wanted = own(item)
            broker_id = some if wanted is None else wanted
            if broker_id is None or broker_id not in brokers:
                located.others[item] = Retry(
                    f"broker {broker_id} can't be reached by clients" if brokers else "there is no broker"
                )
            else:
                located.put(broker_id, item)
        return located

    return locate


def wait_ms(cluster: Cluster, deadline: Deadline) -> int:
    """For how long a broker may let one request wait."""
    remaining_ms = min(deadline.remaining_ms(), cluster.settings.request_timeout_ms)
    return max(0, remaining_ms - min(ANSWER_MS, remaining_ms // 10))


def outcome_of_error(
    what: object, code: int, broker_message: str | None, *, final: Collection[int] = ()
) -> Retry | AdminError:
    """What an error in an answer means: codes in `final` aren't tried again, though Kafka calls them retriable."""
    if is_retriable(code) and code not in final:
        return Retry(f"{code_name(code)}{f' ({broker_message})' if broker_message else ''}")
    return BrokerAnsweredError(code, str(what), broker_message)


UNKNOWN_IS_FINAL: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
"""Who decides about topics knows all of them."""
