"""The routes: a page, its modules, and what they ask for as JSON.

A mistake is answered by a sentence, as everywhere in clozelab: {"error": "…"}.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from clozelab import reporting
from clozelab.errors import UserError
from clozelab.options import debugging
from clozelab.serving import board, cloze, masks, surprisal
from clozelab.serving.folders import Folders
from clozelab.serving.models import Models, free_memory
from clozelab.serving.queues import QueueFull, WorkQueue
from clozelab.serving.security import Guard

MOST_BYTES = 1 << 16  # of a request
MOST_CHARACTERS = 5000  # of a text
_SCORED = 1000  # characters of a text that is scored: each token is a copy of it
_MOST_GUESSES = 20
_LOOK = 0.5  # seconds between looks whether the asker is still there
_OURS = Path(__file__).parent / "static"
_FIGURES = Path(reporting.__file__).parent / "static"  # the figures of pages are those of the board
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}

Fields = Mapping[str, Any]


class App:
    """What is answered to each request."""

    def __init__(self, folders: Folders, *, memory: Callable[[], int | None] = free_memory) -> None:
        self.folders = folders
        self.models = Models(folders, free_memory=memory)
        self._reading = WorkQueue("this server")  # what needs no model
        self._watching = WorkQueue("the board")  # logs may be long

    async def list_models(self, request: Request) -> Response:
        """The models, with the steps that each has a checkpoint of."""
        return await self._read(request, self._listed)

    def _listed(self) -> list[dict[str, Any]]:
        found = self.folders.of("run", "tuning", "model")
        return [{"name": each.name, "kind": each.kind, "steps": each.steps} for each in found]

    async def words(self, request: Request) -> Response:
        """A text as words."""
        text = _text(await _fields(request), "text")
        return await self._read(request, partial(cloze.as_json, text))

    async def fill(self, request: Request) -> Response:
        """A model's guesses for hidden words."""
        fields = await _fields(request)
        text, hidden = _text(fields, "text"), fields.get("hidden")
        if not isinstance(hidden, list) or not all(_is_count(word) for word in hidden):
            raise UserError("hidden: must be the numbers of words")
        top = _count(fields, "top", 5, most=_MOST_GUESSES)
        return await self._ask(
            request, fields, lambda model: cloze.guesses(model, text, hidden, top=max(top, 1))
        )

    async def score(self, request: Request) -> Response:
        """A text's surprisal, or that of two texts."""
        fields = await _fields(request)
        texts = [_text(fields, "text", most=_SCORED)]
        if fields.get("other") is not None:
            texts.append(_text(fields, "other", most=_SCORED))
        return await self._ask(
            request, fields, lambda model: surprisal.scored(model, texts, self.folders)
        )

    async def recipes(self, request: Request) -> Response:
        """The recipes and corpora there are."""
        return await self._read(request, partial(masks.choices, self.folders))

    async def masks(self, request: Request) -> Response:
        """What a recipe hides of a text."""
        fields = await _fields(request)
        changes = fields.get("set") or []
        if not isinstance(changes, list) or not all(isinstance(each, str) for each in changes):
            raise UserError("set: must be a list of KEY=VALUE")
        corpus = _name(fields, "corpus") if fields.get("corpus") else None
        work = partial(
            masks.masked,
            self.folders,
            recipe=_name(fields, "recipe"),
            text=_text(fields, "text"),
            corpus=corpus,
            epochs=_count(fields, "epochs", 3, most=masks.MOST_EPOCHS),
            seed=_count(fields, "seed", 0, most=2**31),
            changes=changes,
        )
        return await self._read(request, work)

    async def runs(self, request: Request) -> Response:
        """The board of runs and studies."""
        paths = [folder.path for folder in self.folders.of("run", "tuning", "study")]
        return await _answered(request, self._watching.submit(_written(board.board, paths)))

    async def _read(self, request: Request, work: Callable[[], Any]) -> Response:
        """Do what needs no model, outside the loop that answers others."""
        return await _answered(request, self._reading.submit(_written(work)))

    async def _ask(self, request: Request, fields: Fields, work: Callable[..., Any]) -> Response:
        """Ask the model that a request names."""
        step = fields.get("step")
        if step is not None and not _is_count(step):
            raise UserError("step: must be a whole number, or be left out")
        job = self.models.ask(_name(fields, "model"), step, lambda model: _written(work, model)())
        return await _answered(request, job)


def _written(work: Callable[..., Any], *arguments: Any) -> Callable[[], bytes]:
    """Some work, and its result as JSON: to write it takes a while, too."""
    return lambda: json.dumps(work(*arguments), allow_nan=False, separators=(",", ":")).encode()


async def _answered(request: Request, future: Future[bytes]) -> Response:
    """What some work comes to; it is left out if nobody waits for it any more."""
    result = asyncio.wrap_future(future)
    while not (await asyncio.wait([result], timeout=_LOOK))[0]:
        if await request.is_disconnected():
            result.cancel()
            raise HTTPException(499, "the browser no longer waits")
    try:
        return Response(result.result(), media_type="application/json")
    except (UserError, QueueFull):
        raise
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    except Exception as error:  # the server goes on
        if debugging():
            traceback.print_exception(error)
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise HTTPException(500, f"{told}; this is a fault in clozelab: report it") from None


def build(app: App, *, host: str, token: str | None) -> Starlette:
    """The web app, guarded."""
    files = {
        file.name: file
        for folder in (_FIGURES, _OURS)
        for file in folder.glob("*.*")
        if file.suffix in _TYPES
    }

    async def static(request: Request) -> Response:
        file = files.get(request.path_params["name"])
        if file is None or not file.is_file():
            raise HTTPException(404)
        return FileResponse(file, media_type=_TYPES.get(file.suffix))

    async def page(request: Request) -> Response:
        return FileResponse(files["index.html"], media_type="text/html")

    routes = [
        Route("/", page),
        Route("/static/{name}", static),
        Route("/api/models", app.list_models),
        Route("/api/recipes", app.recipes),
        Route("/api/runs", app.runs),
        *(
            Route(f"/api/{name}", getattr(app, name), methods=["POST"])
            for name in ("words", "fill", "score", "masks")
        ),
    ]
    errors: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
        UserError: partial(_said, code=400),
        QueueFull: partial(_said, code=503),
        HTTPException: _refused,
    }
    guard = Middleware(Guard, host=host, token=token)
    return Starlette(routes=routes, middleware=[guard], exception_handlers=errors)


async def _said(request: Request, error: Exception, *, code: int) -> Response:
    """A sentence; what is no character of UTF-8 is written as JSON has it."""
    return Response(json.dumps({"error": str(error)}), code, media_type="application/json")


async def _refused(request: Request, error: HTTPException) -> Response:
    return await _said(request, Exception(error.detail), code=error.status_code)


async def _fields(request: Request) -> Fields:
    """The JSON of a request, read no further than it may be long."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415, "send application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            sentence = f"the request is over {MOST_BYTES >> 10} KB; shorten the text"
            raise HTTPException(413, sentence)
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise UserError("the request is not JSON") from None
    if not isinstance(fields, dict):
        raise UserError("the request must be an object of JSON")
    return fields


def _text(fields: Fields, key: str, *, most: int = MOST_CHARACTERS) -> str:
    """A text that is not too long, and is one."""
    text = fields.get(key)
    if not isinstance(text, str):
        raise UserError(f"{key}: must be a text")
    if len(text) > most:
        raise UserError(f"the text has {len(text):,} characters, and {most:,} are read; shorten it")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{key}: has half a character in it; write it again") from None
    return text


def _name(fields: Fields, key: str) -> str:
    name = fields.get(key)
    if not isinstance(name, str):
        raise UserError(f"{key}: must be a name")
    return name


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _count(fields: Fields, key: str, default: int, *, most: int) -> int:
    value = fields.get(key, default)
    if not _is_count(value) or value > most:
        raise UserError(f"{key}: must be a whole number from 0 to {most:,}")
    return int(value)
