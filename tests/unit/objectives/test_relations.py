"""Relations (MiniLMv2): a plain computation over padded batches, planted faults, sums that add."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.masked_blocks import make_blocks
from support.objective_cases import columns, complete
from torch import Tensor

from clozelab.config import recipe as recipes
from clozelab.contracts import Batch, Input, Sums, Targets
from clozelab.encoder import stack
from clozelab.encoder.transformer import Transformer
from clozelab.errors import UserError
from clozelab.layers import rectangle
from clozelab.models.build import PretrainingModel
from clozelab.objectives.heads import chunks, relating
from clozelab.objectives.relations import Relations

torch.set_num_threads(1)
V = 29
STILL = {"positions": 12, "dropout": 0.0, "attention_dropout": 0.0}
STUDENT = Transformer(
    layers=2, heads=2, hidden_size=16, intermediate_size=24, embedding_size=16, **STILL
)
TEACHER = Transformer(
    layers=4, heads=3, hidden_size=24, intermediate_size=40, embedding_size=24, **STILL
)
MODERN = Transformer(
    **{
        "layers": 4,
        "heads": 3,
        "hidden_size": 24,
        "intermediate_size": 40,
        "embedding_size": 24,
        "norm": "pre",
    },
    **{"position_embedding": "rotary", "qk_norm": True, "gated": True, "bias": False, **STILL},
    **{"window": 4, "global_every": 2, "first_norm": False, "value_residual": 0.3},
)
PART = Relations(heads=4, teacher_layer=2, queries=1.0, keys=0.5, values=2.0)
LENGTHS = (7, 12, 1, 5)


def lively(shape: Transformer, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    module = shape.build(V).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return module


def pair(part: Relations = PART, teacher: Transformer = TEACHER) -> PretrainingModel:
    """A student with its teacher."""
    model = PretrainingModel(lively(STUDENT, 1), {"relations": part.build(STUDENT, V)})
    model.teacher = (PretrainingModel(lively(teacher, 2), {}).requires_grad_(False),)
    return model


def texts(lengths: Sequence[int] = LENGTHS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(V, (length,), generator=generator) for length in lengths]


def packed(blocks: Sequence[Tensor], *, dummies: int = 0, idle: int = 0) -> Batch:
    """Blocks as a micro-batch: perhaps with a block of padding behind, an empty one, idle slots."""
    sizes = [len(block) for block in blocks] + ([dummies, 0] if dummies else [])
    ids = torch.cat([*blocks, torch.zeros(dummies, dtype=torch.long)])
    real = sum(len(block) for block in blocks)
    inputs = Input(
        ids=ids,
        position_ids=torch.cat([torch.arange(size) for size in sizes]),
        segments=torch.zeros_like(ids),
        cu_seqlens=torch.tensor([0, *sizes]).cumsum(0).int(),
        max_seqlen=12,
    )
    at = torch.cat([torch.arange(real), torch.zeros(idle, dtype=torch.long)])
    labels = torch.cat([ids[:real], torch.full((idle,), Targets.IGNORED)])
    return Batch(inputs, {"relations": {"at": at, "labels": labels}})


def sums_of(model: PretrainingModel, batch: Batch) -> Sums:
    return model(batch)[0]["relations"]


def padded(encoder: Any, blocks: Sequence[Tensor], layer: int) -> list[Tensor]:
    """[L, 3, W] of each block: what the layer's product gives in a padded batch, padding cut off.

    Of all that is in the encoder, only that product is asked.
    """
    rows = torch.nn.utils.rnn.pad_sequence([*blocks], batch_first=True)
    count, length = rows.shape
    mask = torch.arange(length) < torch.tensor([len(block) for block in blocks])[:, None]
    batch = Input(
        ids=rows.flatten(),
        position_ids=torch.arange(length).repeat(count),
        segments=torch.zeros(count * length, dtype=torch.long),
        cu_seqlens=torch.arange(0, (count + 1) * length, length).int(),
        max_seqlen=length,
        dense=True,
        attention_mask=mask,
    )
    products: list[Tensor] = []
    product = encoder.halves(layer)[0].qkv
    hook = product.register_forward_hook(lambda *call: products.append(call[2]))
    encoder(batch)
    hook.remove()
    whole = products[0].view(count, length, 3, -1)
    return [row[: len(block)] for row, block in zip(whole, blocks, strict=True)]


def by_hand(part: Relations, model: PretrainingModel, blocks: Sequence[Tensor]) -> dict[str, float]:
    """The sums by the formulas of §3.1, one token and one head at a time."""
    (teacher,) = model.teacher
    last = model.encoder.shape.layers - 1  # type: ignore[union-attr, operator]
    mine = padded(model.encoder, blocks, last)
    theirs = padded(teacher.encoder, blocks, part.teacher_layer)
    sums = dict.fromkeys(("queries", "keys", "values"), 0.0)
    for a, b in zip(mine, theirs, strict=True):
        for number, name in enumerate(sums):
            for head in range(part.heads):
                q, p = (relation(x[:, number], head, part.heads) for x in (a, b))
                sums[name] += (p * (p / q).log()).sum().item() / part.heads
    loss = part.queries * sums["queries"] + part.keys * sums["keys"] + part.values * sums["values"]
    return {"loss": loss, "count": sum(len(block) for block in blocks), **sums}


def relation(vectors: Tensor, head: int, heads: int) -> Tensor:
    size = vectors.shape[1] // heads
    own = vectors[:, head * size : (head + 1) * size]
    rows = []
    for head_states in own:
        scores = torch.stack([(head_states * other).sum() for other in own]) / size**0.5
        rows.append(scores.exp() / scores.exp().sum())
    return torch.stack(rows)


def loss_sums(model: PretrainingModel, batch: Batch) -> dict[str, float]:
    return {name: value.item() for name, value in sums_of(model, batch).items()}


@pytest.mark.parametrize("teacher", [TEACHER, MODERN], ids=["bert", "modern"])
@pytest.mark.parametrize("dummies", [0, 6])
def test_the_losses_are_those_of_the_paper(teacher: Transformer, dummies: int) -> None:
    model, blocks = pair(teacher=teacher), texts()
    expected = by_hand(PART, model, blocks)
    losses = loss_sums(model, packed(blocks, dummies=dummies))
    assert losses == pytest.approx(expected, rel=1e-9)
    assert min(expected.values()) > 0.1


def _unscaled(monkeypatch: pytest.MonkeyPatch, model: PretrainingModel) -> None:
    monkeypatch.setattr(relating, "math", SimpleNamespace(sqrt=lambda width: 1.0))


def _another_layer(monkeypatch: pytest.MonkeyPatch, model: PretrainingModel) -> None:
    model.asked = (model.asked[0], {"project": 3})


def _not_the_last(monkeypatch: pytest.MonkeyPatch, model: PretrainingModel) -> None:
    model.asked = ({"project": 0}, model.asked[1])


def _across_blocks(monkeypatch: pytest.MonkeyPatch, model: PretrainingModel) -> None:
    def open_rectangle(batch: Input) -> tuple[Tensor, Tensor, Tensor]:
        cells, cell, seen = rectangle(batch)
        return cells, cell, torch.ones_like(seen)

    monkeypatch.setattr(stack, "rectangle", open_rectangle)


def _other_heads(monkeypatch: pytest.MonkeyPatch, model: PretrainingModel) -> None:
    model.heads["relations"].heads = 8


@pytest.mark.parametrize(
    "plant", [_unscaled, _another_layer, _not_the_last, _across_blocks, _other_heads]
)
def test_a_planted_fault_is_caught(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, blocks = pair(), texts()
    expected = by_hand(PART, model, blocks)
    plant(monkeypatch, model)
    assert loss_sums(model, packed(blocks))["loss"] != pytest.approx(expected["loss"], rel=1e-3)


def test_a_student_like_its_teacher_has_nothing_to_learn() -> None:
    model = PretrainingModel(
        lively(STUDENT, 1), {"relations": Relations(heads=8).build(STUDENT, V)}
    )
    model.teacher = (PretrainingModel(lively(STUDENT, 1), {}),)
    sums = sums_of(model, packed(texts(), dummies=3))
    sums["loss"].backward()
    assert abs(sums["loss"].item()) < 1e-12 and sums["count"] == sum(LENGTHS)
    assert all(p.grad is not None and p.grad.abs().max() < 1e-12 for p in model.parameters())


def test_every_token_counts_and_no_hidden_one_is_needed() -> None:
    case = complete(make_blocks([[1, 2, 1, 4] * 5, [3, 1]]), None)
    targets = case.targets(PART)
    assert targets.starts.tolist() == case.blocks.starts.tolist()
    assert targets.columns["at"].tolist() == case.blocks.positions.tolist()
    assert (columns(targets, case.blocks.lengths)["labels"] != Targets.IGNORED).all()


def test_sums_and_gradients_add_over_blocks() -> None:
    model, blocks = pair(), texts()
    whole = sums_of(model, packed(blocks))
    whole["loss"].backward()
    together = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    parts = [sums_of(model, packed([block])) for block in blocks]
    for part in parts:
        part["loss"].backward()
    for name, value in whole.items():
        assert sum(part[name].item() for part in parts) == pytest.approx(value.item(), rel=1e-12)
    for mine, other in zip(model.parameters(), together, strict=True):
        torch.testing.assert_close(mine.grad, other, rtol=1e-9, atol=1e-10)


def test_padding_and_idle_slots_change_nothing() -> None:
    results = []
    for options in ({}, {"dummies": 9, "idle": 5}):
        model = pair()
        sums = sums_of(model, packed(texts(), **options))
        sums["loss"].backward()
        results.append([*sums.values(), *(p.grad for p in model.parameters())])
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("idle", [0, 4])
def test_no_targets_give_nothing_and_finite_gradients(idle: int) -> None:
    model, batch = pair(), packed(texts(), idle=idle)
    real = sum(LENGTHS)
    none = {name: values[real:] for name, values in batch.targets["relations"].items()}
    sums = sums_of(model, batch._replace(targets={"relations": none}))
    sums["loss"].backward()
    assert not any(value.item() for value in sums.values())
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_every_parameter_has_a_gradient_and_what_follows_the_values_has_zero() -> None:
    model = pair()
    sums_of(model, packed(texts()))["loss"].backward()
    idle = ("encoder.attention.1.output", "encoder.attention.1.norm", "encoder.ffn.1.")
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()) != name.startswith(idle), name
    assert not any(p.grad is not None for p in model.teacher[0].parameters())


def test_a_weight_of_nothing_removes_its_kind() -> None:
    model = pair(Relations(heads=4, queries=0.0, keys=0.0))
    sums = sums_of(model, packed(texts()))
    assert sums["loss"].item() == sums["values"].item() > 0
    assert sums["queries"] > 0  # it is measured all the same


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_stretches_change_no_sum_and_no_gradient(
    monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    results = []
    for size in (10**9, blocks * PART.heads * 12 * 12):
        monkeypatch.setattr(chunks, "LOGITS", size)
        model = pair()
        sums = sums_of(model, packed(texts()))
        sums["loss"].backward()
        results.append([*sums.values(), *(p.grad for p in model.parameters())])
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


def test_half_precision_gives_losses_in_single_precision() -> None:
    model, batch = pair(), packed(texts())
    exact = loss_sums(model, batch)["loss"]
    (teacher,) = model.float().teacher
    teacher.float()
    for each in (model, teacher):
        each.encoder.precision = torch.bfloat16  # type: ignore[assignment]
    near = sums_of(model, batch)["loss"]
    assert near.dtype == torch.float32 and near.item() == pytest.approx(exact, rel=0.03)


@pytest.mark.thorough
def test_it_compiles_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "LOGITS", 2 * PART.heads * 12 * 12)
    torch.compiler.reset()
    model, batch = pair(), packed(texts(), dummies=3)
    plain = loss_sums(model, batch)
    whole = torch.compile(model, backend="eager", fullgraph=True)
    assert loss_sums(whole, batch) == pytest.approx(plain, rel=1e-10)


def test_what_is_not_asked_for_is_not_computed() -> None:
    encoder = lively(STUDENT, 1)
    assert encoder(packed(texts()).input).projections is None
    projected = encoder(packed(texts()).input, project=-1)
    assert projected.layers == () and projected.projections.qkv.shape == (4, 12, 3, 16)
    alone = PretrainingModel(encoder, {"relations": PART.build(STUDENT, V)})
    assert alone(packed(texts()))[0] == {}  # without a teacher there is nothing to compare


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        (["objectives.0.heads=48", "encoder.hidden_size=512", "encoder.heads=8",
          "encoder.embedding_size=512"],
         r"48 relation heads do not divide encoder\.hidden_size = 512; .* for instance 32"),
        (["objectives.0.heads=0"], "heads = 0"),
        (["encoder.use=relative"], "needs projections, which encoder relative does not provide"),
        (["objectives.0.queries=-1"], "queries = -1"),
    ],
)  # fmt: skip
def test_a_recipe_that_cannot_be_is_refused(changes: list[str], phrase: str) -> None:
    with pytest.raises(UserError, match=phrase):
        recipes.read("minilm", overrides=changes)


@pytest.mark.parametrize(
    ("part", "phrase"),
    [
        (Relations(heads=16), "16 relation heads do not divide the teacher's hidden size of 24"),
        (Relations(heads=4, teacher_layer=4), "teacher_layer = 4: the teacher has .* 0 to 3"),
        (Relations(heads=4, teacher_layer=-5), "or -4 to -1 from its end"),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused(part: Relations, phrase: str) -> None:
    PART.check_teacher(TEACHER)
    with pytest.raises(UserError, match=phrase):
        part.check_teacher(TEACHER)


@pytest.mark.parametrize("name", ["xlnet", "elmo", "gpt"])
def test_teachers_of_another_kind_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="use a bidirectional transformer"):
        Relations().check_teacher(recipes.read(name).encoder)
