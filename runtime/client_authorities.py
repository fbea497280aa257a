"""Names the trusted authorities when a server requests a client certificate (TLS `certificate_authorities`).

Clients choose by these names: one with several certificates shows that of a named authority, and one without a matching
certificate shows none. Without names such a client shows a wrong one, which fails the handshake even where a
certificate is only requested.

Python's `ssl` has no function for it (3.14), so this calls OpenSSL in the library that Python's `_ssl` is linked with.
Its context is the first field of Python's object in the versions `KNOWN`; before it is used, one of its values is
compared with Python's. Where that is impossible, as in a Python with its own OpenSSL inside, no names are sent.

Bounded: TLS has 65,535 bytes for all names. For a larger trust store no names are sent, which means any to a client.
Sources: SSL_CTX_add_client_CA(3), RFC 8446 4.2.4; Kafka names those of the trust store, through Java's
`X509TrustManager.getAcceptedIssuers`.
"""

from __future__ import annotations

import _ssl
import ctypes
import ssl
import sys
from functools import cache
from typing import Any, Final

NAMES_BYTES_MAX: Final = 65_535
KNOWN: Final = ((3, 11), (3, 14))
"""The first and last supported version of Python."""

_LENGTH_BYTES: Final = 2
"""The length before each name."""

_OPTIONS_MASK: Final = 0xFFFF_FFFF
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def name_authorities(context: ssl.SSLContext, certificates: str) -> bool:
    """Makes a server context name the subjects of these certificates, in PEM. Returns whether it does."""
    library = _openssl()
    if library is None:
        return False
    pointer = ctypes.c_void_p.from_address(id(context) + object.__basicsize__)
    if not pointer.value or (library.SSL_CTX_get_options(pointer) ^ int(context.options)) & _OPTIONS_MASK:
        return False
    try:
        in_der = _in_der(certificates)
    except ValueError:
        return False
    read = [library.d2i_X509(None, ctypes.byref(ctypes.c_char_p(der)), len(der)) for der in in_der]
    try:
        known = [each for each in read if each]
        sizes = [library.i2d_X509_NAME(library.X509_get_subject_name(each), None) for each in known]
        fits = 0 < sum(size + _LENGTH_BYTES for size in sizes) <= NAMES_BYTES_MAX
        added = [library.SSL_CTX_add_client_CA(pointer, each) == 1 for each in known] if fits else [False]
        return all(added)
    finally:
        for each in read:
            library.X509_free(each)


def _in_der(certificates: str) -> list[bytes]:
    """Returns the certificates of a PEM text in DER, without duplicates."""
    blocks = [block.partition(_END)[0] for block in certificates.split(_BEGIN)[1:]]
    return list(dict.fromkeys(ssl.PEM_cert_to_DER_cert(f"{_BEGIN}\n{block.strip()}\n{_END}\n") for block in blocks))


@cache
def _openssl() -> Any:
    """Returns the library that Python's own TLS is linked with; None if unknown."""
    path = getattr(_ssl, "__file__", None)
    if path is None or sys.implementation.name != "cpython" or not KNOWN[0] <= sys.version_info[:2] <= KNOWN[1]:
        return None
    try:
        library = ctypes.CDLL(path)
        functions: tuple[tuple[Any, Any, tuple[Any, ...]], ...] = (
            (library.OpenSSL_version_num, ctypes.c_ulong, ()),
            (library.SSL_CTX_get_options, ctypes.c_uint64, (ctypes.c_void_p,)),
            (library.SSL_CTX_add_client_CA, ctypes.c_int, (ctypes.c_void_p, ctypes.c_void_p)),
            (library.d2i_X509, ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)),
            (library.X509_free, None, (ctypes.c_void_p,)),
            (library.X509_get_subject_name, ctypes.c_void_p, (ctypes.c_void_p,)),
            (library.i2d_X509_NAME, ctypes.c_int, (ctypes.c_void_p, ctypes.c_void_p)),
        )
    except (OSError, AttributeError):
        return None
    for function, result, arguments in functions:
        function.restype, function.argtypes = result, arguments
    return library if library.OpenSSL_version_num() == ssl.OPENSSL_VERSION_NUMBER else None
