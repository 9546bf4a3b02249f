"""A web server inside the process of a test: objects with ranges and tags, counts, and faults on request."""

import collections
import dataclasses
import hashlib
import http.server
import threading

# Faults.
STALL = "stall"


@dataclasses.dataclass(frozen=True)
class Cut:
    """The connection ends after so many bytes of the body."""

    bytes: int


@dataclasses.dataclass(frozen=True)
class Request:
    path: str
    range: str | None
    authorization: str | None
    client: tuple[str, int]


class WebServer(http.server.ThreadingHTTPServer):
    """A fault is a status, a `Cut`, or `STALL`: nothing is sent until `release`. Each is for one request."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects = {}
        self.sends_ranges = True
        self.faults = collections.deque()
        self.requests = []
        self.released = threading.Event()
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}{path}"

    def take_requests(self):
        taken, self.requests = self.requests, []
        return taken

    def release(self):
        self.faults.clear()
        self.released.set()

    def handle_error(self, request, client_address):
        """Connections that clients end are no errors of a test."""

    def stop(self):
        self.release()
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def do_GET(self):
        server = self.server
        path = self.path.partition("?")[0]
        asked = self.headers["range"]
        request = Request(self.path, asked, self.headers["authorization"], self.client_address)
        server.requests.append(request)
        fault = server.faults.popleft() if server.faults else None
        if fault == STALL:
            server.released.wait(60)
            self.close_connection = True
            return
        if isinstance(fault, int):
            self.answer(fault)
            return
        if path not in server.objects:
            self.answer(404)
            return
        body = server.objects[path]
        tag = f'"{hashlib.md5(body).hexdigest()}"'
        if self.headers["if-match"] not in (None, tag):
            self.answer(412)
            return
        if self.headers["if-none-match"] == tag:
            self.answer(304)
            return
        status, first, end = 200, 0, len(body)
        if server.sends_ranges and asked:
            left, _, right = asked.removeprefix("bytes=").partition("-")
            if left:
                first, end = int(left), min(end, int(right) + 1)
            else:
                first = max(0, end - int(right))
            status = 206
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(body)}")
        self.send_header("ETag", tag)
        self.send_header("Last-Modified", "Sun, 13 Sep 2020 12:26:40 GMT")
        self.send_header("Content-Length", str(end - first))
        self.end_headers()
        part = memoryview(body)[first:end]
        if isinstance(fault, Cut):
            self.wfile.write(part[: fault.bytes])
            self.close_connection = True
            return
        self.wfile.write(part)

    def answer(self, status):
        self.send_response(status)
        if status != 304:
            self.send_header("Content-Length", "0")
        self.end_headers()
