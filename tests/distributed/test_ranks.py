"""Two processes with B blocks each are one with 2 B, wrapped or sharded, and share checkpoints."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import CASES, MIDDLE, STEPS, Case, Losses, go, measure_held_out, set_up
from support.corpora import ENVIRONMENT, SOURCE
from support.pretrain_runs import (
    HERE,
    MACHINE,
    QUIET,
    assert_close,
    of_kind,
    shrunk,
    store,
    teacher,
)
from support.probe_tasks import sst2
from support.processes import run_process

from clozelab.cli import main
from clozelab.config.recipe import to_toml
from clozelab.pretraining import starting
from clozelab.pretraining.pretrain import resume
from clozelab.runs.directory import Run
from clozelab.training.checkpoint import open_checkpoint
from clozelab.training.loop import Step

torch.set_num_threads(1)
TESTS = Path(__file__).resolve().parents[1]
KINDS = ("wordpiece", "unigram", "byte_bpe")


def torchrun(*arguments: str, processes: int = 2) -> None:
    """A script in several processes on this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = run_process(
        [*command, "--nproc-per-node", str(processes), *arguments],
        env={**ENVIRONMENT, "PYTHONPATH": f"{SOURCE}:{TESTS}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def stores() -> dict[str, str]:
    return {**{kind: store(kind) for kind in KINDS}, "teacher": teacher()}


@pytest.fixture(scope="module")
def alone(stores: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Every case in one process."""
    folder, results = tmp_path_factory.mktemp("ranks"), {}
    for name, settings in CASES.items():
        setup = set_up(Case(*settings), stores, HERE)
        straight = go(setup, folder / "one" / name)
        results[name] = {"straight": straight, "held_out": measure_held_out(setup)}
    return folder, results


@pytest.fixture(scope="module")
def together(alone: tuple[Path, Any], stores: dict[str, str]) -> list[Any]:
    """The same in two, as each of them tells it."""
    store_arguments = [f"{kind}={place}" for kind, place in stores.items()]
    torchrun(str(Path(__file__).with_name("ranks.py")), str(alone[0]), *store_arguments)
    return [json.loads((alone[0] / f"{rank}.json").read_text()) for rank in (0, 1)]


def assert_losses(mine: Losses, other: Losses) -> None:
    assert len(mine) == len(other) > 0
    for a, b in zip(mine, other, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert a[name] == pytest.approx(b[name], rel=1e-9, abs=1e-9), name


def assert_states(mine: Path, other: Path) -> None:
    a, b = open_checkpoint(mine), open_checkpoint(other)
    assert_close(a.weights(), b.weights())
    assert_close(a.tensors(), b.tensors())
    assert a.state()["places"] == b.state()["places"]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_learn_what_one_does(
    name: str, alone: tuple[Path, Any], together: list[Any]
) -> None:
    folder, results = alone
    for rank in (0, 1):
        assert_losses(together[rank][name]["straight"], results[name]["straight"])
        assert_losses([together[rank][name]["held_out"]], [results[name]["held_out"]])
    for step in (MIDDLE, STEPS):
        place = f"{name}/step-{step:08d}"
        assert_states(folder / "two" / place, folder / "one" / place)


@pytest.mark.parametrize("name", CASES)
def test_two_go_on_where_one_stopped(
    name: str, alone: tuple[Path, Any], together: list[Any]
) -> None:
    folder, results = alone
    assert_losses(together[1][name]["after"], results[name]["straight"][MIDDLE:])
    last = f"{name}/step-{STEPS:08d}"
    assert_states(folder / "after" / last, folder / "one" / last)


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("name", CASES)
def test_one_goes_on_where_two_stopped(
    name: str, alone: tuple[Path, Any], stores: dict[str, str], tmp_path: Path
) -> None:
    folder, results = alone
    begin = folder / "two" / name / f"step-{MIDDLE:08d}"
    losses = go(set_up(Case(*CASES[name]), stores, HERE), tmp_path, begin)
    assert_losses(losses, results[name]["straight"][MIDDLE:])
    last = f"step-{STEPS:08d}"
    assert_states(tmp_path / last, folder / "one" / name / last)


def test_processes_that_time_their_steps_agree_on_how_many_there_are(together: list[Any]) -> None:
    assert together[0]["mine"] == together[1]["mine"] >= 1
    assert together[0]["steps"] == [2 * together[0]["mine"]]


@pytest.mark.slow
def test_a_sharded_run_of_four_processes_is_that_of_one_and_resumes_in_two_and_in_one(
    stores: dict[str, str], tmp_path: Path
) -> None:
    recipe = shrunk("bert", "encoder.layers=2", steps=STEPS, batch_size=5)
    (tmp_path / "bert.toml").write_text(to_toml(recipe), encoding="utf-8")
    four, single = tmp_path / "four", tmp_path / "one"
    command = ["pretrain", str(tmp_path / "bert.toml"), "--data", stores["wordpiece"]]
    command += ["--save-every", str(MIDDLE), "--evaluate-every", str(MIDDLE), "--device", "cpu"]
    torchrun("-m", "clozelab", *command, "--out", str(four), "--shard", processes=4)
    assert main([*command, "--out", str(single)]) == 0
    for kind, count in (("step", STEPS), ("held_out", STEPS // MIDDLE)):
        mine, other = (Run.open(run).events(kind) for run in (four, single))
        assert len(mine) == len(other) == count
        for a, b in zip(mine, other, strict=True):
            assert a["masked_lm"]["loss"] == pytest.approx(b["masked_lm"]["loss"], rel=1e-4)
    assert Run.open(four).result() is not None
    last = Path("checkpoints") / f"step-{STEPS:08d}"
    wanted = open_checkpoint(single / last).weights()
    assert len([*(four / last / "state").glob("shard-*.safetensors")]) == 4
    assert_close(open_checkpoint(four / last).weights(), wanted, 1e-4)
    shutil.rmtree(four / last)
    again = ["pretrain", "--resume", str(four), "--save-every", str(MIDDLE)]
    torchrun("-m", "clozelab", *again)  # sharded as before
    assert len([*(four / last / "state").glob("shard-*.safetensors")]) == 2
    assert_close(open_checkpoint(four / last).weights(), wanted, 1e-4)
    shutil.rmtree(four / last)
    events = list(resume(starting.resumed(four), four, machine=MACHINE, saving=QUIET))
    assert [step.number for step in of_kind(Step, events)] == [MIDDLE + 1, STEPS]
    assert_close(open_checkpoint(four / last).weights(), wanted, 1e-4)


@pytest.mark.slow
def test_an_adaptation_goes_on_with_sharded_weights_and_refuses_to_probe_them(
    stores: dict[str, str], tmp_path: Path
) -> None:
    recipe = shrunk("bert", "encoder.layers=2", steps=MIDDLE, batch_size=5)
    (tmp_path / "bert.toml").write_text(to_toml(recipe), encoding="utf-8")
    text, first, adapted = stores["wordpiece"], str(tmp_path / "first"), str(tmp_path / "adapted")
    command = ["pretrain", str(tmp_path / "bert.toml"), "--data", text, "--out", first]
    assert main([*command, "--device", "cpu"]) == 0
    adaptation = ["adapt", first, "--data", text, "--out", adapted, "--budget", f"{STEPS}steps"]
    assert main([*adaptation, "--save-every", str(MIDDLE), "--device", "cpu"]) == 0
    last = Path(adapted, "checkpoints", f"step-{STEPS:08d}")
    wanted = open_checkpoint(last).weights()
    shutil.rmtree(last)
    Path(adapted, "result.json").unlink()
    again = ["-m", "clozelab", "pretrain", "--resume", adapted, "--save-every", "1"]
    torchrun(*again, "--shard")
    assert_close(open_checkpoint(last).weights(), wanted, 1e-4)
    before = Path(adapted, "machine.toml").read_text(encoding="utf-8")
    with pytest.raises(AssertionError, match="--probe: does not work with sharded weights"):
        torchrun(*again, "--probe", "sst2", "--task-data", str(sst2(tmp_path / "data")))
    assert Path(adapted, "machine.toml").read_text(encoding="utf-8") == before


@pytest.mark.slow
def test_a_process_of_several_ends_without_winding_down_and_keeps_its_code() -> None:
    script = (
        "import atexit; atexit.register(print, 'wound down');"
        "from clozelab.training.world import exit_process; print('said'); exit_process(3)"
    )
    for size, printed in ("1", "said\nwound down\n"), ("2", "said\n"):
        done = run_process(
            [sys.executable, "-c", script],
            env={**ENVIRONMENT, "WORLD_SIZE": size},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (3, printed), done.stderr


JOINED = """
import os, time
from clozelab.training.world import exit_process, join
for _ in range(6):
    time.sleep(0.2 * int(os.environ["RANK"]))
    with join("cpu"):
        pass
exit_process(0)
"""


@pytest.mark.slow
def test_processes_that_come_late_join_a_second_time(tmp_path: Path) -> None:
    script = tmp_path / "joined.py"
    script.write_text(JOINED)
    torchrun(str(script))


# A model wrapped for a group of one process, freed after the group, a few hundred times.
FREED = """
import sys
from torch import distributed, nn, ones
from torch.nn.parallel import DistributedDataParallel
from clozelab.training.world import process_group

def once():
    with process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1):
        layers = [nn.Linear(64, 64) for _ in range(8)]
        model = DistributedDataParallel(nn.Sequential(*layers), gradient_as_bucket_view=True)
        model(ones(4, 64)).sum().backward()

sys.setswitchinterval(1e-5)
for _ in range(400):
    once()
"""


@pytest.mark.slow
def test_a_model_that_outlives_its_group_is_freed() -> None:
    setting = {**ENVIRONMENT, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    run_process([sys.executable, "-c", FREED], env=setting, check=True, timeout=90)
