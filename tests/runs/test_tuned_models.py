"""Fine-tuned models out to transformers and ONNX and back, and applied from Python."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.commands import output_of, refused
from tokenizers import Tokenizer

import clozelab
from clozelab import cli, data
from clozelab.config import recipe as recipes
from clozelab.errors import UserError
from clozelab.files import write_text
from clozelab.finetuning.config import FinetuneConfig
from clozelab.finetuning.kinds import Answer, Choose, Classify, Coreference, Regress, Tag, TaskKind
from clozelab.finetuning.task import TunedTask, to_toml
from clozelab.finetuning.tuned import build as build_tuned
from clozelab.models.build import build as build_model
from clozelab.models.load import load
from clozelab.runs.directory import TASK, Run, machine_facts
from clozelab.text.vocabulary import describe
from clozelab.training import checkpoint

torch.set_num_threads(1)

TOKENIZERS = {
    "bert": "wordpiece", "roberta": "byte_bpe", "xlnet": "unigram", "gpt": "char_bpe",
    "elmo": "wordpiece",
}  # fmt: skip
LENGTH = 64
TRANSFORMER = [
    "encoder.heads=2", "encoder.intermediate_size=128", "encoder.embedding_size=32",
    f"encoder.positions={LENGTH}",
]  # fmt: skip
SETTINGS = {
    "xlnet": [*TRANSFORMER[:2], f"blocks.reuse={LENGTH // 2}", "encoder.memory=0"],
    "elmo": ["encoder.cell_size=64"],
}
LABELS = ("noun.plant", "noun.act", "否定")  # not sorted, and not in the letters of one language
HEADS: dict[str, dict[str, Any]] = {
    "roberta": {"drop_first": True},
    "gpt": {"summary": "none", "bias": False},
}
QUESTION = {"stride": 16, "question_limit": 16}
# By the names of the folders: each kind, and each way to have it that differs outside.
KINDS: dict[str, Any] = {
    "classify": lambda head: Classify(LABELS, **head),
    "pairs": lambda head: Classify(
        ("no", "yes"), pair=True, metrics=("f1",), positive="yes", **head
    ),
    "regress": lambda head: Regress(pair=True, **head),
    "tag": lambda _: Tag(("O", "B-ANIMAL", "I-ANIMAL", "B-TIME"), metrics=("accuracy",)),
    "choose": lambda head: Choose(4, **{**head, "drop_first": False}),
    "answer": lambda _: Answer(longest=7, **QUESTION),
    "squad2": lambda _: Answer(impossible=True, threshold=-5.25, **QUESTION),
    "beam": lambda _: Answer(impossible=True, threshold=3.5, head="beam", beams=3, **QUESTION),
}
FAMILIES = ("bert", "roberta", "xlnet")
EVERY = [(r, k) for r in FAMILIES for k in KINDS if (r == "xlnet") or k != "beam"]
EVERY += [("gpt", "pairs")]


def sentences(count: int) -> list[list[str]]:
    """Lines of the embedded pairs, with their labels: those that fit into a block."""
    text = data.task("pairs", "dev").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines()[1:]]
    return [row for row in rows if len(" ".join(row)) < 75][:count]


def lines(kind: str) -> str:
    """A few labelled examples as a file that the command line takes."""
    rows = sentences(9)
    if kind == "classify":
        table = [["sentence", "label"]]
        table += [[row[0], LABELS[number % 3]] for number, row in enumerate(rows)]
    elif kind == "regress":
        table = [["sentence1", "sentence2", "score"]]
        table += [[*row[:2], str(number % 4 + 0.5)] for number, row in enumerate(rows)]
    else:
        table = [["sentence1", "sentence2", "label"], *rows]
    return "".join("\t".join(row) + "\n" for row in table)


def passages(impossible: bool) -> str:
    rows = []
    for number, (first, second, _) in enumerate(sentences(8)):
        there = {"text": first[4:11], "answer_start": 4}
        answers = [] if impossible and number % 2 else [there]
        paragraph = {"id": str(number), "question": second, "answers": answers}
        rows.append({"context": first, "qas": [paragraph]})
    return json.dumps({"version": "v2.0", "data": [{"title": "", "paragraphs": rows}]})


def file_of(folder: Path, kind: str) -> str:
    """The labelled examples of a kind."""
    if kind == "tag":
        words = [row[0].split() for row in sentences(6)]
        text = "\n\n".join("\n".join(f"{word} O" for word in line) for line in words) + "\n"
        name = "tag.conll"
    elif kind == "choose":
        rows = sentences(6)
        records = [
            {"question": row[0], "choices": [r[1] for r in rows[: 2 + n % 3]], "answer": n % 2}
            for n, row in enumerate(rows)
        ]
        text, name = "".join(json.dumps(row) + "\n" for row in records), "choose.jsonl"
    elif kind in ("answer", "squad2", "beam"):
        text, name = passages(kind != "answer"), f"{kind}.json"
    else:
        text, name = lines(kind), f"{kind}.tsv"
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def save(folder: Path, recipe: recipes.Recipe, model: torch.nn.Module, tokenizer: Tokenizer,
         task: TunedTask | None = None, origin: str | None = None) -> None:  # fmt: skip
    """A run as training leaves it, every weight at random."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * (0.5 if name.startswith("heads.") else 0.2))
    text = recipes.to_toml(recipe)
    texts = {"recipe.toml": text, "tokenizer.json": tokenizer.to_str()}
    facts: dict[str, Any] = {**machine_facts(), "data": ["books"], "from": origin, "seed": 0}
    run = Run.create(folder, recipe_toml=text, machine=facts)
    if task is not None:
        texts[TASK] = to_toml(task)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    checkpoint.save(run.checkpoints, 7, weights=weights, tensors={}, state={}, texts=texts, keep=0)


def opened(name: str) -> tuple[recipes.Recipe, Tokenizer]:
    tokenizer = Tokenizer.from_file(str(data.tokenizer(TOKENIZERS[name])))
    changes = ["encoder.layers=1", "encoder.hidden_size=32", f"blocks.length={LENGTH}"]
    changes += [*SETTINGS.get(name, TRANSFORMER)]
    changes.append(f"tokenizer.vocabulary={describe(tokenizer).size}")
    return recipes.read(name, size="tiny", overrides=changes), tokenizer


def pretrained(folder: Path, name: str) -> None:
    recipe, tokenizer = opened(name)
    save(folder, recipe, build_model(recipe, recipe.tokenizer.vocabulary, seed=0), tokenizer)


def tuned(folder: Path, name: str, kind: TaskKind, **tuning: Any) -> Path:
    recipe, tokenizer = opened(name)
    how = FinetuneConfig(learning_rate=1e-3, batch_size=8, length=48, epochs=1.0, **tuning)
    task = TunedTask("own" if kind.name == "tag" else kind.name, kind, how)
    save(folder, recipe, build_tuned(recipe, kind, how, seed=0), tokenizer, task)
    return folder


def done(*arguments: str) -> None:
    assert cli.main([*arguments]) == 0


def predicted(capsys: pytest.CaptureFixture[str], place: Path, file: str) -> list[dict[str, Any]]:
    out = output_of(capsys, "predict", str(place), "--file", file, "--json", "--device", "cpu")
    return [json.loads(line) for line in out.splitlines()]


def alike(some: Any, others: Any, tolerance: float = 1e-5) -> None:
    """The same values, numbers nearly."""
    if isinstance(some, Mapping):
        assert some.keys() == others.keys()
        alike([*some.values()], [*others.values()], tolerance)
    elif isinstance(some, str) or not isinstance(some, Sequence):
        same = pytest.approx(some, abs=tolerance) if isinstance(some, float) else some
        assert others == same
    else:
        assert len(some) == len(others)
        for value, other in zip(some, others, strict=True):
            alike(value, other, tolerance)


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fine-tuned run of each family and kind, exported, and files of examples."""
    folder = tmp_path_factory.mktemp("tuned")
    for recipe, kind in EVERY:
        run = tuned(folder / f"{recipe}-{kind}", recipe, KINDS[kind](HEADS.get(recipe, {})))
        done("export", str(run), str(folder / "hf" / f"{recipe}-{kind}"))
    for kind in KINDS:
        file_of(folder, kind)
    return folder


def examples(runs_dir: Path, kind: str) -> str:
    (file,) = runs_dir.glob(f"{kind}.*")
    return str(file)


# In transformers.


class Peer:
    """An exported model as transformers opens it, or as a graph."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        ending = {
            "tag": "TokenClassification", "choose": "MultipleChoice", "answer": "QuestionAnswering",
        }.get(kind, "SequenceClassification")  # fmt: skip
        cls = getattr(transformers, f"AutoModelFor{ending}")
        self.model = cls.from_pretrained(folder).eval()
        self.labels = self.model.config.id2label
        self.grouped = kind == "choose"

    def __call__(self, *texts: Any) -> tuple[list[Any], list[Any]]:
        """The logits for a text, a pair, or a text with each of some others; and the offsets."""
        inputs = self.tokenizer(
            *texts, return_tensors="pt", padding=self.grouped, return_offsets_mapping=True
        )
        offsets = inputs.pop("offset_mapping")
        if self.grouped:
            inputs = {name: rows[None] for name, rows in inputs.items()}
        with torch.no_grad():
            result = self.model(**inputs)
        both = getattr(result, "logits", None)
        outputs = [both] if both is not None else [result.start_logits, result.end_logits]
        return [each[0].double().numpy() for each in outputs], offsets[0].tolist()


class Graph:
    """An exported graph with its tokenizer."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.session = onnxruntime.InferenceSession(folder / "model.onnx")
        about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.labels = {int(number): name for number, name in about.get("id2label", {}).items()}
        self.grouped = kind == "choose"

    def __call__(self, *texts: Any) -> tuple[list[Any], list[Any]]:
        if self.grouped:
            alone = [
                self._logits_of(first, second)[0] for first, second in zip(*texts, strict=True)
            ]
            return [np.concatenate([logits[0] for logits in alone])], []
        return self._logits_of(*texts)

    def _logits_of(self, *texts: str) -> tuple[list[Any], list[Any]]:
        encoding = self.tokenizer.encode(*texts)
        every = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
        }
        taken = {each.name for each in self.session.get_inputs()}
        feeds = {name: np.array([row]) for name, row in every.items() if name in taken}
        out = self.session.run(None, feeds)
        return [each[0].astype(float) for each in out], encoding.offsets


def softmax(logits: Any) -> list[float]:
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    return list((raised / raised.sum(-1, keepdims=True)).tolist())


def judged(peer: Any, file: str, kind: str, *, last: bool) -> Iterator[dict[str, Any]]:
    """What the model says of a file's examples, laid by its own tokenizer."""
    text = Path(file).read_text(encoding="utf-8")
    if kind in ("classify", "pairs", "regress"):
        for line in text.splitlines()[1:]:
            ((logits,), _) = peer(*line.split("\t")[:-1])
            if kind == "regress":
                yield {"value": float(logits[0])}
            else:
                names = [peer.labels[number] for number in range(len(logits))]
                yield {
                    "label": names[int(logits.argmax())],
                    "probabilities": dict(zip(names, softmax(logits), strict=True)),
                }
    elif kind == "tag":
        for block in text.strip().split("\n\n"):
            words = [line.split()[0] for line in block.splitlines()]
            (logits,), offsets = peer(" ".join(words))
            ends = np.cumsum([len(word) + 1 for word in words]) - 1
            begins = ends - [len(word) for word in words]
            # A piece may begin with the space before its word, or be no more than that.
            first = [
                next(n for n, (a, b) in enumerate(offsets) if a < b and a >= begin - 1)
                for begin in begins
            ]
            rows = logits[first]
            yield {
                "tags": [peer.labels[int(number)] for number in rows.argmax(-1)],
                "probabilities": [max(row) for row in softmax(rows)],
            }
    elif kind == "choose":
        for line in text.splitlines():
            row = json.loads(line)
            count = len(row["choices"])
            ((logits,), _) = peer([row["question"]] * count, row["choices"])
            yield {"label": int(logits.argmax()), "probabilities": softmax(logits)}
    else:
        for paragraph in json.loads(text)["data"][0]["paragraphs"]:
            question, passage = paragraph["qas"][0]["question"], paragraph["context"]
            yield answered(peer, question, passage, last=last)


def answered(peer: Any, question: str, passage: str, *, last: bool) -> dict[str, Any]:
    """The best stretch of seven tokens at most."""
    (start, end), offsets = peer(passage, question) if last else peer(question, passage)
    ids = peer.tokenizer.encode(passage, add_special_tokens=False)
    size = len(getattr(ids, "ids", ids))
    first = 0 if last else len(offsets) - 1 - size
    stretches = [
        (start[a] + end[b], a, b)
        for a in range(first, first + size)
        for b in range(a, min(a + 7, first + size))
    ]
    score, a, b = max(stretches)
    return {"text": passage[offsets[a][0] : offsets[b][1]].strip(), "score": score}


SAME = [(r, k) for r, k in EVERY if k not in ("squad2", "beam")]


@pytest.mark.parametrize(("recipe", "kind"), SAME)
def test_the_automatic_classes_say_what_predict_says(
    runs_dir: Path, recipe: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = examples(runs_dir, kind)
    mine = predicted(capsys, runs_dir / f"{recipe}-{kind}", file)
    peer = Peer(runs_dir / "hf" / f"{recipe}-{kind}", kind)
    theirs = [*judged(peer, file, kind, last=recipe == "xlnet")]
    assert len(mine) == len(theirs) > 5
    for ours, other in zip(mine, theirs, strict=True):
        alike({name: ours[name] for name in other}, other)
    texts = [
        *(
            prediction.get("text") or str(prediction.get("probabilities", prediction.get("value")))
            for prediction in mine
        )
    ]
    assert len(set(texts)) > 3  # it says different things of different texts
    if kind in ("classify", "pairs", "tag"):
        task: Any = load(str(runs_dir / f"{recipe}-{kind}")).task
        wanted = task.kind.tags if kind == "tag" else task.kind.labels
        assert tuple(peer.labels.values()) == wanted


# And back.


BACK = [(r, k) for r, k in EVERY if r in ("bert", "gpt") or k in ("pairs", "choose", "beam")]


@pytest.mark.parametrize(("recipe", "kind"), BACK)
def test_an_exported_model_comes_back_with_its_task(
    runs_dir: Path, tmp_path: Path, recipe: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, there = runs_dir / f"{recipe}-{kind}", runs_dir / "hf" / f"{recipe}-{kind}"
    file = examples(runs_dir, kind)
    before = load(str(run)).task
    after = load(str(there)).task
    assert before is not None and after is not None
    assert (after.name, after.kind) == (before.name, before.kind)
    assert after.tuning.length == min(before.tuning.length, LENGTH) == 48
    mine = predicted(capsys, run, file)
    alike(mine, predicted(capsys, there, file), 1e-6)
    done("import", str(there), str(tmp_path / "run"))
    alike(mine, predicted(capsys, tmp_path / "run", file), 1e-6)
    assert (tmp_path / "run" / TASK).is_file()
    assert load(str(tmp_path / "run")).task == after
    outputs = [output_of(capsys, "evaluate", str(place), file, "--device", "cpu")
            for place in (run, there)]  # fmt: skip
    assert outputs[0] and outputs[0] == outputs[1]


def foreign(there: Path, out: Path) -> None:
    """The same model as one who never heard of us would have saved it."""
    out.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (out / file).write_bytes((there / file).read_bytes())
    config = json.loads((there / "config.json").read_text(encoding="utf-8"))
    del config["clozelab"]
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize("kind", ["classify", "pairs", "regress", "tag", "choose", "answer"])
def test_a_model_of_others_is_applied_like_one_of_ours(
    runs_dir: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it takes pairs is seen from what it is given, and choices may be any number."""
    there, run = tmp_path / "hf", tmp_path / "run"
    foreign(runs_dir / "hf" / f"roberta-{kind}", there)
    done("import", str(there), str(run))
    file = examples(runs_dir, kind)
    mine = predicted(capsys, runs_dir / f"roberta-{kind}", file)
    tuned = load(str(runs_dir / f"roberta-{kind}")).task
    assert tuned is not None
    for place in (there, run):
        task = load(str(place)).task
        assert task is not None and task.name == "imported"
        assert task.tuning.length == tuned.tuning.length  # the tokenizer's settings have it
        predictions = predicted(capsys, place, file)
        if kind == "answer":  # which is longer here, by default
            assert [
                prediction["score"] >= second["score"]
                for prediction, second in zip(predictions, mine, strict=True)
            ]
        else:
            alike(mine, predictions)
        assert output_of(capsys, "evaluate", str(place), file, "--device", "cpu")
    if kind == "pairs":
        with pytest.raises(UserError, match="has one text and the task takes two"):
            load(str(runs_dir / "roberta-pairs")).predict(["One text alone."])
        text = output_of(
            capsys, "predict", str(run), "--text", "One text alone.", "--device", "cpu"
        )
        assert text.endswith("One text alone.\n")
    if kind == "choose":
        texts = [row[1] for row in sentences(9)]
        (picked,) = load(str(run)).predict([("A text", texts)], device="cpu")
        assert len(picked.probabilities) == 9
        assert picked.probabilities[picked.label] == max(picked.probabilities)


def test_the_null_threshold_survives_transformers(
    runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, file = runs_dir / "hf" / "bert-squad2", examples(runs_dir, "squad2")
    peer = Peer(there, "answer")
    peer.model.save_pretrained(tmp_path / "again")
    peer.tokenizer.save_pretrained(tmp_path / "again")
    task = load(str(tmp_path / "again")).task
    assert task is not None and isinstance(task.kind, Answer)
    assert task.kind.impossible and task.kind.threshold == -5.25
    mine = predicted(capsys, runs_dir / "bert-squad2", file)
    alike(mine, predicted(capsys, tmp_path / "again", file))
    assert {bool(prediction["text"]) for prediction in mine} == {
        True,
        False,
    }  # some withdrawn, some not
    for prediction in mine:
        assert bool(prediction["text"]) == (prediction["null"] <= -5.25)
    card = (there / "README.md").read_text(encoding="utf-8")
    assert "A question may have no answer" in card and "-5.25" in card


def test_a_head_that_was_changed_leaves_what_was_told_of_the_old_one(
    runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cls = transformers.BertForTokenClassification
    smaller = cls.from_pretrained(runs_dir / "hf" / "bert-pairs", num_labels=2)
    smaller.save_pretrained(tmp_path / "hf")
    Peer(runs_dir / "hf" / "bert-pairs", "pairs").tokenizer.save_pretrained(tmp_path / "hf")
    task = load(str(tmp_path / "hf")).task
    assert task is not None and task.name == "imported"
    assert task.kind == Tag(("no", "yes"))
    config = json.loads((tmp_path / "hf" / "config.json").read_text(encoding="utf-8"))
    config["clozelab"]["kind"] = "tag"
    config["clozelab"]["metrics"] = "often"
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    message = refused(capsys, "predict", str(tmp_path / "hf"), "--text", "some words")
    assert "hf/config.json: clozelab.metrics" in message and "must be a list" in message


def test_what_is_beside_the_task_s_head_is_left_behind_and_said(
    runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign(runs_dir / "hf" / "roberta-classify", tmp_path / "hf")
    file = tmp_path / "hf" / "model.safetensors"
    weights = load_file(file)
    save_file({**weights, "roberta.pooler.dense.bias": torch.zeros(32)}, file)
    model = load(str(tmp_path / "hf"))
    assert any("ignored" in note and "pooler" in note for note in model.notes)
    assert model.task is not None


def test_a_task_without_a_name_is_called_by_its_kind(runs_dir: Path, tmp_path: Path) -> None:
    foreign(runs_dir / "hf" / "roberta-classify", tmp_path / "hf")
    model = load(str(tmp_path / "hf"))
    with pytest.raises(UserError, match="is fine-tuned for classify; name the pretrained model"):
        model.score("a text")
    model.export(tmp_path / "out", progress=False)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "Fine-tuned to classify with clozelab" in card and "on imported" not in card


# Graphs.


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [
        ("bert", "pairs"),
        ("roberta", "tag"),
        ("xlnet", "answer"),
    ],
)
@pytest.mark.slow  # tests/parity/test_task_heads.py asks the same of the graph itself
def test_a_graph_says_what_predict_says(
    runs_dir: Path, tmp_path: Path, recipe: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done("export", str(runs_dir / f"{recipe}-{kind}"), str(tmp_path / "o"), "--onnx")
    file = examples(runs_dir, kind)
    mine = predicted(capsys, runs_dir / f"{recipe}-{kind}", file)
    graph = Graph(tmp_path / "o", kind)
    for ours, other in zip(mine, judged(graph, file, kind, last=recipe == "xlnet"), strict=True):
        alike({name: ours[name] for name in other}, other, 1e-4)


# Folders of fine-tunings.


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model tuned on pairs, then with two seeds to classify."""
    folder = tmp_path_factory.mktemp("chain")
    pretrained(folder / "bert", "bert")
    for before, kind, seeds in (("bert", "pairs", "1"), ("pairs", "classify", "2")):
        file = file_of(folder, kind)
        command = ["finetune", str(folder / before), kind, "--train", file, "--dev", file]
        command += ["--out", str(folder / kind), "--seeds", seeds, "--device", "cpu"]
        settings = ("epochs=none", "steps=2", "learning_rate=0.01")
        done(*command, *(word for setting in settings for word in ("--set", setting)))
    return folder


def test_the_best_of_a_folder_a_trial_and_a_checkpoint_are_exported(
    chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = (Run(chain / "classify").result() or {})["best"]
    (saved,) = (chain / "classify" / best / "checkpoints").glob("step-*")
    places = [chain / "classify", chain / "classify" / best, saved]
    file = examples(chain, "classify")
    wanted = predicted(capsys, saved, file)
    for number, place in enumerate(places):
        done("export", str(place), str(tmp_path / str(number)))
        alike(wanted, predicted(capsys, tmp_path / str(number), file), 1e-6)
    message = refused(capsys, "import", str(chain / "classify"), str(tmp_path / "run"))
    assert "is already a run of clozelab" in message


def test_the_card_tells_task_scores_and_lineage(chain: Path, tmp_path: Path) -> None:
    done("export", str(chain / "classify"), str(tmp_path / "hf"))
    card = (tmp_path / "hf" / "README.md").read_text(encoding="utf-8")
    result = Run(chain / "classify").result()
    assert result is not None
    mean = result["cells"][0]["scores"]["accuracy"]["mean"]
    trial = Run(chain / "classify" / result["best"]).result()
    assert trial is not None
    score = trial["dev"]["accuracy"]
    assert f"| accuracy on dev | {score:.4g}; the mean of 2 seeds is {mean:.4g} (" in card
    assert "Fine-tuned from: bert → pairs/seed-0 (pairs)." in card
    assert "| corpora of its pretraining | books |" in card
    assert "Fine-tuned to classify with clozelab" in card
    assert "[tuning]" in card and "[masking]" in card
    for number, label in enumerate(sorted(LABELS)):
        assert f"| {number} | {label} |" in card
    # The lines under "Use" do what they say.
    code = card.split("```python\n")[1].split("```")[0]
    shared: dict[str, Any] = {}
    exec(code.replace('judge("', 'found = judge("'), shared)
    assert shared["found"][0]["label"] in LABELS


CARDS = ["bert-pairs", "bert-tag", "bert-choose", "bert-answer", "xlnet-answer", "xlnet-beam"]


@pytest.mark.parametrize("name", CARDS)
def test_the_lines_of_a_card_do_what_they_say(
    runs_dir: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    card = (runs_dir / "hf" / name / "README.md").read_text(encoding="utf-8")
    code = card.split("```python\n")[1].split("```")[0]
    exec(code, {})
    assert ("text_pair" in code) == (name == "bert-pairs")
    out = capsys.readouterr().out
    assert bool(out.strip() or name == "xlnet-beam") == ("print(" in code)  # whose end is anywhere
    assert ("for a pair of texts" in card) == (name == "bert-pairs")


# What does not fit.


@pytest.mark.parametrize("recipe", FAMILIES)
def test_a_text_that_is_too_long_is_cut_alike(runs_dir: Path, recipe: str) -> None:
    text = " ".join(row[0] for row in sentences(40))
    (mine,) = load(str(runs_dir / f"{recipe}-classify")).predict([text], device="cpu")
    there = str(runs_dir / "hf" / f"{recipe}-classify")
    judge: Any = transformers.pipeline("text-classification", there, top_k=None, truncation=True)
    (results,) = judge([text])
    alike({result["label"]: result["score"] for result in results}, dict(
        sorted(mine.probabilities.items(), key=lambda pair: -pair[1])))  # fmt: skip


def test_pairs_are_laid_as_the_class_they_go_to_has_them(tmp_path: Path) -> None:
    """RoBERTa's positions with a padding of another number are a bert of transformers."""
    recipe, tokenizer = opened("roberta")
    odd = Tokenizer.from_file(str(data.tokenizer("wordpiece")))
    size = describe(odd).size
    changed = recipes.parse(
        recipes.to_toml(recipe).replace(
            f"vocabulary = {describe(tokenizer).size}", f"vocabulary = {size}"
        ),
        "odd",
    )
    how = FinetuneConfig(learning_rate=1e-3, batch_size=8, length=48, epochs=1.0)
    kind = Classify(LABELS, pair=True)
    model = build_tuned(changed, kind, how, seed=0)
    save(tmp_path / "two", changed, model, odd, TunedTask("own", kind, how))
    done("export", str(tmp_path / "two"), str(tmp_path / "hf"))
    (mine,) = load(str(tmp_path / "two")).predict([("One text.", "Another one.")], device="cpu")
    (back,) = load(str(tmp_path / "hf")).predict([("One text.", "Another one.")], device="cpu")
    alike([*mine.probabilities.values()], [*back.probabilities.values()], 1e-5)
    done("export", str(tmp_path / "two"), str(tmp_path / "o"), "--onnx")
    graph = Graph(tmp_path / "o", "pairs")
    ((logits,), _) = graph("One text.", "Another one.")
    alike([*mine.probabilities.values()], softmax(logits), 1e-4)


# From Python.


def test_python_predicts_as_the_command_does(
    runs_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = predicted(capsys, runs_dir / "bert-pairs", examples(runs_dir, "pairs"))
    model = clozelab.load(str(runs_dir / "bert-pairs"))
    predictions = model.predict(
        [(first, second) for first, second, _ in sentences(9)], device="cpu"
    )
    expected = [{k: o[k] for k in ("label", "probabilities")} for o in mine]
    alike([prediction._asdict() for prediction in predictions], expected)
    (tags,) = load(str(runs_dir / "roberta-tag")).predict(["three small words"], device="cpu")
    assert len(tags.tags) == 3
    questions = [("What?", "It was a small bird of the north.")]
    (span,) = load(str(runs_dir / "xlnet-answer")).predict(questions, device="cpu")
    assert span.text and span.text in questions[0][1]
    with pytest.raises(UserError, match=r"as \[text\]"):
        model.predict("a text alone")
    assert clozelab.predict(model, text=[]) == model.predict([]) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("xlnet-answer", "ab"),
        ("xlnet-answer", ("What?", 3)),
        ("roberta-tag", [1, 2]),
        ("roberta-tag", {"a": 1}),
        ("bert-pairs", (None, "a text")),
    ],
)
def test_what_is_no_text_is_refused_and_so_are_the_characters_of_one(
    runs_dir: Path, name: str, value: Any
) -> None:
    with pytest.raises(UserError, match=r"input 0: is .*, but the model takes"):
        load(str(runs_dir / name)).predict([value], device="cpu")


def test_choices_and_documents_are_not_taken_apart() -> None:
    for kind, value in ((Choose, ("The man", "sat")), (Coreference, ["Anna met Paul."])):
        with pytest.raises(TypeError):
            kind.example(value, "0")


def test_half_a_character_is_refused_and_the_model_goes_on(runs_dir: Path) -> None:
    model = load(str(runs_dir / "bert-classify"))
    before = model.predict(["a text"], device="cpu")
    with pytest.raises(UserError, match="is not Unicode text"):
        model.predict(["a \udc80 text"], device="cpu")
    assert model.predict(["a text"], device="cpu") == before


def test_the_public_names_are_there() -> None:
    for name in clozelab.__all__:
        assert getattr(clozelab, name) is not None


# What cannot be had.


def test_a_head_on_other_vectors_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tags = Tag(("O", "B-X"))
    hows = {
        "bilstm": {"features": "last", "reader": "bilstm", "hidden": 8},
        "weighted_all": {"features": "weighted_all"},
        "second_to_last": {"features": "second_to_last"},
    }
    for word, how in hows.items():
        run = str(tuned(tmp_path / word, "bert", tags, **how))
        for more in ([], ["--onnx"]):
            message = refused(capsys, "export", run, str(tmp_path / "out"), *more)
            assert f'"{word}" vectors' in message and "clozelab predict" in message
    run = str(tuned(tmp_path / "last", "bert", tags, features="last"))
    done("export", run, str(tmp_path / "out"))
    done("predict", run, "--text", "some words", "--device", "cpu")


@pytest.mark.parametrize("more", [[], ["--onnx"]])
def test_coreference_and_elmo_are_refused_in_one_sentence(
    tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tuned(tmp_path / "c", "bert", Coreference(segment=48)))
    message = refused(capsys, "export", run, str(tmp_path / "out"), *more)
    assert "task coreference" in message and "clozelab predict" in message
    elmo = Classify(LABELS, pool="mean", summary="none")
    run = str(tuned(tmp_path / "e", "elmo", elmo))
    assert "encoder lstm" in refused(capsys, "export", run, str(tmp_path / "out"), *more)
    assert not (tmp_path / "out").exists()


def test_a_damaged_chain_still_exports(tmp_path: Path) -> None:
    """What the model came from may have been moved; it is then named by its folder."""
    run = tuned(tmp_path / "run", "bert", Classify(LABELS))
    facts = (run / "machine.toml").read_text(encoding="utf-8")
    write_text(run / "machine.toml", f'{facts}"from" = "/nowhere/else"\n')
    done("export", str(run), str(tmp_path / "hf"))
    card = (tmp_path / "hf" / "README.md").read_text(encoding="utf-8")
    assert "Fine-tuned from: else." in card
