"""AlterUserScramCredentials (key 51): sets and deletes SCRAM credentials of users (KIP-554).

The client salts and hashes passwords; no request contains one.
"""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Bytes, Int8, Int16, Int32, Message, String, versions


class ScramCredentialDeletion(Message, kw_only=True):
    name: String
    mechanism: Int8


class ScramCredentialUpsertion(Message, kw_only=True):
    name: String
    mechanism: Int8
    iterations: Int32
    salt: Bytes
    salted_password: Bytes


@versions("0", flexible="0+")
class AlterUserScramCredentialsRequest(ApiMessage, kw_only=True):
    deletions: list[ScramCredentialDeletion]
    upsertions: list[ScramCredentialUpsertion]


class AlterUserScramCredentialsResult(Message, kw_only=True):
    user: String
    error_code: Int16
    error_message: String | None


@versions("0", flexible="0+")
class AlterUserScramCredentialsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32
    results: list[AlterUserScramCredentialsResult]
