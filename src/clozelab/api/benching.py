"""How fast training is on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clozelab.api.recipes import RecipeOptions
from clozelab.api.training import machine_of
from clozelab.api.watching import Watch
from clozelab.options import Place, Places, command
from clozelab.runs.options import MachineOptions


@command
def bench(
    recipes: Places = (),
    *,
    data: Places = (),
    sequences: int | None = None,
    length: int | None = None,
    steps: int | None = None,
    against: str | None = None,
    out: Place | None = None,
    overwrite: bool = False,
    changes: RecipeOptions,
    machine: MachineOptions,
    watch: Watch,
) -> dict[str, Any]:
    """Measure how fast training is on this machine, and beside transformers.

    Args:
        recipes: names or TOML files (what suits the machine)
        data (CORPUS[:WEIGHT]): a corpus; several are mixed by their size times their weight
        sequences: of a step (what suits it)
        length: tokens of a block
        steps: timed for each (turns of 2 s)
        against (PEER): transformers: the same work by it
        out (FILE.json): write every number there
        overwrite: replace the file if it is there
    """
    from clozelab.files import check_output, write_text
    from clozelab.text.store.corpus import open_stores

    place = Path(out) if out else None
    if place is not None:
        check_output(place, overwrite=overwrite)
    for name in recipes:  # before torch is loaded and a corpus built
        changes.read(name)
    if data:
        open_stores(data)

    from clozelab.benching.rows import Order

    order = Order(
        recipes=tuple(recipes),
        data=tuple(data),
        size=changes.size,
        sequences=sequences,
        length=length,
        steps=steps,
        against=against,
        settings=tuple(changes.set),
        machine=machine_of(machine),
    )
    record = _follow(order, watch)
    if place is not None:
        write_text(place, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        watch.say(f"{place}: {len(record['rows'])} rows")
    return record


def _follow(order: Any, watch: Watch) -> dict[str, Any]:
    """Draw the turns until all are done; the record of them."""
    from clozelab.benching.measure import Finished, Turn, bench

    record: dict[str, Any] = {}
    with watch.bars() as bars:
        task = bars.add_task("setting up", total=None, status="")
        for event in bench(order):
            watch.tell(event)
            if isinstance(event, Finished):
                record = event.record
            elif isinstance(event, Turn):
                bars.update(
                    task,
                    description=f"row {event.row + 1} of {event.rows}",
                    completed=event.row * event.turns + event.done,
                    total=event.rows * event.turns,
                    status=event.what,
                )
            else:
                watch.warn(event.text)
    return record
