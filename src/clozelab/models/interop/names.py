"""The names of weights, ours and those of transformers, and the forms they are kept in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from clozelab.encoder import Encoder
from clozelab.models.interop.heads import head_names

Table = Mapping[str, str | tuple[str, ...]]
QKV = ("query", "key", "value")
GPTS = ("openai-gpt", "gpt2")
PAIRS = ("next_sentence", "sentence_order")  # heads that have no table over the vocabulary


@dataclass(frozen=True)
class Names:
    """One family's names: our module, or tensor, and theirs; {} is the number of a layer.

    Three names of theirs are one of ours in three stretches. `form` is how matrices lie: as ours,
    turned (GPT), or cut into heads (XLNet).
    """

    prefix: str  # before the names of the encoder, where a head stands beside it
    table: Table
    decoder: str  # whose matrix is the table of words, unless the head has one of its own
    bias: str = ""  # of the head, where it is another than the decoder's
    form: Literal["same", "turned", "heads"] = "same"

    @property
    def words(self) -> str:
        """The table of words."""
        return self.theirs("encoder.embeddings.words.weight")[0]

    def theirs(self, name: str) -> tuple[str, ...]:
        """Their names for a tensor of ours; none where they have no such thing."""
        number = re.search(r"\.(\d+)\.", name)
        pattern = re.sub(r"\.\d+\.", ".{}.", name)
        entry, ending = self.table.get(pattern), ""
        if entry is None:
            module, _, last = pattern.rpartition(".")
            entry, ending = self.table.get(module, ()), f".{last}"
        found = (entry,) if isinstance(entry, str) else entry
        return tuple(f"{each.format(number and number[1])}{ending}" for each in found)

    def outward(self, name: str, tensor: Tensor, *, heads: int) -> dict[str, Tensor]:
        """A tensor of ours as theirs."""
        theirs = self.theirs(name)
        parts = tensor.chunk(len(theirs)) if theirs else ()
        pairs = zip(theirs, parts, strict=True)
        return {each: self._formed(name, part, heads).contiguous() for each, part in pairs}

    def inward(self, name: str, tensors: list[Tensor]) -> Tensor:
        """Their tensors as one of ours, in our shape if theirs is what it should be."""
        alike = len({each.shape for each in tensors}) == 1 and tensors[0].dim() > 0
        tensor = torch.cat(tensors) if alike else tensors[0]
        if self.form == "turned" and _matrix(name):
            tensor = tensor.T if tensor.dim() == 2 else tensor
        elif self.form == "heads" and name == "encoder.embeddings.query":
            tensor = tensor.flatten()
        elif self.form == "heads" and tensor.dim() == 3 and _projects(name):
            tensor = tensor.flatten(1).T
        elif self.form == "heads" and tensor.dim() == 3 and _gathers(name):
            tensor = tensor.flatten(1)
        return tensor.contiguous()

    def _formed(self, name: str, tensor: Tensor, heads: int) -> Tensor:
        if self.form == "turned" and _matrix(name):
            return tensor.T
        if self.form == "heads" and name == "encoder.embeddings.query":
            return tensor[None, None]
        if self.form == "heads" and _projects(name):
            return tensor.T.reshape(tensor.shape[1], heads, -1)
        if self.form == "heads" and _gathers(name):
            return tensor.reshape(len(tensor), heads, -1)
        return tensor


def _matrix(name: str) -> bool:
    """Whether this is the matrix of a dense layer."""
    return bool(re.fullmatch(r"encoder\.(attention|ffn)\.\d+\.(qkv|inner|output)\.weight", name))


def _projects(name: str) -> bool:
    """Whether this is a matrix of XLNet into the heads."""
    kinds = "query|key|value|position"
    return bool(re.fullmatch(rf"encoder\.attention\.\d+\.({kinds})\.weight", name))


def _gathers(name: str) -> bool:
    """Whether this is the matrix of XLNet out of the heads."""
    return bool(re.fullmatch(r"encoder\.attention\.\d+\.output\.weight", name))


def _embeddings(prefix: str) -> dict[str, str]:
    inside = f"{prefix}embeddings."
    return {
        "encoder.embeddings.words": f"{inside}word_embeddings",
        "encoder.embeddings.positions": f"{inside}position_embeddings",
        "encoder.embeddings.types": f"{inside}token_type_embeddings",
        "encoder.embeddings.norm": f"{inside}LayerNorm",
    }


def _bert(prefix: str) -> dict[str, str | tuple[str, ...]]:
    layer = f"{prefix}encoder.layer.{{}}."
    return {
        **_embeddings(prefix),
        "encoder.attention.{}.qkv": tuple(f"{layer}attention.self.{part}" for part in QKV),
        "encoder.attention.{}.output": f"{layer}attention.output.dense",
        "encoder.attention.{}.norm": f"{layer}attention.output.LayerNorm",
        "encoder.ffn.{}.inner": f"{layer}intermediate.dense",
        "encoder.ffn.{}.output": f"{layer}output.dense",
        "encoder.ffn.{}.norm": f"{layer}output.LayerNorm",
    }


def _prelayernorm(prefix: str) -> dict[str, str | tuple[str, ...]]:
    """BERT's layers with their norms before each half, and one more after the last."""
    layer = f"{prefix}encoder.layer.{{}}."
    return {
        **_bert(prefix),
        "encoder.attention.{}.norm": f"{layer}attention.LayerNorm",
        "encoder.ffn.{}.norm": f"{layer}intermediate.LayerNorm",
        "encoder.norm": f"{prefix}LayerNorm",
    }


def _head(dense: str, norm: str, decoder: str, bias: str = "") -> dict[str, str]:
    """BERT's head over the vocabulary, which serves masked and causal language modelling."""
    parts = {"dense": dense, "norm": norm, "bias": bias or f"{decoder}.bias"}
    parts["table"] = f"{decoder}.weight"
    heads = {
        f"heads.{objective}.{ours}": theirs
        for objective in ("masked_lm", "causal_lm")
        for ours, theirs in parts.items()
    }
    return heads | ({"idle_bias": f"{decoder}.bias"} if bias else {})


def _albert() -> dict[str, str | tuple[str, ...]]:
    layer = "albert.encoder.albert_layer_groups.{}.albert_layers.0."
    return {
        **_embeddings("albert."),
        "encoder.embeddings.projection": "albert.encoder.embedding_hidden_mapping_in",
        "encoder.attention.{}.qkv": tuple(f"{layer}attention.{part}" for part in QKV),
        "encoder.attention.{}.output": f"{layer}attention.dense",
        "encoder.attention.{}.norm": f"{layer}attention.LayerNorm",
        "encoder.ffn.{}.inner": f"{layer}ffn",
        "encoder.ffn.{}.output": f"{layer}ffn_output",
        "encoder.ffn.{}.norm": f"{layer}full_layer_layer_norm",
        "pooler": "albert.pooler",
        "heads.sentence_order.pooler": "albert.pooler",
        "heads.sentence_order.classifier": "sop_classifier.classifier",
        **_head(
            "predictions.dense", "predictions.LayerNorm", "predictions.decoder", "predictions.bias"
        ),
    }


def _distilbert() -> dict[str, str | tuple[str, ...]]:
    layer = "distilbert.transformer.layer.{}."
    return {
        **_embeddings("distilbert."),
        "encoder.attention.{}.qkv": tuple(f"{layer}attention.{part[0]}_lin" for part in QKV),
        "encoder.attention.{}.output": f"{layer}attention.out_lin",
        "encoder.attention.{}.norm": f"{layer}sa_layer_norm",
        "encoder.ffn.{}.inner": f"{layer}ffn.lin1",
        "encoder.ffn.{}.output": f"{layer}ffn.lin2",
        "encoder.ffn.{}.norm": f"{layer}output_layer_norm",
        **_head("vocab_transform", "vocab_layer_norm", "vocab_projector"),
    }


def _xlnet() -> dict[str, str]:
    layer = "transformer.layer.{}."
    attention = {"query": "q", "key": "k", "value": "v", "output": "o", "position": "r"}
    vectors = {"content_bias": "r_w_bias", "position_bias": "r_r_bias", "segment_bias": "r_s_bias"}
    vectors["segments"] = "seg_embed"
    inside = f"{layer}rel_attn."
    return {
        "encoder.embeddings.words": "transformer.word_embedding",
        "encoder.embeddings.query": "transformer.mask_emb",
        **{f"encoder.attention.{{}}.{a}.weight": f"{inside}{b}" for a, b in attention.items()},
        **{f"encoder.attention.{{}}.{a}": f"{inside}{b}" for a, b in vectors.items()},
        "encoder.attention.{}.norm": f"{inside}layer_norm",
        "encoder.ffn.{}.inner": f"{layer}ff.layer_1",
        "encoder.ffn.{}.output": f"{layer}ff.layer_2",
        "encoder.ffn.{}.norm": f"{layer}ff.layer_norm",
        "heads.permutation_lm.bias": "lm_loss.bias",
        "heads.permutation_lm.table": "lm_loss.weight",
    }


def _gpt(words: str, positions: str) -> dict[str, str]:
    layer = "transformer.h.{}."
    return {
        "encoder.embeddings.words": f"transformer.{words}",
        "encoder.embeddings.positions": f"transformer.{positions}",
        "encoder.attention.{}.qkv": f"{layer}attn.c_attn",
        "encoder.attention.{}.output": f"{layer}attn.c_proj",
        "encoder.attention.{}.norm": f"{layer}ln_1",
        "encoder.ffn.{}.inner": f"{layer}mlp.c_fc",
        "encoder.ffn.{}.output": f"{layer}mlp.c_proj",
        "encoder.ffn.{}.norm": f"{layer}ln_2",
        "encoder.norm": "transformer.ln_f",
        "heads.causal_lm.table": "lm_head.weight",
    }


NAMES = {
    "bert": Names(
        prefix="bert.",
        table={
            **_bert("bert."),
            **_head(
                "cls.predictions.transform.dense",
                "cls.predictions.transform.LayerNorm",
                "cls.predictions.decoder",
                "cls.predictions.bias",
            ),
            "pooler": "bert.pooler.dense",
            "heads.next_sentence.pooler": "bert.pooler.dense",
            "heads.next_sentence.classifier": "cls.seq_relationship",
            **head_names("bert"),
        },
        decoder="cls.predictions.decoder",
        bias="cls.predictions.bias",
    ),
    "roberta": Names(
        prefix="roberta.",
        table={
            **_bert("roberta."),
            "pooler": "roberta.pooler.dense",
            **_head("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
            **head_names("roberta"),
        },
        decoder="lm_head.decoder",
        bias="lm_head.bias",
    ),
    "roberta-prelayernorm": Names(
        prefix="roberta_prelayernorm.",
        table={
            **_prelayernorm("roberta_prelayernorm."),
            "pooler": "roberta_prelayernorm.pooler.dense",
            **_head("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
            **head_names("roberta-prelayernorm"),
        },
        decoder="lm_head.decoder",
        bias="lm_head.bias",
    ),
    "albert": Names(
        prefix="albert.",
        table={**_albert(), **head_names("albert")},
        decoder="predictions.decoder",
        bias="predictions.bias",
    ),
    "distilbert": Names(
        prefix="distilbert.",
        table={**_distilbert(), **head_names("distilbert")},
        decoder="vocab_projector",
    ),
    "xlnet": Names(
        prefix="transformer.",
        table={**_xlnet(), **head_names("xlnet")},
        decoder="lm_loss",
        form="heads",
    ),
    "openai-gpt": Names(
        prefix="transformer.",
        table={**_gpt("tokens_embed", "positions_embed"), **head_names("openai-gpt")},
        decoder="lm_head",
        form="turned",
    ),
    "gpt2": Names(
        prefix="transformer.",
        table={**_gpt("wte", "wpe"), **head_names("gpt2")},
        decoder="lm_head",
        form="turned",
    ),
}


def pooler_shapes(width: int) -> dict[str, torch.Size]:
    """A pooler that belongs to no head: it came beside an encoder, and goes with it."""
    return {"pooler.weight": torch.Size((width, width)), "pooler.bias": torch.Size((width,))}


def shapes(
    encoder: Encoder,
    vocabulary: int,
    heads: tuple[str, ...],
    *,
    family: str = "bert",
    tied: bool = True,
) -> dict[str, torch.Size]:
    """Every tensor of ours, by name, for that encoder and those heads.

    Heads over the vocabulary are tied to the table of words, or have one of their own.
    """
    with torch.device("meta"):
        module = encoder.build(vocabulary)
    found = {f"encoder.{name}": tensor.shape for name, tensor in module.state_dict().items()}
    width, narrow = encoder.width, encoder.embedding
    transform = {
        "dense.weight": (narrow, width),
        "dense.bias": (narrow,),
        "norm.weight": (narrow,),
        "norm.bias": (narrow,),
        "bias": (vocabulary,),
    }
    pair = {
        "pooler.weight": (width, width),
        "pooler.bias": (width,),
        "classifier.weight": (2, width),
        "classifier.bias": (2,),
    }
    parts: dict[str, dict[str, tuple[int, ...]]] = {
        "masked_lm": transform,
        "causal_lm": {} if family in GPTS else transform,
        "next_sentence": pair,
        "sentence_order": pair,
        "permutation_lm": {"bias": (vocabulary,)},
    }
    for head in heads:
        own = {} if tied or head in PAIRS else {"table": (vocabulary, narrow)}
        found |= {f"heads.{head}.{name}": torch.Size(s) for name, s in (parts[head] | own).items()}
    return found
