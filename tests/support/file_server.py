"""A web server on this machine, and what goes wrong on the way to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from clozelab.remote import access


class Server(ThreadingHTTPServer):
    """Files of a folder, and what goes wrong on the way to them."""

    folder: Path
    ranges = True
    lengths = True  # whether it tells them
    orders: tuple[str, ...] = ()  # in which a page of links may be shown
    troubles: list[str]  # of the next answers, one each
    requests: list[str]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: object) -> None: ...

    def _answer(self, *, body: bool) -> None:
        file = self.server.folder / self.path.partition("?")[0].strip("/")
        self.server.requests.append(self.path)
        if file.is_dir():
            names = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in file.iterdir()]
            links = "".join(f'<a href="{name}">x</a>' for name in [*self.server.orders, *names])
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(links)))
            self.end_headers()
            self.wfile.write(links.encode() if body else b"")
            return
        if not file.is_file():
            self.send_error(404)
            return
        trouble = self.server.troubles.pop(0) if body and self.server.troubles else ""
        if trouble.isdigit():
            self.send_error(int(trouble))
            return
        if trouble == "slow":
            time.sleep(2)
        whole = file.read_bytes()
        start, end = 0, len(whole)
        range_header = self.headers.get("Range")
        if range_header and self.server.ranges:
            start, last = map(int, range_header.removeprefix("bytes=").split("-"))
            end = min(last + 1, end)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(whole)}")
        else:
            self.send_response(200)
        if self.server.lengths:
            self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if body:
            sent = whole[start:end]
            if trouble == "altered":
                sent = bytes([sent[0] ^ 1]) + sent[1:]
            self.wfile.write(sent[: len(sent) // 2] if trouble == "dropped" else sent)
            if trouble == "dropped":
                self.close_connection = True


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(access, "PIECE", 10_000)
    monkeypatch.setattr(access, "WAIT", 0.01)
    server = Server(("127.0.0.1", 0), Handler)
    server.folder, server.troubles, server.requests = tmp_path, [], []
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def at(server: Server, name: str) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/{name}"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The store of moto's server, if it is there: 'clozelab[remote]' and 'moto[s3,server]'."""
    s3fs = pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for key, value in {
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(key, value)
    s3fs.S3FileSystem.clear_instance_cache()  # they know the server of another test
    yield s3fs.S3FileSystem()
    server.stop()
