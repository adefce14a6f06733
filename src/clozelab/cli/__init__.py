"""The command line: words → a call into runs/ and report/; the only folder that prints."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from rich.markup import escape

from clozelab.arguments import parser
from clozelab.cli import benching, corpora, demo, looking, models, studying, tasks, training
from clozelab.cli.console import err
from clozelab.contracts import UserError
from clozelab.interrupts import Stopped, signal_of


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; a mistake of the user's ends in one sentence and exit code 2.

    A signal ends it with 128 and its number, as shells have it: 130 for Ctrl-C, 143 for SIGTERM.
    """
    arguments = parser().parse_args(words)
    try:
        COMMANDS[arguments.command](arguments)
        sys.stdout.flush()
    except Stopped as error:
        err.print(f"[bold red]clozelab:[/] {escape(str(error))}")
        return 128 + error.signal
    except UserError as error:
        err.print(f"[bold red]clozelab:[/] {escape(str(error))}")
        return 2
    except KeyboardInterrupt as error:
        err.print("[bold red]clozelab:[/] interrupted")
        return 128 + signal_of(error)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        told = f"{place}{error.strerror or error}; mend that and run the same command again"
        err.print(f"[bold red]clozelab:[/] {escape(told)}")
        return 2
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "corpus build": corpora.build,
    "corpus show": corpora.show,
    "corpus check": corpora.check,
    "show": looking.show,
    "diff": looking.diff,
    "mask": looking.mask,
    "blocks": looking.blocks,
    "report": looking.report,
    "pretrain": training.pretrain,
    "distil": training.distil,
    "evaluate": tasks.evaluate,
    "tasks": tasks.listing,
    "finetune": tasks.finetune,
    "study": studying.study,
    "predict": tasks.predict,
    "answer": tasks.answer,
    "export": models.export,
    "import": models.bring,
    "fill": models.fill,
    "embed": models.embed,
    "bench": benching.bench,
    "demo": demo.demo,
}
