"""The same numbers as XLNet in transformers, from the same weights, in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.pretrain_runs import pretrain_job, run_pretraining
from support.xlnet_batches import PLAIN, TARGET, batch, memories, plain, sees, shape, slots
from torch import Tensor
from transformers import XLNetConfig, XLNetLMHeadModel

import clozelab
from clozelab.contracts import Input, Targets
from clozelab.encoder.streams import Streams
from clozelab.objectives.heads.vocabulary import QueryHead
from clozelab.scoring.joint import pair_nats
from clozelab.scoring.likelihood import likelihoods, scorer

V, L, M = 50, 8, 6


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def peer(**settings: object) -> XLNetLMHeadModel:
    """A tiny model of theirs with weights large enough for every term to matter."""
    torch.manual_seed(3)
    config = XLNetConfig(
        vocab_size=V,
        d_model=8,
        n_layer=2,
        n_head=2,
        d_inner=12,
        ff_activation="gelu_new",
        dropout=0.0,
        mem_len=M,
        reuse_len=L // 2,
        **settings,
    )
    model = XLNetLMHeadModel(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def widen(model: XLNetLMHeadModel, monkeypatch: pytest.MonkeyPatch) -> XLNetLMHeadModel:
    """Theirs takes sines in float32 whatever the weights are: let it take them in float64."""
    inner, width = model.transformer, model.config.d_model
    narrow = inner.positional_embedding

    def wide(places: Tensor, frequencies: Tensor, blocks: int | None = None) -> Tensor:
        exact = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        torch.testing.assert_close(frequencies, exact.float())
        return narrow(places.double(), exact, blocks)

    monkeypatch.setattr(inner, "positional_embedding", wide)
    return model


def copied(model: XLNetLMHeadModel) -> tuple[Streams, QueryHead]:
    """Ours with their weights."""
    inner, width = model.transformer, model.config.d_model
    weights = {
        "embeddings.words.weight": inner.word_embedding.weight,
        "embeddings.query": inner.mask_emb.flatten(),
    }
    turned = {"query": "q", "key": "k", "value": "v", "position": "r"}
    straight = {
        "content_bias": "r_w_bias",
        "position_bias": "r_r_bias",
        "segment_bias": "r_s_bias",
        "segments": "seg_embed",
        "norm.weight": "layer_norm.weight",
        "norm.bias": "layer_norm.bias",
    }
    for i, layer in enumerate(inner.layer):
        theirs = layer.rel_attn.state_dict(keep_vars=True)
        for mine, name in turned.items():
            weights[f"attention.{i}.{mine}.weight"] = theirs[name].reshape(width, width).T
        weights[f"attention.{i}.output.weight"] = theirs["o"].reshape(width, width)
        weights |= {f"attention.{i}.{mine}": theirs[name] for mine, name in straight.items()}
        for mine, name in {"inner": "layer_1", "output": "layer_2", "norm": "layer_norm"}.items():
            part = getattr(layer.ff, name)
            weights |= {f"ffn.{i}.{mine}.weight": part.weight, f"ffn.{i}.{mine}.bias": part.bias}
    ours, head = shape(memory=M).build(V).double().eval(), QueryHead(shape(memory=M), V).double()
    ours.load_state_dict(weights)
    head.load_state_dict({"bias": model.lm_loss.bias})
    return ours, head


def rectangles(inputs: Input) -> dict[str, Tensor]:
    """Their arguments for full blocks."""
    blocks = len(inputs.cu_seqlens) - 1
    out = {
        "input_ids": inputs.ids.view(blocks, L),
        "token_type_ids": inputs.segments.view(blocks, L),
    }
    if inputs.order is not None and inputs.queries is not None:
        hidden = torch.stack([~sees(inputs, block) for block in range(blocks)])
        at = inputs.queries - inputs.cu_seqlens[:-1, None]
        assert not hidden.gather(1, at[..., None].expand(-1, -1, L)).all(-1).any()
        out["perm_mask"] = hidden.double()
        # Theirs adds up queries for the same place, so the idle ones are for none.
        mapping = torch.nn.functional.one_hot(at, L) * is_target(inputs).view(blocks, -1, 1)
        out["target_mapping"] = mapping.double()
    return out


def is_target(inputs: Input) -> Tensor:
    """[B · T] which queries are for a target."""
    assert inputs.kinds is not None and inputs.queries is not None
    return (inputs.kinds[inputs.queries] == TARGET).flatten() & ~_repeated(inputs.queries).flatten()


def _repeated(queries: Tensor) -> Tensor:
    """[B, T] which queries ask again for a place asked for before."""
    again = queries[:, :, None] == queries[:, None, :]
    return again.tril(-1).any(-1)


def close_logits(inputs: Input, ours: Tensor, theirs: Tensor, *, atol: float = 1e-9) -> None:
    there = is_target(inputs)
    assert there.sum() > 6
    flat = theirs.reshape(ours.shape)
    torch.testing.assert_close(ours[there], flat[there], rtol=0, atol=atol)


def close(ours: Tensor | None, theirs: Tensor) -> None:
    assert ours is not None
    torch.testing.assert_close(ours, theirs.reshape(ours.shape), rtol=0, atol=1e-9)


def in_two_directions(blocks: int, *, seed: int = 0, remembered: Tensor | None = None) -> Input:
    """Theirs reverses the second half of a batch, and looks at all if nothing can be seen."""
    inputs = batch([L] * blocks, seed=seed, remembered=remembered)
    kinds = inputs.kinds.masked_fill(inputs.position_ids == 1, PLAIN)
    reverse = torch.arange(blocks) >= blocks // 2
    return inputs._replace(kinds=kinds, queries=slots(kinds, inputs.cu_seqlens), reverse=reverse)


@torch.no_grad()
def test_every_layer_of_a_plain_block_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    model = widen(peer(), monkeypatch)
    ours, _ = copied(model)
    inputs = plain(batch([L] * 3))
    theirs = model.transformer(**rectangles(inputs), output_hidden_states=True)
    out = ours(inputs, keep=True)
    assert len(out.layers) == len(theirs.hidden_states) == 3
    for mine, yours in zip(out.layers, theirs.hidden_states, strict=True):
        close(mine, yours)
    close(out.hidden_states, theirs.last_hidden_state)


@torch.no_grad()
def test_blocks_of_several_lengths_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    model = widen(peer(), monkeypatch)
    ours, _ = copied(model)
    inputs = plain(batch([L, 5, 1, 6]))
    cells = torch.arange(L) < inputs.cu_seqlens.diff()[:, None]
    ids, segments = torch.full((4, L), 5), torch.full((4, L), 4)
    ids[cells], segments[cells] = inputs.ids, inputs.segments
    theirs = model.transformer(
        input_ids=ids, token_type_ids=segments, attention_mask=cells.double()
    )
    close(ours(inputs).hidden_states, theirs.last_hidden_state[cells])


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("past", [0, 3, M])
@torch.no_grad()
def test_two_streams_memory_and_both_directions_agree(
    both: bool, past: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = widen(peer(bi_data=both), monkeypatch)
    ours, head = copied(model)
    inputs = in_two_directions(4, remembered=memories(2, 4, past, 8) if past else None)
    if not both:
        inputs = inputs._replace(reverse=None)
    old = None if inputs.memory is None else [layer.transpose(0, 1) for layer in inputs.memory]
    theirs = model(
        **rectangles(inputs), mems=old, use_mems=True, output_hidden_states=True, return_dict=True
    )
    out = ours(inputs, keep=True)
    close_logits(inputs, head.logits(out.queries, out.table), theirs.logits)
    for mine, yours in zip(out.layers, theirs.hidden_states[::2], strict=True):
        close(mine, yours)
    assert out.memory is not None
    for mine, yours in zip(out.memory, theirs.mems, strict=True):
        close(mine[:, -len(yours) :], yours.transpose(0, 1))
    assert out.memory.shape[2] == M and len(theirs.mems[0]) == min(M, past + L // 2)


@torch.no_grad()
def test_memory_carried_over_steps_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    model = widen(peer(bi_data=True), monkeypatch)
    ours, head = copied(model)
    old, memory = None, None
    for step in range(4):
        inputs = in_two_directions(4, seed=step)._replace(memory=memory)
        theirs = model(**rectangles(inputs), mems=old, use_mems=True, return_dict=True)
        out = ours(inputs)
        close_logits(inputs, head.logits(out.queries, out.table), theirs.logits)
        old, memory = theirs.mems, out.memory


@torch.no_grad()
def test_single_precision_agrees_without_help() -> None:
    model = peer(bi_data=True).float()
    ours, head = copied(model)
    ours, head = ours.float(), head.float()
    inputs = in_two_directions(4, remembered=memories(2, 4, M, 8).float())
    arguments = {name: x.float() if x.is_floating_point() else x
                 for name, x in rectangles(inputs).items()}  # fmt: skip
    old = [layer.transpose(0, 1) for layer in inputs.memory]
    theirs = model(**arguments, mems=old, use_mems=True, return_dict=True)
    out = ours(inputs)
    close_logits(inputs, head.logits(out.queries, out.table), theirs.logits, atol=1e-4)


def test_their_gradients_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    model = widen(peer(bi_data=True), monkeypatch)
    ours, head = copied(model)
    inputs = in_two_directions(4, remembered=memories(2, 4, M, 8))
    labels = inputs.ids[inputs.queries.flatten()].masked_fill(~is_target(inputs), Targets.IGNORED)
    old = [layer.transpose(0, 1) for layer in inputs.memory]
    theirs = model(**rectangles(inputs), mems=old, labels=labels.view(4, -1), return_dict=True)
    theirs.loss.backward()
    sums = head(ours(inputs), {"labels": labels})
    (sums["loss"] / sums["count"]).backward()
    inner = model.transformer
    close(ours.embeddings.words.weight.grad, inner.word_embedding.weight.grad)
    close(ours.embeddings.query.grad, inner.mask_emb.grad)
    for mine, yours in zip(ours.attention, inner.layer, strict=True):
        close(mine.query.weight.grad, yours.rel_attn.q.grad.reshape(8, 8).T)
        close(mine.position.weight.grad, yours.rel_attn.r.grad.reshape(8, 8).T)
        close(mine.output.weight.grad, yours.rel_attn.o.grad.reshape(8, 8))
        close(mine.position_bias.grad, yours.rel_attn.r_r_bias.grad)
        close(mine.segments.grad, yours.rel_attn.seg_embed.grad)


def test_likelihoods_in_the_natural_order_are_those_of_transformers(tmp_path: Path) -> None:
    """A query for each token, which sees the tokens before it and the marks behind the text."""
    run_pretraining(pretrain_job("xlnet", steps=2), tmp_path / "run")
    clozelab.export(tmp_path / "run", tmp_path / "hf", progress=False)
    peer = XLNetLMHeadModel.from_pretrained(tmp_path / "hf").eval()
    model = clozelab.load(tmp_path / "run")
    texts = ["The queen was here.", "An unforgettable countryside, all of it!"]
    scores = likelihoods(model, texts, device="cpu")
    for number in range(len(texts)):
        span = scores.pieces.text(number)
        row = model.reader().with_special_tokens(scores.pieces.part(span))
        ids = torch.from_numpy(row.columns["ids"].astype("int64"))[None]
        size, n = ids.shape[1], span.stop - span.start
        place = torch.arange(size)
        unseen = (place[None, :] < n) & (place[None, :] >= place[:, None])
        unseen |= (place[None, :] < n) & (place[:, None] >= n)  # marks see marks alone
        logits = peer(
            ids,
            token_type_ids=torch.from_numpy(row.columns["segments"].astype("int64"))[None],
            perm_mask=unseen.float()[None],
            target_mapping=torch.eye(size)[None, :n],
        ).logits[0]
        nats = logits.log_softmax(1)[torch.arange(n), ids[0, :n]]
        assert scores.nats[span] == pytest.approx(nats.detach().numpy(), abs=1e-4)


def test_two_words_hidden_together_are_as_likely_as_in_transformers(tmp_path: Path) -> None:
    """The context sees all but the two; each is predicted alone, and given the other."""
    run_pretraining(pretrain_job("xlnet", steps=2), tmp_path / "run")
    clozelab.export(tmp_path / "run", tmp_path / "hf", progress=False)
    peer = XLNetLMHeadModel.from_pretrained(tmp_path / "hf").eval()
    text_scorer = scorer(clozelab.load(tmp_path / "run"))
    pieces = text_scorer.reader.pieces(["An unforgettable countryside, all of it!"])
    row = text_scorer.reader.with_special_tokens(pieces.part(slice(0, None)))
    ids = torch.from_numpy(row.columns["ids"].astype("int64"))
    size, text = len(ids), row.columns["ids"][row.first].astype("int64")
    for first in (0, 3, len(text) - 2):
        (nats,) = pair_nats(text_scorer, text[None], np.array([first]))
        for order, (earlier, later) in enumerate([(first, first + 1), (first + 1, first)]):
            unseen = torch.zeros(size, size)
            unseen[:, [earlier, later]] = 1.0  # neither is seen,
            unseen[later, earlier] = 0.0  # but the earlier one by the later
            logits = peer(
                ids[None],
                token_type_ids=torch.from_numpy(row.columns["segments"].astype("int64"))[None],
                perm_mask=unseen[None],
                target_mapping=torch.eye(size)[None, [earlier, later]],
            ).logits[0]
            alone, conditional = logits.log_softmax(1)[[0, 1], ids[[earlier, later]]].tolist()
            assert nats[0, order] == pytest.approx(alone, abs=1e-4)
            assert nats[1, 1 - order] == pytest.approx(conditional, abs=1e-4)
