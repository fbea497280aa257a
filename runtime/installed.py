"""The version of the installed package."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final

_BEGIN: Final = "lowtide-"
_END: Final = ".dist-info"


def installed_version() -> str:
    """Returns the installed version of Lowtide, from the name of its metadata's folder on the import path.

    `importlib.metadata` finds it in the same way, but importing it takes 10 ms and 3 MB of memory, which a broker
    would keep. It is used where there is no such folder, as in an archive.
    """
    for place in sys.path:
        with contextlib.suppress(OSError):
            for name in os.listdir(place or "."):
                if name.startswith(_BEGIN) and name.endswith(_END):
                    return name[len(_BEGIN) : -len(_END)]
    from importlib.metadata import version  # noqa: PLC0415 - large

    return version("lowtide")
