"""Verifies receipts against each other, a key, and copies of log directories, and collects the report."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from lowtide.admin.receipts.chain import ChainFinding, VerifiedChain, verify_chain
from lowtide.admin.receipts.commitment import is_committed, keys_selector
from lowtide.admin.receipts.envelope import ENVELOPE_BYTES_MAX
from lowtide.admin.receipts.statement import Confirmation, ErasureReceipt, LeaderSearch, PartitionStatement
from lowtide.cli.copied_disks import CheckedDirectory, DiskFinding, DiskSearch, check_directory, log_directories
from lowtide.cli.outcome import misused
from lowtide.cli.printing import plural
from lowtide.protocol.erasure_ledger_records import SelectorKind
from lowtide.protocol.types import TopicId, parse_topic_id
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.errors import StorageError

FINDINGS_MAX: Final = 1_000
"""The most findings that are reported; the others are counted."""


class DiskQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What to check besides the receipts."""

    directories: Sequence[str] = ()
    keys: Collection[bytes] = ()
    nonces: Collection[bytes] = ()
    """Those that the receipts don't have."""


class VerificationReport(msgspec.Struct, kw_only=True):
    """What was checked, and what is wrong."""

    chain: VerifiedChain
    findings: list[ChainFinding | DiskFinding]
    more: int = 0
    directories: list[CheckedDirectory] = msgspec.field(default_factory=list)
    not_given: list[Confirmation] = msgspec.field(default_factory=list)
    remarks: list[str] = msgspec.field(default_factory=list)

    def value(self) -> dict[str, Any]:
        """Returns the document for programs."""
        return {
            "verified": not self.findings,
            "receipts": [
                {
                    "file": each.file,
                    "number": each.statement.number,
                    "digest": each.digest,
                    "key_id": each.statement.key_id,
                    "erasure_id": each.statement.erasure_id if isinstance(each.statement, ErasureReceipt) else None,
                }
                for each in self.chain.links
            ],
            "findings": self.findings,
            "more_findings": self.more,
            "directories": self.directories,
            "not_given": self.not_given,
            "remarks": self.remarks,
        }

    def lines(self) -> list[str]:
        """Returns the lines for people."""
        lines = [each.sentence for each in self.findings]
        if self.more:
            lines.append(f"{plural(self.more, 'more finding')}.")
        for each in self.chain.links:
            what = f"erasure {each.statement.erasure_id}" if isinstance(each.statement, ErasureReceipt) else "a new key"
            lines.append(f"{each.file}: the signature is valid: number {each.statement.number}, {what}")
        lines += [
            f"{each.path}: checked directory {each.directory_id} of broker {each.broker}: "
            f"{plural(each.folders, 'folder')}, {plural(each.files, 'file')}"
            for each in self.directories
        ]
        lines += [
            f"not checked: directory {each.directory_id} of broker {each.broker}, {each.directory}"
            for each in self.not_given
        ]
        ending = f"{plural(len(self.findings) + self.more, 'finding')}." if self.findings else "Verified."
        return [*lines, *self.remarks, ending]


def verified(
    files: FileSystem, receipts: Sequence[str], keys: Sequence[Ed25519PublicKey], question: DiskQuestion
) -> VerificationReport:
    """Verifies receipts. Errors: CommandError for unreadable files, and for a key that no receipt is about."""
    chain = verify_chain(((path, _content(files, path)) for path in receipts), keys)
    report = VerificationReport(chain=chain, findings=list(chain.findings))
    issued = [each.statement for each in chain.links if isinstance(each.statement, ErasureReceipt)]
    searches = _searches(issued, question, report)
    if not question.directories:
        return report
    try:
        report.directories = log_directories(files, question.directories)
        for directory in report.directories:
            for finding in check_directory(files, directory, searches):
                if len(report.findings) < FINDINGS_MAX:
                    report.findings.append(finding)
                else:
                    report.more += 1
    except StorageError as error:
        raise misused(f"{error}.") from None
    except OSError as error:
        raise misused(f"{error.filename} can't be read: {error.strerror}.") from None
    given = {each.directory_id for each in report.directories}
    named = {each.directory_id: each for one in issued for part in one.partitions for each in part.confirmed}
    report.not_given = [each for directory_id, each in sorted(named.items()) if directory_id not in given]
    return report


def _content(files: FileSystem, path: str) -> bytes:
    try:
        if files.file_size(path) > ENVELOPE_BYTES_MAX:
            raise misused(f"{path} is too large for a receipt: more than {ENVELOPE_BYTES_MAX} bytes.")
        return files.read_bytes(path)
    except OSError as error:
        raise misused(f"{path} can't be read: {error.strerror}.") from None


def _searches(issued: Sequence[ErasureReceipt], question: DiskQuestion, report: VerificationReport) -> list[DiskSearch]:
    """Returns what to look for on disks. Errors: CommandError for keys that no receipt is about."""
    selector, about, unproven = keys_selector(question.keys), 0, 0
    found: dict[tuple[TopicId, int], DiskSearch] = {}
    for receipt in issued:
        nonces = [*map(bytes.fromhex, receipt.nonces), *question.nonces]
        for partition in receipt.partitions:
            place = _place_of(partition)
            search = found.setdefault(place, DiskSearch(partition.topic, *place))
            if not partition.searches:
                search.beginning = max([search.beginning, *(each.erased_below for each in partition.confirmed)])
            for each in partition.searches:
                proven = _is_about(each, selector, nonces) if question.keys else False
                about += proven is not False
                unproven += proven is None
                search.add(each, question.keys if proven is not False else ())
    if question.keys and not about and not report.findings:
        raise misused("the receipts are not about these keys: their commitments are to others.")
    if unproven:
        report.remarks.append("That the keys are those of the receipts is not proven: a nonce is missing.")
    return list(found.values())


def _place_of(partition: PartitionStatement) -> tuple[TopicId, int]:
    try:
        return parse_topic_id(partition.topic_id), partition.partition
    except ValueError as error:
        raise misused(f"a receipt has an invalid topic id: {error}.") from None


def _is_about(search: LeaderSearch, selector: bytes, nonces: Collection[bytes]) -> bool | None:
    """Returns whether the keys were searched for; None if only a missing nonce could tell."""
    if search.kind != "keys":
        return False
    if search.commitment is None or not nonces:
        return None
    committed = bytes.fromhex(search.commitment)
    return any(is_committed(committed, nonce, SelectorKind.KEYS, selector) for nonce in nonces)
