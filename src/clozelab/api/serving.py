"""The web app: models to play with, masks to look at and runs to watch, in a browser."""

from __future__ import annotations

from importlib.util import find_spec
from signal import SIGINT

from clozelab.api.watching import Watch, err
from clozelab.errors import UserError
from clozelab.interrupts import signal_of
from clozelab.options import Places, command

PORT = 8765


@command
def serve(
    folders: Places = (),
    *,
    port: int = PORT,
    host: str = "127.0.0.1",
    watch: Watch,
) -> None:
    """Serve a web app that shows models, masks and runs in a browser, until Ctrl-C.

    The app has four pages: mask words and see what models predict; see the surprisal of each token
    of a text; see what any recipe would mask in it; watch runs and studies. The app reads only the
    folders that you name and writes nothing to them. It works without the internet.

    Args:
        folders (RUN): runs, studies, corpora and Hugging Face directories, or folders of these;
            without any, the app shows only masks
        port: the first port to try; if it is in use, the next free one is taken (8765)
        host (ADDRESS): where to listen; access from other machines needs a token (127.0.0.1)
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UserError(f"serve needs {' and '.join(missing)}; pip install 'clozelab[serve]'")
    from clozelab.serving.app import App, build
    from clozelab.serving.folders import Folders
    from clozelab.serving.security import is_loopback
    from clozelab.serving.server import listen, run

    app = App(Folders(folders))
    listening = listen(host, port, token=not is_loopback(host))

    def ready() -> None:
        if port and listening.port != port:
            watch.warn(f"port {port} is in use; using {listening.port}")
        watch.tell(listening.url)
        if watch.progress:  # not `say`, which takes tokens out of addresses
            err.print(f"{listening.url} is ready; press Ctrl-C to stop")

    try:
        run(build(app, host=host, token=listening.token), listening, ready=ready)
    except KeyboardInterrupt as interrupt:
        if signal_of(interrupt) != SIGINT:  # Ctrl-C is how it ends
            raise
