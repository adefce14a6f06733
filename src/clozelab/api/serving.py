"""The web app: models to play with, masks to look at and runs to watch, in a browser."""

from __future__ import annotations

from importlib.util import find_spec

from clozelab.api.watching import Watch, err
from clozelab.errors import UserError
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
    """Show models, masks and runs in a browser, until it is interrupted.

    There are four rooms: hide words and see what models guess; see how surprising each token of a
    text is; see what any recipe would hide of it; watch runs and studies. Folders are only read,
    and no others than these. The app works without the internet.

    Args:
        folders (RUN): runs, studies, corpora and Hugging Face directories, or folders of such; none
            shows the masks alone
        port: the first to try; if it is in use, the next is taken (8765)
        host (ADDRESS): where to listen; beyond this machine a token is asked for (127.0.0.1)
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
            watch.warn(f"port {port} is in use; took {listening.port}")
        watch.tell(listening.url)
        if watch.progress:  # not `say`, which takes tokens out of addresses
            err.print(f"{listening.url} is open; Ctrl-C ends it", markup=False)

    run(build(app, host=host, token=listening.token), listening, ready=ready)
