"""Heads of tasks to transformers and back: the same logits in double precision, labels by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from safetensors import safe_open
from support.peer_models import LENGTHS, SHAPE, VOCABULARY, packed, padded, shaken
from support.peer_models import _widen as widen
from tokenizers import Tokenizer
from torch import Tensor, nn

from clozelab import data
from clozelab.config import recipe as recipes
from clozelab.contracts import Vocabulary
from clozelab.encoder import Encoder, Relative, Transformer
from clozelab.errors import UserError
from clozelab.finetuning.kinds import Answer, Choose, Classify, Regress, Tag
from clozelab.models.interop.exporting import Exported, to_transformers
from clozelab.models.interop.families import Summary
from clozelab.models.interop.heads import TaskHead, summary, transforms
from clozelab.models.interop.huggingface import read, write
from clozelab.models.interop.importing import Imported, from_transformers
from clozelab.models.interop.onnx import TaskGraph, export_onnx
from clozelab.models.load import within
from clozelab.models.reader import TaskReader
from clozelab.text.vocabulary import describe

torch.set_num_threads(1)

ROLES = {"cls": 2, "sep": 3, "pad": 1, "mask": 4, "unk": 0}
IDS = Vocabulary(VOCABULARY, ROLES, np.array(sorted(ROLES.values()), dtype=np.int32))
STREAMS = {key: value for key, value in SHAPE.items() if key not in ("embedding_size", "positions")}
ROBERTAS = ("roberta", "roberta-prelayernorm")
GPT = {**SHAPE, "types": 0, "embedding_norm": False, "causal": True, "epsilon": 1e-5}
MODERN = {
    "first_norm": False, "position_embedding": "rotary", "rope_theta": 160_000.0, "window": 6,
    "global_every": 3,
}  # fmt: skip
ENCODERS: dict[str, Encoder] = {
    "bert": Transformer(**SHAPE),
    "roberta": Transformer(**SHAPE, position_offset=2, types=0, epsilon=1e-5),
    "roberta-prelayernorm": Transformer(
        **SHAPE, norm="pre", position_offset=2, types=0, epsilon=1e-5
    ),
    "albert": Transformer(**SHAPE | {"embedding_size": 8}, sharing="all", activation="gelu_tanh"),
    "electra": Transformer(**SHAPE | {"embedding_size": 8}),
    "deberta-v2": Transformer(
        **SHAPE,
        types=0,
        position_embedding="disentangled",
        position_buckets=4,
        position_norm=True,
    ),
    "distilbert": Transformer(**SHAPE, types=0),
    "xlnet": Relative(**STREAMS),
    "openai-gpt": Transformer(**GPT | {"intermediate_size": 64}, activation="gelu_tanh"),
    "gpt2": Transformer(**GPT, norm="pre"),
    "modernbert": Transformer(
        **SHAPE, **MODERN, types=0, norm="pre", bias=False, gated=True, epsilon=1e-5
    ),
}
# Neither sorted nor counted, and not in the letters of one language.
LABELS = ("neutral", "entailment", "否定")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
PLAIN = {
    "classify": ("ForSequenceClassification", TaskHead("classify", LABELS)),
    "regress": ("ForSequenceClassification", TaskHead("regress")),
    "choose": ("ForMultipleChoice", TaskHead("choose")),
    "tag": ("ForTokenClassification", TaskHead("tag", TAGS)),
    "answer": ("ForQuestionAnswering", TaskHead("answer")),
}
STEMS = {
    "bert": "Bert", "roberta": "Roberta", "albert": "Albert", "distilbert": "DistilBert",
    "xlnet": "XLNet", "openai-gpt": "OpenAIGPT", "gpt2": "GPT2",
    "roberta-prelayernorm": "RobertaPreLayerNorm", "electra": "Electra",
    "modernbert": "ModernBert", "deberta-v2": "DebertaV2",
}  # fmt: skip
NONE = {("openai-gpt", "choose"), ("openai-gpt", "tag"), ("openai-gpt", "answer")}
NONE |= {("gpt2", "choose")}
PAIRS = [(f, k) for f in ENCODERS for k in PLAIN if (f, k) not in NONE] + [("xlnet", "beam")]
BEAM = TaskHead("answer", head="beam", beams=2, impossible=True)


def class_and_head(family: str, kind: str) -> tuple[str, TaskHead]:
    """The class, and the head that can be exported to it."""
    if kind == "beam":
        return "XLNetForQuestionAnswering", BEAM._replace(dropout=0.15)
    ending, task = PLAIN[kind]
    simple = "Simple" if (family, kind) == ("xlnet", "answer") else ""
    transform = transforms(family, kind)
    task = task._replace(summary=summary(family, kind), transform=transform, dropout=0.15)
    return f"{STEMS[family]}{ending}{simple}", task


def kind_of(task: TaskHead) -> Any:
    """A kind of task as runs make it of what came with a checkpoint."""
    how = {
        "summary": task.summary.activation,
        "drop_first": task.summary.drop_first,
        "bias": task.summary.bias,
        "pool": task.pool,
        "transform": task.transform,
    }
    if task.kind == "classify":
        return Classify(task.labels, dropout=task.dropout, **how)
    if task.kind == "regress":
        return Regress(dropout=task.dropout, **how)
    if task.kind == "choose":
        return Choose(choices=len(LENGTHS), dropout=task.dropout, **how)
    if task.kind == "tag":
        return Tag(task.labels, dropout=task.dropout, transform=task.transform)
    return Answer(
        impossible=task.impossible,
        head=task.head,
        beams=task.beams,
        transform=task.transform,
        dropout=task.dropout,
    )


class Tuned(nn.Module):
    """An encoder and a task's head, named as runs save them."""

    def __init__(self, encoder: Encoder, task: TaskHead, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.encoder = encoder.build(vocabulary)
        head = kind_of(task).build(encoder.hidden_size)
        self.heads = nn.ModuleDict({task.kind: head})
        self.task, self.shape = task, encoder


def tuned(encoder: Encoder, task: TaskHead) -> Tuned:
    model = shaken(Tuned(encoder, task))
    assert isinstance(model, Tuned)
    return model


def arrived(imported: Imported) -> Tuned:
    """What came in, all of its tensors and no others."""
    assert imported.task is not None
    model = Tuned(imported.encoder, imported.task)
    model.double().eval().load_state_dict(imported.weights)
    return model


def rows(family: str, encoder: Encoder) -> dict[str, Tensor]:
    """The batch, padded on the family's side."""
    batch = padded(getattr(encoder, "types", 2), padding=ROLES["pad"])
    if family != "xlnet":
        return batch
    real = batch["attention_mask"].bool()
    return {
        name: torch.stack([torch.cat([r[~k], r[k]]) for r, k in zip(value, real, strict=True)])
        for name, value in batch.items()
    }


def places(model: Tuned, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The slots of the batch, as the kind lays them."""
    starts = packed(batch).cu_seqlens.long()
    last = isinstance(model.shape, Relative) or model.shape.causal
    at = starts[1:] - 1 if last else starts[:-1]
    if model.task.kind == "tag":
        at = torch.arange(int(starts[-1]))
    labels = torch.zeros_like(at)
    if model.task.head == "beam":  # the answer's ends, then the passage's, which is the first half
        ends = starts[:-1] + torch.tensor(LENGTHS) // 2
        both = {
            "at": torch.stack([at, at], 1),
            "left": torch.stack([at, starts[:-1]], 1),
            "right": torch.stack([at, ends], 1),
            "labels": torch.stack([labels, labels - 100], 1),
        }
        return {name: value.flatten() for name, value in both.items()}
    return {"at": at, "labels": labels, "exists": torch.ones_like(at)}


@torch.no_grad()
def ours(model: Tuned, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What our head says of the batch."""
    inputs = packed(batch)
    head: Any = model.heads[model.task.kind]
    encoded = model.encoder(inputs)
    targets = places(model, batch)
    if model.task.kind != "answer":
        (logits,) = head.logits(encoded, inputs, targets)
        return {"logits": logits}
    predictions = head.predict(encoded, inputs, targets)
    if model.task.head == "span":
        return {"start": predictions[:, 0], "end": predictions[:, 1]}
    b = model.task.beams
    starts, where, ends, there, judged = predictions[::2].split([b, b, b * b, b * b, 1], dim=1)
    return {
        "start": starts.exp(), "start place": where, "end": ends.exp(), "end place": there,
        "judged": judged[:, 0],
    }  # fmt: skip


@torch.no_grad()
def theirs(peer: Any, batch: Mapping[str, Tensor], task: TaskHead) -> dict[str, Tensor]:
    """The same of transformers."""
    widen(peer)
    real = batch["attention_mask"].bool()
    if task.kind == "choose":
        return {"logits": peer(**{name: value[None] for name, value in batch.items()}).logits}
    if task.head == "span":
        out = peer(**batch)
        if task.kind == "answer":
            return {"start": out.start_logits[real], "end": out.end_logits[real]}
        return {"logits": out.logits[real] if task.kind == "tag" else out.logits}
    width, lengths = real.shape[1], torch.tensor(LENGTHS)[:, None]
    place = torch.arange(width) - (width - lengths)
    legal = (place >= 0) & (place <= lengths // 2) | (place == lengths - 1)
    out = peer(**batch, p_mask=(~legal).double())
    b = task.beams

    def turned(flat: Tensor) -> Tensor:
        return flat.view(-1, b, b).transpose(1, 2).flatten(1)

    pad = width - lengths
    return {
        "start": out.start_top_log_probs,  # which are no logarithms
        "start place": (out.start_top_index - pad).double(),
        "end": turned(out.end_top_log_probs),
        "end place": turned(out.end_top_index - pad).double(),
        "judged": out.cls_logits,
    }


def agree(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
    assert some.keys() == others.keys()
    for name, tensor in some.items():
        assert tensor.shape == others[name].shape, name
        assert float((tensor - others[name]).abs().max()) < 1e-9, name


def put(folder: Path, model: Exported, kind: str = "wordpiece") -> None:
    tokenizer = Tokenizer.from_file(str(data.tokenizer(kind)))
    write(folder, model, tokenizer=tokenizer, vocabulary=IDS, card="")


@pytest.mark.parametrize(("family", "kind"), PAIRS)
def test_a_fine_tuned_model_says_the_same_in_transformers_and_comes_back(
    family: str, kind: str, tmp_path: Path
) -> None:
    called, task = class_and_head(family, kind)
    encoder = ENCODERS[family]
    model = tuned(encoder, task)
    # Of an encoder that may be ALBERT's or ELECTRA's its pretraining says which, not its task.
    named = family if family == "electra" else None
    there = to_transformers(
        encoder, model.state_dict(), vocabulary=IDS, length=12, task=task, family=named
    )
    assert (there.config["model_type"], there.config["architectures"]) == (family, [called])
    assert there.left == []
    put(tmp_path / "hf", there)
    cls = getattr(transformers, called)
    peer, report = cls.from_pretrained(
        tmp_path / "hf", dtype=torch.float64, output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    if family == "xlnet":  # transformers loads these in single precision whatever is asked for
        peer.double().load_state_dict(there.tensors, strict=False)
    batch = rows(family, encoder)
    wanted = ours(model, batch)
    agree(wanted, theirs(peer.eval(), batch, task))
    if task.labels:
        named = [peer.config.id2label[number] for number in range(len(task.labels))]
        assert tuple(named) == task.labels
    problems = {"classify": "single_label_classification", "regress": "regression"}
    assert peer.config.problem_type == problems.get(kind)
    # These have no rate of their own.
    encoders = {
        ("distilbert", "tag"),
        ("deberta-v2", "tag"),
        *((each, "choose") for each in ROBERTAS),
    }
    # DeBERTa's pooler has a dropout before its dense layer, of nothing.
    rates = dropped(peer) - ({0.0} if family == "deberta-v2" else set())
    assert rates <= {encoder.dropout if (family, kind) in encoders else task.dropout}
    back = read(str(tmp_path / "hf"))
    imported = from_transformers(back.config, back.tensors)
    assert (imported.task, imported.left, imported.family) == (saved(family, task), [], family)
    agree(wanted, ours(arrived(imported), batch))
    cls.from_pretrained(tmp_path / "hf").save_pretrained(tmp_path / "theirs")
    assert held(tmp_path / "hf") == held(tmp_path / "theirs")


def dropped(peer: nn.Module) -> set[float]:
    """The rates of dropout outside the encoder."""
    inside = f"{peer.base_model_prefix}."
    modules = {n: m for n, m in peer.named_modules() if not n.startswith(inside)}
    return {m.p for m in modules.values() if isinstance(m, nn.Dropout)}


def saved(family: str, task: TaskHead) -> TaskHead:
    """OpenAI's config has no word for the head's dropout, nor that of a GPT for marks."""
    task = task._replace(special_tokens="gpt" not in family)
    return task._replace(dropout=0.1) if family == "openai-gpt" else task


def held(folder: Path) -> dict[str, Any]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118


BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 14, "pad_token_id": 1,
}  # fmt: skip
N = {"vocab_size": VOCABULARY, "n_layer": 3, "n_head": 2, "pad_token_id": 1}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "roberta": BERT | {"type_vocab_size": 1},
    "roberta-prelayernorm": BERT | {"type_vocab_size": 1},
    "albert": BERT | {"embedding_size": 8},
    "electra": BERT | {"embedding_size": 8},
    "deberta-v2": BERT | {"relative_attention": True, "pos_att_type": "c2p|p2c"},
    "distilbert": {
        "vocab_size": VOCABULARY, "dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 24,
        "max_position_embeddings": 12,
    },
    "xlnet": N | {"d_model": 16, "d_inner": 24, "start_n_top": 2, "end_n_top": 2},
    "openai-gpt": N | {"n_embd": 16, "n_positions": 12},
    "gpt2": N | {"n_embd": 16, "n_positions": 12, "n_inner": 24},
    "modernbert": BERT | {"local_attention": 6, "bos_token_id": 2, "eos_token_id": 3,
        "cls_token_id": 2, "sep_token_id": 3},
}  # fmt: skip
ALIKE = {"Ernie": "bert", "XLMRoberta": "roberta", "Camembert": "roberta"}
CHECKPOINTS = [(STEMS[family], family, kind) for family, kind in PAIRS]
CHECKPOINTS += [(stem, family, kind) for stem, family in ALIKE.items() for kind in PLAIN]


@pytest.mark.parametrize(("stem", "family", "kind"), CHECKPOINTS)
@pytest.mark.parametrize("named", [True, False])
def test_a_task_s_checkpoint_of_transformers_says_the_same_here(
    stem: str, family: str, kind: str, named: bool
) -> None:
    called, task = class_and_head(family, kind)
    cls = getattr(transformers, called.replace(STEMS[family], stem, 1))
    labels = {"id2label": dict(enumerate(task.labels))} if task.labels else {}
    labels |= {"num_labels": 1} if kind == "regress" else {}
    model = shaken(cls(cls.config_class(**CONFIGS[family], **labels)))
    config = model.config.to_dict()
    config["architectures"] = [cls.__name__]
    if not named:  # an old file may not tell its class, nor its labels
        config = {k: v for k, v in config.items() if k not in ("architectures", "id2label")}
    imported = from_transformers(config, model.state_dict())
    task_head = imported.task
    if not named and family == "modernbert":  # whose heads are all alike
        assert task_head is None and "classifier.weight" in imported.left
        return
    assert task_head is not None and imported.left == [] and imported.family == family
    if not named and kind == "choose" and family not in (*ROBERTAS, "electra"):
        assert task_head.kind == "regress"  # which nothing tells apart
        return
    assert (
        task_head.kind == task.kind
        and task_head.summary == task.summary
        and task_head.head == task.head
    )
    unnamed = tuple(f"LABEL_{number}" for number in range(len(task.labels)))
    assert task_head.labels == (task.labels if named else unnamed)
    batch = rows(family, imported.encoder)
    agree(ours(arrived(imported), batch), theirs(model, batch, task))


@pytest.mark.parametrize("kind", ["classify", "regress", "choose"])
def test_modernbert_may_sum_up_by_the_mean(kind: str, tmp_path: Path) -> None:
    called, task = class_and_head("modernbert", kind)
    encoder, task = ENCODERS["modernbert"], task._replace(pool="mean")
    model = tuned(encoder, task)
    there = to_transformers(encoder, model.state_dict(), vocabulary=IDS, length=12, task=task)
    assert there.config["classifier_pooling"] == "mean"
    put(tmp_path / "hf", there)
    peer = getattr(transformers, called).from_pretrained(tmp_path / "hf", dtype=torch.float64)
    batch = rows("modernbert", encoder)
    wanted = ours(model, batch)
    agree(wanted, theirs(peer.eval(), batch, task))
    imported = from_transformers(there.config, there.tensors)
    assert imported.task == task
    agree(wanted, ours(arrived(imported), batch))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"epsilon": 1e-6}, "encoder.epsilon = 1e-06"), ({"bias": True}, "encoder.bias = True")],
)
def test_a_transform_that_is_not_its_encoder_s_is_refused_and_not_taken(
    settings: dict[str, Any], sentence: str
) -> None:
    task, plain = class_and_head("modernbert", "tag")[1], ENCODERS["modernbert"]
    other: Any = replace(plain, **settings)
    with pytest.raises(UserError, match=rf"{sentence}: the head has .*ONNX"):
        to_transformers(
            other, tuned(other, task).state_dict(), vocabulary=IDS, length=12, task=task
        )
    bare = task._replace(transform=False)
    weights = tuned(plain, bare).state_dict()
    with pytest.raises(UserError, match=r"task\.transform = False: .* has True"):
        to_transformers(plain, weights, vocabulary=IDS, length=12, task=bare)
    cls = transformers.ModernBertForTokenClassification
    biases = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True)
    theirs = biases if "bias" in settings else {"norm_eps": settings["epsilon"]}
    peer = cls(cls.config_class(**CONFIGS["modernbert"], **theirs))
    config = peer.config.to_dict() | {"architectures": [cls.__name__]}
    imported = from_transformers(config, peer.state_dict())
    assert imported.task is None and {"classifier.weight", "head.norm.weight"} <= {*imported.left}


def test_a_plain_encoder_becomes_what_its_head_fits(tmp_path: Path) -> None:
    encoder = ENCODERS["distilbert"]
    model = tuned(encoder, TaskHead("classify", LABELS))
    task = TaskHead("classify", LABELS, Summary(bias=False))
    weights = {k: v for k, v in model.state_dict().items() if k != "heads.classify.classifier.bias"}
    there = to_transformers(encoder, weights, vocabulary=IDS, length=12, task=task)
    assert there.config["architectures"] == ["BertForSequenceClassification"]
    assert not there.tensors["classifier.bias"].any()
    put(tmp_path / "hf", there)
    cls = transformers.BertForSequenceClassification
    peer = cls.from_pretrained(tmp_path / "hf", dtype=torch.float64)
    batch = rows("bert", encoder)
    model.heads["classify"].classifier.bias.data.zero_()
    agree(ours(model, batch), theirs(peer.eval(), batch, task))


@pytest.mark.parametrize("activation", ["relu", "none"])
def test_xlnet_sums_up_in_any_way(activation: Any, tmp_path: Path) -> None:
    encoder = ENCODERS["xlnet"]
    task = TaskHead("classify", LABELS, Summary(activation, drop_first=True))
    model = tuned(encoder, task)
    there = to_transformers(encoder, model.state_dict(), vocabulary=IDS, length=12, task=task)
    put(tmp_path / "hf", there)
    peer = transformers.XLNetForSequenceClassification.from_pretrained(tmp_path / "hf")
    peer.double().load_state_dict(there.tensors, strict=False)
    batch = rows("xlnet", encoder)
    agree(ours(model, batch), theirs(peer.eval(), batch, task))
    assert from_transformers(there.config, there.tensors).task == task


def test_a_beam_that_never_judged_says_nothing_of_it(tmp_path: Path) -> None:
    encoder = ENCODERS["xlnet"]
    task = BEAM._replace(impossible=False)
    model = tuned(encoder, task)
    there = to_transformers(encoder, model.state_dict(), vocabulary=IDS, length=12, task=task)
    put(tmp_path / "hf", there)
    peer = transformers.XLNetForQuestionAnswering.from_pretrained(tmp_path / "hf")
    peer.double().load_state_dict(there.tensors, strict=False)
    batch = rows("xlnet", encoder)
    agree(ours(model, batch), theirs(peer.eval(), batch, task))
    imported = from_transformers(there.config, there.tensors)
    assert imported.task == task
    agree(ours(model, batch), ours(arrived(imported), batch))


# The recipe whose texts are laid, and its tokenizer.
READ = {
    "bert": "wordpiece", "ernie": "chars", "albert": "unigram", "roberta": "byte_bpe",
    "xlnet": "unigram", "gpt": "char_bpe", "distilbert": "wordpiece", "swift": "byte_bpe",
    "electra": "wordpiece", "modernbert": "byte_bpe", "deberta": "unigram",
}  # fmt: skip
A, B = "The river was wide, and slow.", "Nobody crossed it 在冬天!"


@pytest.mark.parametrize("name", READ)
def test_the_tokenizer_lays_texts_as_they_were_for_fine_tuning(name: str, tmp_path: Path) -> None:
    recipe = recipes.read(name)
    tokenizer = Tokenizer.from_file(str(data.tokenizer(READ[name])))
    vocabulary = describe(tokenizer)
    called = {"ernie": "bert", "gpt": "openai-gpt", "swift": "roberta-prelayernorm"}
    called["deberta"] = "deberta-v2"
    family = called.get(name, name)
    encoder = ENCODERS[family]
    task = class_and_head(family, "classify")[1]
    model = Tuned(encoder, task, vocabulary.size)
    there = to_transformers(
        encoder, model.state_dict(), vocabulary=vocabulary, length=12, task=task
    )
    write(tmp_path / "hf", there, tokenizer=tokenizer, vocabulary=vocabulary, card="")
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    reader = TaskReader(within(recipe, encoder), tokenizer, 64)
    pieces = reader.pieces([A, B])
    a, b = (pieces.part(pieces.text(number)) for number in (0, 1))
    for texts, row in (
        ((A,), reader.with_special_tokens(a)),
        ((A, B), reader.with_special_tokens(a, b)),
    ):
        out = peer(*texts)
        assert out["input_ids"] == row.columns["ids"].tolist()
        if "token_type_ids" in out:
            assert out["token_type_ids"] == row.columns["segments"].tolist()


@pytest.mark.parametrize("family", ["bert", "roberta", "xlnet"])
def test_pipelines_speak_of_labels_by_name(family: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(data.tokenizer("wordpiece")))
    vocabulary = describe(tokenizer)
    offset = vocabulary.role("pad") + 1
    encoder = ENCODERS[family]
    if family == "roberta":
        encoder = Transformer(**SHAPE, position_offset=offset, types=0)
    for kind, name in (("classify", "text-classification"), ("tag", "token-classification")):
        task = class_and_head(family, kind)[1]
        model = Tuned(encoder, task, vocabulary.size)
        there = to_transformers(
            encoder, model.state_dict(), vocabulary=vocabulary, length=12, task=task
        )
        assert there.config["model_type"] == family
        folder = tmp_path / kind
        write(folder, there, tokenizer=tokenizer, vocabulary=vocabulary, card="")
        judge = transformers.pipeline(name, str(folder))
        if kind == "classify":
            labels = judge([A, "Nobody crossed."], top_k=None, truncation=True)
            assert [{each["label"] for each in row} for row in labels] == [set(LABELS)] * 2
        else:
            labels = judge("The river was slow.", ignore_labels=[])
            assert {each["entity"] for each in labels} <= set(TAGS)
            assert "".join(each["word"] for each in labels[:2]) == "theriver"
    regress = class_and_head(family, "regress")[1]
    model = Tuned(encoder, regress, vocabulary.size)
    there = to_transformers(
        encoder, model.state_dict(), vocabulary=vocabulary, length=12, task=regress
    )
    write(tmp_path / "value", there, tokenizer=tokenizer, vocabulary=vocabulary, card="")
    (labels,) = transformers.pipeline("text-classification", str(tmp_path / "value"))("The river.")
    assert labels["label"] == "value"


def test_the_automatic_class_answers_a_question(tmp_path: Path) -> None:
    encoder, task = ENCODERS["bert"], TaskHead("answer")
    model = tuned(encoder, task)
    put(
        tmp_path / "hf",
        to_transformers(encoder, model.state_dict(), vocabulary=IDS, length=12, task=task),
    )
    cls = transformers.AutoModelForQuestionAnswering
    peer = cls.from_pretrained(tmp_path / "hf", dtype=torch.float64)
    batch = rows("bert", encoder)
    agree(ours(model, batch), theirs(peer.eval(), batch, task))


def compared(out: list[Tensor], batch: Mapping[str, Tensor], task: TaskHead) -> list[Tensor]:
    """What a graph puts out, as our head says it."""
    real = batch["attention_mask"].bool()
    if task.kind == "choose":
        return [out[0].view(1, -1)]
    if task.kind in ("tag", "answer"):
        assert all(each.shape[:2] == real.shape for each in out)
        assert task.kind == "tag" or all(bool((each[~real] < -1e8).all()) for each in out)
        return [each[real] for each in out]
    return out


MEAN = TaskHead("regress", pool="mean")
ROWS = [
    *[(f, class_and_head(f, k)[1]) for f, k in PAIRS if k != "beam"],
    ("bert", MEAN),
    ("xlnet", MEAN),
]


@pytest.mark.parametrize(("family", "task"), ROWS)
def test_rows_are_judged_as_blocks_are_whatever_their_padding(family: str, task: TaskHead) -> None:
    encoder = ENCODERS[family]
    model = tuned(encoder, task)
    wanted = ours(model, rows("bert", encoder))
    graph = TaskGraph(
        model.encoder, model.heads[task.kind], task, last=encoder.layout.summary == "last"
    ).eval()
    for side in ("bert", "xlnet"):
        batch = rows(side, encoder)
        with torch.no_grad():
            out = compared(list(graph(**batch)), batch, task)
        agree(wanted, dict(zip(wanted, out, strict=True)))


GRAPHS = [
    ("bert", class_and_head("bert", "classify")[1]),
    pytest.param("roberta", MEAN, marks=pytest.mark.slow),
    pytest.param("albert", class_and_head("albert", "tag")[1], marks=pytest.mark.slow),
    pytest.param("xlnet", class_and_head("xlnet", "answer")[1], marks=pytest.mark.slow),
    pytest.param("modernbert", class_and_head("modernbert", "classify")[1], marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("family", "task"), GRAPHS)
def test_a_graph_says_the_same_whatever_the_padding(
    family: str, task: TaskHead, tmp_path: Path
) -> None:
    encoder: Any = replace(ENCODERS[family], layers=1)
    model = tuned(encoder, task)
    wanted = ours(model, rows("bert", encoder))
    model.float()
    path = tmp_path / "model.onnx"
    names = export_onnx(path, model.encoder, shape=encoder, head=model.heads[task.kind], task=task)
    about = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert about["task"] == task.kind
    named = ("value",) if task.kind == "regress" else task.labels
    assert tuple(about.get("id2label", {}).values()) == named
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_outputs()] == list(names)
    for side in ("bert", "xlnet"):
        batch = rows(side, encoder)
        out = session.run(None, {key: value.numpy() for key, value in batch.items()})
        predictions = compared([torch.from_numpy(each) for each in out], batch, task)
        for some, expected in zip(predictions, wanted.values(), strict=True):
            assert some.shape == expected.shape
            assert float((some - expected).abs().max()) < 1e-4
