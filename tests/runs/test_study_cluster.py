"""The cells of a study on a cluster of Ray, where it is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.pretrain_runs import MACHINE
from support.small_studies import (
    BROKEN,
    SAVE_OPTIONS,
    STATIC,
    STUDENT,
    plan_of,
    read_study,
    run_study,
)

from clozelab import cluster, registry
from clozelab.errors import UserError
from clozelab.runs.directory import Run
from clozelab.studies.cells import CellJob
from clozelab.studies.run import CellFinished, CellOutcome, follow


def test_without_ray_it_is_said_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(UserError, match=r"clozelab\[ray\]"),
        cluster.jobs("local", str, share=1, device="cpu"),
    ):
        pass


def test_the_workers_of_a_cluster_get_the_modules_of_parts_from_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[dict[str, Any]] = []
    ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **options: started.append(options),
        nodes=list,
        cluster_resources=dict,
        remote=lambda **needs: lambda work: work,
        shutdown=lambda: None,
    )
    monkeypatch.setattr(cluster, "known", lambda address: ray)
    monkeypatch.delenv(registry.IMPORTS, raising=False)
    for expected in ({}, {registry.IMPORTS: "my.parts,other"}):
        for name, value in expected.items():
            monkeypatch.setenv(name, value)
        with cluster.jobs("local", str, share=1, device="cpu"):
            pass
        assert started[-1]["runtime_env"] == {"env_vars": expected}


def test_cells_that_share_a_gpu_of_a_cluster_share_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharers: list[int] = []

    @contextmanager
    def jobs(*_: Any, share: int, **__: Any) -> Iterator[Callable[[CellJob], Future[CellOutcome]]]:
        def submit(job: CellJob) -> Future[CellOutcome]:
            sharers.append(job.machine.sharers)
            done: Future[CellOutcome] = Future()
            done.set_result(CellOutcome((), "not run", whole=True))
            return done

        assert share == 4
        yield submit

    monkeypatch.setattr(cluster, "known", lambda address: None)
    monkeypatch.setattr(cluster, "jobs", jobs)
    plan = plan_of(read_study(tmp_path, STATIC), at_once=4)
    list(follow(plan, tmp_path / "out", machine=MACHINE, saving=SAVE_OPTIONS, on="local"))
    assert sharers == [4]


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.slow
def test_a_study_on_ray_comes_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import clozelab

    source = str(Path(clozelab.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([source, *sys.path[1:]]))
    study = read_study(tmp_path, STUDENT, STATIC, BROKEN)
    local, there = tmp_path / "here", tmp_path / "there"
    run_study(study, local)
    events = list(
        follow(plan_of(study, there), there, machine=MACHINE, saving=SAVE_OPTIONS, on="local")
    )
    names = [event.cell.variant for event in events if isinstance(event, CellFinished)]
    assert sorted(names) == ["broken", "static", "student"]
    assert names.index("static") < names.index("student")
    mine, other = (Run(out).result() or {} for out in (local, there))
    assert [cell["scores"] for cell in mine["cells"]] == [cell["scores"] for cell in other["cells"]]
    assert [bool(cell["failed"]) for cell in other["cells"]] == [
        cell["variant"] == "broken" for cell in other["cells"]
    ]
