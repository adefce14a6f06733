"""Studies: a table of a paper as an experiment; and pages about runs and studies."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from clozelab.api.corpora import fetch_corpora
from clozelab.api.recipes import RecipeOptions
from clozelab.api.texts import refuse_existing
from clozelab.api.training import machine_of
from clozelab.api.watching import View, Watch, copying, resumable
from clozelab.errors import UserError
from clozelab.files import check_writable, write_text
from clozelab.nearest import counted
from clozelab.options import (
    CopyTo,
    Data,
    Few,
    LocalFolder,
    Overwrite,
    Place,
    Places,
    Settings,
    Text,
    Words,
    budget_word,
    command,
    located,
)
from clozelab.runs.directory import PLAN, STUDY, Run
from clozelab.runs.options import MachineOptions

if TYPE_CHECKING:
    from clozelab.reporting.document import Page
    from clozelab.studies.plan import StudyPlan
    from clozelab.studies.verdicts import Judgement

PAUSE = 5  # seconds between two writings of a page that is followed


@dataclass(frozen=True)
class Study:
    """A study's folder: the results of its cells, and the verdicts on the paper's claims."""

    path: Path  # a string will do

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(located(self.path, "study")))

    def __repr__(self) -> str:
        return f"Study({str(self.path)!r})"

    def result(self) -> dict[str, Any]:
        """The result of each cell: its scores and its cost."""
        from clozelab.studies import records

        records.check(self.path)
        return Run(self.path).result() or {"cells": []}

    def table(self) -> dict[str, dict[str, dict[int, float]]]:
        """The scores by variant, measure and seed."""
        from clozelab.studies import records

        record = records.read(self.path)
        return {
            variant.name: {name: record.scores(variant.name, name) for name in record.measures()}
            for variant in record.variants
        }

    def verdicts(self) -> list[Judgement]:
        """The verdict on each claim of the paper, from the cells that are done."""
        from clozelab.studies import records
        from clozelab.studies.verdicts import judge

        return judge(records.read(self.path))

    @property
    def page(self) -> Path:
        """The HTML page about the study."""
        return self.path / "page.html"

    def _repr_html_(self) -> str:
        """The page, in a notebook."""
        from clozelab.reporting.study import page
        from clozelab.studies import records

        return page(records.read(self.path)).written(self.page)


@command
def study(
    name: Place | None = None,
    *,
    data: Data = (),
    out: LocalFolder | None = None,
    copy_to: CopyTo | None = None,
    plan: bool = False,
    budget: Annotated[str, budget_word] | None = None,
    seeds: Few | None = None,
    first_seed: Few = 0,
    variants: Words = (),
    tasks: Places | None = None,
    task_data: Place | None = None,
    tune: Settings = (),
    keep_models: bool = False,
    at_once: Few | None = None,
    tunings_at_once: Few = 1,
    on: str | None = None,
    changes: RecipeOptions,
    machine: MachineOptions,
    watch: Watch,
) -> Any:
    """Run a table of a paper as an experiment, with several seeds and an HTML page.

    The same command continues a study that was stopped, and runs failed cells again. With --plan
    it runs nothing and gives the plan, or without --data the study's definition.

    Args:
        name: a name or a TOML file; without it, list the studies
        out (DIR): the study's folder; an existing study there is continued
        plan: show what would run, and run nothing
        budget: 30m for the whole study, or 300Mtok or 2000steps for each of its runs
        seeds: number of seeds (that of the study)
        first_seed: the first seed, for cells that will be merged with those of another folder (0)
        variants (A,B): run only these variants (all)
        tasks (TASK): known tasks, or KIND=DIR with train.* and dev.*
        task_data (DIR): folder with the data of known tasks (CLOZELAB_DATA)
        tune (KEY=VALUE): change the fine-tuning of all tasks, as in epochs=1, or of one, as in
            squad1.epochs=1
        keep_models: keep fine-tuned weights as well
        at_once: cells to run at the same time (1; for narrow models on a GPU 4)
        tunings_at_once: fine-tunings of each cell to run at the same time (1)
        on (CLUSTER): ray://HOST:PORT or local, with Ray
    """
    from clozelab.studies import spec as studies

    if name is None:
        return studies.names()
    whole = studies.read(name)
    chosen = whole.narrowed(
        tasks=None if tasks is None else studies.tasks_of(tasks),
        variants=variants or None,
        seeds=seeds,
        overrides=changes.set,
        tuning=tune,
    )
    chosen.warn_of_old_names()
    if plan and not data:
        return chosen
    from clozelab.studies.request import make_request

    fetch_corpora(data, watch)
    request = make_request(
        chosen,
        data,
        size=changes.size,
        budget=budget,
        task_data=task_data,
        first_seed=first_seed,
        others=whole.variants,
    )
    if not out and not plan:
        raise UserError(f"study {name} needs --out DIR for its results, or --plan")
    from clozelab.studies.plan import make_plan
    from clozelab.studies.run import follow

    place, on_machine = None if out is None else Path(out), machine_of(machine)
    if place is not None and not plan:
        check_writable(place)  # before steps are timed
    planning = make_plan(
        request,
        on_machine,
        out=place,
        at_once=at_once,
        tunings_at_once=tunings_at_once,
        timed=plan,
    )
    with watch.bars(transient=True) as bars:
        bars.add_task("planning", total=None, status="")
        planned = watch.follow(planning, lambda said: watch.warn(said.text))
    watch.tell(planned)
    if plan or place is None:
        return planned
    running = follow(planned, place, machine=on_machine, on=on, keep_models=keep_models)
    with copying(place, copy_to, watch) as update:
        _watch(running, planned, place, watch=watch, update=update)
    return Study(place)


def _watch(
    running: Any, plan: StudyPlan, place: Path, *, watch: Watch, update: Callable[[], None]
) -> None:
    """Draw what the cells tell, and write the page whenever a seed is done."""
    from clozelab.reporting.study import write_page
    from clozelab.studies.run import CellFinished, CellStarted

    failed, cells = list[str](), plan.request.cells()
    with resumable(), watch.bars() as bars:
        everything = bars.add_task("cells", total=len(cells), status="")
        view = View(bars, watch)

        def show(event: Any) -> None:
            if isinstance(event, CellStarted):
                watch.say(event.cell.name, style="bold")
            elif isinstance(event, CellFinished):
                view.clear()
                if event.failed is not None:
                    failed.append(event.cell.name)
                    watch.warn(f"{event.cell.name} failed: {event.failed}")
                if event.seed_is_done:
                    write_page(place)
                update()
            else:
                view.show_stage(event.event, event.stage)
                return
            bars.update(everything, completed=_done(place))

        watch.follow(running, show)
    write_page(place)
    watch.tell(Study(place))
    watch.say(f"{place / 'page.html'}: {_done(place)} of {len(cells)} cells")
    if failed:
        raise UserError(
            f"{len(failed)} of {len(cells)} cells failed ({', '.join(failed)}); see"
            " failed.json in their folders, then run the same command to try them again"
        )


def _done(place: Path) -> int:
    """The cells that have come to their end, whichever."""
    return len(Study(place).result()["cells"])


@command
def merge_studies(
    studies: Places, *, out: Place, study: Place | None = None, watch: Watch
) -> Study:
    """Merge the cells of studies that ran on different days or machines into one study.

    The folders may hold different seeds or variants; the claims are judged on all cells together.
    clozelab refuses folders that cannot be compared, and a cell with two different results.

    Args:
        studies (STUDY): the folders, with their cells loose or packed
        out (DIR): a new folder; the study can be continued there
        study (STUDY): the study's name or file, for claims that compare variants of two folders
            (the packaged study of that name)
    """
    from clozelab.reporting.study import write_page
    from clozelab.studies.merging import merge
    from clozelab.studies.records import parts_line

    place = Path(out)
    merge([Path(folder) for folder in studies], place, study=study)
    write_page(place)
    watch.tell(Study(place))
    watch.say(parts_line(json.loads((place / PLAN).read_text(encoding="utf-8"))["parts"]))
    watch.say(f"{place / 'page.html'}: {_done(place)} cells")
    return Study(place)


@command
def report(
    runs: Places,
    *,
    out: Place,
    overwrite: Overwrite = False,
    title: Text | None = None,
    follow: bool = False,
    watch: Watch,
) -> Path:
    """Write a page about runs: tables, curves, scores with intervals.

    Args:
        runs: runs and fine-tuning runs, or folders of these; or one study
        out: PAGE.html, a self-contained file, or a .md file
        title: title of the page (Runs; for a study its own title)
        follow: write the page again every few seconds until the runs are done
    """
    from clozelab.reporting.document import check

    place, folders = Path(out), [Path(run) for run in runs]
    check(place)
    refuse_existing(out, overwrite=overwrite)
    page, what, going = _page(folders, title)
    if follow and going:
        watch.say(
            f"{place}: open this page, it updates itself; Ctrl-C stops the updates, not the runs"
        )
        try:
            while going:
                write_text(place, page.written(place, refresh=PAUSE))
                time.sleep(PAUSE)
                page, what, going = _page(folders, title)
        except KeyboardInterrupt:
            pass  # the last page stands, and no longer reloads itself
    write_text(place, page.written(place))
    watch.say(f"{place}: {what}")
    return place


def _page(runs: list[Path], title: str | None) -> tuple[Page, str, bool]:
    """The page, what it is about, and whether any of that goes on."""
    from clozelab.reporting import page, study
    from clozelab.reporting.records import DAMAGED, gather
    from clozelab.studies import records

    try:
        if len(runs) == 1 and (runs[0] / STUDY).is_file():
            record = records.read(runs[0])
            about = study.page(record)
            what = f"a study, {len(record.cells)} of {len(record.planned)} cells"
            return replace(about, title=title or about.title), what, not record.ended
        trained, tuned = gather(runs)
        going = any(not run.done for run in trained)
        counts = {"run": len(trained), "fine-tuning run": len(tuned)}
        what = ", ".join(counted(number, noun) for noun, number in counts.items() if number)
        return page.page(trained, tuned, title=title or "Runs"), what, going
    except UserError:
        raise
    except DAMAGED as error:
        raise UserError(
            f"{', '.join(map(str, runs))}: the records there are damaged"
            f" ({type(error).__name__}: {error}); restore them from a copy, or leave them"
            " out"
        ) from error
