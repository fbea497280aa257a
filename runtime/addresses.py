"""IP addresses and address ranges in normal form.

An address has many spellings: Java writes `0:0:0:0:0:0:0:1` for `::1`, and a dual-stack socket `::ffff:10.0.0.7` for
`10.0.0.7`. Code that compares addresses compares their normal forms.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

NETWORK_BITS: Final = 48
"""The prefix of an IPv6 address that identifies one visitor: a provider assigns a customer up to a /48 (RFC 6177)."""

TEXTS_REMEMBERED: Final = 10_000
"""The addresses and ranges whose parsed form is cached. A comparison of cached ones takes 0.3 µs, parsing one 5 µs."""

_LENGTH_DIGITS_MAX: Final = 3
_MAPPED: Final = IPv6Network("::ffff:0:0/96")


def normal_address(text: str) -> str | None:
    """Returns an address as RFC 5952 writes it, mapped IPv4 as IPv4, without a scope; None for other texts."""
    found = _parsed(text)
    return None if found is None else str(found)


def normal_range(text: str) -> str | None:
    """Returns an address range in CIDR notation with its first address, such as `10.0.0.0/8`; None for other texts.

    A range of mapped IPv4 addresses becomes one of IPv4 addresses.
    """
    found = _parsed_range(text)
    return None if found is None else str(found)


def in_normal_form(text: str) -> str:
    """Returns the normal form of an address or range, and any other text unchanged."""
    return normal_address(text) or normal_range(text) or text


def is_covered(address: str, addresses: str) -> bool:
    """Returns whether an address equals another one, or is in a range (`10.0.0.0/8`). Other texts cover nothing.

    IPv4 ranges cover mapped IPv4 addresses too, IPv6 ranges only others.
    """
    number, bounds = _bounds(address), _bounds(addresses)
    return number is not None and bounds is not None and bounds.covers(number)


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


class _AddressBounds(NamedTuple):
    """The first and last address of a range, as numbers."""

    version: int
    first: int
    last: int

    def covers(self, other: _AddressBounds) -> bool:
        return self.version == other.version and self.first <= other.first and other.last <= self.last


@lru_cache(maxsize=TEXTS_REMEMBERED)
def _bounds(text: str) -> _AddressBounds | None:
    if (address := _parsed(text)) is not None:
        return _AddressBounds(address.version, int(address), int(address))
    found = _parsed_range(text)
    if found is None:
        return None
    return _AddressBounds(found.version, int(found.network_address), int(found.broadcast_address))


def _parsed_range(text: str) -> IPv4Network | IPv6Network | None:
    address, slash, length = text.partition("/")
    if not slash or not (length.isascii() and length.isdigit()) or len(length) > _LENGTH_DIGITS_MAX:
        return None
    try:
        found = ip_network((address.partition("%")[0], int(length)), strict=False)
    except ValueError:
        return None
    if isinstance(found, IPv6Network) and found.prefixlen >= _MAPPED.prefixlen and found.subnet_of(_MAPPED):
        mapped = found.network_address.ipv4_mapped
        assert mapped is not None, found
        return IPv4Network((mapped, found.prefixlen - _MAPPED.prefixlen))
    return found


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    if "/" in text:  # It could be in the scope.
        return None
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
