"""The server: a port that is free, and an end when it is interrupted."""

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

_TRIES = 32  # ports from the one that was asked for
_LOOK = 0.2  # seconds that a signal waits at most
_GRACE = 2  # seconds that answers under way have, once it ends
_MOST_CONNECTIONS = 512


@dataclass(frozen=True)
class Listening:
    """An open port."""

    socket: socket.socket
    host: str
    port: int
    token: str | None  # that is asked for, if others than this machine can reach it

    @property
    def url(self) -> str:
        """What to open in a browser; whoever has it is let in."""
        every = self.host in ("0.0.0.0", "::")  # all addresses of this machine: its name will do
        host = socket.gethostname() if every else self.host
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
        except (OSError, ValueError, TypeError) as error:  # some names are none to begin with
            number = getattr(error, "errno", None)
            if number == errno.EADDRINUSE:
                continue
            if number == errno.EACCES:
                raise UserError(f"--port {candidate}: is not open to you; try 1024 up") from None
            raise UserError(
                f"--host {host}: is no address of this machine; leave it out, or name one"
            ) from None
        key = secrets.token_urlsafe(24) if token else None
        return Listening(opened, host, opened.getsockname()[1], key)
    raise UserError(f"--port {port}: it and the {_TRIES - 1} after it are in use; name another")


def run(app: ASGIApp, listening: Listening, *, ready: Callable[[], None]) -> None:
    """Answer requests until an interrupt, which is raised.

    The server has a thread of its own, so that it also runs where a loop runs already, as in a
    notebook, and a signal is heard here as by every other command.
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
