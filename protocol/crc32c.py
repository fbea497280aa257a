"""CRC-32C (Castagnoli), the checksum of record batches, journals, snapshots and notes.

The compiled module computes it with the processor's instruction. Without the module or the instruction, `google_crc32c`
does, which takes only `bytes`, so other buffers are copied. The compiled form reads any buffer in place and releases
the interpreter's lock from 32 KiB on.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    >>> crc32c(b"456789", crc32c(b"123")) == crc32c(b"123456789")
    True

Source: RFC 3720, appendix B.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowtide.protocol.native import compiled

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.protocol.compression import Buffer


def plain_form() -> Callable[..., int]:
    """Returns the form without compiled code. The package is imported only then: that takes 2 ms."""
    from google_crc32c import extend  # noqa: PLC0415

    def plain_crc32c(data: Buffer, value: int = 0, /) -> int:
        return int(extend(value, data if isinstance(data, bytes) else bytes(memoryview(data))))

    return plain_crc32c


crc32c: Final[Callable[..., int]] = (compiled and compiled.crc32c) or plain_form()
"""`crc32c(data, value=0)` returns the checksum of some bytes with the checksum `value` (0: no bytes), and `data` after
them."""
