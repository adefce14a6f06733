"""Weights in and out: what is refused and why, what stays behind, and files as they are found."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from markdown_it import MarkdownIt
from safetensors.torch import save_file
from support.peer_models import SHAPE, VOCABULARY, Model
from tokenizers import Tokenizer
from torch import Tensor, nn

from clozelab import data
from clozelab.config import recipe as recipes
from clozelab.contracts import Vocabulary
from clozelab.encoder import Encoder, Lstm, Relative, Transformer
from clozelab.errors import UserError
from clozelab.models.build import build, weights_of
from clozelab.models.interop import onnx
from clozelab.models.interop.card import card
from clozelab.models.interop.configs import from_config
from clozelab.models.interop.exporting import Exported, shapes, to_transformers
from clozelab.models.interop.families import MODEL_TYPES, Summary
from clozelab.models.interop.fitting import family_for
from clozelab.models.interop.heads import TaskHead, head_shapes, summary
from clozelab.models.interop.huggingface import read, write
from clozelab.models.interop.importing import from_transformers
from clozelab.text.vocabulary import ROLES as SPELLINGS

ROLES = {"cls": 2, "sep": 3, "pad": 1, "mask": 4, "unk": 0}
IDS = Vocabulary(VOCABULARY, ROLES, np.array(sorted(ROLES.values()), dtype=np.int32))
PAIR = ("masked_lm", "next_sentence")
GPTS = {**SHAPE, "types": 0, "embedding_norm": False, "causal": True}
STREAMS = {key: value for key, value in SHAPE.items() if key not in ("embedding_size", "positions")}


def exported(
    encoder: Encoder, heads: tuple[str, ...] = PAIR, family: str | None = None
) -> Exported:
    torch.manual_seed(0)
    weights = Model(encoder, heads).state_dict()
    return to_transformers(encoder, weights, vocabulary=IDS, length=99, family=family)


@pytest.mark.parametrize(
    ("encoder", "setting"),
    [
        (Transformer(**SHAPE, norm="pre", sharing="all"), "encoder.norm = 'pre'"),
        (Transformer(**SHAPE, embedding_norm=False), "encoder.embedding_norm = False"),
        (Transformer(**SHAPE, sharing="attention"), "encoder.sharing = 'attention'"),
        (Transformer(**SHAPE, sharing="ffn"), "encoder.sharing = 'ffn'"),
        (Transformer(**SHAPE, sharing="all", causal=True), "encoder.causal = True"),
        (Transformer(**SHAPE | {"layers": 18}, sharing="all", groups=14), "encoder.groups = 14"),
        (Transformer(**GPTS | {"types": 2, "intermediate_size": 64}), "encoder.types = 2"),
        (Transformer(**GPTS | {"intermediate_size": 64}), "encoder.activation = 'gelu'"),
        (Transformer(**GPTS, activation="relu"), "encoder.intermediate_size = 24"),
        (Transformer(**GPTS | {"embedding_size": 8}, norm="pre"), "encoder.embedding_size = 8"),
        (Transformer(**GPTS, norm="pre", sharing="all"), "encoder.sharing = 'all'"),
    ],
)
def test_a_setting_without_a_class_is_named_with_a_remedy(encoder: Encoder, setting: str) -> None:
    with pytest.raises(UserError, match="ONNX") as error:
        exported(encoder, ())
    assert str(error.value).startswith(setting)


def test_robertas_head_knows_one_activation_and_its_encoder_any() -> None:
    encoder = Transformer(**SHAPE, norm="pre", activation="relu")
    with pytest.raises(UserError, match=r"encoder\.activation = 'relu'.*ONNX"):
        exported(encoder, ("masked_lm",))
    assert exported(encoder, ()).config["hidden_act"] == "relu"


CLASSES = {
    "albert": "AlbertForPreTraining",
    "distilbert": "DistilBertForMaskedLM",
    "dna": "BertForMaskedLM",
    "electra": "ElectraForPreTraining",
    "deberta": "DebertaV2Model",
    "diffusion": "RobertaForMaskedLM",
    "causal_then_masked": "RobertaForMaskedLM",
    "gpt_bert": "RobertaForMaskedLM",  # whose head predicts one place earlier: `export` refuses it
    "gpt": "OpenAIGPTLMHeadModel",
    "minilm": "BertModel",
    "simcse": "BertModel",
    "retromae": "BertForMaskedLM",
    "modernbert": "ModernBertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "roberta_wwm": "BertForMaskedLM",
    "spanbert": "BertForMaskedLM",
    "swift": "RobertaPreLayerNormForMaskedLM",
    "xlnet": "XLNetLMHeadModel",
}


ALONE = {
    "mosaicbert": "position_embedding = 'alibi'",
    "neobert": "normalisation = 'rms'",
}  # of no class


def built(name: str) -> Exported:
    """A recipe's model for transformers, its weights unmade."""
    recipe = recipes.read(name)
    specials = recipe.tokenizer.specials
    roles = {
        role: specials.index(mark)
        for role, marks in SPELLINGS.items()
        for mark in reversed(marks)
        if mark in specials
    }
    size = recipe.tokenizer.vocabulary
    ids = Vocabulary(size, roles, np.arange(len(specials), dtype=np.int32))
    with torch.device("meta"):
        weights = weights_of(build(recipe, size, seed=0))
    return to_transformers(recipe.encoder, weights, vocabulary=ids, length=recipe.blocks.length)


@pytest.mark.parametrize("name", sorted({*recipes.names()} - {*ALONE, "elmo"}))
def test_every_recipe_has_a_class(name: str) -> None:
    there = built(name)
    assert there.config["architectures"] == [CLASSES.get(name, "BertForPreTraining")]
    assert there.length == recipes.read(name).blocks.length
    assert {name.split(".")[1] for name in there.left} <= {
        "span_boundary",
        "distillation",
        "contrastive",
        "retromae",
        "generator",
        *(["replaced_token"] if name == "deberta" else []),
    }


@pytest.mark.parametrize("name", ALONE)
def test_a_recipe_of_no_class_says_what_keeps_it_from_one(name: str) -> None:
    with pytest.raises(UserError, match="or export to ONNX") as error:
        built(name)
    assert ALONE[name] in str(error.value)


def test_elmo_has_no_class_and_is_told_what_to_do() -> None:
    encoder = Lstm(layers=1, hidden_size=4, cell_size=8, filters=((1, 4),))
    with pytest.raises(UserError, match="clozelab embed"):
        to_transformers(encoder, {}, vocabulary=IDS, length=9)
    with pytest.raises(UserError, match="clozelab embed"):
        onnx.export_onnx(Path("x.onnx"), encoder.build(0), shape=encoder)


def test_a_family_may_be_named_if_it_fits() -> None:
    plain = Transformer(**SHAPE, types=0)
    assert exported(plain, ("masked_lm",)).config["model_type"] == "distilbert"
    assert exported(plain, PAIR).config["model_type"] == "bert"
    bert = exported(plain, ("masked_lm",), family="bert")
    assert bert.config["model_type"] == "bert" and bert.config["type_vocab_size"] == 1
    assert not bert.tensors["bert.embeddings.token_type_embeddings.weight"].any()
    for family in ("bort", "xlnet"):
        with pytest.raises(UserError, match=f"family '{family}'"):
            exported(plain, (), family=family)
    with pytest.raises(UserError, match="position_offset = 0"):
        exported(plain, (), family="roberta")


def test_a_dense_head_on_gpt_is_refused() -> None:
    encoder = Transformer(**GPTS, norm="pre")
    weights = Model(encoder, ("causal_lm",), transform=True).state_dict()
    with pytest.raises(UserError, match='head = "transform"'):
        to_transformers(encoder, weights, vocabulary=IDS, length=9)


def test_heads_without_a_place_are_said() -> None:
    encoder = Transformer(**SHAPE)
    weights = {**Model(encoder, PAIR).state_dict(), "heads.span_boundary.bias": torch.zeros(3)}
    there = to_transformers(encoder, weights, vocabulary=IDS, length=9)
    assert there.left == ["heads.span_boundary.bias"]
    assert there.length == 9 and exported(encoder).length == 12


def test_a_model_too_small_for_its_tokenizer_is_refused() -> None:
    encoder = Transformer(**SHAPE)
    larger = Vocabulary(VOCABULARY + 1, ROLES, IDS.special)
    with pytest.raises(UserError, match=r"encoder\.embeddings\.words\.weight is of another shape"):
        to_transformers(encoder, Model(encoder, ()).state_dict(), vocabulary=larger, length=9)
    with pytest.raises(
        UserError, match=r"encoder\.embeddings\.words\.weight, .* and .* more are missing"
    ):
        to_transformers(encoder, {}, vocabulary=IDS, length=9)


@pytest.mark.parametrize(
    ("encoder", "heads"),
    [
        (Transformer(**SHAPE), PAIR),
        (
            Transformer(**SHAPE | {"embedding_size": 8}, sharing="all"),
            ("masked_lm", "sentence_order"),
        ),
        (Transformer(**GPTS, norm="pre"), ()),
        (Relative(**STREAMS), ("permutation_lm",)),
    ],
)
def test_the_shapes_are_those_of_the_model(encoder: Encoder, heads: tuple[str, ...]) -> None:
    built = Model(encoder, heads).state_dict()
    assert shapes(encoder, VOCABULARY, heads) == {name: t.shape for name, t in built.items()}


def same(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return some.keys() == others.keys() and all(torch.equal(some[n], others[n]) for n in some)


def test_old_names_doubled_tensors_and_buffers_are_understood() -> None:
    config, tensors, *_ = exported(Transformer(**SHAPE))
    wanted = from_transformers(config, tensors)
    table_name = "bert.embeddings.word_embeddings.weight"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): t
        for name, t in tensors.items()
    }
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    old["cls.predictions.decoder.weight"] = old[table_name].clone()
    old["bert.embeddings.position_ids"] = torch.arange(12)
    imported = from_transformers(config, old)
    assert same(imported.weights, wanted.weights)
    assert (imported.heads, imported.left) == (("masked_lm", "next_sentence"), [])


def test_an_encoder_alone_comes_with_or_without_its_prefix() -> None:
    config, tensors, *_ = exported(Transformer(**SHAPE), ())
    assert "embeddings.word_embeddings.weight" in tensors
    tensors["pooler.dense.weight"] = torch.ones(16, 16)
    tensors["pooler.dense.bias"] = torch.ones(16)
    bare = from_transformers(config, tensors)
    assert (bare.heads, bare.left, bare.bare) == ((), [], True)
    prefixed = from_transformers(
        config, {f"bert.{name}": tensor for name, tensor in tensors.items()}
    )
    assert same(prefixed.weights, bare.weights)
    assert len(bare.weights) == len(Model(bare.encoder, ()).state_dict()) + 2
    there = to_transformers(bare.encoder, bare.weights, vocabulary=IDS, length=9)
    assert same(there.tensors, tensors)
    distilled = to_transformers(
        Transformer(**SHAPE, types=0),
        {**Model(Transformer(**SHAPE, types=0), ()).state_dict(), **_pooler()},
        vocabulary=IDS,
        length=9,
    )
    assert distilled.config["model_type"] == "distilbert"
    assert distilled.left == ["pooler.bias", "pooler.weight"]


def _pooler() -> dict[str, Tensor]:
    return {"pooler.weight": torch.ones(16, 16), "pooler.bias": torch.ones(16)}


def test_half_a_head_and_half_a_pooler_are_left_aside() -> None:
    config, tensors, *_ = exported(Transformer(**SHAPE), ("masked_lm",))
    tensors = {name: tensor for name, tensor in tensors.items() if name.startswith("bert.")}
    tensors["bert.pooler.dense.bias"] = torch.zeros(16)
    imported = from_transformers(config, tensors)
    assert (imported.heads, imported.task, imported.left) == ((), None, ["bert.pooler.dense.bias"])
    half = from_transformers(config, {**tensors, "classifier.weight": torch.zeros(3, 16)})
    assert (half.task, half.left) == (None, ["bert.pooler.dense.bias", "classifier.weight"])


LABELS = ("no", "yes", "maybe")


def tuned(encoder: Encoder, task: TaskHead) -> dict[str, Tensor]:
    """Every tensor of an encoder and a head, at random."""
    generator = torch.Generator().manual_seed(0)
    wanted = {**shapes(encoder, VOCABULARY, ()), **head_shapes(task, encoder.hidden_size)}
    return {name: torch.randn(shape, generator=generator) for name, shape in wanted.items()}


def exported_task(encoder: Encoder, task: TaskHead, family: str | None = None) -> Exported:
    weights = tuned(encoder, task)
    return to_transformers(encoder, weights, vocabulary=IDS, length=9, family=family, task=task)


def judging(**settings: Any) -> TaskHead:
    return TaskHead("classify", LABELS, **settings)


@pytest.mark.parametrize(
    ("encoder", "task", "problem"),
    [
        (Transformer(**SHAPE), TaskHead("coreference"), "task coreference: no bert class"),
        (Transformer(**SHAPE), TaskHead("answer", head="beam"), 'head = "beam": no bert class'),
        (Transformer(**GPTS, norm="pre"), TaskHead("choose"), "task choose: no gpt2 class"),
        (
            Transformer(**GPTS | {"intermediate_size": 64}),
            TaskHead("tag", LABELS),
            "no openai-gpt class",
        ),
        (Transformer(**SHAPE), judging(pool="mean"), "task.pool = 'mean'"),
        (Transformer(**SHAPE), judging(vectors="concat_last_four"), '"concat_last_four" vectors'),
        (Transformer(**SHAPE), judging(summary=Summary("relu")), "task.summary = 'relu'.*'tanh'"),
        (Transformer(**SHAPE), judging(summary=Summary("none")), "task.summary = 'none'"),
        (Transformer(**GPTS, norm="pre"), judging(), "task.summary = 'tanh'.* has 'none'"),
        (Transformer(**GPTS, norm="pre"), judging(summary=Summary("none")), "task.bias = True"),
        (Transformer(**SHAPE, causal=True), judging(), "encoder.causal = True"),
        (Transformer(**SHAPE, sharing="attention"), judging(), "encoder.sharing = 'attention'"),
        (Transformer(**SHAPE), TaskHead("tag", ("O", "O")), "task tag: 2 labels with 1 names"),
        (Transformer(**SHAPE), TaskHead("classify", ("a",)), "task classify: 1 labels"),
        (
            Relative(**STREAMS, epsilon=1e-6),
            TaskHead("answer", head="beam"),
            "encoder.epsilon = 1e-06",
        ),
    ],
)
def test_a_head_without_a_class_is_named_with_a_remedy(
    encoder: Encoder, task: TaskHead, problem: str
) -> None:
    with pytest.raises(UserError, match=problem) as error:
        exported_task(encoder, task)
    assert any(each in str(error.value) for each in ("ONNX", "clozelab predict", "two or more"))


def test_elmo_with_a_head_has_no_class_either() -> None:
    encoder = Lstm(layers=1, hidden_size=4, cell_size=8, filters=((1, 4),))
    with pytest.raises(UserError, match="clozelab embed"):
        to_transformers(encoder, {}, vocabulary=IDS, length=9, task=judging())


def test_more_or_less_than_the_head_is_refused() -> None:
    encoder, task = Transformer(**SHAPE), judging()
    weights = tuned(encoder, task)
    for name in ("heads.classify.crf", "features.mix.weights"):
        with pytest.raises(UserError, match=f"{name} is in no class"):
            to_transformers(
                encoder, {**weights, name: torch.zeros(1)}, vocabulary=IDS, length=9, task=task
            )
    for name in ("heads.classify.dense.bias", "heads.classify.classifier.weight"):
        lacking = {key: value for key, value in weights.items() if key != name}
        with pytest.raises(UserError, match=f"{name} is missing"):
            to_transformers(encoder, lacking, vocabulary=IDS, length=9, task=task)
    fewer = task._replace(labels=("no", "yes"))
    with pytest.raises(UserError, match=r"classify\.classifier\.weight, .* another shape"):
        to_transformers(encoder, weights, vocabulary=IDS, length=9, task=fewer)
    beside = {**weights, "heads.masked_lm.bias": torch.zeros(3)}
    assert to_transformers(encoder, beside, vocabulary=IDS, length=9, task=task).left == [
        "heads.masked_lm.bias"
    ]


def test_which_summary_can_be_exported_is_told_before_training() -> None:
    for encoder in (
        Transformer(**SHAPE),
        Transformer(**SHAPE, types=0),
        Transformer(**SHAPE, types=0, position_offset=2),
        Transformer(**SHAPE | {"embedding_size": 8}, sharing="all"),
        Transformer(**GPTS, norm="pre"),
        Transformer(**GPTS | {"intermediate_size": 64}, activation="gelu_tanh"),
        Relative(**STREAMS),
    ):
        family = family_for(encoder, frozenset(), IDS)
        task = judging(summary=summary(family, "classify"))
        assert exported_task(encoder, task).config["model_type"] == family
        assert family_for(encoder, frozenset({"classify"}), IDS, task=task) == family
    assert summary("roberta", "classify") == Summary("tanh", drop_first=True)
    assert summary("roberta", "choose") == summary("bert", "regress") == Summary()
    assert summary("distilbert", "choose") == Summary("relu")
    assert summary("gpt2", "regress") == Summary("none", bias=False)
    assert summary("gpt2", "choose") == summary("none such", "tag") == Summary()


def test_labels_keep_their_numbers_and_names() -> None:
    there = exported_task(Transformer(**SHAPE), judging())
    assert there.config["id2label"] == {0: "no", 1: "yes", 2: "maybe"}
    assert there.config["label2id"] == {"no": 0, "yes": 1, "maybe": 2}
    read_back = json.loads(json.dumps(there.config, sort_keys=True))
    imported = from_transformers(read_back, there.tensors)
    assert imported.task == judging() and imported.heads == ()
    turned = {"2": "maybe", "0": "no", "1": "yes"}
    assert from_transformers({**there.config, "id2label": turned}, there.tensors).task == judging()
    wrong: list[Any] = [{"a": "x", "b": "y"}, ["a", "b"], {"0": 5}]
    for table in wrong:
        with pytest.raises(UserError, match=r"config\.json: id2label = .* must"):
            from_transformers({**there.config, "id2label": table}, there.tensors)


@pytest.mark.parametrize(
    "stale",
    [
        {"0": "no", "1": "yes"},
        {"2": "maybe", "10": "x", "0": "no", "1": "yes"},
        {"0": "no", "1": "no", "2": "x"},
    ],
)
def test_the_head_not_a_stale_map_says_how_many_labels_there_are(stale: dict[str, str]) -> None:
    there = exported_task(Transformer(**SHAPE), judging())
    imported = from_transformers(
        {**there.config, "id2label": stale, "num_labels": 3}, there.tensors
    )
    assert imported.task is not None and imported.task.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert "id2label does not name 3 labels" in imported.notes[0]
    assert from_transformers(there.config, there.tensors).notes == ()


@pytest.mark.parametrize(
    ("encoder", "change"),
    [
        (Transformer(**SHAPE), {"problem_type": "multi_label_classification"}),
        (Transformer(**SHAPE), {"problem_type": "regression"}),
        (Transformer(**SHAPE), {"is_decoder": True}),
        (Relative(**STREAMS), {"summary_type": "mean"}),
        (Relative(**STREAMS), {"summary_use_proj": False}),
        (Relative(**STREAMS), {"summary_activation": None}),
        (Relative(**STREAMS), {"summary_proj_to_labels": True}),
    ],
)
def test_a_head_that_judges_in_another_way_stays_behind(
    encoder: Encoder, change: dict[str, Any]
) -> None:
    there = exported_task(encoder, judging())
    imported = from_transformers({**there.config, **change}, there.tensors)
    pooled = isinstance(encoder, Transformer)  # whose pooler is kept, without the head
    assert imported.task is None and len(imported.left) == (2 if pooled else 4)
    assert ("pooler.weight" in imported.weights) == pooled
    assert not any(name.startswith("heads.") for name in imported.weights)


def test_a_file_without_its_head_is_an_encoder() -> None:
    there = exported_task(Transformer(**SHAPE), judging())
    bare = {name: t for name, t in there.tensors.items() if not name.startswith("classifier.")}
    imported = from_transformers(there.config, bare)
    assert imported.task is None
    assert imported.left == [] and {"pooler.bias", "pooler.weight"} <= imported.weights.keys()


@pytest.mark.parametrize(
    "task",
    [
        TaskHead("coreference"),
        judging(vectors="sum_all"),
        TaskHead("answer", head="beam"),
    ],
)
def test_what_is_no_graph_is_refused(task: TaskHead, tmp_path: Path) -> None:
    encoder = Transformer(**SHAPE)
    with pytest.raises(UserError, match="clozelab predict"):
        onnx.export_onnx(
            tmp_path / "x.onnx", encoder.build(9), shape=encoder, head=nn.Linear(1, 1), task=task
        )
    assert not list(tmp_path.iterdir())


def test_roberta_s_head_is_made_with_gelu_or_stays_behind() -> None:
    encoder = Transformer(**SHAPE, position_offset=2, types=0)
    config, tensors, *_ = exported(encoder, ("masked_lm",))
    assert from_transformers(config, tensors).heads == ("masked_lm",)
    imported = from_transformers({**config, "hidden_act": "relu"}, tensors)
    assert imported.heads == () and {name.split(".")[0] for name in imported.left} == {"lm_head"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn])
def test_half_precision_becomes_full(dtype: torch.dtype) -> None:
    config, tensors, *_ = exported(Transformer(**SHAPE))
    imported = from_transformers(config, {name: each.to(dtype) for name, each in tensors.items()})
    assert {tensor.dtype for tensor in imported.weights.values()} == {torch.float32}


def test_what_is_missing_strange_misshapen_or_untied_is_named() -> None:
    config, tensors, *_ = exported(Transformer(**SHAPE))
    key = "bert.encoder.layer.1.attention.self.key.weight"
    lacking = {name: tensor for name, tensor in tensors.items() if name != key}
    with pytest.raises(UserError, match=f"{key} is missing"):
        from_transformers(config, lacking)
    few = {name: t for name, t in tensors.items() if "layer.1" not in name}
    with pytest.raises(UserError, match=r"layer\.1\..* and 13 more are missing"):
        from_transformers(config, few)
    for wrong in (torch.zeros(16, 15), torch.zeros(15, 16)):
        with pytest.raises(UserError, match=r"self\.key\.weight .* another shape"):
            from_transformers(config, {**tensors, key: wrong})


def test_what_nobody_needs_is_named_and_left_aside() -> None:
    config, tensors, *_ = exported(Transformer(**SHAPE))
    wanted = from_transformers(config, tensors)
    odd = {
        "bert.adapter": torch.zeros(2),
        "my_head.weight": torch.zeros(1),
        "steps": torch.ones(()),
    }
    imported = from_transformers(config, {**tensors, **odd})
    assert same(imported.weights, wanted.weights) and imported.heads == wanted.heads
    assert imported.left == sorted(odd)
    imported = from_transformers(
        {**config, "tie_word_embeddings": False}, tensors
    )  # which lacks its decoder
    assert imported.heads == ("next_sentence",)
    assert {name.split(".")[1] for name in imported.left} == {"predictions"}
    half = {name: t for name, t in tensors.items() if name != "cls.predictions.bias"}
    assert from_transformers(config, half).heads == ("next_sentence",)


def test_a_decoder_of_its_own_is_kept_whatever_the_config_says() -> None:
    config, tensors, *_ = exported(Transformer(**SHAPE))
    decoder = {"cls.predictions.decoder.weight": torch.zeros(VOCABULARY, 16)}
    for tie in (True, False):
        imported = from_transformers({**config, "tie_word_embeddings": tie}, {**tensors, **decoder})
        assert (
            imported.heads == ("masked_lm", "next_sentence")
            and imported.left == []
            and imported.notes == ()
        )
        assert not imported.weights["heads.masked_lm.table"].any()
    word_table = tensors["bert.embeddings.word_embeddings.weight"]
    same = {"cls.predictions.decoder.weight": word_table.clone()}
    tied = from_transformers({**config, "tie_word_embeddings": True}, {**tensors, **same})
    assert "heads.masked_lm.table" not in tied.weights
    untied = from_transformers({**config, "tie_word_embeddings": False}, {**tensors, **same})
    assert torch.equal(untied.weights["heads.masked_lm.table"], word_table)


def test_gpt_has_a_decoder_of_its_own_or_none() -> None:
    config, tensors, *_ = exported(Transformer(**GPTS, norm="pre"), ())
    imported = from_transformers(config, {**tensors, "lm_head.weight": torch.zeros(VOCABULARY, 16)})
    assert (imported.heads, imported.bare, imported.left) == (("causal_lm",), False, [])
    assert from_transformers(config, tensors).heads == ("causal_lm",)
    imported = from_transformers({**config, "tie_word_embeddings": False}, tensors)
    assert (imported.heads, imported.bare) == ((), True)


def test_a_table_alone_over_a_bert_is_no_head_of_its_classes() -> None:
    """A plain causal head that is not tied: only a GPT's class has its like."""
    encoder = Transformer(**SHAPE, causal=True)
    weights = Model(encoder, ()).state_dict()
    weights["heads.causal_lm.table"] = torch.zeros(VOCABULARY, 16)
    checkpoint = to_transformers(encoder, weights, vocabulary=IDS, length=99)
    assert checkpoint.config["architectures"] == ["BertModel"]
    assert checkpoint.left == ["heads.causal_lm.table"]


@pytest.mark.parametrize(
    ("classes", "prefix", "family"),
    [
        (["BertForMaskedLM"], "", "bert"),
        (["ErnieModel"], "", "bert"),
        (["RobertaModel"], "", "roberta"),
        (["RobertaPreLayerNormModel"], "", "roberta-prelayernorm"),
        (["XLMRobertaForMaskedLM"], "", "roberta"),
        (["SomethingElse", "BertModel"], "", "bert"),
        (None, "bert.", "bert"),
        (["MyModel"], "bert.", "bert"),
    ],
)
def test_without_a_model_type_the_class_or_the_names_say_it(
    classes: list[str] | None, prefix: str, family: str
) -> None:
    named = family if family.startswith("roberta") else None
    norm = "pre" if family.endswith("prelayernorm") else "post"
    offset = 2 if named else 0
    encoder = Transformer(**SHAPE, norm=norm, position_offset=offset, types=1)  # type: ignore[arg-type]
    config, tensors, *_ = exported(encoder, (), named)
    del config["model_type"]
    config = {**config, "architectures": classes}
    imported = from_transformers(
        config, {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
    )
    assert imported.family == family and imported.encoder == encoder


@pytest.mark.parametrize("classes", [None, ["DebertaModel"], ["BertModel", "RobertaModel"]])
def test_a_family_that_nothing_says_is_asked_for(classes: list[str] | None) -> None:
    config, tensors, *_ = exported(Transformer(**SHAPE), ())
    del config["model_type"]
    with pytest.raises(UserError, match=r'no model_type.* add "model_type", one of albert, bert'):
        from_transformers({**config, "architectures": classes}, tensors)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model_type": "deberta"}, "model_type 'deberta' is unknown"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_act": "mish"}, "activation 'mish'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({"model_type": "ernie", "use_task_id": True}, "use_task_id = True"),
        (
            {"model_type": "electra", "position_embedding_type": "relative_key_query"},
            "position_embedding_type = 'relative_key_query'",
        ),
        ({"num_attention_heads": 3}, "heads = 3"),
    ],
)
def test_a_config_that_cannot_be_ours_is_refused(change: dict[str, Any], problem: str) -> None:
    config, tensors, *_ = exported(Transformer(**SHAPE))
    config = {key: value for key, value in {**config, **change}.items() if value is not None}
    with pytest.raises(UserError, match=problem):
        from_transformers(config, tensors)


# Published: ModernBERT-base and, where it differs, -large.
MODERNBERT = {
    "model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"], "vocab_size": 50368,
    "num_hidden_layers": 22, "num_attention_heads": 12, "hidden_size": 768,
    "intermediate_size": 1152, "max_position_embeddings": 8192, "hidden_activation": "gelu",
    "global_attn_every_n_layers": 3, "local_attention": 128, "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0, "norm_eps": 1e-05, "layer_norm_eps": 1e-05, "norm_bias": False,
    "attention_bias": False, "mlp_bias": False, "classifier_bias": False, "decoder_bias": True,
    "classifier_activation": "gelu", "classifier_pooling": "mean", "classifier_dropout": 0.0,
    "attention_dropout": 0.0, "embedding_dropout": 0.0, "mlp_dropout": 0.0, "pad_token_id": 50283,
    "position_embedding_type": "absolute", "tie_word_embeddings": True, "bos_token_id": 50281,
    "eos_token_id": 50282, "cls_token_id": 50281, "sep_token_id": 50282,
}  # fmt: skip
LARGE = {
    "num_hidden_layers": 28, "num_attention_heads": 16, "hidden_size": 1024,
    "intermediate_size": 2624,
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("size", "change"), [("base", {}), ("large", LARGE)])
def test_the_published_configurations_are_the_recipe_s(size: str, change: dict[str, Any]) -> None:
    import transformers  # two seconds

    published = MODERNBERT | change
    config = transformers.ModernBertConfig(**published)
    recipe = recipes.read("modernbert", size=size)
    wanted = replace(recipe.encoder, output_init="normal")  # of which a config says nothing
    for settings in (published, config.to_dict()):  # as they were published, and as written today
        assert from_config(settings, MODEL_TYPES["modernbert"]) == wanted
    with torch.device("meta"):
        peer = transformers.ModernBertForMaskedLM(config)
        ours = build(recipe, 50368, seed=0)
    assert sum(recipe.parameters().values()) == peer.num_parameters()
    there = to_transformers(
        recipe.encoder, ours.state_dict(), vocabulary=replace(IDS, size=50368), length=8192
    )
    theirs = {name: t.shape for name, t in peer.state_dict().items() if name != "decoder.weight"}
    assert {name: tensor.shape for name, tensor in there.tensors.items()} == theirs
    same = ("layer_types", "rope_parameters", "local_attention", "intermediate_size", "norm_eps")
    back = transformers.ModernBertConfig(**there.config)
    assert all(getattr(back, key) == getattr(config, key) for key in same)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"norm_bias": True}, "norm_bias = True must be attention_bias = False here"),
        ({"decoder_bias": False}, "decoder_bias = False is not available here, only True"),
        ({"classifier_activation": "relu"}, "classifier_activation = 'relu' must be hidden_act"),
        ({"layer_types": ["sliding_attention"] * 22}, "layer_types = .* full_attention in the fir"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling = .* is not available here"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 9.0}}},
            "rope_parameters.full_attention = 'yarn' must be 'default'",
        ),
        ({"rope_parameters": [1]}, "rope_parameters = .* must be a table"),
        ({"global_rope_theta": "wide"}, "global_rope_theta = 'wide' must be a number"),
        ({"global_rope_theta": -1.0}, "rope_theta = -1.0: must be above 0"),
        ({"hidden_size": 12 * 63}, "give each head 63 elements"),
        ({"num_attention_heads": 11}, "heads = 11: must divide hidden_size = 768"),
        ({"hidden_activation": "mish", "classifier_activation": "mish"}, "activation 'mish'"),
    ],
)
def test_a_modernbert_that_cannot_be_ours_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        from_config(MODERNBERT | change, MODEL_TYPES["modernbert"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "change"),
    [("ForSequenceClassification", {"norm_eps": 1e-6}), ("ForTokenClassification", {"named": ""})],
)
def test_a_head_of_modernbert_that_is_not_ours_is_left_aside(
    kind: str, change: dict[str, Any]
) -> None:
    import transformers

    small = MODERNBERT | {"vocab_size": VOCABULARY, "num_hidden_layers": 1, "hidden_size": 24}
    small |= {"architectures": [f"ModernBert{kind}"], "intermediate_size": 8, "pad_token_id": 1}
    cls = getattr(transformers, f"ModernBert{kind}")
    tensors = cls(transformers.ModernBertConfig(**small)).state_dict()
    if "named" in change:  # its class alone tells what it is for
        del small["architectures"]
    imported = from_transformers(small | change, tensors)
    assert (imported.heads, imported.task, imported.bare) == ((), None, True)
    assert imported.left == [
        "classifier.bias",
        "classifier.weight",
        "head.dense.weight",
        "head.norm.weight",
    ]


@pytest.mark.parametrize("family", ["roberta", "roberta-prelayernorm", "bert", "albert"])
def test_an_encoder_without_a_table_of_positions_goes_to_no_family_with_one(family: str) -> None:
    turning = Transformer(**SHAPE, norm="pre", types=0, position_embedding="rotary")
    with pytest.raises(UserError, match=r"encoder\.(position_embedding|position_offset|norm) = "):
        exported(turning, ("masked_lm",), family)


@pytest.mark.parametrize(("heads", "prefix"), [(("masked_lm",), "albert."), ((), "")])
def test_albert_at_full_width_has_nothing_to_project(heads: tuple[str, ...], prefix: str) -> None:
    config, tensors, *_ = exported(Transformer(**SHAPE, sharing="all"), heads, family="albert")
    imported = from_transformers(config, tensors)
    assert imported.encoder == Transformer(**SHAPE, sharing="all")
    assert imported.left == []
    tensors[f"{prefix}encoder.embedding_hidden_mapping_in.bias"][0] = 1.0
    with pytest.raises(UserError, match="projects a width onto itself"):
        from_transformers(config, tensors)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    config, tensors, *_ = exported(Transformer(**SHAPE))
    name = next(iter(tensors))
    tensors[name].view(-1)[-1] = value
    with pytest.raises(UserError, match=f"{name}: holds values that are NaN or inf"):
        from_transformers(config, tensors)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = Tokenizer.from_file(str(data.tokenizer("wordpiece")))
    there = exported(Transformer(**SHAPE))
    write(tmp_path / "a" / "hf", there, tokenizer=tokenizer, vocabulary=IDS, card="A card.")
    return tmp_path / "a" / "hf"


def test_a_directory_holds_what_transformers_opens(folder: Path) -> None:
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in folder.iterdir()} == {*names, "README.md"}


def test_shards_and_pickled_weights_are_read(folder: Path) -> None:
    wanted = read(str(folder)).tensors
    (folder / "model.safetensors").unlink()
    torch.save(wanted, folder / "pytorch_model.bin")
    assert same(read(str(folder)).tensors, wanted)
    names = list(wanted)
    parts = {"model-1.safetensors": names[:5], "model-2.safetensors": names[5:]}
    for file, part in parts.items():
        save_file({name: wanted[name] for name in part}, folder / file)
    index: dict[str, Any] = {name: file for file, part in parts.items() for name in part}
    place = folder / "model.safetensors.index.json"
    place.write_text(json.dumps({"weight_map": index}), encoding="utf-8")
    (folder / "pytorch_model.bin").write_bytes(b"not to be read")
    assert same(read(str(folder)).tensors, wanted)
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(UserError, match="is in the index but missing"):
        read(str(folder))
    for wrong in ([1], 5, {"a": 3}, {"a": "../elsewhere/model-1.safetensors"}, {"a": "/etc/x"}):
        place.write_text(json.dumps({"weight_map": wrong}), encoding="utf-8")
        with pytest.raises(UserError, match=r"model\.safetensors\.index\.json: "):
            read(str(folder))


class Trap:
    """What a hostile pickle would hold."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle ran",))


def test_only_weights_are_unpickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"a": Trap()}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="cannot be read as weights alone"):
        read(str(folder))
    torch.save({"epoch": 3}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="more than weights"):
        read(str(folder))
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match=r"no model\.safetensors or pytorch_model\.bin"):
        read(str(folder))
    (folder / "model.safetensors").write_bytes(b"12")
    with pytest.raises(UserError, match="cannot be read"):
        read(str(folder))
    (folder / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UserError, match="not a JSON object"):
        read(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json: does not exist"):
        read(str(folder))


def test_a_hub_name_is_fetched_safe_weights_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, list[str]]] = []

    def download(name: str, allow_patterns: list[str]) -> str:
        calls.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=download))
    assert read("owner/name").folder == folder
    assert len(calls) == 1 and not any(each.endswith(".bin") for each in calls[0][1])
    weights = read(str(folder)).tensors
    assert len(calls) == 1, "a local directory touched the hub"
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert same(read("owner/name").tensors, weights)
    assert "pytorch_model*.bin" in calls[-1][1]


def test_a_folder_that_is_not_there_is_not_sought_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "encoder").mkdir(parents=True)
    with pytest.raises(
        UserError, match=r"runs/encodr: does not exist.*did you mean runs/encoder\?"
    ):
        read("runs/encodr")


def test_a_hub_that_cannot_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, allow_patterns: list[str]) -> str:
        raise ConnectionError("no way out")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=download))
    with pytest.raises(UserError, match=r"owner/name: does not exist.*no way out"):
        read("owner/name")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match="pip install huggingface_hub"):
        read("owner/name")
    with pytest.raises(UserError, match="does not exist"):
        read("/no/such/place")


def test_without_its_packages_onnx_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "find_spec", lambda name: None)
    encoder = Transformer(**SHAPE)
    with pytest.raises(UserError, match=r"pip install 'clozelab\[onnx\]'"):
        onnx.export_onnx(Path("x.onnx"), encoder.build(9), shape=encoder)


def test_a_card_says_what_the_model_is() -> None:
    text = card(
        name="hf/small",
        title="A small model",
        recipe_toml='[encoder]\nuse = "transformer"\n',
        data={"tokens": 12, "source": "a|b"},
        metrics={"loss": 2.345678},
        family="bert",
    )
    front = text.split("---\n")[1]
    assert "pipeline_tag: fill-mask" in front and "library_name: transformers" in front
    assert "# small\n" in text and 'pipeline("fill-mask", "hf/small")' in text
    assert '```toml\n[encoder]\nuse = "transformer"\n```' in text
    assert "| loss | 2.346 |" in text and r"| source | a\|b |" in text
    facts = {"name": "x", "title": "t", "recipe_toml": "", "data": {}, "metrics": {}}
    assert "text-generation" in card(**facts, family="gpt2")
    assert "Not recorded." in card(**facts, family="xlnet")


def test_a_fine_tuned_model_s_card_says_what_it_does_and_where_it_came_from() -> None:
    text = card(
        name="hf/judge",
        title="BERT on my reviews",
        recipe_toml="",
        data={"train": "reviews.tsv"},
        metrics={"accuracy": 91.25},
        family="bert",
        task=judging(),
        lineage=("runs/a", "runs/mnli"),
        task_toml='use = "classify"',
    )
    front = text.split("---\n")[1]
    assert "pipeline_tag: text-classification" in front
    assert "| 0 | no |\n| 1 | yes |\n| 2 | maybe |" in text
    assert "Fine-tuned from: runs/a → runs/mnli." in text
    assert "| accuracy | 91.25 |" in text and 'use = "classify"' in text
    assert 'pipeline("text-classification", "hf/judge")' in text
    facts = {"name": "x", "title": "t", "recipe_toml": "", "data": {}, "metrics": {}}
    tags = {"choose": "multiple-choice", "tag": "token-classification", "regress": "text-classific"}
    for kind, tag in {**tags, "answer": "question-answering"}.items():
        text = card(**facts, family="xlnet", task=TaskHead(kind))
        assert f"pipeline_tag: {tag}" in text
        compile(text.split("```python\n")[1].split("```")[0], kind, "exec")
    beam = card(**facts, family="xlnet", task=TaskHead("answer", head="beam"))
    assert "XLNetForQuestionAnswering.from_pretrained" in beam


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)> | a & b",
    "![x](https://example.org/x.png) [y](javascript:alert(1))",
    "**bold** _thin_ `code` ~~gone~~ a_b \\ <!-- x -->",
    "# a heading",
    "1. an item",
    "- an item",
    "---",
    'a "quoted" name\n\n# with a heading\n```\n<b>x</b>',
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_that_a_user_wrote_is_markup_in_a_card(text: str) -> None:
    text_of_card = card(
        name=f"hf/{text.replace('/', '|')}",
        title=text,
        recipe_toml=f"# {text}\n[encoder]\n",
        data={"corpora": text, text: "a corpus"},
        metrics={text: 1.0},
        family="bert",
        task=TaskHead("classify", (text, "other"), extra={"task": text}),
        lineage=(text,),
        task_toml=f"name = {json.dumps(text)}",
    )
    body = text_of_card.split("---\n", 2)[2]
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(body)
    inline = [child for token in tokens for child in token.children or []]
    assert {token.type for token in inline} <= {"text", "code_inline", "text_special", "softbreak"}
    assert not [token for token in tokens if token.type.startswith("html")]
    assert not {"hr", "list_item_open"} & {token.type for token in tokens}
    written = " ".join(text.split())
    cells = [
        "".join(child.content for child in token.children or [])
        for token in tokens
        if token.type == "inline"
    ]
    assert cells.count(written) >= 4, "it is not shown as it was written"
    assert sum(token.type == "heading_open" for token in tokens) == 7
    compile(body.split("```python\n")[1].split("\n```")[0], "card", "exec")
