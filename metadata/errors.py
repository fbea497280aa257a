"""Errors of a broker's session; see `session`. The store's own errors are in `store`."""

from __future__ import annotations

REMEDY = "stop all brokers and bring the metadata forward with `lowtide metadata recover` (docs/etcd.md)"
"""How an operator repairs a store that was restored to an earlier state."""


class SessionError(Exception):
    """The session can't do this now, or no longer."""


class FencedError(SessionError):
    """This broker's registration is not the valid one: there is another epoch, or none.

    It must not act as a replica or leader.
    """


class NotControllerError(SessionError):
    """This broker is not, or no longer, the controller."""


class ConflictError(SessionError):
    """Another writer changed a key that the change relies on. Decide again on a newer image."""


class DuplicateBrokerError(SessionError):
    """Another broker with this id is alive."""


class OldBrokerError(SessionError):
    """This broker's configured level is below what the cluster has agreed on."""


class InconsistentClusterError(SessionError):
    """The store belongs to another cluster than the log directories, or to an earlier state of this one."""


class NestedPrefixError(InconsistentClusterError):
    """This cluster's keys would be inside another cluster's prefix, or another's inside this one."""


class StoreWentBackError(InconsistentClusterError):
    """The store was restored to an earlier state of this cluster. It must be recovered before it is used."""

    def __init__(self, reason: str) -> None:
        """`reason` is the evidence; the message adds the remedy."""
        super().__init__(f"{reason}; {REMEDY}")
        self.reason = reason


class OtherClusterError(InconsistentClusterError):
    """The store belongs to another cluster than the log directories."""
