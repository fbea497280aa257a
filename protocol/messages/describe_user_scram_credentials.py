"""DescribeUserScramCredentials (key 50): the mechanisms of users' SCRAM credentials, without secrets (KIP-554)."""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Int8, Int16, Int32, Message, String, versions


class UserName(Message, kw_only=True):
    name: String


@versions("0", flexible="0+")
class DescribeUserScramCredentialsRequest(ApiMessage, kw_only=True):
    users: list[UserName] | None
    """Null or empty: all users."""


class CredentialInfo(Message, kw_only=True):
    """The mechanism (1: SCRAM-SHA-256, 2: SCRAM-SHA-512) and iterations of a credential."""

    mechanism: Int8
    iterations: Int32


class DescribeUserScramCredentialsResult(Message, kw_only=True):
    user: String
    error_code: Int16
    error_message: String | None
    credential_infos: list[CredentialInfo]


@versions("0", flexible="0+")
class DescribeUserScramCredentialsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32
    error_code: Int16
    error_message: String | None
    results: list[DescribeUserScramCredentialsResult]
