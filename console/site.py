"""The HTTP interface of the console: static files, views as JSON, streams of events, and changes.

    GET  /                      redirects to /console/
    GET  /console/<file>        a static file
    GET  /console/api/session   the visitor's session
    GET  /console/api/view/X    a view (`views`)
    GET  /console/api/events    sends the views in its parameter `views`, [[name, parameters], …], whenever they change
    POST /console/api/search    sends records that are found, line by line (`searches`)
    POST /console/api/follow    sends records that are written, line by line
    POST /console/api/login     logs in with a name and a password, or with the token of the URL
    POST /console/api/X         a change or a rehearsal (`changes`)

All requests except those for files pass `foreign` first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from aiohttp import BasicAuth, web

from lowtide.admin.errors import AdminError, AuthenticationFailedError
from lowtide.admin.schemas.values import SchemaValues
from lowtide.console import arguments
from lowtide.console.answers import RefusedError, answer, bad, refusal, refused
from lowtide.console.arguments import Parameters
from lowtide.console.changes import CHANGES, REHEARSALS
from lowtide.console.events import stream
from lowtide.console.searches import StreamPorts, follow_stream, search_stream
from lowtide.console.sessions import AGE_MS_MAX, ConsolePorts, ConsoleSession, NoRoomError, Sessions, WrongLoginError
from lowtide.console.settings import ConsoleSettings, LoginKind
from lowtide.console.views import VIEWS, view_value
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.http_app import CLIENT, asks_for_login_itself, decides_itself, lives_long
from lowtide.runtime.http_origin import is_local
from lowtide.runtime.json_text import decode_json

if TYPE_CHECKING:
    from lowtide.runtime.filesystem import FileSystem

FOLDER: Final = str(PurePath(__file__).parent / "static")
KINDS: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
"""The types of the served files; other files in the folder are not served."""

PATH: Final = "/console"
COOKIE: Final = "lowtide-console"
PASSWORD_CHARACTERS_MAX: Final = 1_024
VIEWS_MAX: Final = 32
"""The views of one stream: those of all visible tabs of a browser."""

PAGE_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self'; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types lowtide-live"
        ),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    }
)
"""Headers of all answers."""

OWN_HEADER: Final = "X-Lowtide-Console"
"""All requests for values have this header; forms and links of other sites can't send it."""

OWN_VALUE: Final = "1"
JSON: Final = "application/json"

_FROM_HERE: Final = ("same-origin", "none")
"""`Sec-Fetch-Site` of requests by our pages, or by the visitor directly."""

_NOT_LOCAL: Final = RefusedError(
    HTTPStatus.FORBIDDEN,
    "The brokers require no login, so the console accepts visitors of the broker's own machine only.",
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StaticFile(NamedTuple):
    """A file with its headers."""

    content: bytes
    kind: str
    tag: str
    """Its ETag, a hash of the content."""


def read_files(files: FileSystem) -> dict[str, StaticFile]:
    """Reads all served files by name. Errors: OSError."""
    found = {}
    for folder in ("", "css/", "js/", "vendor/"):
        for name in files.listdir(f"{FOLDER}/{folder}"):
            kind = KINDS.get(PurePath(name).suffix)
            if kind is not None:
                content = files.read_bytes(f"{FOLDER}/{folder}{name}")
                found[folder + name] = StaticFile(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found


class ConsoleSite:
    """The routes of the console. It is created at the first visit, and reads its files then."""

    def __init__(self, settings: ConsoleSettings, ports: ConsolePorts, files: FileSystem | None = None) -> None:
        """Reads the files. Errors: OSError."""
        self._settings = settings
        self._ports = replace(ports, signing_key=settings.signing_key)
        self._sessions = Sessions(settings, ports)
        self._files = read_files(files or OsFileSystem())
        schemas = SchemaValues(settings.registry, ports.clock) if settings.registry else None
        self._streams = StreamPorts(
            clock=ports.clock, headers=PAGE_HEADERS, schemas=schemas, sweep=self._sessions.sweep
        )

    def add_to(self, app: web.Application) -> None:
        """Adds the routes."""
        to_page, file = self._shown(self._to_page), self._shown(self._file)
        app.router.add_get("/", to_page)
        app.router.add_get(PATH, to_page)
        app.router.add_get(PATH + "/", file)
        app.router.add_get(PATH + "/{name:(?:css|js|vendor)/[a-z.-]+}", file)
        app.router.add_get(PATH + "/api/session", self._guarded(self._session))
        app.router.add_get(PATH + "/api/view/{view}", self._guarded(self._view))
        app.router.add_get(PATH + "/api/events", lives_long(self._guarded(self._events)))
        app.router.add_post(PATH + "/api/search", lives_long(self._guarded(self._search)))
        app.router.add_post(PATH + "/api/follow", lives_long(self._guarded(self._follow)))
        app.router.add_post(PATH + "/api/login", self._guarded(self._log_in))
        app.router.add_post(PATH + "/api/logout", self._guarded(self._log_out))
        for name in (*REHEARSALS, *CHANGES):
            app.router.add_post(f"{PATH}/api/{name}", self._guarded(self._change))
        app.on_cleanup.append(self._close)

    def login_of(self, request: web.Request) -> str:
        """Returns the visitor's name for rates of requests; empty without a session."""
        session = self._sessions.found(request.cookies.get(COOKIE))
        return "" if session is None else f"{self._settings.login.value} {session.user or ''}"

    async def _close(self, _app: web.Application) -> None:
        await self._sessions.close()
        await self._ports.tasks.cancel_all()

    def _shown(self, handler: Handler) -> Handler:
        """Marks a handler for the server's gate: it checks permissions itself, and logins if visitors log in here."""

        async def shown(request: web.Request) -> web.StreamResponse:
            return await handler(request)

        return decides_itself(shown if self._settings.login is LoginKind.NONE else asks_for_login_itself(shown))

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
        """Returns a handler that refuses other sites, and answers errors with a sentence."""

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

    async def _visitor(self, request: web.Request) -> ConsoleSession:
        """Returns the session of a request. Errors: RefusedError without one."""
        session = await self._found(request)
        if session is None:
            raise RefusedError(HTTPStatus.UNAUTHORIZED, "A login is required.")
        return session

    async def _found(self, request: web.Request) -> ConsoleSession | None:
        """Finds the session of the cookie, or of the name and password of HTTP Basic. Errors: RefusedError."""
        session = self._sessions.found(request.cookies.get(COOKIE))
        authorization = request.headers.get("Authorization")
        if session is not None or authorization is None or self._settings.login is not LoginKind.PASSWORD:
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
                "signs": self._settings.signing_key is not None,
                "login": self._settings.login.value,
                "mechanisms": list(self._settings.mechanisms),
                "in": session is not None,
                "user": None if session is None else session.user,
                "write": self._settings.write and (session is None or session.may_write),
                "version": self._settings.version,
            }
        )

    async def _view(self, request: web.Request) -> web.StreamResponse:
        return answer(await view_value(await self._visitor(request), _view_name(request), dict(request.query)))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        session = await self._visitor(request)
        reads = [partial(self._streamed, session, name, given) for name, given in _views(request)]
        return await stream(request, session, reads, self._ports.clock, PAGE_HEADERS)

    async def _streamed(self, session: ConsoleSession, name: str, given: Parameters) -> Any:
        """Returns a view for a stream, which ends with its session."""
        self._sessions.sweep()
        return await view_value(session, name, given)

    async def _search(self, request: web.Request) -> web.StreamResponse:
        session = await self._visitor(request)
        return await search_stream(request, session, await _body(request), self._streams)

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        session = await self._visitor(request)
        return await follow_stream(request, session, await _body(request), self._streams)

    # ------------------------------------------------------------------ changes
    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        given = await _body(request)
        try:
            if self._settings.login is LoginKind.TOKEN:
                opened = self._sessions.open_by_token(request[CLIENT], arguments.text(given, "token", longest=128))
                if opened is None:
                    raise RefusedError(HTTPStatus.UNAUTHORIZED, "This is not the URL that the command printed last.")
                cookie, _ = opened
            elif self._settings.login is LoginKind.PASSWORD:
                user = arguments.text(given, "user", longest=256)
                password = arguments.text(given, "password", longest=PASSWORD_CHARACTERS_MAX)
                mechanism = arguments.choice(
                    given, "mechanism", self._settings.mechanisms, self._settings.mechanisms[0]
                )
                cookie, _ = await self._sessions.log_in(request[CLIENT], user, password, mechanism)
            elif self._settings.login is LoginKind.USERS:
                user = arguments.text(given, "user", longest=256)
                password = arguments.text(given, "password", longest=PASSWORD_CHARACTERS_MAX)
                cookie, _ = await self._sessions.log_in_here(request[CLIENT], user, password)
            else:
                raise bad("No login is required here.")
        except AuthenticationFailedError:
            raise RefusedError(HTTPStatus.UNAUTHORIZED, "The cluster does not accept this name and password.") from None
        except WrongLoginError:
            raise RefusedError(HTTPStatus.UNAUTHORIZED, "The name or the password is wrong.") from None
        except NoRoomError as error:
            raise _too_many(error) from None
        response = answer({})
        age_s = AGE_MS_MAX // 1000
        response.set_cookie(
            COOKIE, cookie, path=PATH, max_age=age_s, httponly=True, samesite="Strict", secure=_is_encrypted(request)
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
            raise RefusedError(HTTPStatus.FORBIDDEN, "This console is read-only.")
        if not session.may_write:
            raise RefusedError(HTTPStatus.FORBIDDEN, f"User {session.user} has the role read, which changes nothing.")
        session.work.forget_answers()
        try:
            return answer(await CHANGES[name](session, given, self._ports))
        finally:
            session.work.forget_answers()


def foreign(headers: Mapping[str, str], *, changes: bool) -> str | None:
    """Returns why a request comes from another site; None if it comes from this console.

    A page of another site can make browsers send requests with the visitor's cookie. Browsers mark them with
    `Sec-Fetch-Site` and `Origin`, and send our own header only after a preflight, which is never allowed here. Event
    streams can't have that header, so requests that change nothing need not have it.
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


def _check_origin(request: web.Request) -> None:
    """Refuses requests of other sites. Errors: RefusedError."""
    reason = foreign(request.headers, changes=request.method != "GET")
    if reason is not None:
        raise RefusedError(HTTPStatus.FORBIDDEN, f"This request is refused: {reason}.")


def _is_encrypted(request: web.Request) -> bool:
    """Returns whether the browser's connection is encrypted, also if it ends at a proxy: browsers send the Origin."""
    return request.secure or urlsplit(request.headers.get("Origin", "")).scheme == "https"


def _too_many(error: NoRoomError) -> RefusedError:
    return RefusedError(HTTPStatus.TOO_MANY_REQUESTS, f"{error}.".capitalize())


def _views(request: web.Request) -> list[tuple[str, Parameters]]:
    """Reads the views of a stream. Errors: RefusedError."""
    try:
        views = decode_json(request.query.get("views", ""), list[tuple[str, dict[str, str]]])
    except ValueError:
        raise bad("views must be a list of names with their parameters, in JSON.") from None
    if not 1 <= len(views) <= VIEWS_MAX:
        raise bad(f"views must name 1 to {VIEWS_MAX} views.")
    if any(name not in VIEWS for name, _ in views):
        raise RefusedError(HTTPStatus.NOT_FOUND, "There is no such view.")
    return list(views)


def _view_name(request: web.Request) -> str:
    """Returns the name of the view. Errors: RefusedError."""
    name = request.match_info["view"]
    if name not in VIEWS:
        raise RefusedError(HTTPStatus.NOT_FOUND, "There is no such view.")
    return name


async def _body(request: web.Request) -> Mapping[str, Any]:
    """Reads the object in a body. Errors: RefusedError."""
    try:
        content = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body is too large.") from None
    try:
        given = decode_json(content)
    except ValueError:
        raise bad("The body is not JSON.") from None
    if not isinstance(given, dict):
        raise bad("The body is not an object.")
    return given
