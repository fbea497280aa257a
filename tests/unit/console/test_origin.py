"""Requests from pages of other sites are not answered."""

from __future__ import annotations

import pytest

from lowtide.console.site import foreign

OWN = {
    "Host": "127.0.0.1:9645",
    "X-Lowtide-Console": "1",
    "Content-Type": "application/json",
    "Origin": "http://127.0.0.1:9645",
}


def test_a_page_of_the_console_is_answered():
    assert foreign(OWN, changes=True) is None
    assert foreign({**OWN, "Sec-Fetch-Site": "same-origin"}, changes=True) is None
    assert foreign({"Host": "127.0.0.1:9645"}, changes=False) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:80"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"X-Lowtide-Console": ""},
        {"X-Lowtide-Console": "2"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=application/json"},
        {"Content-Type": ""},
    ],
)
def test_another_site_changes_nothing(headers):
    assert foreign(OWN | headers, changes=True) is not None


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}])
def test_another_site_reads_nothing(headers):
    assert foreign({"Host": "localhost:1"} | headers, changes=False) is not None
