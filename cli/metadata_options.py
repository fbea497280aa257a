"""Options of the metadata store: the address of an etcd, and the credentials.

The user and the password come from the environment, or the password from a file: all users of the machine can read a
command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from lowtide.broker.config.broker_config import ConfigError
from lowtide.broker.config.sources import METADATA_PASSWORD, METADATA_PASSWORD_FILE, METADATA_USER
from lowtide.metadata.etcd_address import EtcdAccess, EtcdAddress, parse_address

_FILES: Final = ("metadata_ca", "metadata_cert", "metadata_key")


def add_metadata(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `given_metadata` reads."""
    parser.add_argument(
        "--metadata",
        type=_address,
        metavar="etcd://HOST:PORT,HOST:PORT/PREFIX",
        help="keep the metadata in an etcd, which brokers share; default: in the first log directory",
    )
    parser.add_argument(
        "--metadata-ca", metavar="FILE", help="the authority that signed etcd's certificates, in PEM; enables TLS"
    )
    parser.add_argument("--metadata-cert", metavar="FILE", help="the client certificate for etcd, in PEM")
    parser.add_argument("--metadata-key", metavar="FILE", help="its key, in PEM")


def given_metadata(
    options: argparse.Namespace, environment: Mapping[str, str], read_bytes: Callable[[str], bytes]
) -> EtcdAddress | None:
    """Returns the etcd address, if one is given. Errors: ConfigError."""
    address: EtcdAddress | None = options.metadata
    variables = [name for name in (METADATA_USER, METADATA_PASSWORD, METADATA_PASSWORD_FILE) if environment.get(name)]
    if address is None:
        given = [f"--{name.replace('_', '-')}" for name in _FILES if getattr(options, name) is not None] + variables
        if given:
            raise ConfigError(f"{given[0]} requires --metadata etcd://…")
        return None
    ca, certificate, key = (_content(options, name, read_bytes) for name in _FILES)
    if (certificate or key) and not (ca and certificate and key):
        raise ConfigError("--metadata-cert, --metadata-key and --metadata-ca must be given together.")
    user, password = environment.get(METADATA_USER, ""), environment.get(METADATA_PASSWORD, "")
    file = environment.get(METADATA_PASSWORD_FILE)
    if file:
        if password:
            raise ConfigError(f"{METADATA_PASSWORD} and {METADATA_PASSWORD_FILE} exclude each other.")
        password = _read(METADATA_PASSWORD_FILE, file, read_bytes).decode("utf-8", "replace").rstrip("\r\n")
    if bool(user) != bool(password):
        raise ConfigError(
            f"{METADATA_USER} and a password ({METADATA_PASSWORD}, {METADATA_PASSWORD_FILE}) must be given together."
        )
    return msgspec.structs.replace(address, access=EtcdAccess(ca, certificate, key, user, password))


def _address(text: str) -> EtcdAddress:
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _content(options: argparse.Namespace, name: str, read_bytes: Callable[[str], bytes]) -> bytes:
    path = getattr(options, name)
    return b"" if path is None else _read(f"--{name.replace('_', '-')}", path, read_bytes)


def _read(source: str, path: str, read_bytes: Callable[[str], bytes]) -> bytes:
    """Reads a secret file. Errors: ConfigError."""
    try:
        content = read_bytes(path)
    except OSError as error:
        raise ConfigError(f"{source} {path} can't be read: {error.strerror}.") from error
    if not content.strip():
        raise ConfigError(f"{source} {path} is empty.")
    return content
