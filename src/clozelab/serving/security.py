"""Access control: only the app's own page is answered, and from other machines only with the token.

A page of another site could send requests to a local server through its reader's browser. So the
host of a request must be ours (against DNS rebinding), and if the browser sends the origin of a
request, that must be our own page.
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
    """Whether an address can be reached only from this machine."""
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


class Guard:
    """Middleware that refuses foreign requests, and adds security headers to every response."""

    def __init__(self, app: ASGIApp, *, host: str, token: str | None) -> None:
        self.app, self.token = app, token
        self.cookie = cookie_name(token or "")
        self._own_names = {*_LOOPBACK, host.lower()}
        self._any_address = not is_loopback(host)  # then the token protects it
        if self._any_address:
            self._own_names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

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
        elif self.token and not (has_token or self._is_token(self._header_tokens(headers))):
            sentence = "this server asks for its token: open the address that it printed"
            app = JSONResponse({"error": sentence}, status_code=401)
        await app(scope, receive, with_headers)

    def _objection(self, scope: Scope, headers: Headers) -> str:
        """Why a request is refused; empty if it is not."""
        host = headers.get("host", "")
        name = _host_name(host)
        if not (name in self._own_names or (self._any_address and _is_address(name))):
            return f"{host or 'a request without a host'}: is not this server's name"
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return "this server answers its own page alone"
        visits = scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not visits:
            return "this server answers its own page alone"
        return ""

    def _header_tokens(self, headers: Headers) -> list[str]:
        """The tokens in a request's headers."""
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
    """The cookie name of a token, since servers on different ports share cookies."""
    return f"clozelab-{sha256(token.encode()).hexdigest()[:8]}"


def _host_name(host: str) -> str:
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
