"""The command that measures: bench."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.markup import escape

from clozelab.cli.console import err, out, warn
from clozelab.cli.training import machine_of, progress


def bench(arguments: argparse.Namespace) -> None:
    """Measure training on this machine."""
    from clozelab.cli.views.bench import table
    from clozelab.config import recipe as recipes
    from clozelab.files import check_output, write_text
    from clozelab.text.store.corpus import open_stores

    place = Path(arguments.out) if arguments.out else None
    if place is not None:
        check_output(place, overwrite=arguments.overwrite)
    for name in arguments.recipes:  # before torch is loaded and a corpus built
        recipes.read(name, size=arguments.size, overrides=arguments.set)
    if arguments.data:
        open_stores(arguments.data)

    from clozelab.bench.rows import Order

    order = Order(
        recipes=tuple(arguments.recipes),
        data=tuple(arguments.data),
        size=arguments.size,
        sequences=arguments.sequences,
        length=arguments.length,
        steps=arguments.steps,
        against=arguments.against,
        settings=tuple(arguments.set),
        machine=machine_of(arguments),
    )
    record = _follow(order)
    out.print(table(record))
    if place is not None:
        write_text(place, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        err.print(escape(f"{place}: {len(record['rows'])} rows"))


def _follow(order: Any) -> dict[str, Any]:
    """Draw the turns until all are done; the record of them."""
    from clozelab.bench.measure import Finished, Turn, bench

    record: dict[str, Any] = {}
    with progress() as bars:
        task = bars.add_task("setting up", total=None, told="")
        for event in bench(order):
            if isinstance(event, Finished):
                record = event.record
            elif isinstance(event, Turn):
                done = event.row * event.turns + event.done
                bars.update(
                    task,
                    description=f"row {event.row + 1} of {event.rows}",
                    completed=done,
                    total=event.rows * event.turns,
                    told=event.what,
                )
            else:
                warn(event.text)
    return record
