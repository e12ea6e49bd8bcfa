"""A server of one file on the loopback interface that fails in the way a test chooses."""

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTENT = b"".join(i.to_bytes(4, "big") for i in range(50_000))  # no two parts are equal


class Mirror(ThreadingHTTPServer):
    """A server of one file that records the requested ranges and the bytes sent."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.host = f"127.0.0.1:{self.server_port}"
        self.url = f"http://{self.host}/file"
        self.resume = threading.Event()
        self.reset()

    def reset(self, content=CONTENT, cuts=(), status=None, ranges=True, shift=0, stall=False, send_length=True):
        self.content, self.status, self.ranges, self.shift, self.stall = content, status, ranges, shift, stall
        self.cuts = list(cuts)  # the n-th answer ends after so many bytes of its body
        self.send_length = send_length  # whether the Content-Length is sent
        self.asked, self.served = [], []


class Answer(BaseHTTPRequestHandler):
    """One answer of a Mirror, with the chosen fault."""

    def do_GET(self):
        mirror, asked = self.server, self.headers["Range"]
        mirror.asked.append(asked)
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and mirror.ranges else 0
        if mirror.status or start >= len(mirror.content):
            return self.send_error(mirror.status or 416)
        start += mirror.shift if start else 0
        body = mirror.content[start:]
        self.send_response(206 if start else 200)
        if mirror.send_length:
            self.send_header("Content-Length", str(len(body)))
        if start:
            total = len(mirror.content)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        self.end_headers()
        body = body[: mirror.cuts.pop(0)] if mirror.cuts else body
        mirror.served.append(len(body))
        self.wfile.write(body)
        if mirror.stall:
            mirror.resume.wait(5)

    def log_message(self, *arguments):
        pass


@contextmanager
def running():
    mirror = Mirror()
    thread = threading.Thread(target=mirror.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield mirror
    finally:
        mirror.resume.set()
        mirror.shutdown()
        mirror.server_close()
        thread.join()
