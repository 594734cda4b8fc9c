"""An object store with the part of S3's protocol that Delta Lake needs, which can stop at any request.

It holds its objects in memory and answers one request at a time. ``before`` sees each request before it has an effect,
``after`` when it had its effect and the response is not sent. A test ends the client there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

Hook = Callable[[str, str], None]


class CutError(Exception):
    """Raised by a hook: the connection ends without a response."""


def nothing(method: str, key: str) -> None:
    """Let the request through."""


class ObjectStore:
    """The objects of one bucket, by key."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.before: Hook = nothing
        self.after: Hook = nothing
        self.lock = threading.Lock()
        self.address = ""

    @property
    def options(self) -> dict[str, str]:
        """The storage options of a Delta table."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "here",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "conditional_put": "etag",
        }


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    store = ObjectStore()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

        def _answer(self) -> None:
            place = urlsplit(self.path)
            key = unquote(place.path).partition("/")[2].partition("/")[2]
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                with store.lock:
                    store.before(self.command, key)
                    status, headers, body = self._done(key, parse_qs(place.query), content)
                    store.after(self.command, key)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if self.command != "HEAD":
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)
            except (CutError, OSError):  # the client was ended
                self.close_connection = True

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _answer  # noqa: N815

        def _done(self, key: str, query: dict[str, list[str]], content: bytes) -> tuple[int, dict[str, str], bytes]:
            objects = store.objects
            if self.command == "PUT":
                if self.headers.get("If-None-Match") == "*" and key in objects:
                    return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
                objects[key] = content
                return 200, {"ETag": f'"{md5(content).hexdigest()}"'}, b""
            if self.command == "DELETE":
                objects.pop(key, None)
                return 204, {}, b""
            if "list-type" in query:
                return 200, {"Content-Type": "application/xml"}, _listing(objects, query)
            if key not in objects:
                return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
            found = objects[key]
            headers = {"ETag": f'"{md5(found).hexdigest()}"', "Last-Modified": formatdate(0, usegmt=True)}
            if self.command == "HEAD":
                return 200, headers | {"Content-Length": str(len(found))}, b""
            if (wanted := self.headers.get("Range")) is not None:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                low = int(first) if first else max(len(found) - int(last), 0)
                high = min(int(last), len(found) - 1) if first and last else len(found) - 1
                return 206, headers | {"Content-Range": f"bytes {low}-{high}/{len(found)}"}, found[low : high + 1]
            return 200, headers, found

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    store.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _listing(objects: dict[str, bytes], query: dict[str, list[str]]) -> bytes:
    prefix, delimiter, start = (query.get(name, [""])[0] for name in ("prefix", "delimiter", "start-after"))
    contents, folders = "", dict[str, None]()
    for key in sorted(objects):
        if not key.startswith(prefix) or key <= start:
            continue
        if delimiter and (folder := key[len(prefix) :].partition(delimiter))[1]:
            folders[prefix + folder[0] + delimiter] = None
            continue
        tag = md5(objects[key]).hexdigest()
        contents += (
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-31T12:00:00.000Z</LastModified>"
            f'<ETag>"{tag}"</ETag><Size>{len(objects[key])}</Size></Contents>'
        )
    common = "".join(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders)
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{common}</ListBucketResult>".encode()
