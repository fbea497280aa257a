"""Whether a request comes from a page of this console: pure, from its headers.

A page of another site can make a browser send requests here, with the visitor's cookie or from the visitor's machine.
Browsers say so in
`Sec-Fetch-Site` and `Origin`, and send a header of our own only where the other site's answer to a preflight would allow it, which
nothing here does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

OWN_HEADER: Final = "X-Lowtide-Console"
"""Every request for values has it; a form or a link of another page can't send it."""

OWN_VALUE: Final = "1"
JSON: Final = "application/json"

_FROM_HERE: Final = ("same-origin", "none")
"""Of `Sec-Fetch-Site`: a page of ours, or the visitor's own hand."""


def foreign(headers: Mapping[str, str], *, changes: bool) -> str | None:
    """Why a request isn't answered, in a few words; None where it comes from here.

    Event streams can't have the header: for what changes nothing it is the browser's word that counts, and it is
    checked wherever it is given.
    """
    site = headers.get("Sec-Fetch-Site")
    if site is not None and site not in _FROM_HERE:
        return "it comes from a page of another site"
    origin = headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("Host", "").lower():
        return "its Origin is another site"
    if not changes:
        return None
    if headers.get(OWN_HEADER) != OWN_VALUE:
        return f"it lacks the header {OWN_HEADER}"
    if headers.get("Content-Type", "").partition(";")[0].strip().lower() != JSON:
        return f"its body is not {JSON}"
    return None
