"""AlterUserScramCredentials (key 51): SCRAM credentials of users set and deleted (KIP-554).

The client salts and hashes: a password is in no request. Field by field this is Kafka's
AlterUserScramCredentialsRequest/Response.
"""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Bytes, Int8, Int16, Int32, Message, String, Versions


class ScramCredentialDeletion(Message, kw_only=True):
    """A credential to delete."""

    name: String
    mechanism: Int8


class ScramCredentialUpsertion(Message, kw_only=True):
    """A credential to set."""

    name: String
    mechanism: Int8
    iterations: Int32
    salt: Bytes
    salted_password: Bytes


class AlterUserScramCredentialsRequest(ApiMessage, kw_only=True):
    """What to delete and what to set."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    deletions: list[ScramCredentialDeletion]
    upsertions: list[ScramCredentialUpsertion]


class AlterUserScramCredentialsResult(Message, kw_only=True):
    """What became of one user."""

    user: String
    error_code: Int16
    error_message: String | None


class AlterUserScramCredentialsResponse(ApiMessage, kw_only=True):
    """A row for each user."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    throttle_time_ms: Int32
    results: list[AlterUserScramCredentialsResult]
