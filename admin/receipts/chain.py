"""Verifies a set of receipts: each by itself, and the chain that they are links of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from lowtide.admin.receipts.envelope import ReceiptError, SignedPayload, key_id_of, open_envelope
from lowtide.admin.receipts.statement import NO_DIGEST, KeyRotation, Statement, read_statement

ReceiptFault: TypeAlias = Literal[
    "envelope", "payload", "unknown_key", "signature", "duplicate", "missing", "order", "replaced_key"
]


class ChainFinding(msgspec.Struct, frozen=True):
    """What is wrong, in one sentence."""

    kind: ReceiptFault
    sentence: str


class VerifiedLink(msgspec.Struct, frozen=True):
    """A statement with a valid signature of a trusted key, and the file that has it."""

    file: str
    digest: str
    statement: Statement


class VerifiedChain(msgspec.Struct, frozen=True):
    """The valid statements in the order of their numbers, and the findings."""

    links: list[VerifiedLink]
    findings: list[ChainFinding]


def verify_chain(files: Iterable[tuple[str, bytes]], keys: Iterable[Ed25519PublicKey]) -> VerifiedChain:
    """Verifies receipts by file name and content, in any order.

    A new key is trusted if a trusted key has signed its rotation. Files before the first number and after the last one
    can't be missed.
    """
    findings: list[ChainFinding] = []
    waiting: list[tuple[str, SignedPayload]] = []
    for name, content in files:
        try:
            waiting.append((name, open_envelope(content)))
        except ReceiptError as error:
            findings.append(ChainFinding("envelope", f"{name}: {error}."))
    trusted = {key_id_of(key): key for key in keys}
    roots = {key_id: key_id for key_id in trusted}
    links: list[VerifiedLink] = []
    while known := [each for each in waiting if each[1].key_id in trusted]:
        waiting = [each for each in waiting if each[1].key_id not in trusted]
        for name, signed in known:
            link = _checked(name, signed, trusted[signed.key_id], findings)
            if link is None:
                continue
            links.append(link)
            statement = link.statement
            if isinstance(statement, KeyRotation):
                new = Ed25519PublicKey.from_public_bytes(bytes.fromhex(statement.new_key))
                trusted.setdefault(statement.new_key_id, new)
                roots[statement.new_key_id] = roots.setdefault(statement.key_id, statement.key_id)
    findings += [
        ChainFinding("unknown_key", f"{name}: it is signed with the key {signed.key_id[:16]}…, which is not trusted.")
        for name, signed in waiting
    ]
    links.sort(key=lambda each: (each.statement.number, each.file))
    chains: dict[str, list[VerifiedLink]] = {}
    for link in links:
        chains.setdefault(_root(roots, link.statement.key_id), []).append(link)
    for chain in chains.values():
        findings += _gaps(chain)
    return VerifiedChain(links, findings)


def _root(roots: Mapping[str, str], key_id: str) -> str:
    """Returns the first known key of the chain of a key."""
    seen = {key_id}
    while (before := roots[key_id]) not in seen:
        seen.add(before)
        key_id = before
    return key_id


def _checked(
    name: str, signed: SignedPayload, key: Ed25519PublicKey, findings: list[ChainFinding]
) -> VerifiedLink | None:
    """Returns the statement if it is signed by `key` and has the right form."""
    if not signed.is_signed_by(key):
        findings.append(ChainFinding("signature", f"{name}: the signature is wrong, so the statement was changed."))
        return None
    try:
        return VerifiedLink(name, signed.digest, read_statement(signed))
    except ReceiptError as error:
        findings.append(ChainFinding("payload", f"{name}: {error}."))
        return None


def _gaps(chain: list[VerifiedLink]) -> Iterator[ChainFinding]:
    """Yields what is wrong between the links of one chain, which are in the order of their numbers."""
    first = chain[0].statement
    if first.number == 1 and first.previous != NO_DIGEST:
        yield ChainFinding("order", f"{chain[0].file}: it is number 1, but names a statement before it.")
    replaced: dict[str, VerifiedLink] = {}
    for before, link in zip([None, *chain[:-1]], chain, strict=True):
        statement = link.statement
        if statement.key_id in replaced:
            where = f"number {statement.number} is signed with a key that was replaced"
            yield ChainFinding("replaced_key", f"{link.file}: {where} in {replaced[statement.key_id].file}.")
        if isinstance(statement, KeyRotation):
            replaced.setdefault(statement.key_id, link)
        if before is None:
            continue
        earlier = before.statement
        if statement.number == earlier.number:
            how = "the same statement as" if link.digest == before.digest else "another statement than"
            yield ChainFinding("duplicate", f"{link.file}: number {statement.number} is {how} in {before.file}.")
            continue
        if statement.number > earlier.number + 1:
            lost = f"{earlier.number + 1} to {statement.number - 1}"
            lost = str(earlier.number + 1) if statement.number == earlier.number + 2 else lost
            yield ChainFinding("missing", f"number {lost} is missing between {before.file} and {link.file}.")
        elif statement.previous != before.digest:
            yield ChainFinding("order", f"{link.file}: number {statement.number} does not follow {before.file}.")
        if statement.issued_at < earlier.issued_at:
            yield ChainFinding("order", f"{link.file}: it is issued before {before.file}, which has a lower number.")
