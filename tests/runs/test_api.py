"""A whole project in Python, through `clozelab.__all__` alone."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.corpora import ENVIRONMENT, texts, write
from support.processes import run_process

import clozelab
from clozelab.cli import COMMANDS
from clozelab.options import options

ON: dict[str, Any] = {"device": "cpu", "workers": 0, "progress": False}
TINY: dict[str, Any] = {"size": "tiny", "set": {"schedule.batch_size": 4}}


def labelled(place: Path) -> str:
    rows = [("a small wild cat", "animal"), ("a loaf of dark bread", "food")] * 8
    place.write_text("sentence\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
    return str(place)


def test_a_project_from_text_to_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    write(tmp_path / "text.jsonl", texts(60))
    quiet = {"progress": False}
    corpus = clozelab.build_corpus(
        "text.jsonl", out=tmp_path / "corpus", vocabulary=600, held_out=0.1, workers=1, **quiet
    )
    assert isinstance(corpus, clozelab.Corpus)
    preview = corpus.show_blocks("roberta", **TINY, count=1, **quiet)
    assert (
        corpus.decode(preview.blocks.ids) == preview.texts()[0] == repr(preview)[len("block 0: ") :]
    )
    assert repr(corpus.show_blocks("roberta", **TINY, count=0, **quiet)) == ""
    assert clozelab.Corpus.open(corpus) == corpus
    first = corpus.documents("train")
    assert repr(first).startswith(f"Documents({len(first)} documents, ")
    assert corpus.decode(first.ids[:9]) == corpus.decode(first.ids[:9].tolist())
    for ids in (None, "words", [[1, 2]]):
        with pytest.raises(clozelab.UserError, match="decode needs token ids"):
            corpus.decode(ids)
    assert "train: " in repr(corpus.show()) and clozelab.check_corpus(corpus).path == corpus.path
    compared: list[int] = []
    corpus.check(tell=compared.append)
    assert sum(compared) == sum(entry["bytes"] for entry in corpus.manifest["files"].values())

    events: list[Any] = []
    run = clozelab.pretrain(
        "bert", data=corpus, out="a", budget="4steps", on_event=events.append, **TINY, **ON
    )
    assert isinstance(run, clozelab.Run) and run.result() and run.recipe().name == "bert"
    assert {"Began", "Step", "Saved", "Ended"} <= {type(event).__name__ for event in events}
    assert run.losses("held_out")["masked_lm"][-1][0] == 4 == run.events("step")[-1]["step"]
    assert (
        run.curves()["masked_lm.loss"] == run.losses()["masked_lm"]
        and "learning_rate" in run.curves()
    )
    assert "masked_lm, held out" in run._repr_html_()
    assert run.resume(**ON).result() == run.result()
    assert clozelab.resume(run, **ON) == run == clozelab.pretrain(resume="a", **ON)

    student = clozelab.distil(
        run, data=[corpus], out=Path("b"), budget="2steps", set=TINY["set"], **ON
    )
    losses = clozelab.evaluate(student, data=corpus, device="cpu", blocks=8, **quiet)
    assert losses["masked_lm"]["loss"] > 0

    model = clozelab.load(run, **quiet)
    assert type(model) is clozelab.Model and clozelab.Model.__name__ == "Model"
    table = model._repr_html_()
    for cell in ("<td>bert</td>", "layers of", "<th>parameters</th>", "wordpiece", str(run.path)):
        assert cell in table, cell
    assert isinstance(model, clozelab.Model)
    filled = model.fill("the [MASK] was", top=2, device="cpu")
    assert len(filled.blanks[0]) == 2
    best = filled.blanks[0][0]
    assert repr(filled).startswith(f"{filled.text}\nblank 1: {best.token} {best.probability:.1%}, ")
    near = model.embed(["a cat", "bread"], near="a cat", device="cpu")
    assert repr(near).splitlines()[0] == "1.0000  line 1: a cat"
    scored = model.score(["a cat", ""], device="cpu", **quiet)
    first, second = repr(scored).splitlines()
    assert first.startswith(f"{scored[0].log_likelihood:.2f} nats, perplexity ")
    assert first.endswith(": a cat") and second == "0.00 nats: "
    assert clozelab.embed(run, ["a b", "c"], pool="mean", **quiet).vectors.shape == (2, 128)
    assert repr(clozelab.embed(run, ["a b"], pool="mean", **quiet)).endswith("of 1 text)")
    states, mask = model.encode(["a cat", "a loaf of dark bread"])
    assert states.shape[:2] == mask.shape and states.shape[2] == 128

    files = {"train": labelled(tmp_path / "t.tsv"), "dev": labelled(tmp_path / "d.tsv")}
    with pytest.raises(clozelab.UserError, match="did you mean held_out"):
        run.losses("heldout")
    with pytest.raises(clozelab.UserError, match='for the label: looked for my "label", found'):
        clozelab.finetune(run, "classify", out="t", columns={"label": 'my "label"'}, **files, **ON)
    tuned = clozelab.finetune(run, "classify", out="t", set={"steps": 2}, **files, **ON)
    assert tuned.result()["best"] == "seed-0"
    assert repr(tuned) == "Run('t', done)" and "<th>accuracy</th>" in tuned._repr_html_()
    assert clozelab.Run.open(tuned) == tuned == clozelab.Run(tuned)
    for read in (tuned.losses, tuned.curves, tuned.recipe, tuned.machine, tuned.resume):
        with pytest.raises(clozelab.UserError, match="name one of them, as in t/seed-0"):
            read()
    with pytest.raises(clozelab.UserError, match="t/seed-0: is a fine-tuning run"):
        clozelab.resume("t/seed-0")
    for diagnose in (clozelab.doctor, clozelab.resume):  # given the model, not its run
        with pytest.raises(clozelab.UserError, match=r"is a checkpoint; name its run, a$"):
            diagnose(model)
    with pytest.raises(clozelab.UserError, match="corpus: is a corpus, not a model"):
        clozelab.load(corpus)
    (prediction,) = tuned.predict("a small wild cat", device="cpu", **quiet)
    assert prediction.label in ("animal", "food")
    assert clozelab.load("t", **quiet).predict(["a small wild cat"])[0] == prediction
    assert "accuracy" in clozelab.evaluate(tuned, files["dev"], device="cpu", **quiet)["dev"]

    folder = run.export("hf", **quiet)
    again = clozelab.import_model(folder, "c", **quiet)
    assert again.load(**quiet).recipe.encoder == model.recipe.encoder

    study = clozelab.study(
        "roberta-masking", data=corpus, out="s", budget="1steps", seeds=1, tasks=[], **TINY, **ON
    )
    assert isinstance(study, clozelab.Study) and study.page.is_file()
    assert clozelab.Run.open("a") == run and clozelab.Study("s").table() == study.table()
    assert clozelab.Study(study) == study and repr(study) == "Study('s')"
    assert len(study.table()) == len(study.result()["cells"]) and study.verdicts()
    page = clozelab.report([run, student, tuned], out="page.html", **quiet)
    assert page.read_text().startswith("<!doctype html>")
    heard = capsys.readouterr()
    assert heard.out == "" and heard.err == ""


def test_recipes_are_read_changed_and_compared() -> None:
    recipe = clozelab.read("roberta", size="tiny", set=["masking.mask_rate=0.4"])
    assert isinstance(recipe, clozelab.Recipe)
    assert recipe.override({"masking.mask_rate": 0.15}) == clozelab.Recipe.read(
        "roberta", size="tiny"
    )
    keys = [key for key, _, _ in clozelab.diff("bert", "roberta")]
    assert keys == [key for key, _, _ in clozelab.read("bert").diff("roberta")]
    assert str(recipe) == recipe.to_toml()
    assert recipe.override("masking.mask_rate=0.15") == recipe.override({"masking.mask_rate": 0.15})
    with pytest.raises(clozelab.UserError, match="recipe None: is not a name or a path"):
        recipe.diff(None)  # type: ignore[arg-type]
    masked = clozelab.mask(recipe, "some words to mask", epoch=1)
    assert len(masked.epochs) == 1 and "\nepoch 1: " in repr(masked)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: clozelab.pretrain("bert", dta="c"), "no option dta; did you mean data?"),
        (lambda: clozelab.pretrain("bert", device="gpu"), "--device gpu: is unknown"),
        (lambda: clozelab.pretrain("bert", micro_batch=-1), "--micro-batch: -1 is not a whole"),
        (lambda: clozelab.pretrain("bert", on_event=3), "--on-event: 3 cannot be called"),
        (lambda: clozelab.read(None), "recipe: None is not a name, a path"),
        (lambda: clozelab.Run(None), "run: None is not a name, a path"),
        (lambda: clozelab.Study(None), "study: None is not a name, a path"),
        (lambda: clozelab.Study("nowhere").result(), "nowhere: is not a study"),
        (lambda: clozelab.register("masking", None, int), "register: name None: use small"),
        (lambda: clozelab.Corpus.open(None), "corpus: None is not a name, a path"),
        (lambda: clozelab.pretrain("bert", out=3), "--out: 3 is not a name, a path"),
        (lambda: clozelab.pretrain("bert", budget=30), "--budget: 30 has no unit; give one"),
        (lambda: clozelab.pretrain("bert", data="", out="r"), "data: is empty"),
        (lambda: clozelab.pretrain("brt", data="c", out="r"), "did you mean bert?"),
        (lambda: clozelab.report("r"), "report: missing a required argument: 'out'"),
        (lambda: clozelab.fill("nowhere", "[MASK]"), "nowhere"),
        (lambda: clozelab.embed("nowhere", pool="max"), "--pool max: is unknown"),
        (lambda: clozelab.matrix([], data="c"), "model: is empty; give one or more"),
        (lambda: clozelab.build_corpus(Path().glob("*.none"), out="c"), "input: is empty; give"),
    ],
)
def test_a_mistake_raises_a_user_error(call: Any, says: str) -> None:
    with pytest.raises(clozelab.UserError) as raised:
        call()
    assert says in str(raised.value)


def test_a_folder_without_a_name_has_none_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"train": labelled(tmp_path / "a.tsv"), "dev": labelled(tmp_path / "b.tsv")}
    with pytest.raises(clozelab.UserError, match=r"--out \.: has no name to call"):
        clozelab.finetune("m", "classify", out=".", after="sst2", **files)


def test_an_error_of_a_callback_leaves_nothing_locked(tmp_path: Path) -> None:
    def fail(event: Any) -> None:
        if type(event).__name__ in ("BuildProgress", "Saved"):
            raise ZeroDivisionError

    corpus, run = tmp_path / "corpus", tmp_path / "run"
    file = write(tmp_path / "text.jsonl", texts(30))
    building: dict[str, Any] = {"out": corpus, "vocabulary": 300, "workers": 1, "progress": False}
    # The errors are kept, as a notebook keeps them.
    with pytest.raises(ZeroDivisionError) as first:
        clozelab.build_corpus(file, **building, on_event=fail)
    clozelab.build_corpus(file, **building)
    saving: dict[str, Any] = {"budget": "2steps", "save_every": 1, **TINY, **ON}
    with pytest.raises(ZeroDivisionError) as second:
        clozelab.pretrain("roberta", data=corpus, out=run, **saving, on_event=fail)
    assert clozelab.resume(run, **ON).result()
    assert first.tb and second.tb


def test_a_mistake_is_one_sentence_unless_it_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def frames() -> int:
        with pytest.raises(clozelab.UserError) as raised:
            clozelab.show_corpus("nowhere")
        assert bool(raised.value.__suppress_context__) == ("CLOZELAB_DEBUG" not in os.environ)
        return len(raised.traceback)

    short = frames()
    monkeypatch.setenv("CLOZELAB_DEBUG", "1")
    assert short == 2 < frames()


@pytest.mark.parametrize("by", ["a file", "standard input"])
def test_a_script_that_starts_processes_is_not_run_again_by_them(tmp_path: Path, by: str) -> None:
    write(tmp_path / "text.jsonl", texts(20))
    script = (
        "import clozelab\nprint('begins')\n"
        "clozelab.build_corpus('text.jsonl', out='corpus', vocabulary=400, workers=2)\n"
    )
    (tmp_path / "script.py").write_text(script)
    done = run_process(
        [sys.executable, "script.py" if by == "a file" else "-"], input=script,
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith("begins\n"), done.stderr
    assert done.stdout.count("begins") == 1 and clozelab.Corpus.open(tmp_path / "corpus")


def test_a_script_that_must_be_run_again_for_its_parts_is_told_how(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    write(tmp_path / "text.jsonl", texts(20))
    part = "clozelab.register('measure', 'mine', lambda model: {'score': 1.0})"
    call = "clozelab.build_corpus('text.jsonl', out='corpus', vocabulary=400, workers=1)"
    script.write_text(f"import clozelab\n{part}\n{call}\n")
    command = [sys.executable, str(script)]
    done = run_process(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode and 'put its calls under if __name__ == "__main__":' in done.stderr
    assert "RuntimeError" not in done.stderr


def test_options_are_explained_in_their_order() -> None:
    lines = (inspect.getdoc(clozelab.embed) or "").partition("Args:\n")[2].splitlines()
    names = [line.split(":")[0].strip() for line in lines]
    assert names == list(inspect.signature(clozelab.embed).parameters)


def test_names_that_are_none_say_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"no 'pretrian'; it has .*pretrain"):
        clozelab.pretrian  # noqa: B018
    assert all(getattr(clozelab, name) for name in clozelab.__all__)


def test_every_option_says_what_it_means() -> None:
    for name, command in COMMANDS.items():
        for declared in options(command.call):
            assert declared.help, f"{name} {declared.flag}"
            assert f"    {declared.name}" in (inspect.getdoc(command.call) or ""), (
                f"{name} {declared.flag}"
            )


def test_the_public_functions_need_no_torch_to_be_looked_at() -> None:
    code = (
        "import sys, clozelab, inspect\n"
        "for name in clozelab.__all__:\n"
        "    if name not in ('Model', 'Corpus', 'Recipe'):\n"
        "        inspect.getdoc(getattr(clozelab, name))\n"
        "print([n for n in ('torch', 'tokenizers', 'pyarrow') if n in sys.modules])"
    )
    done = run_process(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
