"""A schema registry for tests: the part of Confluent's REST interface that clients use, on loopback."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


class SchemaRegistry:
    """Keeps schemas in memory. `answers` are given instead of the next ones: status and body, or None to hang up."""

    def __init__(self, login=None):
        self.schemas = {}
        self.subjects = {}
        self.requests = []
        self.answers = []
        self.login = login
        self.url = ""
        self._lock = threading.Lock()

    def register(self, subject, schema, kind="AVRO", references=()):
        """Returns the id of a schema, a new one unless the same is known."""
        body = {"schema": schema if isinstance(schema, str) else json.dumps(schema), "schemaType": kind}
        if references:
            body["references"] = [dict(zip(("name", "subject", "version"), one, strict=True)) for one in references]
        return self.add(subject, body)

    def add(self, subject, body):
        with self._lock:
            content = {key: body[key] for key in ("schema", "schemaType", "references") if body.get(key)}
            found = next((key for key, one in self.schemas.items() if one == content), None) or len(self.schemas) + 1
            self.schemas[found] = content
            versions = self.subjects.setdefault(subject, [])
            if found not in versions:
                versions.append(found)
            return found

    def answer(self, method, path, body):
        """Returns the status and the body of an answer."""
        parts = [unquote(one) for one in urlsplit(path).path.strip("/").split("/")]
        match (method, *parts):
            case ("GET", "schemas", "ids", text):
                found = self.schemas.get(int(text))
                if found is None:
                    return 404, {"error_code": 40403, "message": f"Schema {text} not found"}
                shown = {key: value for key, value in found.items() if (key, value) != ("schemaType", "AVRO")}
                return 200, shown
            case ("GET", "subjects", subject, "versions", version):
                versions = self.subjects.get(subject)
                if versions is None:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                index = len(versions) if version == "latest" else int(version)
                if not 0 < index <= len(versions):
                    return 404, {"error_code": 40402, "message": f"Version {version} not found."}
                found = versions[index - 1]
                return 200, {"subject": subject, "version": index, "id": found, **self.schemas[found]}
            case ("POST", "subjects", subject, "versions"):
                return 200, {"id": self.add(subject, body), **body}
            case ("POST", "subjects", subject):
                found = self.add(subject, body)
                version = self.subjects[subject].index(found) + 1
                return 200, {"subject": subject, "version": version, "id": found, **self.schemas[found]}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


class _Handler(BaseHTTPRequestHandler):
    registry: SchemaRegistry

    def do_GET(self):
        self._serve(None)

    def do_POST(self):
        self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _serve(self, body):
        self.registry.requests.append((self.path, dict(self.headers), parse_qs(urlsplit(self.path).query)))
        if self.registry.answers:
            answer = self.registry.answers.pop(0)
            if answer is None:
                self.close_connection = True
                return
            status, content = answer
        elif self.registry.login and self.headers.get("Authorization") != self.registry.login:
            status, content = 401, {"error_code": 40101, "message": "Unauthorized"}
        else:
            status, content = self.registry.answer(self.command, self.path, body)
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def schema_registry(login=None, context: ssl.SSLContext | None = None):
    """Serves a registry. `login` is user:password."""
    registry = SchemaRegistry(f"Basic {base64.b64encode(login.encode()).decode()}" if login else None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"registry": registry}))
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    registry.url = f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
