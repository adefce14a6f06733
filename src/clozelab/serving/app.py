"""The routes: a page, its modules, and a JSON API for them.

An error is answered by a sentence, as everywhere in clozelab: {"error": "…"}.
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

_MOST_SCORED = 1000  # the most characters of a text to score, which is copied for each token
_MOST_GUESSES = 20
_CHECK_EVERY = 0.5  # seconds between checks whether the client is still connected
_STATIC = Path(__file__).parent / "static"
_FIGURES = Path(reporting.__file__).parent / "static"  # figures are shared with the pages of runs
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


class App:
    """The handlers of the requests."""

    def __init__(self, folders: Folders, *, memory: Callable[[], int | None] = free_memory) -> None:
        self.folders = folders
        self.models = Models(folders, free_memory=memory)
        self._reading = WorkQueue("this server")  # for work without a model
        self._watching = WorkQueue("the overview of runs")  # long logs must not block others

    async def list_models(self, request: Request) -> Response:
        """The models, with the steps of their checkpoints."""
        return await self._read(request, self._model_rows)

    def _model_rows(self) -> list[dict[str, Any]]:
        models = self.folders.of("run", "tuning", "model")
        return [{"name": one.name, "kind": one.kind, "steps": one.steps} for one in models]

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
        texts = [text_of(fields, "text", most=_MOST_SCORED)]
        if fields.get("other") is not None:
            texts.append(text_of(fields, "other", most=_MOST_SCORED))
        return await self._ask(
            request, fields, lambda model: surprisal.scored(model, texts, self.folders)
        )

    async def recipes(self, request: Request) -> Response:
        """The available recipes and corpora."""
        return await self._read(request, partial(masks.choices, self.folders))

    async def masks(self, request: Request) -> Response:
        """The masks of a recipe on a text."""
        fields = await fields_of(request)
        changes = fields.get("set") or []
        if not isinstance(changes, list) or not all(isinstance(change, str) for change in changes):
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
        return await _respond(request, self._watching.submit(_to_json(overview.overview, paths)))

    async def _read(self, request: Request, work: Callable[[], Any]) -> Response:
        """Answer with work that needs no model, outside of the event loop."""
        return await _respond(request, self._reading.submit(_to_json(work)))

    async def _ask(self, request: Request, fields: Fields, work: Callable[..., Any]) -> Response:
        """Answer with work on the model that a request names."""
        step = fields.get("step")
        if step is not None and not is_count(step):
            raise UserError("step: must be a whole number, or be left out")
        job = self.models.ask(name_of(fields, "model"), step, lambda model: _to_json(work, model)())
        return await _respond(request, job)


def _to_json(work: Callable[..., Any], *arguments: Any) -> Callable[[], bytes]:
    """Work that returns its result as JSON, which is also written outside of the event loop."""
    return lambda: json.dumps(work(*arguments), allow_nan=False, separators=(",", ":")).encode()


async def _respond(request: Request, future: Future[bytes]) -> Response:
    """The response with the result of some work, which is cancelled if the client is gone."""
    result = asyncio.wrap_future(future)
    while not (await asyncio.wait([result], timeout=_CHECK_EVERY))[0]:
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
        raise HTTPException(500, f"{fault}; this is a bug in clozelab: report it") from None


def build(app: App, *, host: str, token: str | None) -> Starlette:
    """The web app with its guard."""
    files = {
        file.name: file
        for folder in (_FIGURES, _STATIC)
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
        UserError: partial(_error_response, code=400),
        QueueFull: partial(_error_response, code=503),
        HTTPException: _http_error,
    }
    guard = Middleware(Guard, host=host, token=token)
    return Starlette(routes=routes, middleware=[guard], exception_handlers=errors)


async def _error_response(request: Request, error: Exception, *, code: int) -> Response:
    """The response of an error, with characters that are no UTF-8 escaped."""
    return Response(json.dumps({"error": str(error)}), code, media_type="application/json")


async def _http_error(request: Request, error: HTTPException) -> Response:
    return await _error_response(request, Exception(error.detail), code=error.status_code)
