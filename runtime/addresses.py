"""IP addresses in normal form.

An address has many spellings: Java writes `0:0:0:0:0:0:0:1` for `::1`, and a dual-stack socket `::ffff:10.0.0.7` for
`10.0.0.7`. Code that compares addresses compares their normal forms.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

NETWORK_BITS: Final = 48
"""The prefix of an IPv6 address that identifies one visitor: a provider assigns a customer up to a /48 (RFC 6177)."""


def normal_address(text: str) -> str | None:
    """Returns an address as RFC 5952 writes it, mapped IPv4 as IPv4, without a scope; None for other texts."""
    found = _parsed(text)
    return None if found is None else str(found)


def in_normal_form(text: str) -> str:
    """Returns the normal form of an address, and any other text unchanged."""
    return normal_address(text) or text


def named_peer(peer: object) -> tuple[str, str]:
    """Returns the normal form of the peer's address, empty if it has none, and the peer's name for the log."""
    return (in_normal_form(peer[0]), f"{peer[0]}:{peer[1]}") if isinstance(peer, tuple) else ("", str(peer or ""))


def network_of(address: str) -> str:
    """Returns the visitor that an address counts for: itself for IPv4, its /48 for IPv6."""
    if ":" not in address:
        return address
    found = _parsed(address)
    if found is None:
        return address
    if isinstance(found, IPv4Address):
        return str(found)
    kept = int(found) >> (found.max_prefixlen - NETWORK_BITS) << (found.max_prefixlen - NETWORK_BITS)
    return f"{IPv6Address(kept)}/{NETWORK_BITS}" if not found.is_loopback else str(found)


def is_loopback(address: str) -> bool:
    """Returns whether this is a loopback address."""
    found = _parsed(address)
    return found is not None and found.is_loopback


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
