"""Renews a lease in etcd with blocking calls, from a thread beside the event loop, over its own connection.

`etcd_connection` can't be used, because its calls are answered in the loop. After any failure this module simply
switches to the next endpoint, because it only renews. It may renew a lease in an etcd that was restored from a backup.
That is harmless, because a broker relies only on answers to its loop (`lease_keeper`).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import grpc

from lowtide.metadata import etcd_rpc_pb2 as rpc
from lowtide.metadata.etcd_address import NO_ACCESS, EtcdAccess
from lowtide.metadata.etcd_connection import CALL_METADATA, CHANNEL_OPTIONS, tls_credentials
from lowtide.metadata.store import LeaseGoneError, LeaseId, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

RENEWAL_TIMEOUT_S: Final = 0.5
"""How long an answer may take, including connecting. Short, so that the next endpoint can still help."""


class EtcdRenewer:
    """A `Renewer`. One thread uses it; any thread may close it."""

    def __init__(self, endpoints: Sequence[str], access: EtcdAccess = NO_ACCESS) -> None:
        assert endpoints, "an etcd has at least one endpoint"
        self._endpoints = tuple(endpoints)
        self._access = access
        self._number = 0
        self._token = ""
        self._needs_token = bool(access.user)
        self._closed = False
        self._replacing = threading.Lock()
        self._channel = self._connect()

    def renew(self, lease: LeaseId) -> None:
        """Tries one endpoint; the next call tries the next one. Errors: UnavailableError, LeaseGoneError."""
        try:
            if self._needs_token:
                self._authenticate()
            # A stream with one message each way, which is enough.
            answer = self._call("Lease/LeaseKeepAlive", rpc.LeaseKeepAliveRequest(ID=lease), rpc.LeaseKeepAliveResponse)
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel was closed.
            self._turn_to_next()
            raise UnavailableError(f"lease {lease:x} was not renewed: {error}") from error
        if answer.TTL <= 0:
            raise LeaseGoneError(f"lease {lease:x} has ended")

    def close(self) -> None:
        with self._replacing:
            self._closed = True
            self._channel.close()

    def _call(self, method: str, request: Any, response_type: Any) -> Any:
        call = self._channel.unary_unary(
            f"/etcdserverpb.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_type.FromString,
        )
        metadata = (*CALL_METADATA, ("token", self._token)) if self._token else CALL_METADATA
        return call(request, timeout=RENEWAL_TIMEOUT_S, metadata=metadata)

    def _authenticate(self) -> None:
        self._token = ""
        request = rpc.AuthenticateRequest(name=self._access.user, password=self._access.password)
        try:
            self._token = self._call("Auth/Authenticate", request, rpc.AuthenticateResponse).token
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:  # Otherwise authentication is off.
                raise
        self._needs_token = False

    def _turn_to_next(self) -> None:
        with self._replacing:
            if not self._closed:
                self._needs_token = bool(self._access.user)
                self._number = (self._number + 1) % len(self._endpoints)
                self._channel.close()
                self._channel = self._connect()

    def _connect(self) -> grpc.Channel:
        credentials = tls_credentials(self._access)
        endpoint = self._endpoints[self._number]
        if credentials is None:
            return grpc.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        return grpc.secure_channel(endpoint, credentials, options=CHANNEL_OPTIONS)
