"""Envelope (key 58): a request that a broker forwards to the controller, with the client that sent it (KIP-590).

`request_data` is the client's request with its header, without the length; `response_data` is the response with its
header. `PrincipalData` is Kafka's DefaultPrincipalData.
"""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Bool, Bytes, Int16, Nullable, String, versions


@versions("0", flexible="0+")
class EnvelopeRequest(ApiMessage, kw_only=True):
    """The request, its principal (null for the broker itself), and the bytes of the client's address."""

    request_data: Bytes
    request_principal: Annotated[Bytes | None, Nullable("0+")]
    client_host_address: Bytes


@versions("0", flexible="0+")
class EnvelopeResponse(ApiMessage, kw_only=True):
    """`error_code` is about the envelope alone; `response_data` is null on error."""

    response_data: Annotated[Bytes | None, Nullable("0+")] = None
    error_code: Int16


@versions("0", flexible="0+")
class PrincipalData(ApiMessage, kw_only=True):
    """A principal, after an int16 version."""

    type: String
    name: String
    token_authenticated: Bool = False
