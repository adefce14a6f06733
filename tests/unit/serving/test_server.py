"""The command: a port that is free, an end when it is interrupted, and mistakes in a sentence."""

from __future__ import annotations

import json
import socket
from importlib import util
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from support.corpora import refused, run
from support.web_app import runs, serving

from clozelab.api import serving as api
from clozelab.errors import UserError
from clozelab.serving.server import listen


def test_the_next_port_is_taken_where_one_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        opened = listen("127.0.0.1", port, token=False)
        assert port < opened.port < port + 32
        assert opened.url == f"http://127.0.0.1:{opened.port}/"
        opened.socket.close()


def test_a_port_beyond_this_machine_has_a_token_of_its_own() -> None:
    opened = [listen("127.0.0.1", 0, token=True) for _ in range(2)]
    tokens = [server.url.partition("?token=")[2] for server in opened]
    assert all(len(token) >= 32 for token in tokens) and tokens[0] != tokens[1]
    for server in opened:
        server.socket.close()


@pytest.mark.parametrize("host", ["203.0.113.9", "no.such.host.invalid", "é" * 300, "a\0b"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(UserError, match="is not an address of this machine"):
        listen(host, 0, token=True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nowhere: does not exist"),
        ([__file__], "is a file; name a folder"),
        ([str(Path(__file__).parent)], "is not a run"),
        (["--port", "70000"], "--port 70000: must be at most 65535"),
        (["--port", "x"], "--port: 'x' is not a whole number"),
    ],
)
def test_mistakes_of_the_command_are_sentences(arguments: list[str], says: str) -> None:
    assert says in refused(run("serve", *arguments))


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        return None if name == "uvicorn" else util.find_spec(name)

    monkeypatch.setattr(api, "find_spec", missing)
    sentence = refused(run("serve"))
    assert sentence.endswith("serve needs uvicorn; pip install 'clozelab[serve]'")


@pytest.mark.thorough
def test_it_serves_until_ctrl_c() -> None:
    """`serving` looks for the exit code 0."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving([], "--port", str(port)) as (url, messages):
            assert f"port {port} is in use; using " in messages[0] and str(port) not in url
            with urlopen(f"{url}api/models", timeout=60) as answer:
                assert json.load(answer) == []
    with serving([runs()], "--port", "0") as (url, _):
        with urlopen(url, timeout=60) as answer:
            assert b"clozelab" in answer.read()
        body = {"model": str(runs() / "bert"), "text": "a house", "hidden": [1]}
        typed = {"Content-Type": "application/json"}
        request = Request(f"{url}api/fill", json.dumps(body).encode(), typed)
        with urlopen(request, timeout=60) as answer:
            assert json.load(answer)["blanks"]
        with pytest.raises(HTTPError) as strange:
            urlopen(Request(url, headers={"Host": "rebound.example"}), timeout=60)
        assert strange.value.code == 403
        strange.value.close()
