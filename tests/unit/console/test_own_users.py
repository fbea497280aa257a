"""The console's own users: their file, their passwords, and their sessions."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from lowtide.admin.settings import ClientSettings
from lowtide.console.own_users import (
    CHECKS_MAX,
    OwnUser,
    OwnUsers,
    OwnUsersError,
    Role,
    TooManyChecksError,
    is_name,
    line_of,
    new_user,
    parse_users,
    text_with,
)
from lowtide.console.sessions import ConsolePorts, NoRoomError, Sessions, WrongLoginError
from lowtide.console.settings import ConsoleSettings, LoginKind
from lowtide.runtime.failed_logins import FAILURE_BURST
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.tasks import TaskRegistry

PATH = "/users"
ADDRESS = "192.0.2.1"


def user(role: Role = Role.READ, password: str = "right") -> OwnUser:
    """A user whose check is fast."""
    return new_user(role, password, Random(3), iterations=1)


class FakeClock:
    def monotonic_ms(self) -> int:
        return 0


class FakeClient:
    def __init__(self, settings: object) -> None:
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class World:
    """A file with two users, and the sessions of a console."""

    def __init__(self) -> None:
        self.files = MemoryFileSystem()
        self.write(text_with(text_with("# people\n", "alice", user(Role.WRITE)), "bob", user()))
        self.troubles: list[str] = []
        self.users = OwnUsers(self.files, PATH, self.troubles.append)
        settings = ConsoleSettings(
            client=ClientSettings.of({"bootstrap.servers": "a:1"}),
            login=LoginKind.USERS,
            users=self.users,
            make_client=FakeClient,
        )
        tasks = TaskRegistry(lambda name, error: None)
        self.sessions = Sessions(settings, ConsolePorts(FakeClock(), Random(7), tasks))

    def write(self, text: str) -> None:
        self.files.write_bytes(PATH, text.encode())


def test_a_line_is_read_as_it_was_written():
    one = user(Role.WRITE)
    assert parse_users(line_of("alice", one), PATH) == {"alice": one}
    assert one.proves("right")
    assert not one.proves("wrong")
    assert "right" not in line_of("alice", one)
    assert repr(one) == "OwnUser(write)"


def test_two_users_with_the_same_password_have_different_lines():
    random = Random(3)
    one, other = (new_user(Role.READ, "same", random, iterations=1) for _ in range(2))
    assert (one.salt, one.stored_key) != (other.salt, other.stored_key)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("alice:", ":"),
        (":read:", ":owner:"),
        ("SCRAM-SHA-512", "SCRAM-SHA-256"),
        (":1:", ":0:"),
        (":1:", ":9999999:"),
        (":1:", ":one:"),
        ("==", "=="[:1]),
        ("alice:read", "alice"),
    ],
)
def test_an_invalid_line_is_named_by_its_number_only(old: str, new: str):
    line = line_of("alice", user())
    assert old in line
    with pytest.raises(OwnUsersError, match="/users, line 2 is invalid") as caught:
        parse_users(f"\n{line.replace(old, new, 1)}\n", PATH)
    assert user().stored_key.hex() not in str(caught.value)
    assert "alice" not in str(caught.value)


def test_a_second_line_of_a_user_is_refused():
    line = line_of("alice", user())
    with pytest.raises(OwnUsersError, match="line 2 is invalid: the user has an earlier line"):
        parse_users(f"{line}\n{line}\n", PATH)


@pytest.mark.parametrize("name", ["", "a:b", " a", "a ", "#a", "a\nb", "a\x1b", "x" * 257])
def test_names_that_a_line_cannot_have(name: str):
    assert not is_name(name)


def test_comments_and_other_users_stay():
    text = "# people\n\n" + line_of("alice", user()) + "\n"
    changed = text_with(text_with(text, "bob", user()), "alice", None)
    assert changed == "# people\n\n" + line_of("bob", user()) + "\n"


@pytest.mark.parametrize("content", [b"\xff", b"x" * (1024 * 1024 + 1)])
def test_a_file_that_cannot_be_used_is_refused(content: bytes):
    files = MemoryFileSystem()
    with pytest.raises(OwnUsersError, match="can't be read"):
        OwnUsers(files, PATH, print)
    files.write_bytes(PATH, content)
    with pytest.raises(OwnUsersError):
        OwnUsers(files, PATH, print)


async def test_a_right_password_opens_a_session_with_the_role():
    world = World()
    cookie, session = await world.sessions.log_in_here(ADDRESS, "alice", "right")
    assert (session.user, session.may_write) == ("alice", True)
    assert world.sessions.found(cookie) is session
    _, session = await world.sessions.log_in_here(ADDRESS, "bob", "right")
    assert not session.may_write


@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("nobody", "right"), ("nobody", "")])
async def test_a_wrong_login_is_refused(name: str, password: str):
    with pytest.raises(WrongLoginError):
        await World().sessions.log_in_here(ADDRESS, name, password)


async def test_failed_logins_are_limited_by_user_and_address():
    world = World()
    for _ in range(FAILURE_BURST):
        with pytest.raises(WrongLoginError):
            await world.sessions.log_in_here(ADDRESS, "alice", "wrong")
    with pytest.raises(NoRoomError):
        await world.sessions.log_in_here(ADDRESS, "alice", "right")
    await world.sessions.log_in_here("198.51.100.7", "alice", "right")


@pytest.mark.parametrize("change", ["password", "role", "removed", "file"])
async def test_a_session_ends_when_its_user_changes(change: str):
    world = World()
    cookie, session = await world.sessions.log_in_here(ADDRESS, "alice", "right")
    other, _ = await world.sessions.log_in_here(ADDRESS, "bob", "right")
    text = world.files.read_bytes(PATH).decode()
    changed = {
        "password": text_with(text, "alice", user(Role.WRITE, "another")),
        "role": text_with(text, "alice", user(Role.READ)),
        "removed": text_with(text, "alice", None),
        "file": "damaged",
    }[change]
    world.write(changed + "# another length\n")
    assert world.sessions.found(cookie) is None
    await asyncio.sleep(0)
    assert isinstance(session.client, FakeClient)
    assert session.client.closed
    assert (world.sessions.found(other) is None) == (change == "file")
    assert [each.partition(",")[0] for each in world.troubles] == ([PATH] if change == "file" else [])


async def test_passwords_that_wait_for_their_check_are_limited():
    world = World()
    world.users._waiting = CHECKS_MAX
    with pytest.raises(TooManyChecksError):
        await world.users.checked("alice", "right")
    with pytest.raises(NoRoomError):
        await world.sessions.log_in_here(ADDRESS, "alice", "right")
