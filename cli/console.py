"""`lowtide console`: serves the console for any cluster that speaks Kafka's protocol, here or for other machines."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from lowtide import __version__
from lowtide.cli.call import BootstrapServer, Call, CommandConfig, OptionGroup, client_settings, local
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, print_json_line, remark
from lowtide.cli.registry_options import RegistryOptions
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.http_origin import Proxies
from lowtide.runtime.tls import TlsError

if TYPE_CHECKING:
    from lowtide.cli.console_server import Entrance
    from lowtide.console.own_users import OwnUsers
    from lowtide.console.settings import ConsoleSettings, LoginKind

app = typer.Typer(add_completion=False)

DEFAULT_PORT: Final = 9645
PORT_MAX: Final = 65_535
TOKEN_BITS: Final = 192

USERS_PREFIX: Final = "users:"
_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP
_CREDENTIALS: Final = ("sasl.jaas.config", "sasl.username", "sasl.oauthbearer.token.endpoint.url")
_MECHANISM: Final = ("sasl.mechanism", "sasl.mechanisms")

Given = Mapping[str, tuple[str, str]]
"""The properties of a file, each with its value and its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(OptionGroup):
    """The cluster that the console shows."""

    bootstrap_server: BootstrapServer = None
    command_config: CommandConfig = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions(OptionGroup):
    """Where the console listens."""

    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=PORT_MAX,
            help=f"the port on 127.0.0.1; default: {DEFAULT_PORT} if it is free; 0: any free port",
        ),
    ] = None
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="listen there instead; 0.0.0.0:PORT serves other machines too"
        ),
    ] = None
    tls_cert: Annotated[
        str | None,
        typer.Option("--tls-cert", metavar="FILE", help="serve https:// with this certificate and its chain (PEM)"),
    ] = None
    tls_key: Annotated[
        str | None,
        typer.Option("--tls-key", metavar="FILE", help="its key (PEM), if it is not in the same file"),
    ] = None
    trusted_proxies: Annotated[
        str | None,
        typer.Option(
            "--trusted-proxies",
            metavar="ADDRESS,…",
            help="addresses and networks of proxies whose X-Forwarded-For names the visitor",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitorOptions(OptionGroup):
    """What visitors need, and what they may do."""

    login: Annotated[
        str | None,
        typer.Option(
            "--login",
            metavar="HOW",
            help="how visitors log in: `cluster`, as users of the cluster; `users:FILE`, as users of the console; or "
            "`token`, by the address that the command prints. Default: `cluster` if the client settings use SASL but "
            "have no credentials, otherwise `token`",
        ),
    ] = None
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="let visitors make the changes that the cluster allows; by default the console is read-only"
        ),
    ] = False
    signing_key: Annotated[
        str | None,
        typer.Option(
            "--signing-key", metavar="FILE", help="the private key (PEM) that signs receipts of erasures for visitors"
        ),
    ] = None


@app.command()
@local
def console(
    call: Call,
    *,
    cluster: ClusterOptions,
    listen: ListenOptions,
    visitors: VisitorOptions,
    registry: RegistryOptions,
) -> ExitCode:
    """Show a cluster in a browser: topics, records, retention, deletes and groups.

    It listens on this machine; --listen and --login serve other machines too.
    """
    from lowtide.admin.settings import SettingsError  # noqa: PLC0415 - slow

    try:
        where = place_of(listen)
        entrance = _entrance(listen, where)
        if entrance.is_open and visitors.login is None and not asks_for_logins(_given(cluster.command_config)):
            raise misused(
                f"--listen {listen.listen} serves other machines, so --login must say how visitors log in: cluster, "
                f"{USERS_PREFIX}FILE or token."
            )
        settings = console_settings(
            cluster.bootstrap_server, cluster.command_config, write=visitors.write, login=visitors.login
        )
        key = visitors.signing_key
        key = None if key is None else usable_key(key)
        settings = replace(settings, registry=registry.settings(), signing_key=key)
    except SettingsError as error:
        raise misused(str(error)) from None
    return asyncio.run(_serve(settings, entrance, where.port, call.output))


def asks_for_logins(given: Given) -> bool:
    """Returns whether client settings use SASL but have no credentials."""
    return _uses_sasl(given) and not any(key in given for key in _CREDENTIALS)


def console_settings(
    bootstrap_server: str | None, command_config: str | None, *, write: bool, login: str | None = None
) -> ConsoleSettings:
    """Returns the settings of the console. Errors: CommandError, SettingsError."""
    from lowtide.console.settings import PASSWORD_MECHANISMS, ConsoleSettings, LoginKind, console_client  # noqa: PLC0415
    from lowtide.runtime.random import system_random  # noqa: PLC0415

    given = _given(command_config)
    kind = _login_kind(login, given)
    asks = kind is LoginKind.PASSWORD
    protocol = given["security.protocol"][0].strip().upper() if asks else ""
    overrides: dict[str, object] = (
        {"security.protocol": "SSL" if protocol == "SASL_SSL" else "PLAINTEXT"} if asks else {}
    )
    client = console_client(client_settings(bootstrap_server, command_config, overrides))
    named = next((given[key][0].strip().upper() for key in _MECHANISM if key in given), None) if asks else None
    if named is not None and named not in PASSWORD_MECHANISMS:
        raise misused(
            f"{given[_MECHANISM[0]][1]}: sasl.mechanism is {named}: visitors can log in with "
            f"{', '.join(PASSWORD_MECHANISMS)} only."
        )
    users = _own_users(_users_file(login)) if kind is LoginKind.USERS else None
    settings = ConsoleSettings(
        client=replace(client, unused_keys=()),
        login=kind,
        users=users,
        mechanisms=(PASSWORD_MECHANISMS if named is None else (named,)) if users is None else (),
        write=write,
        version=__version__,
    )
    if kind is not LoginKind.TOKEN:
        return settings
    return replace(settings, token=f"{system_random().getrandbits(TOKEN_BITS):048x}")


def _own_users(path: str) -> OwnUsers:
    """Returns the users of a file. Errors: CommandError."""
    from lowtide.console.own_users import OwnUsers, OwnUsersError  # noqa: PLC0415 - slow

    try:
        users = OwnUsers(OsFileSystem(), path, lambda text: remark(f"lowtide console: nobody can log in: {text}"))
    except OwnUsersError as error:
        raise misused(f"--login {USERS_PREFIX}{path}: {error}") from None
    if Path(path).stat().st_mode & _OTHERS:
        raise misused(
            f"--login {USERS_PREFIX}{path}: other users may read the file: remove their rights with `chmod 600`."
        )
    if not users:
        raise misused(f"--login {USERS_PREFIX}{path}: the file has no user: add one with `lowtide console-users add`.")
    return users


def _given(command_config: str | None) -> Given:
    from lowtide.admin.settings import read_properties_file  # noqa: PLC0415 - slow

    return {} if command_config is None else read_properties_file(command_config, OsFileSystem())


def _uses_sasl(given: Given) -> bool:
    return given.get("security.protocol", ("PLAINTEXT", ""))[0].strip().upper().startswith("SASL")


def _users_file(login: str | None) -> str:
    return (login or "").removeprefix(USERS_PREFIX)


def _login_kind(login: str | None, given: Given) -> LoginKind:
    """Returns how visitors log in. Errors: CommandError."""
    from lowtide.console.settings import LoginKind  # noqa: PLC0415 - slow

    asks = asks_for_logins(given)
    if login is None:
        return LoginKind.PASSWORD if asks else LoginKind.TOKEN
    if login == "cluster":
        if asks:
            return LoginKind.PASSWORD
        held = next((given[key][1] for key in _CREDENTIALS if key in given), None)
        raise misused(
            "--login cluster needs security.protocol=SASL_SSL or SASL_PLAINTEXT in --command-config."
            if held is None or not _uses_sasl(given)
            else f"--login cluster: {held} has a login, but visitors use their own: leave it out."
        )
    if login != "token" and not _users_file(login) != login:
        raise misused(f"--login {login} is invalid: it must be cluster, {USERS_PREFIX}FILE or token.")
    if asks:
        raise misused(
            f"--login {login}: the console needs a login of its own, such as sasl.username and sasl.password in "
            "--command-config."
        )
    return LoginKind.TOKEN if login == "token" else LoginKind.USERS


# ------------------------------------------------------------------ where it listens
class Place(NamedTuple):
    """A host and a port; without a port, the default one if it is free."""

    host: str
    port: int | None


def place_of(options: ListenOptions) -> Place:
    """Returns where to listen. Errors: CommandError."""
    from lowtide.cli.console_server import HOST  # noqa: PLC0415 - slow

    if options.listen is None:
        return Place(HOST, options.port)
    if options.port is not None:
        raise misused("--listen has a port already: leave out --port.")
    host, colon, port = options.listen.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX or (":" in host) > is_bracketed:
        raise misused(
            f"--listen {options.listen} is invalid: it must be HOST:PORT, such as 0.0.0.0:8080, with a port from 0 to "
            f"{PORT_MAX}."
        )
    return Place(host.strip("[]"), int(port))


def _entrance(options: ListenOptions, where: Place) -> Entrance:
    """Returns where the console listens, and for whom. Errors: CommandError."""
    from lowtide.cli.console_server import CertificateFiles, Entrance  # noqa: PLC0415 - slow

    if options.tls_key is not None and options.tls_cert is None:
        raise misused("--tls-key needs --tls-cert.")
    names = [each.strip() for each in (options.trusted_proxies or "").split(",") if each.strip()]
    try:
        proxies = Proxies(names)
    except ValueError as error:
        raise misused(f"--trusted-proxies is invalid: {error}.") from None
    try:
        tls = None if options.tls_cert is None else CertificateFiles(options.tls_cert, options.tls_key).context
    except (OSError, TlsError) as error:
        raise misused(f"--tls-cert {options.tls_cert}: {error}.") from None
    return Entrance(host=where.host, tls=tls, proxies=proxies)


def usable_key(path: str) -> str:
    """Returns the path of a signing key that can sign. Errors: CommandError."""
    from lowtide.admin.receipts.signing_keys import SigningKeyError, signing_key  # noqa: PLC0415 - slow

    try:
        with signing_key(OsFileSystem(), path) as key:
            key.last()
    except SigningKeyError as error:
        raise misused(str(error)) from None
    except OSError as error:
        raise misused(f"{error.filename}: {error.strerror}.") from None
    return path


# ------------------------------------------------------------------ serving
async def _serve(settings: ConsoleSettings, entrance: Entrance, port: int | None, output: Output) -> ExitCode:
    """Serves until a signal. Errors: CommandError."""
    from lowtide.cli.console_server import ConsoleServer  # noqa: PLC0415 - slow

    server = ConsoleServer(settings, entrance)
    server.stop_on_signals()
    try:
        try:
            address = await server.listen(DEFAULT_PORT if port is None else port)
        except OSError as error:
            if port is not None:
                raise CommandError(
                    f"the console can't listen on {entrance.host or 'all interfaces'}, port {port}: "
                    f"{error.strerror or error}.",
                    ExitCode.FAILED,
                ) from None
            address = await server.listen(0)
        if output is Output.JSON:
            print_json_line({"address": address, "login": settings.login.value, "write": settings.write})
        else:
            print(f"The console is at {address}", flush=True)
        remark(served(settings, entrance))
        await server.until_stopped()
    finally:
        await server.close()
    return ExitCode.DONE


def served(settings: ConsoleSettings, entrance: Entrance) -> str:
    """Returns a line about what is served, and to whom."""
    from lowtide.console.settings import LoginKind  # noqa: PLC0415 - slow

    cluster = ",".join(f"{host}:{port}" for host, port in settings.client.bootstrap_servers)
    visitors = {
        LoginKind.PASSWORD: f"users of the cluster ({', '.join(settings.mechanisms)})",
        LoginKind.USERS: f"its own users ({len(settings.users or ())} now)",
    }.get(settings.login, "all who have this address")
    where = f"{entrance.host or 'all interfaces'}" if entrance.is_open else "this machine only"
    may = "They may make changes." if settings.write else "It is read-only; --write allows changes."
    is_open = entrance.is_open and entrance.tls is None
    risk = " Without TLS passwords are readable on the way: use --tls-cert or a proxy that encrypts." if is_open else ""
    return f"It shows the cluster at {cluster} to {visitors}, on {where}. {may}{risk}"
