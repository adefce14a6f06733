"""How fast training is on this machine."""

from __future__ import annotations

from typing import Any

from clozelab.api.recipes import RecipeOptions
from clozelab.api.texts import refuse_existing, write_record
from clozelab.api.training import machine_of
from clozelab.api.watching import Watch
from clozelab.options import Data, Overwrite, Place, Places, command
from clozelab.runs.options import MachineOptions


@command
def bench(
    recipes: Places = (),
    *,
    data: Data = (),
    sequences: int | None = None,
    length: int | None = None,
    steps: int | None = None,
    against: str | None = None,
    out: Place | None = None,
    overwrite: Overwrite = False,
    changes: RecipeOptions,
    machine: MachineOptions,
    watch: Watch,
) -> dict[str, Any]:
    """Measure the training speed on this machine, also compared with transformers.

    Args:
        recipes: names or TOML files (chosen to suit the machine)
        sequences: sequences in a step (chosen to suit the recipe)
        length: tokens in a block
        steps: timed steps for each contender (turns of 2 s)
        against (PEER): transformers, to measure the same work there as well
        out (FILE.json): write every number to this file
    """
    from clozelab.text.store.corpus import open_stores

    refuse_existing(out, overwrite=overwrite)
    for name in recipes:  # before torch is loaded and a corpus built
        changes.read(name)
    if data:
        open_stores(data)

    from clozelab.benching.measure import Finished, Turn
    from clozelab.benching.measure import bench as measuring
    from clozelab.benching.rows import BenchRequest

    request = BenchRequest(
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
    record: dict[str, Any] = {}
    with watch.bars() as bars:
        task = bars.add_task("setting up", total=None, status="")

        def show(event: Any) -> None:
            if isinstance(event, Finished):
                record.update(event.record)
            elif isinstance(event, Turn):
                done, total = event.row * event.turns + event.done, event.rows * event.turns
                row = f"row {event.row + 1} of {event.rows}"
                bars.update(task, description=row, completed=done, total=total, status=event.what)
            else:
                watch.warn(event.text)

        watch.follow(iter(measuring(request)), show)
    if out is not None:
        write_record(out, record)
        watch.say(f"{out}: {len(record['rows'])} rows")
    return record
