"""Cells that were done on different days or machines are one study; what cannot be compared is not.

Two tiny studies are run once: seeds 0 and 1 of the first variant, seed 0 of the second.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.pretrain_runs import store
from support.small_studies import DYNAMIC, STATIC, write_study

import clozelab
from clozelab.cli import main
from clozelab.errors import UserError
from clozelab.files import is_own
from clozelab.reporting.study import page
from clozelab.runs.directory import PLAN, STUDY, Run
from clozelab.studies import records
from clozelab.studies.records import pack


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def ran(file: Path, out: Path, **options: Any) -> Path:
    usual = {"data": store("wordpiece"), "budget": "2steps", "device": "cpu", "progress": False}
    clozelab.study(file, out=out, **{**usual, **options})
    return out


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("parts")
    file = write_study(home / "masks.toml", STATIC, DYNAMIC, seeds=1)
    ran(file, home / "monday", seeds=1)
    ran(file, home / "tuesday", seeds=1, first_seed=1, variants="static")
    ran(file, home / "third", seeds=1, first_seed=1, variants="dynamic")
    return home


@pytest.fixture
def parts(home: Path, tmp_path: Path) -> list[Path]:
    """Copies, to be changed."""
    names = ("monday", "tuesday", "third")
    return [Path(shutil.copytree(home / name, tmp_path / name)) for name in names]


def altered(file: Path, **changes: Any) -> None:
    known = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**known, **changes}), encoding="utf-8")


def files(folder: Path) -> dict[str, bytes]:
    inside = [file for file in folder.rglob("*") if file.is_file() and not is_own(file)]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in inside}


def test_seeds_of_several_folders_are_one_study_with_its_claims(
    parts: list[Path], tmp_path: Path
) -> None:
    shutil.rmtree(parts[1] / "cells/static/seed-1/checkpoints")
    before = [files(part) for part in parts]
    pack(parts[1])  # loose and packed parts alike
    study = clozelab.merge_studies(parts, out=tmp_path / "whole", progress=False)
    merged = files(study.path)
    for name, content in [*before[0].items(), *before[1].items(), *before[2].items()]:
        if name.startswith("cells/"):
            assert merged[name] == content, name
    assert {v: {*s["held_out.masked_lm"]} for v, s in study.table().items()} == {
        "static": {0, 1},
        "dynamic": {0, 1},
    }
    (judgement,) = study.verdicts()  # by the runs of all: after two steps, all are on the plateau
    assert "2 of 2 runs of dynamic ended on the unigram plateau" in judgement.decisive[0].why
    record = records.read(study.path)
    assert record.ended and len(record.planned) == 4 and record.study.seeds == 2
    assert [len(part["cells"]) for part in record.plan["parts"]] == [2, 1, 1]
    text = page(record).markdown()
    assert "cells from 3 parts (commit, machine, cells): " in text and "| tuesday |" in text
    # One seed of a part decides nothing; the power is that of the seeds of all parts.
    (alone,), (whole,) = (
        json.loads((folder / PLAN).read_text(encoding="utf-8"))["power"].values()
        for folder in (parts[0], study.path)
    )
    assert (alone["seeds"], alone["detectable"]) == (1, None)
    assert whole["seeds"] == 2 and whole["detectable"] > 0


def test_the_power_of_all_seeds_is_by_the_noise_of_their_size(
    parts: list[Path], tmp_path: Path
) -> None:
    least = []
    for size in ("mini", "6x512"):
        for part in parts:
            altered(part / PLAN, size=size)
        study = clozelab.merge_studies(parts, out=tmp_path / size, progress=False)
        plan = json.loads((study.path / PLAN).read_text(encoding="utf-8"))
        least += [power["detectable"] for power in plan["power"].values()]
    assert least[1] < least[0] / 2  # losses at 6 × 512 have far less noise


def test_verdicts_on_cells_of_which_some_are_missing_hold_so_far(
    parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = json.loads((parts[0] / "result.json").read_text(encoding="utf-8"))["cells"]
    altered(parts[0] / "result.json", cells=done[:1])  # of its two cells
    assert main(["merge", *map(str, parts), "--out", str(tmp_path / "whole")]) == 0
    output = capsys.readouterr().out
    assert "so far: " in output and "at this scale" not in output


def test_claims_on_variants_of_two_folders_come_from_the_study(
    home: Path, parts: list[Path], tmp_path: Path
) -> None:
    apart = parts[1:]
    study = clozelab.merge_studies(apart, out=tmp_path / "a", progress=False)
    assert study.verdicts() == [] and [*study.table()] == ["static", "dynamic"]
    again = clozelab.merge_studies(
        apart[::-1], out=tmp_path / "b", study=home / "masks.toml", progress=False
    )
    assert len(again.verdicts()) == 1 and [*again.table()] == ["static", "dynamic"]


def test_a_claim_that_was_reworded_is_still_one_claim(
    home: Path, parts: list[Path], tmp_path: Path
) -> None:
    text = (home / "masks.toml").read_text("utf-8")
    claim = text.split("[[claims]]")[1]
    (tmp_path / "masks.toml").write_text(
        text.replace(claim, re.sub('says = ".*"', 'says = "So."', claim))
    )
    study = clozelab.merge_studies(
        parts, out=tmp_path / "a", study=tmp_path / "masks.toml", progress=False
    )
    (judgement,) = study.verdicts()
    assert judgement.claim.says != "So."  # as it was stated when it was run


def test_a_merged_study_goes_on_and_does_nothing_twice(
    home: Path, parts: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "whole"
    clozelab.merge_studies(parts[:2], out=out, progress=False)
    corpus = tmp_path / "moved"  # by its fingerprint it is the same
    shutil.copytree(store("wordpiece"), corpus)
    before = files(out / "cells")
    study = clozelab.Study(ran(home / "masks.toml", out, seeds=2, data=corpus))
    assert before.items() <= files(out / "cells").items()
    assert len(study.result()["cells"]) == 4
    record = records.read(out)
    assert [len(part["cells"]) for part in record.plan["parts"]] == [2, 1]
    assert "| run since |" in page(record).markdown()
    # Merged again, its parts are still known; the cells that both have are the same.
    clozelab.merge_studies([parts[0], out], out=tmp_path / "all", progress=False)
    merged_parts = records.read(tmp_path / "all").plan["parts"]
    assert [
        (merged_part["folder"], len(merged_part["cells"]))
        for merged_part in merged_parts
        if merged_part["cells"]
    ] == [
        ("monday", 2),
        ("tuesday", 1),
        ("whole", 1),
    ]


def test_corpora_that_variants_have_of_their_own_are_merged(tmp_path: Path) -> None:
    own = {**DYNAMIC, "name": "own", "data": "other"}
    file = write_study(tmp_path / "masks.toml", STATIC, own, seeds=1)
    usual, other = store("wordpiece"), f"other={store('wordpiece', documents=30)}"
    first = ran(file, tmp_path / "monday", variants="static")
    second = ran(file, tmp_path / "tuesday", variants="own", data=[usual, other])
    out = tmp_path / "whole"
    study = clozelab.merge_studies([first, second], out=out, progress=False)
    before = study.result()
    assert json.loads((out / PLAN).read_text("utf-8"))["data"] == [usual, other]
    assert clozelab.Study(ran(file, out, data=[usual, other])).result() == before


def test_an_unfinished_or_failed_cell_gives_way_to_a_finished_one(
    parts: list[Path], tmp_path: Path
) -> None:
    failed = Path(shutil.copytree(parts[0], tmp_path / "failed"))
    result = Run(failed).result() or {}
    result["cells"][0] |= {"scores": {}, "failed": "out of memory"}
    Run(failed).write_result(result)
    altered(failed / PLAN)
    study = clozelab.merge_studies([failed, parts[0]], out=tmp_path / "whole", progress=False)
    assert [cell["failed"] for cell in study.result()["cells"]] == [None, None]


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"size": "tiny"}, "another size"),
        ({"amount": 3.0}, r"another amount of training a cell \(3 steps, not 2 steps\)"),
        ({"made": {"variant static": "0"}}, "another variant static than"),
        ({"made": {"protocol of static": "bert"}}, "another protocol of static"),
        ({"steps": {"static": 7}}, "another number of steps of static"),
    ],
)
def test_what_was_planned_otherwise_is_refused(
    parts: list[Path], tmp_path: Path, change: dict[str, Any], phrase: str
) -> None:
    altered(parts[1] / PLAN, **change)
    with pytest.raises(UserError, match=rf"tuesday: has {phrase}.*; only cells of the same"):
        clozelab.merge_studies(parts, out=tmp_path / "whole", progress=False)
    assert not (tmp_path / "whole").exists()


def test_other_task_files_are_refused_wherever_they_lie(parts: list[Path], tmp_path: Path) -> None:
    for part, digest in zip(parts, ("1", "2", "1"), strict=True):
        digests = json.loads((part / PLAN).read_text(encoding="utf-8"))["made"]
        altered(part / PLAN, made={**digests, f"file /{part.name}/sst2/dev.tsv": digest})
    with pytest.raises(UserError, match=r"tuesday: has another task file sst2/dev.tsv than"):
        clozelab.merge_studies(parts, out=tmp_path / "whole", progress=False)
    clozelab.merge_studies([parts[0], parts[2]], out=tmp_path / "whole", progress=False)


def test_another_corpus_and_another_study_are_refused(parts: list[Path], tmp_path: Path) -> None:
    machine = parts[1] / "cells/static/seed-1/machine.toml"
    text = machine.read_text(encoding="utf-8")
    changed = re.sub(r'(?m)^"?fingerprint.*$', 'fingerprint = ["other"]', text)
    assert changed != text
    machine.write_text(changed, encoding="utf-8")
    with pytest.raises(UserError, match=r"tuesday: has another corpus than .*monday"):
        clozelab.merge_studies(parts, out=tmp_path / "whole", progress=False)
    file = parts[2] / STUDY
    changed = file.read_text(encoding="utf-8").replace("blocks = 8192", "blocks = 16")
    file.write_text(changed, encoding="utf-8")
    with pytest.raises(UserError, match="third: has another number of held-out blocks"):
        clozelab.merge_studies([parts[0], parts[2]], out=tmp_path / "whole", progress=False)


def test_a_cell_that_came_out_in_two_ways_is_refused(parts: list[Path], tmp_path: Path) -> None:
    other = Path(shutil.copytree(parts[0], tmp_path / "other"))
    result = Run(other).result() or {}
    result["cells"][0]["scores"]["held_out.masked_lm"] += 0.5
    Run(other).write_result(result)
    with pytest.raises(UserError, match=r"static/seed-0: is in .*monday and in .*other, with diff"):
        clozelab.merge_studies([parts[0], other], out=tmp_path / "whole", progress=False)


def test_the_command_says_what_it_joined_and_what_is_wrong(
    parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["merge", *map(str, parts), "--out", str(tmp_path / "whole")]
    assert main(command) == 0
    captured = capsys.readouterr()
    assert (
        "cells from 3 parts" in captured.err
        and "4 cells" in captured.err
        and "dynamic" in captured.out
    )
    assert "at this scale" in captured.out
    assert main(command) == 2 and "already exists" in capsys.readouterr().err
    assert main([*command[:2], "--out", str(tmp_path / "new")]) == 2
    assert "name two folders or more" in capsys.readouterr().err
    (tmp_path / "link").symlink_to(parts[0])
    for again in (parts[0], tmp_path / "link"):
        assert main(["merge", *map(str, (parts[0], again)), "--out", str(tmp_path / "new")]) == 2
        assert "is named twice; name each folder once" in " ".join(capsys.readouterr().err.split())
    empty = tmp_path / "empty"
    shutil.copytree(parts[0], empty)
    shutil.rmtree(empty / "cells")
    (empty / "result.json").unlink()
    assert main(["merge", str(parts[0]), str(empty), "--out", str(tmp_path / "new")]) == 2
    assert "empty: has no finished cell" in " ".join(capsys.readouterr().err.split())
