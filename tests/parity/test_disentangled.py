"""DeBERTa beside transformers: the published shapes, buckets, faults, and what a file may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from support.peer_models import (
    SHAPE,
    VOCABULARY,
    _widen,
    agree,
    model_with_weights,
    ours,
    packed,
    padded,
    shaken,
)
from torch import Tensor
from transformers.models.deberta_v2 import modeling_deberta_v2

from clozelab.config import recipe as recipes
from clozelab.encoder import Transformer, attention, self_attention, stack
from clozelab.encoder.positions import rows_of_distances
from clozelab.errors import UserError
from clozelab.models.interop.configs import from_config, to_config
from clozelab.models.interop.families import FAMILIES
from clozelab.models.interop.importing import from_transformers

torch.set_num_threads(1)
FAMILY = FAMILIES["deberta-v2"]
# Of microsoft/deberta-v3-small, -base and -large: what they have in common, and their sizes.
PUBLISHED = {
    "model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "initializer_range": 0.02, "max_position_embeddings": 512,
    "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7,
    "max_relative_positions": -1, "position_biased_input": False, "type_vocab_size": 0,
    "vocab_size": 128100,
}  # fmt: skip
SIZES = {"released_small": (6, 768, 12), "base": (12, 768, 12), "large": (24, 1024, 16)}
TINY = {
    **PUBLISHED, "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 3,
    "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 12,
    "position_buckets": 4, "pad_token_id": 1,
}  # fmt: skip


def published(size: str) -> dict[str, Any]:
    layers, width, heads = SIZES[size]
    return {
        **PUBLISHED, "num_hidden_layers": layers, "hidden_size": width,
        "num_attention_heads": heads, "intermediate_size": 4 * width,
    }  # fmt: skip


def tiny(kind: str = "DebertaV2ForMaskedLM", **settings: Any) -> Any:
    cls = getattr(transformers, kind)
    model = shaken(cls(cls.config_class(**TINY | settings)))
    _widen(model)
    return model


@pytest.mark.parametrize("size", SIZES)
def test_the_recipe_s_sizes_are_the_published_ones(size: str) -> None:
    encoder = from_config(published(size), FAMILY)
    assert encoder == recipes.read("deberta", size=size).encoder
    with torch.device("meta"):
        peer = transformers.DebertaV2Model(transformers.DebertaV2Config(**published(size)))
    counted = sum(encoder.parameters(128100).values())
    assert counted == sum(each.numel() for each in peer.parameters())
    back = transformers.DebertaV2Config(**to_config(encoder, FAMILY)).to_dict()
    wanted = transformers.DebertaV2Config(**published(size)).to_dict()
    for key in set(published(size)) - {"vocab_size", "pos_att_type"}:
        assert back[key] == wanted[key], key
    assert {*back["pos_att_type"]} == {*wanted["pos_att_type"]}


@pytest.mark.parametrize(
    ("positions", "buckets", "reach"),
    [(512, 256, 512), (512, 32, 512), (64, 8, 20), (2048, 256, 512), (512, 64, 300), (9, 2, 9)],
)
def test_every_distance_has_the_bucket_that_it_has_there(
    positions: int, buckets: int, reach: int
) -> None:
    distances = torch.arange(1 - positions, positions)
    theirs = modeling_deberta_v2.make_log_bucket_position(distances, buckets, reach).long()
    rows = rows_of_distances(positions, span=buckets, reach=reach, buckets=True)
    assert torch.equal(rows, (theirs + buckets).clamp(0, 2 * buckets - 1))
    assert bool((rows.diff() >= 0).all())  # the farther, the higher
    near = buckets // 2
    middle = rows[positions - 1 - near : positions + near]
    assert torch.equal(middle, torch.arange(buckets - near, buckets + near + 1))


def changed(rows: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda *sizes, **more: rows(rows_of_distances(*sizes, **more))


def swapped(rows: Tensor, query: Tensor, key: Tensor) -> attention.PositionHeads:
    return attention.PositionHeads(rows, key, query)


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "none": (stack, "rows_of_distances", rows_of_distances),
    "a bucket off by one": (stack, "rows_of_distances", changed(lambda r: (r + 1).clamp(max=7))),
    "distances the other way round": (stack, "rows_of_distances", changed(lambda r: r.flip(0))),
    "no logarithm": (
        stack, "rows_of_distances", lambda n, **more: rows_of_distances(n, **more | {"buckets": 0}),
    ),
    "queries for keys": (self_attention, "PositionHeads", swapped),
    "a term too few in the scale": (
        attention.PositionHeads, "scale", property(lambda self: self.key.shape[2] ** -0.5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = tiny(), padded(0)
    with torch.no_grad():
        out = model(**batch, output_hidden_states=True)
    monkeypatch.setattr(*FAULTS[fault])
    imported = from_transformers(model.config.to_dict(), model.state_dict())
    real = batch["attention_mask"].bool()
    mine = ours(model_with_weights(imported.encoder, imported.heads, imported.weights), batch)
    gap = float((mine["layer 3"] - out.hidden_states[3][real]).abs().max())
    assert gap < 1e-9 if fault == "none" else gap > 1e-4


@pytest.mark.parametrize("lengths", [None, (9, 9, 9)], ids=["packed", "dense"])
@torch.no_grad()
def test_a_mask_decoder_is_the_last_layer_asked_with_positions(lengths: Any) -> None:
    """By transformers' layers, which take queries of other states; no class of it does so."""
    peer, batch = tiny("DebertaV2Model"), padded(0)
    if lengths:
        batch["attention_mask"].fill_(1)
    imported = from_transformers(peer.config.to_dict(), peer.state_dict())
    table = torch.randn(12, 16, generator=torch.Generator().manual_seed(3)).double()
    encoder = Transformer(**{**vars(imported.encoder), "absolute_positions": "decoder"})
    weights = {**imported.weights, "encoder.embeddings.positions.weight": table}
    mine, inputs = model_with_weights(encoder, (), weights).encoder, packed(batch)
    hidden = peer(**batch, output_hidden_states=True).hidden_states
    mask = peer.encoder.get_attention_mask(batch["attention_mask"])
    asks = hidden[-2] + table[: hidden[-2].shape[1]]
    for _ in range(2):
        asks, _ = peer.encoder.layer[-1](
            hidden[-2], mask, query_states=asks, relative_pos=peer.encoder.get_rel_pos(asks),
            rel_embeddings=peer.encoder.get_rel_embedding(),
        )  # fmt: skip
    real = batch["attention_mask"].bool()
    encoded = mine(inputs)
    assert float((encoded.hidden_states - hidden[-1][real]).abs().max()) < 1e-9
    assert float((encoded.predicting - asks[real]).abs().max()) < 1e-9
    if lengths:
        inputs = inputs._replace(dense=True)
        at = torch.tensor([4, 9, 26])
        some = mine.states_at(inputs, at).predicting
        assert float((some - encoded.predicting[at]).abs().max()) < 1e-12


def test_of_a_published_file_what_has_no_place_is_left_aside() -> None:
    model = tiny(legacy=False)
    tensors = {**model.state_dict()}
    tensors["deberta.embeddings.position_embeddings.weight"] = torch.zeros(12, 16)
    detects = {"mask_predictions.dense.weight": torch.zeros(16, 16)}
    config = model.config.to_dict()
    alone = from_transformers(config, tensors)
    assert alone.heads == ("masked_lm",)
    assert alone.left == ["deberta.embeddings.position_embeddings.weight"]
    both = from_transformers(config, tensors | detects)
    assert both.heads == () and "mask_predictions.dense.weight" in both.left
    assert any(name.startswith("lm_predictions.") for name in both.left)
    batch = padded(0)
    outputs = ours(model_with_weights(alone.encoder, alone.heads, alone.weights), batch)
    bare = {name: states for name, states in outputs.items() if name != "words"}
    agree(bare, ours(model_with_weights(both.encoder, both.heads, both.weights), batch))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"relative_attention": False}, "relative_attention = False must be true: without it, it"),
        ({"conv_kernel_size": 3}, "conv_kernel_size = 3 is not built here"),
        ({"pos_att_type": "c2p|p2p"}, "pos_att_type = 'c2p.p2p' must be c2p, p2c or both"),
        ({"pos_att_type": None}, "pos_att_type = None must be c2p, p2c or both"),
        ({"pos_att_type": 3}, "pos_att_type = 3 must be a list of words"),
        ({"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd = 'batch_norm' must be one of none, layer"),
        ({"embedding_size": 8}, "embedding_size = 8 must be 16 here"),
        ({"attention_head_size": 4}, "attention_head_size = 4 must be 8 here"),
        ({"num_attention_heads": 3}, "heads = 3: must divide hidden_size = 16"),
        (
            {"position_buckets": 64},
            "position_buckets = 64: must be even, and half of it at most 10",
        ),
        ({"position_buckets": "many"}, "position_buckets = 'many' must be a whole number"),
        ({"share_att_key": "yes"}, "share_att_key = 'yes' must be true or false"),
        ({"model_type": "deberta"}, "model_type 'deberta' is unknown here; there are .*deberta-v2"),
    ],
)
def test_an_option_that_is_not_built_is_a_sentence(change: dict[str, Any], sentence: str) -> None:
    model = tiny()
    with pytest.raises(UserError, match=sentence):
        from_transformers(TINY | change, model.state_dict())


def test_a_mask_decoder_goes_nowhere_with_its_head() -> None:
    shape = {**SHAPE, "types": 0, "position_embedding": "disentangled"}
    encoder = Transformer(**shape, absolute_positions="decoder")
    with pytest.raises(
        UserError, match=r"absolute_positions = 'decoder': deberta-v2 .* no mask dec"
    ):
        to_config(encoder, FAMILY)
    assert not to_config(encoder, FAMILY, predicts=False)["position_biased_input"]
