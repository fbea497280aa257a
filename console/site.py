"""The site: its pages' files, values as JSON, streams of events, and what changes something.

    GET  /                      the page begins at /console/
    GET  /console/<file>        what a browser loads, by the names in `files`
    GET  /console/api/session   who the visitor is
    GET  /console/api/view/X    a view (`views`); /console/api/events/X sends it again whenever it has changed
    POST /console/api/login     a name and a password, or the token of the address
    POST /console/api/X         the rows of `changes`

Every request for values passes `origin.foreign` first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import BasicAuth, web

from lowtide.admin.errors import AdminError, AuthenticationFailedError
from lowtide.console import arguments
from lowtide.console.answers import RefusedError, answer, bad, refusal, refused
from lowtide.console.changes import CHANGES, REHEARSALS
from lowtide.console.events import stream
from lowtide.console.files import FOLDER, read_files
from lowtide.console.origin import foreign
from lowtide.console.sessions import AGE_MS_MAX, NoRoomError, Ports, Session, Sessions
from lowtide.console.settings import ConsoleSettings, Login
from lowtide.console.views import VIEWS, seen
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.http_app import CLIENT, asks_for_login_itself, decides_itself, lives_long
from lowtide.runtime.http_origin import is_local

if TYPE_CHECKING:
    from lowtide.runtime.filesystem import FileSystem

PATH: Final = "/console"
COOKIE: Final = "lowtide-console"
PASSWORD_CHARACTERS_MAX: Final = 1_024

PAGE_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
            "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    }
)
"""Of every answer."""

_NOT_LOCAL: Final = RefusedError(
    HTTPStatus.FORBIDDEN,
    "The brokers ask for no login, so the console is only for visitors of the broker's own machine.",
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ConsoleSite:
    """Some routes below `PATH`. Made at the first visit: it reads its files then."""

    def __init__(self, settings: ConsoleSettings, ports: Ports, files: FileSystem | None = None) -> None:
        """Errors: OSError."""
        self._settings = settings
        self._ports = ports
        self._sessions = Sessions(settings, ports)
        self._files = read_files(files or OsFileSystem(), FOLDER)

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        to_page, file = self._shown(self._to_page), self._shown(self._file)
        app.router.add_get("/", to_page)
        app.router.add_get(PATH, to_page)
        app.router.add_get(PATH + "/", file)
        app.router.add_get(PATH + "/{name:(?:css|js|vendor)/[a-z.-]+}", file)
        app.router.add_get(PATH + "/api/session", self._guarded(self._session))
        app.router.add_get(PATH + "/api/view/{view}", self._guarded(self._view))
        app.router.add_get(PATH + "/api/events/{view}", lives_long(self._guarded(self._events)))
        app.router.add_post(PATH + "/api/login", self._guarded(self._log_in))
        app.router.add_post(PATH + "/api/logout", self._guarded(self._log_out))
        for name in (*REHEARSALS, *CHANGES):
            app.router.add_post(f"{PATH}/api/{name}", self._guarded(self._change))
        app.on_cleanup.append(self._close)

    async def _close(self, _app: web.Application) -> None:
        await self._sessions.close()
        await self._ports.tasks.cancel_all()

    def _shown(self, handler: Handler) -> Handler:
        """Marks a handler for the gate: it asks for rights, and where visitors log in here it asks for the login too."""

        async def shown(request: web.Request) -> web.StreamResponse:
            return await handler(request)

        return decides_itself(shown if self._settings.login is Login.NONE else asks_for_login_itself(shown))

    # ------------------------------------------------------------------ files
    async def _to_page(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(status=HTTPStatus.FOUND, headers={"Location": PATH + "/", **PAGE_HEADERS})

    async def _file(self, request: web.Request) -> web.StreamResponse:
        file = self._files.get(request.match_info.get("name", "index.html"))
        if file is None:
            return web.Response(status=HTTPStatus.NOT_FOUND, text="not found\n", headers=PAGE_HEADERS)
        headers = {**PAGE_HEADERS, "Cache-Control": "no-cache", "ETag": file.tag}
        if request.headers.get("If-None-Match") == file.tag:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        return web.Response(body=file.content, content_type=file.kind, charset="utf-8", headers=headers)

    # ------------------------------------------------------------------ values
    def _guarded(self, handler: Handler) -> Handler:
        """Answers only pages of this console, and every error in a sentence."""

        async def answered(request: web.Request) -> web.StreamResponse:
            try:
                _check_origin(request)
                if self._settings.is_local_only and not is_local(request):
                    raise _NOT_LOCAL
                response = await handler(request)
            except RefusedError as error:
                response = refusal(error)
            except AdminError as error:
                response = refusal(refused(error))
            if not response.prepared:
                response.headers.update(PAGE_HEADERS)
                response.headers["Cache-Control"] = "no-store"
            return response

        return self._shown(answered)

    async def _visitor(self, request: web.Request) -> Session:
        """The session of a request. Errors: RefusedError where it has none."""
        session = await self._found(request)
        if session is None:
            raise RefusedError(HTTPStatus.UNAUTHORIZED, "A login is needed.")
        return session

    async def _found(self, request: web.Request) -> Session | None:
        """By its cookie; else by the name and the password that the server in front has let in (HTTP Basic).

        Errors: RefusedError.
        """
        session = self._sessions.found(request.cookies.get(COOKIE))
        authorization = request.headers.get("Authorization")
        if session is not None or authorization is None or self._settings.login is not Login.PASSWORD:
            return session
        try:
            basic = BasicAuth.decode(authorization, encoding="utf-8")
            return await self._sessions.of_password(request[CLIENT], basic.login, basic.password)
        except (ValueError, AuthenticationFailedError):
            return None
        except NoRoomError as error:
            raise _too_many(error) from None

    async def _session(self, request: web.Request) -> web.StreamResponse:
        session = await self._found(request)
        return answer(
            {
                "login": self._settings.login.value,
                "mechanisms": list(self._settings.mechanisms),
                "in": session is not None,
                "user": None if session is None else session.user,
                "write": self._settings.write,
                "version": self._settings.version,
            }
        )

    async def _view(self, request: web.Request) -> web.StreamResponse:
        return answer(await seen(await self._visitor(request), _view_name(request), dict(request.query)))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        session, name, given = await self._visitor(request), _view_name(request), dict(request.query)
        return await stream(request, session, lambda: seen(session, name, given), self._ports.clock, PAGE_HEADERS)

    # ------------------------------------------------------------------ what changes something
    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        given = await _body(request)
        try:
            if self._settings.login is Login.TOKEN:
                opened = self._sessions.open_by_token(request[CLIENT], arguments.text(given, "token", longest=128))
                if opened is None:
                    raise RefusedError(
                        HTTPStatus.UNAUTHORIZED, "This is not the address that the command has printed last."
                    )
                cookie, _ = opened
            elif self._settings.login is Login.PASSWORD:
                user = arguments.text(given, "user", longest=256)
                password = arguments.text(given, "password", longest=PASSWORD_CHARACTERS_MAX)
                mechanism = arguments.choice(
                    given, "mechanism", self._settings.mechanisms, self._settings.mechanisms[0]
                )
                cookie, _ = await self._sessions.log_in(request[CLIENT], user, password, mechanism)
            else:
                raise bad("No login is needed here.")
        except AuthenticationFailedError:
            raise RefusedError(HTTPStatus.UNAUTHORIZED, "The cluster does not accept this name and password.") from None
        except NoRoomError as error:
            raise _too_many(error) from None
        response = answer({})
        age_s = AGE_MS_MAX // 1000
        response.set_cookie(
            COOKIE, cookie, path=PATH, max_age=age_s, httponly=True, samesite="Strict", secure=request.secure
        )
        return response

    async def _log_out(self, request: web.Request) -> web.StreamResponse:
        self._sessions.log_out(request.cookies.get(COOKIE))
        response = answer({})
        response.del_cookie(COOKIE, path=PATH)
        return response

    async def _change(self, request: web.Request) -> web.StreamResponse:
        session, name = await self._visitor(request), request.path.removeprefix(f"{PATH}/api/")
        given = await _body(request)
        if name in REHEARSALS:
            return answer(await REHEARSALS[name](session, given, self._ports))
        if not self._settings.write:
            raise RefusedError(
                HTTPStatus.FORBIDDEN, "This console is read-only: it was started without permission to change anything."
            )
        session.work.forget_answers()
        try:
            return answer(await CHANGES[name](session, given, self._ports))
        finally:
            session.work.forget_answers()


def _check_origin(request: web.Request) -> None:
    """Errors: RefusedError for a request that a page of another site sends."""
    reason = foreign(request.headers, changes=request.method != "GET")
    if reason is not None:
        raise RefusedError(HTTPStatus.FORBIDDEN, f"This request is not answered: {reason}.")


def _too_many(error: NoRoomError) -> RefusedError:
    return RefusedError(HTTPStatus.TOO_MANY_REQUESTS, f"{error}.".capitalize())


def _view_name(request: web.Request) -> str:
    """Errors: RefusedError."""
    name = request.match_info["view"]
    if name not in VIEWS:
        raise RefusedError(HTTPStatus.NOT_FOUND, "There is no such view.")
    return name


async def _body(request: web.Request) -> Mapping[str, Any]:
    """The object in a body. Errors: RefusedError."""
    try:
        content = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body is too large.") from None
    try:
        given = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise bad("The body is not JSON.") from None
    if not isinstance(given, dict):
        raise bad("The body is not an object.")
    return given
