"""Planted illnesses are found, each by its check; healthy runs are called healthy."""

from __future__ import annotations

import json
import math
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support import doctor_runs
from support.corpora import build, refused, write
from support.corpora import run as command
from support.doctor_runs import diagnose, findings, learning, trainer
from support.pretrain_runs import store, teacher
from support.texts import chinese, corpus, tokenizer

from clozelab import data
from clozelab.config import recipe as recipes
from clozelab.diagnosis.examine import examine
from clozelab.diagnosis.reading import read_run
from clozelab.diagnosis.recorded import recorded
from clozelab.diagnosis.text import _Split, bigram_entropy, shared_share
from clozelab.diagnosis.weights import tables
from clozelab.errors import UserError
from clozelab.files import locked
from clozelab.packed import offsets
from clozelab.runs.directory import Run
from clozelab.text.tokenizers import ByteBpe

RESULTS = Path(__file__).parents[3] / "results"


def level(share: float) -> float:
    """The loss of the plateau of the text that patients have."""
    return 6.0


def falls_back(share: float) -> float:
    return learning(2 * share) if share < 0.5 else 6.5


def jumps(share: float) -> float:
    return learning(share) + 2.0 * (round(share * doctor_runs.STEPS) in (120, 160, 200))


def grows(share: float) -> float:
    return float(math.exp(5 * share))


# Records alone: what is planted, and the check that finds it.
ILL: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "plateau": ("plateau", {"loss": level}, ()),
    "collapse": ("collapse", {"loss": falls_back}, ()),
    "spikes": ("spikes", {"loss": jumps}, ()),
    "growing gradients": ("gradient norm", {"norm": grows}, ()),
    "vanished gradients": ("gradient norm", {"norm": lambda share: 0.0, "loss": level}, ()),
    "clipped": ("gradient norm", {"norm": lambda share: 50.0}, ("optimiser.clip=1",)),
    "too small steps": ("small steps", {"loss": level}, ("optimiser.learning_rate=1e-6",)),
    "too few masks": ("masked share", {}, ("masking.mask_rate=0.02",)),
    "too many masks": ("masked share", {}, ("masking.mask_rate=0.9",)),
    "blind at masks": ("accuracy", {"right": {"mask": 0.01, "random": 0.3, "same": 0.99}}, ()),
    "learned by heart": ("overfitting", {"held_out": lambda share: 4 + 4 * share}, ()),
    "feed-bound": ("speed", {"waited": 0.06}, ()),
}


# Illnesses that cost the least to plant, or are the commonest; the others are left to `make test`.
QUICK = ("plateau", "spikes", "too few masks")
THOROUGH = [pytest.param(n, marks=[pytest.mark.thorough] * (n not in QUICK)) for n in ILL]


@pytest.mark.parametrize("name", THOROUGH)
def test_a_planted_illness_is_found(tmp_path: Path, name: str) -> None:
    check, options, changes = ILL[name]
    place = doctor_runs.run(tmp_path / "run", *changes, **options)
    diagnosis = diagnose(place)
    assert check in findings(diagnosis), diagnosis
    findings(diagnosis, "caution")
    assert not diagnosis.healthy and diagnosis.findings[0].level == "ill"


def test_what_is_planted_is_all_that_is_found(tmp_path: Path) -> None:
    healthy = diagnose(doctor_runs.run(tmp_path / "run"))
    assert healthy.healthy, healthy
    assert not findings(healthy) and not findings(healthy, "caution")
    checks = {"plateau", "spikes", "gradient norm", "small steps", "masked share", "accuracy"}
    assert checks <= findings(healthy, "healthy").keys()
    assert healthy.losses["bigram"] < healthy.losses["unigram"] < healthy.losses["uniform"]
    assert healthy.verdict.startswith("healthy: ") and healthy.state == "done, 240 steps"


def test_the_warm_up_of_a_run_that_was_slower_than_planned_is_over_sooner(tmp_path: Path) -> None:
    # As planned it takes 600 of 4,800 steps, more than this run has in all.
    planned = ("schedule.steps=4800", "schedule.warmup=600", "schedule.refits=[[12, 240]]")

    def jumps(share: float) -> float:
        return doctor_runs.learning(share) + (2.0 if share in (0.3, 0.4, 0.5) else 0.0)

    place = doctor_runs.run(tmp_path / "run", *planned, loss=jumps)
    found = findings(diagnose(place), "ill")
    assert found["spikes"].title == "the loss has 3 spikes"


def test_a_jump_of_several_lines_is_one_spike(tmp_path: Path) -> None:
    def jumps_once(share: float) -> float:
        return learning(share) + 2.0 * (120 <= round(share * doctor_runs.STEPS) < 124)

    spikes = findings(diagnose(doctor_runs.run(tmp_path / "run", loss=jumps_once)), "caution")
    assert spikes["spikes"].title == "the loss has 1 spike"


def test_a_loss_that_is_high_at_the_very_end_has_not_risen_for_good(tmp_path: Path) -> None:
    def high_at_last(share: float) -> float:
        return learning(share) + 2.0 * (share > 0.96)

    place = doctor_runs.run(tmp_path / "run", loss=high_at_last)
    assert "collapse" not in {result.check for result in diagnose(place).findings}


def test_a_norm_is_large_only_beside_the_weights_of_the_losses(tmp_path: Path) -> None:
    settings = ("optimiser.clip=1", "objectives.0.weight=10")
    place = doctor_runs.run(tmp_path / "run", *settings, norm=lambda share: 50.0)
    assert "gradient norm" in findings(diagnose(place), "healthy")


def test_a_log_alone_tells_the_same_and_guesses_nothing(tmp_path: Path) -> None:
    place = doctor_runs.run(tmp_path / "run", loss=level)
    alone = read_run(place, log_only=True)
    plateau = findings(examine(alone))["plateau"]
    assert (
        plateau == findings(diagnose(place))["plateau"] and alone.text is None and not alone.tables
    )
    Run(Path(place)).remember({"data": [f"{tmp_path / 'gone'}:1"]})
    assert "plateau" not in findings(examine(read_run(place, log_only=True)))  # by no known entropy
    assert "plateau" in findings(examine(read_run(place)))


def test_tokens_of_causal_steps_are_seen_too(tmp_path: Path) -> None:
    toml = recipes.to_toml(recipes.read("causal_then_masked", size="tiny"))
    run = Run.create(tmp_path / "run", recipe_toml=toml, machine={})
    for step in range(1, 41):
        loss = {"causal_lm" if step <= 20 else "masked_lm": {"loss": 5.0}}
        run.append({"kind": "step", "step": step, "tokens": 100 + step, **loss})
    log = read_run(str(run.path), log_only=True).log
    assert log is not None and log.steps.tolist() == [*range(21, 41)]
    assert log.tokens.tolist() == [sum(range(101, 101 + step)) for step in range(21, 41)]


def test_a_run_that_went_on_on_a_gpu_has_the_speed_of_the_gpu(tmp_path: Path) -> None:
    place = doctor_runs.run(tmp_path / "run")
    log = Path(place) / "metrics.jsonl"
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [entry for entry in entries if entry["kind"] == "step"]
    for entry in steps[len(steps) // 2 :]:
        entry |= {"busy": entry["seconds"] / 20, "seconds": entry["seconds"] / 10}
    log.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    times = read_run(place).log.times  # type: ignore[union-attr]
    assert times is not None and times.busy == pytest.approx(times.seconds / 2)
    assert "speed" in {result.check for result in diagnose(place).findings}


@pytest.mark.thorough
def test_steps_that_are_far_too_long_have_one_remedy(tmp_path: Path) -> None:
    rate = ("optimiser.learning_rate=100",)
    place = doctor_runs.run(tmp_path / "a", *rate, loss=lambda share: 4e4, norm=lambda share: 5e4)
    remedies = {name: finding.remedy for name, finding in findings(diagnose(place)).items()}
    assert "halve the learning rate, which is 100" in remedies["level"]
    assert not {"plateau", "gradient norm", "accuracy"} & {*remedies}


@pytest.mark.thorough
def test_nan_is_traced_to_what_came_before(tmp_path: Path) -> None:
    sudden = doctor_runs.run(tmp_path / "sudden", ended=False)
    Run(Path(sudden)).append({"kind": "diverged", "step": 241, "what": "step 241: the loss is nan"})
    finding = findings(diagnose(sudden))["not finite"]
    assert "suddenly" in finding.title
    assert finding.evidence.startswith("first at step 241: the loss is nan")
    nan = {"masked_lm": {"loss": math.nan}, "norm": math.nan}
    lost = doctor_runs.run(tmp_path / "lost", ended=False)
    for step in range(241, 281):  # as old versions, which went on
        Run(Path(lost)).append({"kind": "step", "step": step, "tokens": 1, "seconds": 1.0, **nan})
    evidence = findings(diagnose(lost))["not finite"].evidence
    assert evidence.startswith("first at step 241: the loss of masked_lm, in 40 lines of the log")
    rate = ("optimiser.learning_rate=100",)
    high = doctor_runs.run(tmp_path / "high", *rate, ended=False)
    Run(Path(high)).append({"kind": "diverged", "step": 241, "what": ""})
    finding = findings(diagnose(high))["not finite"]
    assert "learning rate is far too high" in finding.cause
    steep = doctor_runs.run(tmp_path / "steep", norm=lambda share: 30.0 if share > 0.99 else 1.0)
    Run(Path(steep)).append({"kind": "diverged", "step": 241, "what": ""})
    finding = findings(diagnose(steep))["not finite"]
    assert "gradients grew" in finding.title and "learning rate" in finding.remedy
    # A run that was resumed behind it is well again.
    Run(Path(steep)).resumed(240)
    assert "not finite" not in findings(diagnose(steep))


@pytest.mark.thorough
def test_a_young_run_may_be_on_the_plateau(tmp_path: Path) -> None:
    place = doctor_runs.run(tmp_path / "run", loss=level, ended=False)
    recipe = Run(Path(place)).recipe().override({"schedule.steps": 4000})
    Run(Path(place)).recipe_file.write_text(recipe.to_toml(), encoding="utf-8")
    with locked(Path(place)):
        young = diagnose(place)
    assert young.state == "running, step 240 of 4,000"
    assert "plateau" in findings(young, "caution") and young.healthy
    assert diagnose(place).state == "stopped, step 240 of 4,000"


@pytest.mark.thorough
def test_recorded_runs_are_named_beside_a_plateau(tmp_path: Path) -> None:
    place = doctor_runs.run(
        tmp_path / "run", "encoder.hidden_size=256", "encoder.layers=4", loss=level
    )
    finding = findings(diagnose(place))["plateau"]
    assert "recorded runs of about this size left it" in finding.evidence
    assert "this run has seen 24" in finding.evidence
    slow = doctor_runs.run(
        tmp_path / "slow", "encoder.hidden_size=256", "encoder.layers=4", loss=lambda share: 7.0
    )
    assert "higher than in recorded runs" in findings(diagnose(slow), "caution")["level"].title


@pytest.mark.parametrize("name", ["h200-tasks/encoder", "h200-swift/encoder", "h200-small/roberta"])
def test_recorded_runs_are_healthy(name: str) -> None:
    diagnosis = diagnose(str(RESULTS / name))
    assert diagnosis.healthy and not findings(diagnosis, "caution"), diagnosis
    assert "plateau" in findings(diagnosis, "healthy")
    assert any("--data" in line for line in diagnosis.unknown)


@pytest.mark.parametrize(
    ("study", "cell", "ill"),
    [
        ("calibration-untuned", "whole/seed-0", set()),
        ("albert-sharing", "full-none/seed-0", set()),
        ("nsp-saturation", "full-weight/seed-0", {"plateau"}),
        ("roberta-batch", "8k/seed-0", {"plateau", "small steps"}),
        ("roberta-masking", "one-copy/seed-0", {"overfitting"}),
    ],
)
def test_runs_of_recorded_studies(tmp_path: Path, study: str, cell: str, ill: set[str]) -> None:
    for line in (RESULTS / study / "cells.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if f"{cell}/" in entry["file"] and "/" not in entry["file"].partition(f"{cell}/")[2]:
            (tmp_path / Path(entry["file"]).name).write_text(entry["text"], encoding="utf-8")
    assert {*findings(diagnose(str(tmp_path)))} == ill


def test_a_trainer_of_others_is_read(tmp_path: Path) -> None:
    well = diagnose(trainer(tmp_path / "well"))
    assert well.healthy and not findings(well, "caution"), well
    assert well.state == "BertForMaskedLM, step 2,000 of 2,000"
    assert {"plateau", "small steps", "mask token"} <= findings(well, "healthy").keys()
    stuck = findings(diagnose(trainer(tmp_path / "stuck", lambda share: 6.4, rate=2e-5)))
    assert (
        "alone give about" in stuck["plateau"].evidence and "fine-tuning" in stuck["plateau"].cause
    )
    text = store("wordpiece", documents=60, variant="embedded")
    known = findings(diagnose(str(tmp_path / "stuck"), data=text))["plateau"].evidence
    assert "alone give 5.92" in known
    nan = trainer(tmp_path / "nan", norm=lambda share: math.nan if share > 0.5 else 1.0)
    finding = findings(diagnose(nan))["not finite"]
    assert "first at step 1,020: the loss" in finding.evidence and "bf16" in finding.remedy


def test_the_steps_of_a_run_under_way_are_those_that_it_will_take(tmp_path: Path) -> None:
    place = trainer(tmp_path / "begun")
    state = tmp_path / "begun" / "trainer_state.json"
    record = json.loads(state.read_text(encoding="utf-8"))
    record |= {"global_step": 200, "log_history": record["log_history"][:10]}
    state.write_text(json.dumps(record), encoding="utf-8")
    assert "small steps" in findings(diagnose(place), "healthy")


def test_a_checkpoint_that_goes_on_from_another_is_not_on_the_plateau(tmp_path: Path) -> None:
    """Domain adaptation: it begins below the plateau, and small steps are right."""
    place = trainer(tmp_path / "hf", lambda share: 2.5 - 0.3 * share, rate=2e-5, steps=200)
    diagnosis = diagnose(place)
    assert diagnosis.healthy and not {"plateau", "small steps"} & {
        result.check for result in diagnosis.findings
    }


def test_a_fine_tuning_of_others_is_not_taken_for_a_pretraining(tmp_path: Path) -> None:
    """Small steps are right for it; a loss that rounds to 0 is no NaN where no norm was logged."""
    classes = {"architectures": ["BertForSequenceClassification"]}
    loss = lambda share: 0.7 * (1 - share)  # noqa: E731
    tuned = diagnose(trainer(tmp_path / "tuned", loss, rate=2e-5, config=classes))
    assert tuned.healthy and "small steps" not in {each.check for each in tuned.findings}
    state = tmp_path / "tuned" / "trainer_state.json"
    (alone := tmp_path / "alone").mkdir()
    record = json.loads(state.read_text(encoding="utf-8"))
    for row in record["log_history"]:
        del row["grad_norm"]
    record["log_history"][-1]["loss"] = 0.0
    (alone / "trainer_state.json").write_text(json.dumps(record), encoding="utf-8")
    logged = diagnose(str(alone))
    assert logged.healthy and not findings(logged, "caution"), logged


def test_embeddings_that_never_move_are_found(tmp_path: Path) -> None:
    rows = np.arange(40, dtype=np.float32).reshape(10, 4)
    frozen, moving = tmp_path / "frozen", tmp_path / "moving"
    for folder, moved in ((frozen, 0.0), (moving, 1.0)):
        trainer(folder, config={"vocab_size": 8000})
        doctor_runs.weights(folder / "checkpoint-900", rows, 0.1)
        doctor_runs.weights(folder / "checkpoint-1000", rows + moved, 0.2)
    finding = findings(diagnose(str(frozen)))["embeddings"]
    assert "never change" in finding.title and "10 of 10 rows" in finding.evidence
    assert "embeddings" in findings(diagnose(str(moving)), "healthy")
    doctor_runs.weights(moving, rows + 1.0, 0.2)  # the last checkpoint once more
    assert "embeddings" in findings(diagnose(str(moving)), "healthy")
    shutil.rmtree(moving / "checkpoint-900")
    assert "embeddings" not in {result.check for result in diagnose(str(moving)).findings}
    doctor_runs.weights(frozen / "checkpoint-1000", rows, 0.1)
    assert "no weight changed" in findings(diagnose(str(frozen)))["embeddings"].title
    doctor_runs.weights(frozen / "checkpoint-1000", rows * np.nan, 0.1)
    assert "NaN" in findings(diagnose(str(frozen)))["not finite"].title


def test_a_row_of_which_one_number_moved_has_moved(tmp_path: Path) -> None:
    name, place = "encoder.embeddings.words.weight", tmp_path / "checkpoints" / "step-00000009"
    (place / "state").mkdir(parents=True)
    save_file({name: np.ones((3, 2), np.float32)}, place / "model.safetensors")
    moments = np.array([[0, 0], [0, 1], [2, 1]], np.float32)
    save_file({f"0/{name}/exp_avg_sq": moments}, place / "state" / "tensors.safetensors")
    (table,) = tables(tmp_path)
    assert (table.kind, table.rows, table.unmoved) == ("words", 3, [0])


@pytest.mark.thorough
def test_a_run_of_ours_tells_it_by_the_moments() -> None:
    finding = findings(diagnose(teacher()), "healthy")["embeddings"]
    # 600 words, 32 positions
    assert "632 of 1,112 rows changed, by Adam's moments" in finding.evidence


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("<mask>", "does not know its own mask token"),
        ("[UNK]", "uses one token in two roles"),
        ("the", "two mask tokens"),
    ],
)
def test_a_wrong_mask_token_is_found(tmp_path: Path, name: str, sentence: str) -> None:
    place = trainer(tmp_path / "hf")
    config = tmp_path / "hf" / "tokenizer_config.json"
    config.write_text(json.dumps({"mask_token": {"content": name}}), encoding="utf-8")
    diagnosis = diagnose(place)
    results = findings(diagnosis) | findings(diagnosis, "caution")
    assert sentence in results["mask token"].title


def test_a_mask_without_a_row_and_a_mask_in_pieces_are_found(tmp_path: Path) -> None:
    place = trainer(tmp_path / "hf", config={"vocab_size": 4})
    assert "no embedding" in findings(diagnose(place))["mask token"].title
    file = tmp_path / "hf" / "tokenizer.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings["added_tokens"] = [t for t in settings["added_tokens"] if t["content"] != "[MASK]"]
    file.write_text(json.dumps(settings), encoding="utf-8")
    trainer_config = {"architectures": ["BertForMaskedLM"], "vocab_size": 8000}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(trainer_config), encoding="utf-8")
    assert "splits its mask token" in findings(diagnose(place))["mask token"].title


def test_a_corpus_is_examined_alone() -> None:
    diagnosis = diagnose(data=store("wordpiece", documents=60, variant="embedded"))
    assert diagnosis.kind == "corpus" and diagnosis.healthy and not findings(diagnosis, "caution")
    assert "1,098 held out" in diagnosis.state


def test_a_text_that_repeats_itself_is_found(tmp_path: Path) -> None:
    """The same lines in every document are held out and trained on."""
    lines = [line for text in corpus()[:8] for line in text.split("\n")][:20]
    documents = [doctor_runs.sentences(lines, number) for number in range(30)]
    file = write(tmp_path / "a.jsonl", documents)
    build(file, tmp_path / "c", tokenizer("wordpiece"), held_out=0.2)
    results = findings(diagnose(data=str(tmp_path / "c")))
    assert {"held-out text", "repeated text"} <= results.keys()
    assert "“" in results["held-out text"].evidence


@pytest.mark.thorough
def test_a_tokenizer_that_splits_everything_is_found(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", corpus()[:20])
    build(file, tmp_path / "c", ByteBpe(vocabulary=270), held_out=0.2)
    finding = findings(diagnose(data=str(tmp_path / "c")))["tokenizer"]
    assert "no room for words" in finding.cause
    # One of characters does so on purpose.
    build(file, tmp_path / "d", tokenizer("chars"), held_out=0.2)
    letters = diagnose(data=str(tmp_path / "d"))
    assert "tokenizer" in findings(letters, "caution") and letters.healthy
    # The tokenizer of a folder of others is the one that counts.
    place = trainer(tmp_path / "hf", config={"vocab_size": 270})
    (tmp_path / "hf" / "tokenizer.json").write_text(
        (tmp_path / "c" / "tokenizer.json").read_text(encoding="utf-8"), encoding="utf-8"
    )
    text = store("wordpiece", documents=60, variant="embedded")
    assert "tokenizer" in findings(diagnose(place, data=text))


@pytest.mark.thorough
def test_a_text_that_the_tokenizer_does_not_know_is_found(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", chinese()[:20])
    build(file, tmp_path / "c", tokenizer("wordpiece", "small"), held_out=0.2)
    assert "unknown tokens" in findings(diagnose(data=str(tmp_path / "c")))


def test_weights_that_are_cut_off_are_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["BertForMaskedLM"]}')
    save_file({"a": np.zeros(100, np.float32)}, tmp_path / "model.safetensors")
    assert "weights" not in findings(diagnose(str(tmp_path)))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    assert "model.safetensors" in findings(diagnose(str(tmp_path)))["weights"].evidence


def test_short_sentences_are_not_counted_as_text_that_is_trained_on() -> None:
    def split(*sentences: list[int]) -> _Split:
        ids = np.concatenate(sentences)
        return _Split(ids, np.zeros(len(ids), np.uint8), offsets([len(one) for one in sentences]))

    short, long, new = [1, 2, 3], [*range(10, 20)], [*range(30, 47)]
    train = split(short, long)
    assert shared_share(split(short, long, new), train) == (10 / 30, 1)
    assert shared_share(split(short, new), train) == (0.0, None)
    assert shared_share(split(short), train) == (None, None)  # nothing can be told of it


def test_bigrams_know_what_follows() -> None:
    ring = np.tile(np.arange(10), 500)
    known = bigram_entropy(ring, ring[:100], 10)
    assert known is not None and known < 0.05
    drawn = np.random.default_rng(0).integers(0, 10, 20_000)
    even = bigram_entropy(drawn, drawn[::-1][:5000], 10)
    assert even == pytest.approx(math.log(10), abs=0.01)
    assert bigram_entropy(ring[:1], ring, 10) is None
    few = np.random.default_rng(1).integers(0, 1000, 500)  # pairs that come once tell nothing
    least = bigram_entropy(few[:400], few[400:], 1000)
    assert least is not None and least <= math.log(1000)


@pytest.mark.thorough
def test_it_is_printed_as_words_and_as_json(tmp_path: Path) -> None:
    place = doctor_runs.run(tmp_path / "run", loss=level)
    text = command("doctor", place)
    assert text.returncode == 0, text.stderr
    lines = text.stdout.splitlines()
    assert lines[0] == f"{place}  done, 240 steps" and lines[1].startswith("ill: ")
    assert lines[3].startswith("✗ stuck on the unigram plateau")
    parts = [part for line in lines[4:] for part in line.split()[:1]]  # a long line goes on
    parts = [part for part in parts if part in ("evidence", "likely", "try")]
    assert parts[:3] == ["evidence", "likely", "try"]
    written = json.loads(command("doctor", place, "--json").stdout)
    assert written == diagnose(place).as_json()
    assert not written["healthy"] and written["findings"][0]["check"] == "plateau"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "doctor needs a run, a Hugging Face directory, or --data CORPUS"),
        (["nowhere"], "nowhere: does not exist; name a run"),
        (["."], ".: is not a run, because it has no recipe.toml"),
        (["--data", "nowhere"], "nowhere"),
        (["hf", "--measure"], "hf: --measure needs a corpus"),
        (["bad"], "trainer_state.json: not JSON"),
        (["bad/trainer_state.json"], "trainer_state.json: is a file; name a run, a corpus"),
        (
            ["corpus", "--data", "corpus"],
            "corpus: is a corpus, not a model; leave --data out, or name a model",
        ),
        (["corpus", "--measure"], "--measure: needs a model"),
        (["hf", "--blocks", "256"], "--blocks: works only with --measure; leave it out"),
        (["hf", "--device", "cpu"], "--device: works only with --measure; leave it out"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    trainer(tmp_path / "hf")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "trainer_state.json").write_text("{", encoding="utf-8")
    (tmp_path / "corpus").symlink_to(store("wordpiece", documents=60, variant="embedded"))
    assert sentence in refused(command("doctor", *arguments, cwd=tmp_path))


def test_a_corpus_needs_no_option() -> None:
    place = store("wordpiece", documents=60, variant="embedded")
    assert diagnose(place).as_json() == diagnose(data=[place]).as_json()


@pytest.mark.thorough
def test_a_run_without_a_step_or_with_torn_lines_is_no_fault(tmp_path: Path) -> None:
    place = doctor_runs.run(tmp_path / "run", ended=False)
    log = tmp_path / "run" / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-20] + b"\n\xff\n{}\n")
    assert diagnose(place).healthy
    log.unlink()
    empty = diagnose(place)
    assert empty.state == "no step yet" and empty.healthy


def test_positions_that_were_never_trained_are_named(tmp_path: Path) -> None:
    """In a folder of others, whose blocks nobody knows."""
    word_table = np.zeros((10, 4), dtype=np.float32)
    trainer(tmp_path / "hf")
    for number in (0, 1):
        positions = np.zeros((8, 4), dtype=np.float32)
        positions[2:5] = number  # RoBERTa's begin at row 2
        doctor_runs.weights(
            tmp_path / "hf" / f"checkpoint-{number}", word_table + number, number, positions
        )
    finding = findings(diagnose(str(tmp_path / "hf")), "caution")["embeddings"]
    assert "beyond 3 tokens" in finding.title and "5 of 8 rows" in finding.evidence


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "wordpiece"])
def test_the_mask_of_every_kind_of_tokenizer_is_in_place(kind: str) -> None:
    diagnosis = diagnose(data=store(kind))
    assert "mask token" in findings(diagnosis, "healthy"), diagnosis


def test_the_guide_says_how_many_recorded_runs_left_the_plateau() -> None:
    runs = [run for run in recorded() if (run.layers, run.hidden_size) == (4, 256)]
    left = sorted(run.left_after for run in runs if run.left_after is not None)
    said = (RESULTS.parent / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert f"Of {len(runs)} recorded variants of 4 × 256" in said
    assert f"{len(left)} left it" in said
    assert f"had seen {left[len(left) // 2] / 1e6:.0f} million" in said.replace("\n", " ")


def test_what_recorded_runs_reached_is_up_to_date() -> None:
    rows = runpy.run_path(str(RESULTS.parent / "tools" / "recorded_runs.py"))["rows"]()
    assert [*rows] == json.loads(data.recorded().read_text(encoding="utf-8"))


@pytest.mark.thorough
def test_a_corpus_of_another_tokenizer_is_refused_and_a_damaged_one_noted(tmp_path: Path) -> None:
    other = store("wordpiece", documents=60, variant="embedded")
    with pytest.raises(UserError, match="its tokenizer is not that of"):
        diagnose(teacher(), data=other)
    copied = tmp_path / "corpus"
    shutil.copytree(other, copied)
    place = doctor_runs.run(tmp_path / "run", data=str(copied))
    (copied / "counts.npy").unlink()
    diagnosis = diagnose(place)
    assert diagnosis.healthy and "counts.npy: is missing" in diagnosis.unknown[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("log_history", {"a": 1}),
        ("log_history", [{"loss": "x", "step": None}, {"loss": 1e308, "step": 0}, 5]),
        ("max_steps", 10**30),
        ("architectures", 3),
        ("vocab_size", "many"),
    ],
)
def test_odd_values_in_the_files_of_others_are_no_fault(
    tmp_path: Path, key: str, value: Any
) -> None:
    place = trainer(tmp_path / "hf", steps=200)
    for name in ("config.json", "trainer_state.json"):
        settings = json.loads((tmp_path / "hf" / name).read_text(encoding="utf-8"))
        (tmp_path / "hf" / name).write_text(json.dumps({**settings, key: value}), encoding="utf-8")
    assert diagnose(place).findings
