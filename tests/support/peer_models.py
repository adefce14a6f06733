"""Tiny models of ours and of transformers with random weights, and one batch for both."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from clozelab.contracts import Encoded, Input
from clozelab.encoder import Encoder
from clozelab.objectives import PARTS, CausalLm

VOCABULARY = 40
LENGTHS = (7, 4, 9)  # of the batch's texts
SHAPE = {
    "layers": 3,
    "heads": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "embedding_size": 16,
    "positions": 12,
}


class Model(nn.Module):
    """An encoder and its heads, named as runs save them."""

    def __init__(
        self,
        encoder: Encoder,
        heads: tuple[str, ...],
        *,
        transform: bool = False,
        vocabulary: int = VOCABULARY,
    ) -> None:
        super().__init__()
        parts = {name: PARTS[name]() for name in heads}
        if "causal_lm" in parts:
            parts["causal_lm"] = CausalLm(head="transform" if transform else "plain")
        self.encoder = encoder.build(vocabulary)
        self.heads = nn.ModuleDict({n: p.build(encoder, vocabulary) for n, p in parts.items()})


def shaken(module: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter at random, in double precision: none is zero, none is one."""
    generator = torch.Generator().manual_seed(seed)
    module.double().eval()
    with torch.no_grad():
        for parameter in dict(module.named_parameters()).values():
            parameter.normal_(0.0, 0.3, generator=generator)
    return module


def random_model(encoder: Encoder, heads: tuple[str, ...], *, transform: bool = False) -> Model:
    """A model of ours with random weights."""
    model = shaken(Model(encoder, heads, transform=transform))
    assert isinstance(model, Model)
    return model


def sized_model(encoder: Encoder, heads: tuple[str, ...], vocabulary: int) -> Model:
    """A model of ours for that many words."""
    return Model(encoder, heads, vocabulary=vocabulary)


def model_with_weights(
    encoder: Encoder, heads: tuple[str, ...], weights: Mapping[str, Tensor]
) -> Model:
    """A model of ours with those weights, all of them but a pooler of no head."""
    model = Model(encoder, heads, transform="heads.causal_lm.dense.weight" in weights)
    own = {name: value for name, value in weights.items() if not name.startswith("pooler.")}
    model.double().eval().load_state_dict(own)
    return model


def padded(types: int, padding: int = 1) -> dict[str, Tensor]:
    """The batch as transformers takes it: rows filled up on the right."""
    generator = torch.Generator().manual_seed(1)
    longest = max(LENGTHS)
    ids = torch.full((len(LENGTHS), longest), padding)
    mask = torch.zeros_like(ids)
    segments = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        ids[row, :length] = torch.randint(5, VOCABULARY, (length,), generator=generator)
        mask[row, :length] = 1
        segments[row, length // 2 : length] = min(types, 2) - 1 if types else 0
    batch = {"input_ids": ids, "attention_mask": mask}
    return {**batch, "token_type_ids": segments} if types > 1 else batch


def packed(batch: Mapping[str, Tensor]) -> Input:
    """The same batch as our encoders take it."""
    real = batch["attention_mask"].bool()
    segments = batch.get("token_type_ids", torch.zeros_like(batch["input_ids"]))
    lengths = real.sum(1)
    starts = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()
    places = torch.cat([torch.arange(int(length)) for length in lengths])
    ids = batch["input_ids"][real]
    return Input(ids, places, segments[real], starts, int(lengths.max()))


@torch.no_grad()
def ours(model: Model, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every layer's states, and the logits of every head."""
    inside = packed(batch)
    encoded: Encoded = model.encoder(inside, keep=True)
    outputs = {f"layer {number}": states for number, states in enumerate(encoded.layers)}
    first = inside.cu_seqlens[:-1].long()
    for name, head in model.heads.items():
        if name in ("next_sentence", "sentence_order"):
            outputs[name] = head.logits(encoded.hidden_states, first)
        elif name == "replaced_token":
            outputs[name] = head.logits(encoded.hidden_states).squeeze(1)
        else:
            outputs["words"] = head.all_logits(encoded)
    return outputs


@torch.no_grad()
def theirs(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same from a model of transformers."""
    _widen(model)
    real = batch["attention_mask"].bool()
    out = model(**batch, output_hidden_states=True)
    outputs = {f"layer {number}": x[real] for number, x in enumerate(out.hidden_states)}
    for key in ("logits", "prediction_logits"):
        if key in out:
            detects = out[key].dim() == 2  # a score a token
            outputs["replaced_token" if detects else "words"] = out[key][real]
    pairs = {"seq_relationship_logits": "next_sentence", "sop_logits": "sentence_order"}
    return outputs | {name: out[key] for key, name in pairs.items() if key in out}


def _widen(model: nn.Module) -> None:
    """Take in double what is taken in single precision whatever the weights: sines and roots."""
    inner = model.base_model
    if model.config.model_type == "deberta-v2":
        import_module(type(inner).__module__).scaled_size_sqrt = _root
        return
    if model.config.model_type == "modernbert":
        inner.rotary_emb.forward = partial(_angles, model.config)
        import_module(type(inner).__module__).apply_rotary_pos_emb = _turned
        return
    if not hasattr(inner, "positional_embedding"):
        return
    narrow = type(inner).positional_embedding
    even = torch.arange(0, model.config.d_model, 2).double() / model.config.d_model
    inner.positional_embedding = lambda places, _, blocks=None: narrow(
        places.double(), 10000.0**-even, blocks
    )


def _root(x: Tensor, terms: int) -> Tensor:
    """By which DeBERTa divides its scores."""
    return torch.tensor(float(x.shape[-1] * terms), dtype=torch.float64).sqrt()


def _angles(config: Any, x: Tensor, position_ids: Tensor, layer_type: str) -> tuple[Tensor, Tensor]:
    """ModernBERT's cosines and sines."""
    size = config.hidden_size // config.num_attention_heads
    theta = config.rope_parameters[layer_type]["rope_theta"]
    slow = theta ** -(torch.arange(0, size, 2).double() / size)
    angles = torch.cat([position_ids[..., None].double() * slow] * 2, dim=-1)
    return angles.cos(), angles.sin()


def _turned(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """ModernBERT's rotation, which transformers takes in single precision."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + _half_turned(q) * sin, k * cos + _half_turned(k) * sin


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def agree(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
    """Both have the same, to 1e-9."""
    assert some.keys() == others.keys()
    for name, tensor in some.items():
        other = others[name]
        assert tensor.shape == other.shape, name
        assert float((tensor - other).abs().max()) < 1e-9, name
