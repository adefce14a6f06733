"""Who is answered: the app's own page alone, and from afar only who has the token.

A page of another site could send requests to a server on this machine through its reader's browser.
So the host that a request names must be ours (a name that was led to this address is another's),
and where the browser says from which page a request comes, that must be our own.
"""

from __future__ import annotations

import hmac
import socket
from collections.abc import Iterable
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


class Guard:
    """Refuses strangers, and gives every answer the headers that a browser holds pages to."""

    def __init__(self, app: ASGIApp, *, host: str, token: str | None) -> None:
        self.app, self.token = app, token
        self.cookie = cookie_name(token or "")
        self._own = {*_LOOPBACK, host.lower()}
        self._any_address = not is_loopback(host)  # then the token keeps others out
        if self._any_address:
            self._own |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        has_token = self._is_token(tokens)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer[name] = value
                if has_token:
                    attributes = "HttpOnly; SameSite=Strict; Path=/"
                    answer["Set-Cookie"] = f"{self.cookie}={self.token}; {attributes}"
            await send(message)

        app = self.app
        if sentence := self._objection(scope, headers):
            app = JSONResponse({"error": sentence}, status_code=403)
        elif self.token and not (has_token or self._is_token(self._tokens(headers))):
            sentence = "this server asks for its token: open the address that it printed"
            app = JSONResponse({"error": sentence}, status_code=401)
        await app(scope, receive, with_headers)

    def _objection(self, scope: Scope, headers: Headers) -> str:
        """Why a request is none of ours; nothing if it is."""
        host = headers.get("host", "")
        name = _name(host)
        if not (name in self._own or (self._any_address and _is_address(name))):
            return f"{host or 'a request without a host'}: is not this server's name"
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return "this server answers its own page alone"
        visits = scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not visits:
            return "this server answers its own page alone"
        return ""

    def _tokens(self, headers: Headers) -> list[str]:
        """The tokens that a request brings."""
        kind, _, value = headers.get("authorization", "").partition(" ")
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            cookie = None
        return [value] * (kind.lower() == "bearer") + ([cookie.value] if cookie else [])

    def _is_token(self, words: Iterable[str]) -> bool:
        token = (self.token or "").encode()
        return bool(token) and any(hmac.compare_digest(word.encode(), token) for word in words)


def cookie_name(token: str) -> str:
    """The cookie of a token: servers on one machine share its cookies, whatever their ports."""
    return f"clozelab-{sha256(token.encode()).hexdigest()[:8]}"


def _name(host: str) -> str:
    """The host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
