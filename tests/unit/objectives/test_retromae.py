"""RetroMAE's decoder: its loss by a plain computation, what a question sees, and by what key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.masked_blocks import make_blocks
from support.objective_cases import Alone, Case, Shape, columns, complete, states
from support.pretrain_runs import (
    HERE,
    MACHINE,
    double_precision_trainer,
    pretrain_job,
    shrunk,
    steps_of,
    store,
)
from torch import Tensor
from torch.nn import functional

from clozelab.config import recipe as recipes
from clozelab.contracts import Encoded, Input, Sums
from clozelab.errors import UserError
from clozelab.masking.token import Token
from clozelab.objectives.heads.retromae import RetroMaeDecoder
from clozelab.objectives.retromae import RetroMae
from clozelab.pretraining import starting
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs.events import means

torch.set_num_threads(1)
SHAPE = Shape(hidden_size=8, embedding_size=6)


def judged(model: Alone, x: Tensor, case: Case, *, idle: int = 0) -> Sums:
    """The sums over a case, as they come of what the encoder has read of it."""
    blocks, part = case.blocks, RetroMae()
    hidden = torch.from_numpy(np.isin(np.arange(len(blocks.ids)), case.hidden.positions))
    ids = torch.from_numpy(blocks.ids.astype(np.int64)).masked_fill(hidden, 1)
    places = torch.from_numpy(blocks.positions)
    starts = torch.from_numpy(blocks.starts.astype(np.int32))
    batch = Input(ids, places, torch.zeros_like(ids), starts, int(blocks.lengths.max()) + 2)
    targets = columns(case.targets(part), blocks.lengths, idle=idle)
    sums: Sums = model.head(Encoded(x, model.table, input=batch), targets)
    return sums


def case_of(*lengths: int) -> Case:
    return complete(make_blocks([[1] * length for length in lengths]), Token(mask_rate=0.3))


def seen_by(key: int, question: int, length: int, rate: float) -> list[int]:
    """The positions that a question sees, by integers that never overflow."""
    positions = [0]
    for position in range(1, length):
        x = (key + position * 0x9E3779B1) % 2**32
        x = (x ^ (x >> 16)) * 0x21F0AAAD % 2**32
        x = (x ^ (x >> 15)) * 0x735A2D97 % 2**32
        if (x ^ (x >> 15)) >= round(rate * 2**32) and position != question:
            positions.append(position)
    return positions


def plain(head: RetroMaeDecoder, table: Tensor, x: Tensor, case: Case, rate: float) -> float:
    """The sum of the losses, a block and a question at a time (§3.3, eq. 6 to 9)."""
    assert case.corrupted.keys is not None
    loss = 0.0
    for row in range(len(case.blocks)):
        first, last = case.blocks.starts[row : row + 2].tolist()
        ids = torch.from_numpy(case.blocks.ids[first:last].astype(np.int64))
        vector = x[first]
        vectors = functional.embedding(ids, table)
        vectors = vectors if head.projection is None else head.projection(vectors)
        context = head.input_norm(vectors + head.positions.weight[: len(ids)])
        context = torch.cat([vector[None], context[1:]])
        for place in np.flatnonzero(~case.blocks.fixed[first:last]).tolist():
            key = int(case.corrupted.keys[first + place]) >> 32
            some = context[seen_by(key, place, len(ids), rate)]
            question = head.input_norm(vector + head.positions.weight[place])
            keys, values = head.key_value(some).chunk(2, dim=1)
            sums = []
            for q, k, v in zip(
                head.query(question).chunk(2), keys.chunk(2, dim=1), values.chunk(2, dim=1),
                strict=True,
            ):  # fmt: skip
                sums.append((k @ q / len(q) ** 0.5).softmax(0) @ v)
            y = head.output_norm(question + head.output(torch.cat(sums)))
            y = head.ffn.norm(y + head.ffn(y))
            logits = head.head.logits(y[None], table)
            loss += functional.cross_entropy(logits, ids[place : place + 1]).item()
    return loss


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("shape", [SHAPE, Shape()])
def test_the_loss_is_that_of_a_plain_computation(rate: float, shape: Shape) -> None:
    part, case = RetroMae(mask_rate=rate), case_of(7, 1, 12, 4)
    model, x = Alone(part, shape), states(part, case.blocks, shape)
    torch.nn.init.normal_(model.head.head.bias)
    sums = judged(model, x, case, idle=3)
    with torch.no_grad():
        wanted = plain(model.head, model.table, x, case, rate)
    assert sums["loss"].item() == pytest.approx(wanted, rel=1e-12)
    assert sums["count"] == 7 + 1 + 12 + 4


def visible(part: RetroMae, keys: Tensor, inside: Tensor) -> Tensor:
    return part.build(Shape(), 12)._visible(keys, inside)


def test_a_question_sees_the_vector_never_itself_and_the_others_by_chance() -> None:
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(0, 2**32, (40, 64), generator=generator)
    inside = torch.arange(64).expand(40, 64) < 50
    seen = visible(RetroMae(mask_rate=0.7), keys, inside)
    assert seen[:, :, 0].all()  # the vector
    assert not seen[:, :, 50:].any()  # behind the block
    diagonal = seen.diagonal(dim1=1, dim2=2)
    assert not diagonal[:, 1:].any()
    others = seen[:, :50, 1:50].double()  # of which 49 in each block are of a token itself
    count = 40 * (50 * 49 - 49)
    assert abs(others.sum() / count - 0.3) < 4 * (0.3 * 0.7 / count) ** 0.5
    # Each column and each row is a coin of its own: no two are alike or opposite.
    flat = seen[:, 10:50, 1:10].reshape(-1, 9).double()
    flat = (flat - flat.mean(0)) / flat.std(0)
    apart = (flat.T @ flat / len(flat) - torch.eye(9)).abs().max()
    assert apart < 5 / len(flat) ** 0.5
    assert visible(RetroMae(mask_rate=1.0), keys, inside).sum() == 40 * 64


def test_what_is_seen_is_drawn_by_block_epoch_and_seed_and_nothing_else() -> None:
    case = case_of(9, 9)
    draws = case.targets(RetroMae()).columns["draws"]
    assert len(np.unique(draws)) == len(draws) and (draws >= 0).all() and (draws < 2**32).all()
    from clozelab.pretraining.source import BlockSource
    from clozelab.text.store import Corpus

    recipe, corpus = shrunk("retromae"), Corpus.open(store("wordpiece"))

    def drawn(epoch: int, numbers: list[int], seed: int = 0) -> Any:
        source = BlockSource(recipe, corpus, blocks=recipe.blocks, split="train", seed=seed)
        examples = source.examples(epoch, np.array(numbers), progress=0.0)
        targets = examples.targets["retromae"]
        return np.split(targets.columns["draws"], targets.starts[1:-1])

    together, alone = drawn(0, [3, 1, 2]), drawn(0, [2])
    assert np.array_equal(together[2], alone[0])
    for other in (drawn(1, [2])[0], drawn(0, [2], seed=1)[0]):
        size = min(len(other), len(alone[0]))
        assert not np.isin(other[:size], alone[0]).any()


def test_the_vector_alone_and_no_other_state_is_read() -> None:
    part, case = RetroMae(), case_of(6, 8)
    model, x = Alone(part, SHAPE), states(part, case.blocks, SHAPE)
    sizes = case.blocks.lengths
    model(x, columns(case.targets(part), sizes), sizes)["loss"].backward()
    assert x.grad is not None
    first = case.blocks.starts[:-1]
    assert (x.grad[first].abs().sum(1) > 0).all()
    rest = np.setdiff1d(np.arange(len(x)), first)
    assert not x.grad[rest].any()


@pytest.mark.parametrize("fault", ["itself", "neighbours", "corrupted", "one mask"])
def test_a_planted_fault_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain computation tells a decoder that sees itself, or another block, or masks."""
    part, case = RetroMae(), case_of(7, 5, 9)
    model, x = Alone(part, SHAPE), states(part, case.blocks, SHAPE)
    with torch.no_grad():
        wanted = plain(model.head, model.table, x, case, 0.5)
    sees: Any = RetroMaeDecoder._visible

    def wrong(self: Any, keys: Tensor, inside: Tensor) -> Tensor:
        if fault == "itself":
            return sees(self, keys, inside) | torch.eye(keys.shape[1], dtype=torch.bool)
        if fault == "one mask":
            keys = keys[:, :1].expand_as(keys)
        return sees(self, keys, inside | (fault == "neighbours"))

    if fault == "corrupted":
        module = "clozelab.objectives.heads.retromae.with_tokens"
        monkeypatch.setattr(module, lambda ids, tokens, targets: ids)
    else:
        monkeypatch.setattr(RetroMaeDecoder, "_visible", wrong)
    assert judged(model, x, case)["loss"].item() != pytest.approx(wanted, rel=1e-6)


def test_micro_batches_do_not_change_a_step() -> None:
    results = []
    for micro in (1, 3, 8):
        trainer = double_precision_trainer(
            pretrain_job("retromae", steps=2, batch_size=8), replace(MACHINE, micro_batch=micro)
        )
        results.append([means(step.sums)["retromae"]["loss"] for step in steps_of(trainer)])
    for other in results[1:]:
        assert other == pytest.approx(results[0], rel=1e-9)


@pytest.mark.parametrize("name", ["albert", "modernbert", "deberta", "mosaicbert"])
def test_it_stands_beside_encoders_of_other_kinds(name: str) -> None:
    overrides = ['objectives=[{use="masked_lm"}, {use="retromae"}]', "blocks.use=doc_sentences"]
    overrides += ["corruption.mask=0.8", "encoder.layers=3"]
    recipe = shrunk(name, *overrides, steps=2)
    kinds = {"albert": "unigram", "deberta": "unigram", "modernbert": "byte_bpe"}
    data = [store(kinds.get(name, "wordpiece"))]
    trainer = PretrainTrainer(starting.fresh(recipe, data=data, seed=0), MACHINE, HERE)
    built = sum(p.numel() for p in trainer.model.parameters())
    assert sum(trainer.recipe.parameters().values()) == built
    assert all(np.isfinite(means(step.sums)["retromae"]["loss"]) for step in steps_of(trainer))


@pytest.mark.parametrize("name", ["xlnet", "elmo", "gpt"])
def test_an_encoder_without_such_a_vector_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="the vector of its first token"):
        RetroMae().check_encoder(recipes.read(name).encoder)


@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_a_rate_is_a_share(rate: float) -> None:
    with pytest.raises(UserError, match="mask_rate"):
        RetroMae(mask_rate=rate)


def test_a_text_is_learned_into_its_vector() -> None:
    """With nothing to see but the vector, it learns a text; from another's vector it knows less."""
    overrides = [
        "objectives.1.mask_rate=1.0",
        "optimiser.learning_rate=3e-3",
        "encoder.hidden_size=64",
    ]
    recipe = shrunk("retromae", *overrides, "encoder.embedding_size=64", steps=150, batch_size=8)
    few = store("wordpiece", documents=2)
    trainer = PretrainTrainer(starting.fresh(recipe, data=[few], seed=0), MACHINE, HERE)
    losses = [means(step.sums)["retromae"]["loss"] for step in steps_of(trainer)]
    decoder: Any = trainer.model.heads["retromae"]
    decode = decoder._decoded

    def of_others(x: Tensor, table: Tensor, batch: Input, targets: dict[str, Tensor]) -> Tensor:
        first = batch.cu_seqlens[:-1].long()
        return decode(x.index_copy(0, first, x[first.roll(1)]), table, batch, targets)

    batch = next(trainer.steps.jobs(0, trainer.steps.start()))().batches[0]
    with torch.no_grad():
        own = means(trainer.model(batch)[0])["retromae"]["loss"]
        decoder._decoded = of_others
        other = means(trainer.model(batch)[0])["retromae"]["loss"]
    assert own < losses[0] - 3 and own < other - 0.4
