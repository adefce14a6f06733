"""The server: it finds a free port, and ends when interrupted."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread

import uvicorn
from starlette.types import ASGIApp

from clozelab.errors import UserError

_TRIES = 32  # successive ports to try
_LOOK = 0.2  # seconds between checks for a signal
_GRACE = 2  # seconds for open requests at the end
_MOST_CONNECTIONS = 512


@dataclass(frozen=True)
class Listening:
    """An open port."""

    socket: socket.socket
    host: str
    port: int
    token: str | None  # required if other machines can reach it

    @property
    def url(self) -> str:
        """The address to open in a browser, with the token."""
        is_wildcard = self.host in ("0.0.0.0", "::")  # all addresses: use the machine's name
        host = socket.gethostname() if is_wildcard else self.host
        host = f"[{host}]" if ":" in host else host
        query = f"?token={self.token}" if self.token else ""
        return f"http://{host}:{self.port}/{query}"


def listen(host: str, port: int, *, token: bool) -> Listening:
    """Open a port, or the next that is free."""
    if port > 65535:
        raise UserError(f"--port {port}: must be at most 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + _TRIES, 65536)):
        try:
            opened = socket.create_server((host, candidate), family=family, backlog=256)
        except (OSError, ValueError, TypeError) as error:  # invalid names raise the others
            number = getattr(error, "errno", None)
            if number == errno.EADDRINUSE:
                continue
            if number == errno.EACCES:
                raise UserError(
                    f"--port {candidate}: is not permitted; use 1024 or above"
                ) from None
            raise UserError(
                f"--host {host}: is not an address of this machine; leave it out, or name one"
            ) from None
        key = secrets.token_urlsafe(24) if token else None
        return Listening(opened, host, opened.getsockname()[1], key)
    raise UserError(f"--port {port}: it and the {_TRIES - 1} after it are in use; name another")


def run(app: ASGIApp, listening: Listening, *, ready: Callable[[], None]) -> None:
    """Answer requests until an interrupt, which is raised.

    The server has its own thread, so that it also works inside a running event loop, as in a
    notebook, and signals are handled here as in every other command.
    """
    config = uvicorn.Config(
        app,
        access_log=False,
        lifespan="off",
        limit_concurrency=_MOST_CONNECTIONS,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
        ws="none",
    )
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, args=([listening.socket],), daemon=True)
    thread.start()
    try:
        ready()
        while thread.is_alive():
            thread.join(_LOOK)
    finally:
        server.should_exit = True
        thread.join(_GRACE + 1)
        listening.socket.close()
