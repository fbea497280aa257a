"""DescribeUserScramCredentials (key 50): which SCRAM credentials users have, without the credentials (KIP-554).

Field by field this is Kafka's DescribeUserScramCredentialsRequest/Response.
"""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Int8, Int16, Int32, Message, String, Versions


class UserName(Message, kw_only=True):
    """A user that is asked about."""

    name: String


class DescribeUserScramCredentialsRequest(ApiMessage, kw_only=True):
    """The users, or all of them."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    users: list[UserName] | None
    """None or none: all users."""


class CredentialInfo(Message, kw_only=True):
    """One credential: its mechanism (1: SCRAM-SHA-256, 2: SCRAM-SHA-512) and iterations."""

    mechanism: Int8
    iterations: Int32


class DescribeUserScramCredentialsResult(Message, kw_only=True):
    """The credentials of one user."""

    user: String
    error_code: Int16
    error_message: String | None
    credential_infos: list[CredentialInfo]


class DescribeUserScramCredentialsResponse(ApiMessage, kw_only=True):
    """The credentials of each user."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    throttle_time_ms: Int32
    error_code: Int16
    error_message: String | None
    results: list[DescribeUserScramCredentialsResult]
