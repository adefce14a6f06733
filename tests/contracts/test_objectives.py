"""What every objective promises: targets inside their blocks, sums that add, heads as counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.hypothesis_settings import max_examples
from support.masked_blocks import make_blocks, ragged
from support.objective_cases import (
    VOCABULARY,
    Alone,
    Case,
    Shape,
    columns,
    complete,
    lengths,
    states,
)

from clozelab.contracts import Blocks, Targets
from clozelab.masking.token import Token
from clozelab.masking.words import SpanMasking, WholeWord
from clozelab.objectives import PARTS, Objective
from clozelab.objectives.distillation import Distillation
from clozelab.objectives.language_models import BidirectionalLm, CausalLm, MaskedLm
from clozelab.objectives.replaced import AllTokensLm, ReplacedToken
from clozelab.objectives.retromae import RetroMae
from clozelab.objectives.sentence_pair import NextSentence, SentenceOrder
from clozelab.objectives.spans import SpanBoundary, SpanJoint

torch.set_num_threads(1)
# The permutation objective asks the encoder's query stream and has its tests beside that; a
# generator comes before the encoder (tests/unit/objectives/test_replaced.py), and relations need
# the encoder's queries, keys and values (tests/unit/objectives/test_relations.py). A contrastive
# loss adds over groups, not over blocks (tests/unit/objectives/test_contrastive.py).
APART = {"permutation_lm", "generator", "relations", "contrastive"}
EXAMPLES: dict[str, list[Objective]] = {
    "masked_lm": [
        MaskedLm(),
        MaskedLm(tied=False),
        MaskedLm(weighting="inverse_rate"),
        MaskedLm(shift=1),
        MaskedLm(shift=1, weighting="inverse_rate"),
    ],
    "next_sentence": [NextSentence()],
    "sentence_order": [SentenceOrder()],
    "span_boundary": [
        SpanBoundary(positions=20, dimension=6),
        SpanBoundary(positions=4, dimension=3, longest=2, boundary="any"),
    ],
    "span_joint": [
        SpanJoint(positions=20, dimension=6, boundary="any"),
        SpanJoint(positions=4, dimension=3, longest=3),
    ],
    "causal_lm": [CausalLm(), CausalLm(head="transform"), CausalLm(tied=False)],
    "bidirectional_lm": [
        BidirectionalLm(words=30, samples=30),
        BidirectionalLm(words=50, samples=7),
    ],
    "replaced_token": [ReplacedToken(), ReplacedToken(over="targets")],
    "all_tokens_lm": [AllTokensLm()],
    "retromae": [RetroMae(), RetroMae(mask_rate=0.9)],
    "distillation": [
        Distillation(),
        Distillation(over="targets", soft=2.0, cosine=0.5, temperature=1.0),
        Distillation(soft=0.0),
        Distillation(cosine=0.0),
    ],
}
CASES = [(name, part) for name, parts in EXAMPLES.items() for part in parts]
each = pytest.mark.parametrize(
    ("name", "part"), CASES, ids=[f"{name}-{n}" for n, (name, _) in enumerate(CASES)]
)
PROSE = make_blocks(
    [[1, 2, 1, 4, 1, 1, 2, 3, 1, 1, 5, 1, 2, 2, 1, 1, 1], [2, 1, 1, 3] * 6, [1], [3] * 9]
)
MASKINGS = (SpanMasking(mask_rate=0.3), WholeWord(mask_rate=0.5), Token())


def shape_of(part: Objective) -> Shape:
    plain = isinstance(part, CausalLm) and part.head == "plain"
    return Shape() if plain or "words" in part.needs else Shape(hidden_size=8, embedding_size=6)


def test_every_objective_has_an_example() -> None:
    assert set(EXAMPLES) == set(PARTS) - APART
    for name, parts in EXAMPLES.items():
        assert {type(part) for part in parts} == {PARTS[name]}


@each
@max_examples(25)
@given(blocks=ragged(), masking=st.sampled_from(MASKINGS))
def test_targets_lie_in_their_blocks_and_hang_on_no_other(
    name: str, part: Objective, blocks: Blocks, masking: SpanMasking | WholeWord | Token
) -> None:
    case = complete(blocks, masking)
    targets = case.targets(part)
    sizes = lengths(part, case.blocks)
    most = part.words if isinstance(part, BidirectionalLm) else VOCABULARY
    assert len(targets.starts) == len(blocks) + 1
    for column, values in targets.columns.items():
        assert len(values) == targets.starts[-1]
        assert values.dtype == (np.float64 if column == "weights" else np.int64)
        if column in Targets.POSITIONS:
            assert (values >= 0).all()
            assert (values < np.repeat(sizes, np.diff(targets.starts))).all()
        elif column.endswith("labels"):
            assert ((values == Targets.IGNORED) | ((values >= 0) & (values < most))).all()
    for row in range(len(blocks)):
        alone = case.row(row).targets(part)
        mine = slice(targets.starts[row], targets.starts[row + 1])
        assert alone.starts.tolist() == [0, mine.stop - mine.start]
        for column in set(targets.columns) - {"previous"}:
            assert np.array_equal(alone.columns[column], targets.columns[column][mine])


@each
def test_the_formula_counts_what_is_built(name: str, part: Objective) -> None:
    shape = shape_of(part)
    built = sum(parameter.numel() for parameter in Alone(part, shape).head.parameters())
    assert built == sum(part.parameters(shape, VOCABULARY).values())


def loss_sums(part: Objective, case: Case, *, idle: int = 0) -> tuple[Alone, dict[str, float]]:
    """The sums over a case, backpropagated; random draws are the same for every call."""
    model = Alone(part, shape_of(part))
    sizes = lengths(part, case.blocks)
    targets = columns(case.targets(part), sizes, idle=idle)
    x = states(part, case.blocks, shape_of(part))
    torch.manual_seed(5)
    sums = model(x, targets, sizes)
    sums["loss"].backward()
    assert all(value.shape == () for value in sums.values())
    assert x.grad is not None and torch.isfinite(x.grad).all()
    return model, {key: value.item() for key, value in sums.items()}


@each
def test_sums_add_over_blocks(name: str, part: Objective) -> None:
    case = complete(PROSE, SpanMasking(mask_rate=0.3))
    shape, model = shape_of(part), Alone(part, shape_of(part))
    sizes = lengths(part, case.blocks)
    x = states(part, case.blocks, shape)
    case_targets = case.targets(part)
    torch.manual_seed(5)
    whole = model(x, columns(case_targets, sizes), sizes)
    parts = []
    for row, mine in enumerate(x.split(sizes.tolist())):
        torch.manual_seed(5)
        targets = columns(case.row(row).targets(part), sizes[[row]])
        parts.append(model(mine, targets, sizes[[row]]))
    assert whole["count"] > 0
    for key, value in whole.items():
        total = sum(sums[key].item() for sums in parts)
        assert total == pytest.approx(value.item(), rel=1e-12, abs=1e-12)


@each
def test_the_count_is_of_labels_and_idle_slots_change_nothing(name: str, part: Objective) -> None:
    case = complete(PROSE, SpanMasking(mask_rate=0.3))
    plain, sums = loss_sums(part, case)
    filled, more = loss_sums(part, case, idle=9)
    target_columns = case.targets(part).columns
    labels = [v for k, v in target_columns.items() if k.endswith("labels")]
    count = sum((v != Targets.IGNORED).sum() for v in labels)
    assert sums["count"] == pytest.approx(
        target_columns["weights"].sum() if "weights" in target_columns else count
    )
    assert more == pytest.approx(sums, rel=1e-12)
    grads = zip(plain.parameters(), filled.parameters(), strict=True)
    for first, second in grads:
        assert (first.grad is None) == (second.grad is None)
        assert first.grad is None or torch.allclose(first.grad, second.grad, rtol=1e-9, atol=1e-12)


@each
@pytest.mark.parametrize("idle", [0, 6])
def test_no_targets_give_nothing_and_finite_gradients(
    name: str, part: Objective, idle: int
) -> None:
    model, shape = Alone(part, shape_of(part)), shape_of(part)
    case = complete(PROSE, SpanMasking(mask_rate=0.3))
    x = states(part, case.blocks, shape)
    none = Targets(
        np.zeros(1, np.int64),
        {column: values[:0] for column, values in case.targets(part).columns.items()},
    )
    sums = model(x, columns(none, [], idle=idle), lengths(part, case.blocks))
    sums["loss"].backward()
    assert all(value.item() == 0 for value in sums.values())
    assert x.grad is None or not x.grad.any()
    for parameter in model.parameters():
        assert parameter.grad is None or not parameter.grad.any()


@each
def test_every_parameter_of_a_head_gets_gradient(name: str, part: Objective) -> None:
    model, sums = loss_sums(part, complete(PROSE, SpanMasking(mask_rate=0.3)))
    assert sums["loss"] > 0
    for name_, parameter in model.head.named_parameters():
        assert parameter.grad is not None, name_
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.abs().sum() > 0, name_


@each
@pytest.mark.thorough
def test_a_head_compiles_whole(name: str, part: Objective) -> None:
    case = complete(make_blocks([[1, 2, 1, 4, 1, 1], [2, 1, 1]]), SpanMasking(mask_rate=0.3))
    model = Alone(part, shape_of(part))
    sizes = lengths(part, case.blocks).tolist()
    targets = columns(case.targets(part), sizes, idle=2)
    x = states(part, case.blocks, shape_of(part))
    results = []
    torch.compiler.reset()  # one method of many modules: each is compiled for itself
    for run in (model, torch.compile(model, backend="eager", fullgraph=True)):
        torch.manual_seed(5)
        results.append({key: value.item() for key, value in run(x, targets, sizes).items()})
    assert results[0] == pytest.approx(results[1], rel=1e-12)


@each
def test_half_precision_states_give_single_precision_losses(name: str, part: Objective) -> None:
    case = complete(PROSE, SpanMasking(mask_rate=0.3))
    model = Alone(part, shape_of(part))
    sizes = lengths(part, case.blocks)
    targets = columns(case.targets(part), sizes)
    x = states(part, case.blocks, shape_of(part)).detach()
    torch.manual_seed(5)
    exact = model(x, targets, sizes)["loss"].item()
    torch.manual_seed(5)
    near = model.float()(x.bfloat16(), targets, sizes)["loss"]
    assert near.dtype == torch.float32
    assert torch.isfinite(near)
    sampled = isinstance(part, BidirectionalLm) and part.samples < part.words
    assert sampled or near.item() == pytest.approx(exact, rel=0.03)
