"""`lowtide certificates`: creates and renews the certificates and settings of a secure cluster in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from lowtide.broker.lifecycle.client_settings import write_client_files
from lowtide.broker.lifecycle.secure_cluster import CLIENT_FOLDER
from lowtide.broker.lifecycle.secure_material import (
    ADMIN,
    BROKER,
    BROKER_PROPERTIES,
    CONSOLE_PROPERTIES,
    LISTENER,
    LOOPBACK_HOSTS,
    SHARED,
    Material,
    broker_settings,
    console_settings,
    properties,
    system_maker,
)
from lowtide.cli.call import DEFAULT_ADDRESS, Call, local
from lowtide.cli.outcome import CommandError, ExitCode
from lowtide.cli.printing import Output, print_json
from lowtide.storage.errors import StorageError

app = typer.Typer(add_completion=False, no_args_is_help=True)

_SHOWN: Final = (
    "ca.pem",
    "broker.pem",
    BROKER_PROPERTIES,
    "etcd.pem",
    "metadata.pem",
    "console.pem",
    CONSOLE_PROPERTIES,
)


@app.command()
@local
def certificates(
    call: Call,
    directory: Annotated[str, typer.Argument(metavar="DIR", help="the folder; existing files stay")],
    *,
    host: Annotated[
        list[str] | None, typer.Option("--host", help="a name or address of a broker, besides loopback")
    ] = None,
    etcd_host: Annotated[
        list[str] | None, typer.Option("--etcd-host", help="a name or address of an etcd, for its certificates")
    ] = None,
    console_host: Annotated[
        list[str] | None, typer.Option("--console-host", help="a name or address of a console, for its certificate")
    ] = None,
    listener: Annotated[
        str, typer.Option("--listener", metavar="NAME", help="the listener for connections between brokers")
    ] = LISTENER,
    bootstrap_server: Annotated[
        str, typer.Option("--bootstrap-server", "-b", help="the address in client settings")
    ] = DEFAULT_ADDRESS,
    client_path: Annotated[
        str,
        typer.Option("--client-path", metavar="DIR", help="the folder of client settings on the client, if it differs"),
    ] = "",
) -> ExitCode:
    """Create an authority, certificates, passwords and settings for a cluster with TLS, SCRAM and an authorizer.

    The folders `brokers`, `etcd` and `console` have the files for those machines. The authority's key and the
    passwords stay outside.

    Call it again to renew certificates that expire soon or lack a host. Running brokers load renewed files.
    """
    maker = system_maker()
    loopback = list(LOOPBACK_HOSTS)
    try:
        material = maker.make(
            directory,
            [*loopback, *(host or [])],
            [*loopback, *etcd_host] if etcd_host else (),
            [*loopback, *console_host] if console_host else (),
        )
        maker.write(f"{material.directory}/{BROKER_PROPERTIES}", properties(broker_settings(material, listener)))
        if console_host:
            maker.write(f"{material.directory}/{CONSOLE_PROPERTIES}", properties(console_settings(material)))
        maker.share(material)
        write_client_files(maker, material, bootstrap_server, f"{material.directory}/{CLIENT_FOLDER}", client_path)
    except StorageError as error:
        raise CommandError(f"{error}.") from error
    except OSError as error:
        raise CommandError(f"{error.filename or directory}: {error.strerror or error}.") from error
    _print(call, material)
    return ExitCode.DONE


def _print(call: Call, material: Material) -> None:
    files = [f"{material.directory}/{name}" for name in _SHOWN if Path(f"{material.directory}/{name}").exists()]
    if call.output is Output.JSON:
        print_json({"directory": material.directory, "files": files, "users": [ADMIN, BROKER]})
        return
    shared = [
        f"{material.directory}/{name}/"
        for name in (*SHARED, CLIENT_FOLDER)
        if Path(f"{material.directory}/{name}").is_dir()
    ]
    print(*files, *shared, sep="\n")
    for user in (ADMIN, BROKER):
        options = f"--log-dirs LOG_DIR --password-file {material.directory}/{user}.password"
        print(f"before the first start: lowtide users add {user} {options}")
