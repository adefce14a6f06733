"""Plans as files: the same blocks, written once, found again, never half or damaged, removable."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import numpy as np
import pytest
from support import processes
from support.pretrain_runs import store

import clozelab
from clozelab import registry
from clozelab.blocks import PARTS, shuffle, visits
from clozelab.blocks.sentences import FullSentences
from clozelab.config import recipe as recipes
from clozelab.contracts import Documents, Plan, PlanStretch
from clozelab.errors import UserError
from clozelab.pretraining import plans
from clozelab.pretraining.plans import Drawn, planned, visited
from clozelab.pretraining.source import BlockSource
from clozelab.text import building
from clozelab.text.store import Corpus
from clozelab.text.store import plans as files_of_plans
from clozelab.text.store.pieces import SharedPieces

DRAWN = Drawn(key=5, seed=1, copy=0)
SETTINGS = {"stream_pair": {"reuse": 8, "rows": 4}}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """A small corpus that counts as a large one."""
    monkeypatch.setattr(plans, "_IN_MEMORY", 8)
    return Corpus.open(shutil.copytree(store("wordpiece"), tmp_path / "corpus"))


def plan_of(corpus: Corpus, part: Any = FullSentences(length=32), **changes: Any) -> Plan:  # noqa: B008
    drawn = DRAWN._replace(**changes)
    return planned(corpus, corpus.documents(), part, split="train", drawn=drawn)


def ids(plan: Plan) -> list[int]:
    token_ids: list[int] = plan.blocks(np.arange(len(plan))).ids.tolist()
    return token_ids


@pytest.fixture
def planned_again(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often blocks were planned since."""
    times, plain = [], FullSentences.visits

    def counted(self: Any, *arguments: Any) -> Any:
        times.append(1)
        return plain(self, *arguments)

    monkeypatch.setattr(FullSentences, "visits", counted)
    return lambda: len(times)


@pytest.mark.parametrize("name", PARTS)
def test_a_kept_plan_has_the_blocks_of_one_in_memory(name: str, corpus: Corpus) -> None:
    part = PARTS[name](length=32, **SETTINGS.get(name, {}))
    plain = part.plan(corpus.documents(), DRAWN.key)
    for _ in range(2):  # written, then found
        plan = plan_of(corpus, part)
        assert (len(plan), plan.notes) == (len(plain), plain.notes)
        assert ids(plan) == ids(plain)
    assert len(files_of_plans.listed(corpus)) == 1


def test_a_run_reads_the_same_from_files(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipes.read("bert", size="tiny")

    def read() -> list[Any]:
        source = BlockSource(recipe, corpus, blocks=recipe.blocks, split="train", seed=3)
        epochs, numbers, _ = source.take((0, 0), 3 * source.size // 2)
        examples = [source.examples(e, numbers[epochs == e], progress=0.0) for e in (0, 1)]
        return [
            epochs.tolist(),
            numbers.tolist(),
            *(example.columns["ids"].tolist() for example in examples),
        ]

    from_files = read()
    assert len(files_of_plans.listed(corpus)) == 4  # the pairs and the order of two epochs
    monkeypatch.setattr(plans, "_IN_MEMORY", 1 << 20)
    assert read() == from_files


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not tell")
@pytest.mark.parametrize("memory", [0, 1 << 40])
def test_more_than_memory_holds_is_read_without_reading_ahead(
    memory: int, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "memory", lambda: memory)
    found = plan_of(corpus)
    advised, name = dict[str, bool](), ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name = Path(line.split()[-1]).name if "-" in line.split()[0] else name
        if line.startswith("VmFlags") and name in ("ids.npy", "marks.npy", "starts.bin"):
            advised[name] = advised.get(name, False) or "rr" in line.split()
    assert len(found) and set(advised.values()) == {memory == 0}
    assert len(advised) == 3


def test_what_a_plan_depends_on_makes_another(corpus: Corpus) -> None:
    plan_of(corpus)
    plan_of(corpus, key=6, copy=1)
    plan_of(corpus, FullSentences(length=33))
    assert len(files_of_plans.listed(corpus)) == 3
    assert np.array_equal(visited(corpus, 9, shuffled=False, drawn=DRAWN), np.arange(9))


@pytest.mark.parametrize("damage", ["byte", "short", "seal", "missing", "unfinished"])
def test_a_damaged_plan_is_planned_again(
    damage: str, corpus: Corpus, planned_again: Callable[[], int]
) -> None:
    plain = ids(plan_of(corpus))
    (plan_files,) = files_of_plans.listed(corpus)
    column, entry = plan_files.path / "starts.bin", plan_files.path / "plan.json"
    raw = bytearray(column.read_bytes())
    if damage == "byte":
        raw[len(raw) // 2] ^= 1
        column.write_bytes(raw)
    elif damage == "short":
        column.write_bytes(raw[:-8])
    elif damage == "seal":
        entry.write_text(entry.read_text().replace('"length": 32', '"length": 31'))
    elif damage == "missing":
        column.unlink()
    else:  # as a process leaves it that is killed
        entry.unlink()
        assert "unfinished" in repr(files_of_plans.listed(corpus)[0])
    assert ids(plan_of(corpus)) == plain
    assert planned_again() == 2
    assert ids(plan_of(corpus)) == plain
    assert planned_again() == 2


def test_a_plan_of_another_recipe_is_refused(corpus: Corpus) -> None:
    """As where folders of plans were renamed, or copied from another corpus."""
    plain = ids(plan_of(corpus))
    (kept,) = files_of_plans.listed(corpus)
    plan_of(corpus, FullSentences(length=33), key=6)
    (other,) = {plan.path for plan in files_of_plans.listed(corpus)} - {kept.path}
    shutil.rmtree(kept.path)
    shutil.copytree(other, kept.path)
    with pytest.raises(UserError, match=r"something else \(blocks, key differ\); .*--remove"):
        plan_of(corpus)
    clozelab.corpus_plans(corpus, remove=True)
    assert ids(plan_of(corpus)) == plain


def test_one_writes_while_the_others_wait(corpus: Corpus, planned_again: Callable[[], int]) -> None:
    readings: list[list[int]] = []
    threads = [Thread(target=lambda: readings.append(ids(plan_of(corpus)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(readings) == 4 and all(reading == readings[0] for reading in readings)
    assert planned_again() == 1


def test_a_full_disk_is_told_and_leaves_nothing(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any, documents: Documents, key: int, pieces: SharedPieces) -> Any:
        yield pieces.piece("visit", 0, lambda _: [PlanStretch({"starts": np.arange(9)}, {})])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FullSentences, "stretches", full)
    with pytest.raises(UserError, match=r"no disk space left .* corpus plans .* --remove"):
        plan_of(corpus)
    assert not list((corpus.path / "plans").rglob("*.bin"))


def test_plans_of_a_corpus_that_cannot_be_written_lie_in_the_cache(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != corpus.path)
    plan_of(corpus)
    (plan_files,) = files_of_plans.listed(corpus)
    assert plan_files.path.is_relative_to(tmp_path / "cache")
    assert not (corpus.path / "plans").exists()


def test_a_format_from_outside_is_planned_in_memory(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass(frozen=True)
    class Mine:
        """May be edited at any time, and has only what a format must have."""

        provides: ClassVar[frozenset[str]] = frozenset()
        needs: ClassVar[frozenset[str]] = frozenset()
        length: int = 32

        def plan(self, documents: Documents, key: int) -> Plan:
            return FullSentences(self.length).plan(documents, key)

    class Derived(FullSentences):
        """Not registered."""

    monkeypatch.setitem(registry._outside["blocks"], "mine", (Mine, __name__))
    monkeypatch.setitem(PARTS, "mine", Mine)
    for part in (Mine(), Derived(length=32)):
        assert ids(plan_of(corpus, part)) == ids(plan_of(corpus))
    assert len(files_of_plans.listed(corpus)) == 1


def test_plans_are_listed_and_removed(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    from clozelab.cli import main

    plain = ids(plan_of(corpus))
    visited(corpus, 9, shuffled=True, drawn=DRAWN)
    assert {tuple(plan.purpose)[2] for plan in clozelab.corpus_plans(corpus)} == {"blocks", "order"}
    assert not clozelab.corpus_plans(corpus, unused=1, remove=True)
    assert main(["corpus", "plans", str(corpus.path)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "full_sentences, length 32, o" in output and "train, seed 1, copy 0" in output
    assert "the order of 9 blocks, seed 1, epoch 0" in output
    assert main(["corpus", "plans", str(corpus.path), "--remove"]) == 0
    assert "2 plans" in capsys.readouterr().out
    assert not clozelab.corpus_plans(corpus)
    left = {file.name for file in (corpus.path / "plans").rglob("*") if file.is_file()}
    assert left <= {".lock"}  # which another process may be waiting for
    assert main(["corpus", "plans", str(corpus.path), "--unused", "-1"]) == 2
    assert ids(plan_of(corpus)) == plain


def columns_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("*.bin")}


def damage(column: Path) -> None:
    """Leave a column as a power cut may: with its size, but without its content."""
    column.write_bytes(bytes(column.stat().st_size))


@pytest.fixture
def finely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few hundred entries."""
    monkeypatch.setattr(visits, "_WINDOW", 48)
    monkeypatch.setattr(visits, "_PART", 2)
    monkeypatch.setattr(shuffle, "_BUCKET", 64)
    monkeypatch.setattr(shuffle, "_PIECE", 256)


@pytest.mark.usefixtures("finely")
@pytest.mark.parametrize("name", ["segment_pair", "full_sentences", "stream_pair"])
def test_an_interrupted_plan_goes_on(
    name: str, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = PARTS[name](length=32, **SETTINGS.get(name, {}))
    pieces_made: list[tuple[str, int]] = []
    limit = 1_000_000
    plain = SharedPieces._write

    def counted(self: Any, stage: str, number: int, make: Any) -> None:
        if len(pieces_made) == limit:
            raise KeyboardInterrupt
        pieces_made.append((stage, number))
        plain(self, stage, number, make)

    monkeypatch.setattr(SharedPieces, "_write", counted)
    whole = ids(plan_of(corpus, part))
    (plan_files,) = files_of_plans.listed(corpus)
    expected, needed = columns_of(plan_files.path), pieces_made.copy()
    assert len(needed) > 8 and not (plan_files.path / "work").exists()
    plan_files.remove()
    for limit in (5, len(needed) - 2):
        pieces_made.clear()
        with pytest.raises(KeyboardInterrupt):
            plan_of(corpus, part)
        done, (left,) = pieces_made.copy(), files_of_plans.listed(corpus)
        assert "unfinished" in repr(left) and left.bytes > 0
        if limit == 5:
            column = next((left.path / "work").glob("*-00001/*.bin"))
            damage(column)
            done = [piece for piece in done if f"{piece[0]}-{piece[1]:05}" != column.parent.name]
        pieces_made.clear()
        limit = 1_000_000
        assert ids(plan_of(corpus, part)) == whole
        assert sorted(pieces_made) == sorted(set(needed) - set(done))  # nothing twice
        assert columns_of(plan_files.path) == expected
        files_of_plans.listed(corpus)[0].remove()


def test_plans_are_listed_while_one_is_written(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pieces are removed between one look and the next."""
    plan_of(corpus)
    (plan,) = files_of_plans.listed(corpus)
    for name in ("table-00000", "table-00001"):
        (plan.path / "work" / name).mkdir(parents=True)
        (plan.path / "work" / name / "sizes.bin").touch()
    plain = os.scandir

    def scanned(place: Any) -> Any:
        entries = plain(place)
        if str(place).endswith("table-00000"):
            shutil.rmtree(plan.path / "work")
        return entries

    monkeypatch.setattr(os, "scandir", scanned)
    (again,) = files_of_plans.listed(corpus)
    assert again.path == plan.path and again.purpose == plan.purpose


@pytest.mark.usefixtures("finely")
def test_a_damaged_piece_is_made_again_from_stages_that_were_dropped(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ids(plan_of(corpus))
    files_of_plans.listed(corpus)[0].remove()
    written = SharedPieces._write

    def stopped(self: Any, stage: str, number: int, make: Any) -> None:
        if stage == "table":
            raise KeyboardInterrupt
        written(self, stage, number, make)

    monkeypatch.setattr(SharedPieces, "_write", stopped)
    with pytest.raises(KeyboardInterrupt):
        plan_of(corpus)
    work = files_of_plans.listed(corpus)[0].path / "work"
    assert not [*work.glob("visited-*/*.bin")]
    damage(work / "visit-00000" / "running.bin")
    monkeypatch.setattr(SharedPieces, "_write", written)
    assert ids(plan_of(corpus)) == plain


@pytest.mark.usefixtures("finely")
def test_pieces_that_an_earlier_version_left_are_not_used(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ids(plan_of(corpus))
    files_of_plans.listed(corpus)[0].remove()
    written = SharedPieces._write

    def stopped(self: Any, stage: str, number: int, make: Any) -> None:
        if stage == "table":
            raise KeyboardInterrupt
        written(self, stage, number, make)

    monkeypatch.setattr(SharedPieces, "_write", stopped)
    with pytest.raises(KeyboardInterrupt):
        plan_of(corpus)
    work = files_of_plans.listed(corpus)[0].path / "work"
    earlier = [PlanStretch({"starts": np.arange(9), "running": np.arange(10)}, {"split": 0})]
    shutil.rmtree(work / "visit-00000")
    written(SharedPieces(work), "visit", 0, lambda _: earlier)
    (work / "version").write_text("1")
    monkeypatch.setattr(SharedPieces, "_write", written)
    assert ids(plan_of(corpus)) == plain


@pytest.mark.usefixtures("finely")
def test_a_plan_whose_writer_was_killed_goes_on(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ids(plan_of(corpus))
    (plan_files,) = files_of_plans.listed(corpus)
    expected = columns_of(plan_files.path)
    plan_files.remove()
    killed = f"""
import os, signal
from clozelab.blocks import shuffle, visits
from clozelab.blocks.sentences import FullSentences
from clozelab.pretraining import plans
from clozelab.text import building
from clozelab.text.store import Corpus
from clozelab.text.store.pieces import SharedPieces
visits._WINDOW, visits._PART, shuffle._BUCKET, shuffle._PIECE, plans._IN_MEMORY = 48, 2, 64, 256, 8
plain = SharedPieces._write
def written(self, stage, number, make):
    if (stage, number) == ("table", 5):
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, stage, number, make)
SharedPieces._write = written
corpus = Corpus.open({str(corpus.path)!r})
drawn = plans.Drawn(5, 1, 0)
blocks = FullSentences(length=32)
plans.planned(corpus, corpus.documents(), blocks, split="train", drawn=drawn)
"""
    env = {**os.environ, "PYTHONPATH": processes.SOURCE}
    process = processes.run_process([sys.executable, "-c", killed], env=env)
    assert process.returncode == -signal.SIGKILL
    work = plan_files.path / "work"
    pieces = {piece.name for piece in work.iterdir() if piece.is_dir()}
    assert {"visit-00000", "table-00000", "table-00004"} <= pieces
    assert "table-00005" not in pieces
    pieces_made: list[str] = []

    def written(self: Any, stage: str, number: int, make: Any) -> None:
        pieces_made.append(f"{stage}-{number:05}")
        plain_written(self, stage, number, make)

    plain_written = SharedPieces._write
    monkeypatch.setattr(SharedPieces, "_write", written)
    assert ids(plan_of(corpus)) == plain
    assert pieces_made and pieces_made[0] == "table-00005" and not pieces & {*pieces_made}
    assert columns_of(plan_files.path) == expected


@pytest.mark.parametrize("name", ["segment_pair", "stream_pair"])
def test_processes_that_help_write_the_same_bytes(
    name: str, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = PARTS[name](length=32, **SETTINGS.get(name, {}))
    alone = ids(plan_of(corpus, part))
    (plan_files,) = files_of_plans.listed(corpus)
    expected = columns_of(plan_files.path)
    plan_files.remove()
    monkeypatch.setattr(plans, "_ONE_PROCESS", 8)
    monkeypatch.setattr(plans, "cores", lambda: 3)
    helped: list[str] = []
    plain = SharedPieces.all_pieces

    def waited(self: Any, stage: str, count: int, make: Any) -> Any:
        """Leave the pieces to the helpers, but for the last one."""
        while not all(self._is_finished(stage, number) for number in range(count)):
            time.sleep(0.02)
        helped.append(stage)
        return plain(self, stage, count, make)

    monkeypatch.setattr(SharedPieces, "all_pieces", waited)
    assert ids(plan_of(corpus, part)) == alone
    assert columns_of(plan_files.path) == expected
    assert helped[-1] == ("table" if name == "segment_pair" else "stream")


def test_the_memory_of_a_group_is_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = building.memory()
    assert whole > 1 << 20
    monkeypatch.setattr(building, "_GROUPS", tmp_path)
    files = {tmp_path / "memory.max", tmp_path / "memory" / "memory.limit_in_bytes"}
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("max\n")
    alone = building.memory()
    assert alone >= whole
    for file in files:
        file.write_text("1048576\n")
    in_groups = Path("/proc/self/cgroup").exists()
    assert building.memory() == (1 << 20 if in_groups else alone)
