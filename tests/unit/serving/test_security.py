"""Who is answered by the web app, and what every answer says to a browser."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from clozelab.serving.app import App, build
from clozelab.serving.folders import Folders
from clozelab.serving.security import cookie_name, is_loopback

JSON = {"Content-Type": "application/json"}
OWN = "http://127.0.0.1:8765"


def client(*, host: str = "127.0.0.1", token: str | None = None, at: str = OWN) -> TestClient:
    return TestClient(build(App(Folders([])), host=host, token=token), base_url=at)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/", 200),
        ("/static/app.js", 200),
        ("/static/style.css", 200),
        ("/api/models", 200),
        ("/api/words", 405),
        ("/api/nothing", 404),
        ("/static/app.py", 404),
        ("/static/..%2fapp.py", 404),
        ("/static/%2e%2e/app.py", 404),
        ("/docs", 404),
    ],
)
def test_every_answer_holds_the_browser_to_our_own_files(path: str, code: int) -> None:
    answer = client().get(path)
    assert answer.status_code == code
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy
    assert "unsafe" not in policy and "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-frame-options"] == "DENY"
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1:8765", 200),
        ("localhost:8765", 200),
        ("LOCALHOST", 200),
        ("localhost:9000", 200),  # through a tunnel
        ("[::1]:8765", 200),
        ("rebound.example:8765", 403),
        ("127.0.0.1.rebound.example", 403),
        ("10.0.0.7:8765", 403),
        ("", 403),
    ],
)
def test_a_name_that_was_led_here_is_refused(host: str, code: int) -> None:
    assert client().get("/api/models", headers={"Host": host}).status_code == code


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        (OWN, 200),
        ("http://localhost:8765", 403),
        ("http://127.0.0.1:3000", 403),
        ("https://elsewhere.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_only_its_own_page_is_answered(origin: str, code: int) -> None:
    body = {"json": {"text": "a b"}, "headers": {"Origin": origin}}
    assert client().post("/api/words", **body).status_code == code


def test_other_sites_may_lead_to_the_page_and_to_nothing_else() -> None:
    from_afar = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client().get("/", headers=from_afar).status_code == 200
    assert client().get("/api/runs", headers=from_afar).status_code == 403
    embedded = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert client().get("/", headers=embedded).status_code == 403
    assert client().get("/static/app.js", headers=embedded).status_code == 403


def test_from_afar_a_token_is_asked_for() -> None:
    at = "http://10.0.0.7:8765"
    guarded = client(host="0.0.0.0", token="hush", at=at)
    answer = guarded.get("/")
    assert answer.status_code == 401 and "token" in answer.json()["error"]
    assert guarded.get("/static/app.js").status_code == 401
    for wrong in ("/?token=", "/?token=hus", "/?token=hush2", "/?token=%ff"):
        assert guarded.get(wrong).status_code == 401
    for kind in ("Bearer hus", "Basic hush", "Bearer", ""):
        assert guarded.get("/", headers={"Authorization": kind}).status_code == 401
    assert guarded.get("/", headers={"Authorization": "Bearer hush"}).status_code == 200

    answer = guarded.get("/?token=hush")
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert guarded.get("/api/models").status_code == 200  # by the cookie
    assert "set-cookie" not in guarded.get("/api/models").headers
    other = client(host="0.0.0.0", token="other", at=at)
    other.cookies = guarded.cookies
    assert other.get("/api/models").status_code == 401
    assert other.get("/?token=other").status_code == 200
    assert guarded.get("/api/models").status_code == 200  # each has a cookie of its own
    elsewhere = {"Host": "rebound.example", "Cookie": f"{cookie_name('hush')}=hush"}
    assert guarded.get("/", headers=elsewhere).status_code == 403


def test_on_this_machine_none_is_asked_for_and_none_is_given() -> None:
    answer = client().get("/?token=")
    assert answer.status_code == 200 and "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.7", False),
        ("machine", False),
    ],
)
def test_which_addresses_are_reached_from_here_alone(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local


def test_no_file_of_the_page_reads_text_as_html() -> None:
    from clozelab.serving.app import _STATIC

    for file in _STATIC.glob("*.js"):
        text = file.read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, file
        assert "http://" not in text and "https://" not in text, file
