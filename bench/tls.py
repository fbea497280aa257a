"""A certificate for the broker of a workload, and its authority."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Self

from .targets import LOOPBACK


class Certificate(NamedTuple):
    """PEM files: the key with its chain, and the authority."""

    chain: Path
    authorities: Path

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Creates a certificate for the loopback address."""
        import trustme  # noqa: PLC0415  a package for tests

        authority, made = trustme.CA(), cls(folder / "certificate.pem", folder / "authorities.pem")
        authority.issue_cert(LOOPBACK).private_key_and_cert_chain_pem.write_to_path(str(made.chain))
        authority.cert_pem.write_to_path(str(made.authorities))
        return made
