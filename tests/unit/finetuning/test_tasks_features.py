"""Features of a frozen encoder, a BiLSTM upon them, and what a teacher of a task says."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.hypothesis_settings import max_examples
from torch import Tensor, nn

from clozelab.contracts import Encoded, Input
from clozelab.finetuning.config import Layers
from clozelab.finetuning.heads.features import Mix, Recurrent
from clozelab.finetuning.heads.head import softened

torch.set_num_threads(1)
WIDTH = 6
CHOSEN: tuple[Any, ...] = get_args(Layers)


def layered(layers: int, *, tokens: int = 5) -> Encoded:
    generator = torch.Generator().manual_seed(layers)
    shape = (layers + 1, tokens, WIDTH)
    states_by_layer = torch.randn(shape, generator=generator, dtype=torch.float64).unbind()
    return Encoded(states_by_layer[-1], None, tuple(states_by_layer))


def mixed(chosen: Any, layers: int) -> Tensor:
    out: Encoded = Mix(chosen, layers=layers, width=WIDTH).double()(layered(layers))
    return out.hidden_states


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 7])
def test_each_choice_is_of_the_layers_that_it_names(layers: int) -> None:
    states_by_layer = torch.stack(layered(layers).layers)
    four = states_by_layer[1:][-4:]
    wanted = {
        "embeddings": states_by_layer[0],
        "last": states_by_layer[-1],
        "second_to_last": states_by_layer[-2],
        "sum_last_four": four.sum(0),
        "weighted_last_four": four.mean(0),
        "concat_last_four": torch.cat(four.unbind(), dim=1),
        "weighted_all": states_by_layer.mean(0),
        "sum_all": states_by_layer.sum(0),
    }
    assert wanted.keys() == set(CHOSEN)
    for chosen, states in wanted.items():
        torch.testing.assert_close(mixed(chosen, layers), states, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chosen", CHOSEN)
@pytest.mark.parametrize("layers", [1, 3, 6])
def test_a_mix_tells_its_width(chosen: Any, layers: int) -> None:
    mix = Mix(chosen, layers=layers, width=WIDTH)
    assert mix.double()(layered(layers)).hidden_states.shape == (5, mix.width)


@pytest.mark.parametrize("chosen", ["weighted_last_four", "weighted_all"])
def test_weights_are_a_softmax_times_a_scale_and_are_trained(chosen: Any) -> None:
    mix, encoded = Mix(chosen, layers=6, width=WIDTH).double(), layered(6)
    states_by_layer = torch.stack(encoded.layers[1:][-4:] if "four" in chosen else encoded.layers)
    assert mix.weights is not None and mix.scale is not None
    with torch.no_grad():
        mix.scale.fill_(2.5)
    torch.testing.assert_close(
        mix(encoded).hidden_states, 2.5 * states_by_layer.mean(0), rtol=0, atol=1e-12
    )
    with torch.no_grad():
        mix.weights.copy_(torch.linspace(-1, 2, len(states_by_layer)))
    shares = torch.linspace(-1, 2, len(states_by_layer)).double().softmax(0)
    wanted = 2.5 * (shares[:, None, None] * states_by_layer).sum(0)
    torch.testing.assert_close(mix(encoded).hidden_states, wanted, rtol=0, atol=1e-6)
    mix(encoded).hidden_states.square().sum().backward()
    for parameter in mix.parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0


def test_only_weighted_mixes_have_anything_to_train() -> None:
    for chosen in CHOSEN:
        count = sum(p.numel() for p in Mix(chosen, layers=6, width=WIDTH).parameters())
        assert count == {"weighted_last_four": 5, "weighted_all": 8}.get(chosen, 0)


def packed(lengths: list[int], *, more: int = 0) -> Input:
    sizes = torch.tensor([0, *lengths, *[0] * more])
    tokens = sum(lengths)
    return Input(
        ids=torch.arange(tokens),
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        segments=torch.zeros(tokens, dtype=torch.int64),
        cu_seqlens=sizes.cumsum(0).int(),
        max_seqlen=max(lengths) + more,
    )


def reader(seed: int = 0) -> Recurrent:
    torch.manual_seed(seed)
    return Recurrent(WIDTH, 4).double().eval()


@max_examples(40)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 3))
def test_a_block_is_read_by_itself_in_both_directions(lengths: list[int], more: int) -> None:
    model = reader()
    states = torch.randn(sum(lengths), WIDTH, dtype=torch.float64)
    states_read = model(Encoded(states, None), packed(lengths, more=more)).hidden_states
    assert states_read.shape == (sum(lengths), model.width) == (sum(lengths), 8)
    for mine, block in zip(states_read.split(lengths), states.split(lengths), strict=True):
        wanted, _ = model.lstm(block[None])
        torch.testing.assert_close(mine, wanted[0], rtol=0, atol=1e-12)


def test_it_is_two_lstms_each_way_and_every_weight_gets_gradient() -> None:
    model = reader()
    sizes = [4 * 4 * (WIDTH + 4 + 2), 4 * 4 * (8 + 4 + 2)]  # two biases a gate, as torch has it
    assert sum(p.numel() for p in model.parameters()) == 2 * sum(sizes)
    assert isinstance(model.lstm, nn.LSTM) and Recurrent(5).width == 2 * 768
    states = torch.randn(9, WIDTH, dtype=torch.float64)
    model(Encoded(states, None), packed([4, 5], more=1)).hidden_states.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_features_in_half_precision_are_read_in_that_of_the_weights() -> None:
    torch.manual_seed(0)
    model = Recurrent(WIDTH, 4)
    states = torch.randn(9, WIDTH).bfloat16()
    states_read = model(Encoded(states, None), packed([4, 5])).hidden_states
    assert states_read.dtype == torch.bfloat16 and torch.isfinite(states_read).all()


logit_rows = st.lists(
    st.lists(st.floats(-20, 20), min_size=3, max_size=3), min_size=1, max_size=6
).map(lambda rows: torch.tensor(rows, dtype=torch.float64))


@max_examples(100)
@given(logit_rows, st.data(), st.sampled_from([1.0, 2.0, 5.0]))
def test_the_divergence_is_none_from_oneself_and_never_negative(
    mine: Tensor, data: st.DataObject, temperature: float
) -> None:
    noise = data.draw(st.lists(st.floats(-5, 5), min_size=3, max_size=3))
    theirs = mine + torch.tensor(noise, dtype=torch.float64)
    there = torch.ones(len(mine), dtype=torch.bool)
    assert softened((mine,), (mine,), there, temperature=temperature).item() == 0
    assert softened((mine,), (mine + 3,), there, temperature=temperature).item() == pytest.approx(
        0, abs=1e-9
    )
    apart = softened((mine,), (theirs,), there, temperature=temperature).item()
    assert apart >= -1e-9
    p, q = ((x / temperature).softmax(1).numpy() for x in (theirs, mine))
    wanted = temperature**2 * float((p * (np.log(p) - np.log(q))).sum())
    assert apart == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def test_only_real_rows_count_and_several_tensors_are_averaged() -> None:
    torch.manual_seed(0)
    mine, theirs = torch.randn(2, 4, 5).double(), torch.randn(2, 4, 5).double()
    there = torch.tensor([True, False, True, False])
    parts = [
        softened((a[there],), (b[there],), torch.ones(2, dtype=torch.bool), temperature=2.0)
        for a, b in zip(mine, theirs, strict=True)
    ]
    both = softened(tuple(mine), tuple(theirs), there, temperature=2.0)
    assert both.item() == pytest.approx((sum(parts) / 2).item(), rel=1e-12)
    assert softened(tuple(mine), tuple(theirs), ~there & there, temperature=2.0).item() == 0


def test_cells_that_do_not_exist_keep_the_divergence_and_its_gradient_finite() -> None:
    torch.manual_seed(0)
    mine = torch.randn(2, 4).double().requires_grad_()
    there = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]]).bool()
    theirs_shown = torch.randn(2, 4).double().where(there, -1e9)
    both = torch.ones(2, dtype=torch.bool)
    divergence = softened((mine.where(there, -1e9),), (theirs_shown,), both, temperature=2.0)
    divergence.backward()
    assert torch.isfinite(divergence) and divergence > 0
    assert mine.grad is not None and torch.isfinite(mine.grad).all() and not mine.grad[~there].any()


def test_a_number_is_held_to_the_teachers_and_the_teacher_learns_nothing() -> None:
    mine = torch.tensor([[1.0], [2.0], [5.0]], requires_grad=True)
    theirs = torch.tensor([[1.5], [0.0], [9.0]], requires_grad=True)
    there = torch.tensor([True, True, False])
    divergence = softened((mine,), (theirs,), there, temperature=2.0)
    divergence.backward()
    assert divergence.item() == pytest.approx(0.25 + 4.0)
    assert theirs.grad is None and mine.grad is not None
    assert mine.grad.tolist() == [[-1.0], [4.0], [0.0]]
