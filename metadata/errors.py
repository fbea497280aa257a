"""What may go wrong with a broker's session; see `session`. What may go wrong with the store itself is in `store`."""

from __future__ import annotations

REMEDY = "stop all brokers and bring the metadata forward with `lowtide metadata recover` (docs/etcd.md)"
"""What an operator does about a store that went back."""


class SessionError(Exception):
    """The session can't do this now, or any more."""


class FencedError(SessionError):
    """This broker's registration is not the one in force: another epoch, or none.

    It must not act as a replica or leader.
    """


class NotControllerError(SessionError):
    """This broker is not the controller, or not any more."""


class ConflictError(SessionError):
    """A key that the change relies on was changed by another writer. Decide again on a newer image."""


class DuplicateBrokerError(SessionError):
    """Another broker with this id is alive."""


class OldBrokerError(SessionError):
    """This broker is set to less than the cluster has agreed to."""


class InconsistentClusterError(SessionError):
    """The store belongs to another cluster than the log directories, or to an earlier state of this one."""


class NestedPrefixError(InconsistentClusterError):
    """The cluster's keys would lie among another cluster's, or another's among them."""


class StoreWentBackError(InconsistentClusterError):
    """The store was put back to an earlier state of this cluster.

    Nothing may be decided on it before it is brought forward.
    """

    def __init__(self, reason: str) -> None:
        """`reason` says what shows it; the message says what to do besides."""
        super().__init__(f"{reason}; {REMEDY}")
        self.reason = reason


class OtherClusterError(InconsistentClusterError):
    """The store belongs to another cluster than the log directories."""
