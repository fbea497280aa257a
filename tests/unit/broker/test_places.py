"""Places with a share for each client."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lowtide.broker.places import WaitingPlaces
from lowtide.broker.security.principal import ANONYMOUS, KafkaPrincipal


def client(name: str = "", address: str = "10.0.0.1") -> SimpleNamespace:
    return SimpleNamespace(principal=KafkaPrincipal("User", name) if name else ANONYMOUS, client_address=address)


def has(places: WaitingPlaces, asker: SimpleNamespace) -> bool:
    with places.taken_by(asker) as taken:
        return taken


def test_each_client_has_a_share_of_the_places() -> None:
    places = WaitingPlaces(total=5, share=2)
    taken = [
        places.taken_by(client(name, address))
        for name, address in (("a", "1"), ("a", "2"), (None, "1"), (None, "2"), (None, "1"))
    ]
    assert [each.__enter__() for each in taken] == [True] * 5
    for refused in (client("a", "3"), client("", "1"), client("b")):
        with places.taken_by(refused) as has_place:
            assert not has_place
    assert len(places) == 5
    for each in taken:
        each.__exit__(None, None, None)
    assert len(places) == 0
    with places.taken_by(client("a"), 2) as first, places.taken_by(client("b"), 3) as too_many:
        assert (first, too_many, len(places)) == (True, False, 2)
    with pytest.raises(ValueError, match="why"), places.taken_by(client("a")):
        raise ValueError("why")
    assert len(places) == 0


def test_without_a_login_a_client_is_its_address():
    places = WaitingPlaces(4, 1)
    with places.taken_by(client(address="2001:db8:1::1")):
        assert not has(places, client(address="2001:db8:1:2::2"))
        assert has(places, client(address="2001:db8:2::1"))
        assert has(places, client("alice", "2001:db8:1::1"))
