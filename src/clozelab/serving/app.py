"""The routes: a page, its modules, and what they ask for as JSON.

A mistake is answered by a sentence, as everywhere in clozelab: {"error": "…"}.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable
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
from clozelab.serving import cloze, masks, overview, surprisal
from clozelab.serving.fields import Fields, count_of, fields_of, is_count, name_of, text_of
from clozelab.serving.folders import Folders
from clozelab.serving.models import Models, free_memory
from clozelab.serving.queues import QueueFull, WorkQueue
from clozelab.serving.security import Guard

_SCORED = 1000  # characters of a text that is scored: each token is a copy of it
_MOST_GUESSES = 20
_LOOK = 0.5  # seconds between looks whether the asker is still there
_OURS = Path(__file__).parent / "static"
_FIGURES = Path(reporting.__file__).parent / "static"  # the figures of pages are those of runs
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


class App:
    """What is answered to each request."""

    def __init__(self, folders: Folders, *, memory: Callable[[], int | None] = free_memory) -> None:
        self.folders = folders
        self.models = Models(folders, free_memory=memory)
        self._reading = WorkQueue("this server")  # what needs no model
        self._watching = WorkQueue("the overview of runs")  # logs may be long

    async def list_models(self, request: Request) -> Response:
        """The models, with the steps that each has a checkpoint of."""
        return await self._read(request, self._listed)

    def _listed(self) -> list[dict[str, Any]]:
        models = self.folders.of("run", "tuning", "model")
        return [{"name": each.name, "kind": each.kind, "steps": each.steps} for each in models]

    async def words(self, request: Request) -> Response:
        """A text as words."""
        text = text_of(await fields_of(request), "text")
        return await self._read(request, partial(cloze.as_json, text))

    async def fill(self, request: Request) -> Response:
        """A model's guesses for hidden words."""
        fields = await fields_of(request)
        text, hidden = text_of(fields, "text"), fields.get("hidden")
        if not isinstance(hidden, list) or not all(is_count(word) for word in hidden):
            raise UserError("hidden: must be the numbers of words")
        top = count_of(fields, "top", 5, most=_MOST_GUESSES)
        return await self._ask(
            request, fields, lambda model: cloze.guesses(model, text, hidden, top=max(top, 1))
        )

    async def score(self, request: Request) -> Response:
        """A text's surprisal, or that of two texts."""
        fields = await fields_of(request)
        texts = [text_of(fields, "text", most=_SCORED)]
        if fields.get("other") is not None:
            texts.append(text_of(fields, "other", most=_SCORED))
        return await self._ask(
            request, fields, lambda model: surprisal.scored(model, texts, self.folders)
        )

    async def recipes(self, request: Request) -> Response:
        """The recipes and corpora there are."""
        return await self._read(request, partial(masks.choices, self.folders))

    async def masks(self, request: Request) -> Response:
        """What a recipe hides of a text."""
        fields = await fields_of(request)
        changes = fields.get("set") or []
        if not isinstance(changes, list) or not all(isinstance(each, str) for each in changes):
            raise UserError("set: must be a list of KEY=VALUE")
        corpus = name_of(fields, "corpus") if fields.get("corpus") else None
        work = partial(
            masks.masked,
            self.folders,
            recipe=name_of(fields, "recipe"),
            text=text_of(fields, "text"),
            corpus=corpus,
            epochs=count_of(fields, "epochs", 3, most=masks.MOST_EPOCHS),
            seed=count_of(fields, "seed", 0, most=2**31),
            changes=changes,
        )
        return await self._read(request, work)

    async def runs(self, request: Request) -> Response:
        """The overview of runs and studies."""
        paths = [folder.path for folder in self.folders.of("run", "tuning", "study")]
        return await _answered(request, self._watching.submit(_written(overview.overview, paths)))

    async def _read(self, request: Request, work: Callable[[], Any]) -> Response:
        """Do what needs no model, outside the loop that answers others."""
        return await _answered(request, self._reading.submit(_written(work)))

    async def _ask(self, request: Request, fields: Fields, work: Callable[..., Any]) -> Response:
        """Ask the model that a request names."""
        step = fields.get("step")
        if step is not None and not is_count(step):
            raise UserError("step: must be a whole number, or be left out")
        job = self.models.ask(name_of(fields, "model"), step, lambda model: _written(work, model)())
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
        fault = " ".join(f"{type(error).__name__}: {error}".split())
        raise HTTPException(500, f"{fault}; this is a fault in clozelab: report it") from None


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
