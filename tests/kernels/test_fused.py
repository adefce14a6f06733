"""Layers by kernels are the plain layers: the same states, the same gradients, dropout apart."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import xlnet_batches
from support.triton_interpreter import DEVICE, activation, attention, sums
from torch import Tensor

from clozelab.contracts import Input, Sums, Targets
from clozelab.encoder.stack import Stack
from clozelab.encoder.streams import Streams
from clozelab.encoder.transformer import Transformer
from clozelab.objectives.heads import vocabulary
from clozelab.objectives.heads.vocabulary import PlainHead, VocabularyHead

torch.set_num_threads(1)
CASES: dict[str, dict[str, Any]] = {
    "BERT": {},
    "pre-norm": {"norm": "pre"},
    "ALBERT": {"sharing": "all", "embedding_size": 16, "activation": "gelu_tanh"},
    "GPT": {"norm": "pre", "causal": True, "activation": "relu"},
    "no first norm": {"norm": "pre", "first_norm": False},
    "ModernBERT": {
        **{"norm": "pre", "first_norm": False, "bias": False, "gated": True, "window": 4},
        **{"global_every": 2, "position_embedding": "rotary"},
    },
    "MosaicBERT": {"gated": True, "position_embedding": "alibi", "types": 0},
    "NeoBERT": {
        **{"norm": "pre", "bias": False, "gated": True, "normalisation": "rms"},
        **{"activation": "silu", "position_embedding": "rotary"},
    },
    "normalised heads and squares": {"qk_norm": True, "activation": "relu2", "bias": False},
    "causal windows": {"causal": True, "window": 6, "global_every": 2, "norm": "pre"},
    "values of the first layer, which no kernel knows": {"value_residual": 0.5},
    "DeBERTa": {
        **{"position_embedding": "disentangled", "position_buckets": 8, "position_norm": True},
    },
    "wide heads": {"heads": 1, "hidden_size": 48},  # of a width no kernel has
}


def stack(*, dropout: float = 0.0, **settings: Any) -> Stack:
    shape_settings = {
        "layers": 2,
        "heads": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "embedding_size": 32,
    } | settings
    shape_settings["embedding_size"] = settings.get("embedding_size", shape_settings["hidden_size"])
    torch.manual_seed(0)
    shape = Transformer(**shape_settings, positions=160, dropout=dropout, attention_dropout=dropout)
    model = shape.build(50).to(DEVICE)
    with torch.no_grad():  # biases and norms that do something
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def on_device(inputs: Input) -> Input:
    """The batch on the device of the kernels."""
    there = {n: v.to(DEVICE) for n, v in inputs._asdict().items() if isinstance(v, Tensor)}
    return inputs._replace(**there)


def batch(*lengths: int) -> Input:
    places = torch.cat([torch.arange(length) for length in lengths])
    packed = Input(
        ids=torch.randint(0, 50, (sum(lengths),), generator=torch.Generator().manual_seed(1)),
        position_ids=places,
        segments=places % 2,
        cu_seqlens=torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32),
        max_seqlen=max(lengths),
        dense=len(set(lengths)) == 1,
    )
    return on_device(packed)


def run(
    model: Stack, inputs: Input, *, keep: bool = False, at: Tensor | None = None
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Every state, and every gradient of a sum with weights of its own."""
    model.zero_grad()
    encoded = model(inputs, keep=keep, at=at)
    states = list(encoded.layers) if keep else [encoded.hidden_states]
    weighted_sum(states).backward()
    return states, {name: p.grad.clone() for name, p in model.named_parameters()}


def weighted_sum(states: list[Tensor]) -> Tensor:
    """A loss to which every state contributes with another weight."""
    weights = (torch.linspace(-1, 1, s.numel(), device=DEVICE).view_as(s) for s in states)
    return torch.stack([(s * w).sum() for s, w in zip(states, weights, strict=True)]).sum()


def assert_fused_is_plain(model: Stack, inputs: Input, *, keep: bool = False) -> list[Tensor]:
    """States and gradients by the kernels are those of the plain layers; the states."""
    plain, plain_gradients = run(model, inputs, keep=keep)
    model.fused = True
    ours, gradients = run(model, inputs, keep=keep)
    model.fused = False
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
    largest = max(float(plain_gradient.abs().max()) for plain_gradient in plain_gradients.values())
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, plain_gradients[name], rtol=1e-3, atol=1e-5 * largest)
    return ours


# Whose blocks of several tiles are left to `make slow`: others with the same attention are asked,
# and of DeBERTa's kernels the tiles by themselves.
_LONG_IS_SLOW = ("pre-norm", "ALBERT", "GPT", "no first norm", "NeoBERT", "DeBERTa")
_CHOSEN_IS_SLOW = ("pre-norm", "ALBERT", "no first norm", "NeoBERT", "DeBERTa")


@pytest.mark.parametrize(
    ("case", "lengths", "keep"),
    [
        *((case, (9, 4, 0, 7), False) for case in CASES),
        *((case, (6, 6), True) for case in CASES),
        *(
            pytest.param(case, (140, 20), True, marks=[pytest.mark.slow] * (case in _LONG_IS_SLOW))
            for case in CASES
        ),
    ],
)
def test_states_and_gradients_are_those_of_the_plain_layers(
    case: str, lengths: tuple[int, ...], keep: bool
) -> None:
    assert_fused_is_plain(stack(**CASES[case]), batch(*lengths), keep=keep)


@pytest.mark.parametrize(
    "lengths", [(9, 4, 0, 7), (6, 6), pytest.param((140, 20), marks=pytest.mark.slow)]
)
def test_so_they_are_of_a_batch_that_is_read_causally(lengths: tuple[int, ...]) -> None:
    model, inputs = stack(), batch(*lengths)
    (both,) = assert_fused_is_plain(model, inputs)
    (causal,) = assert_fused_is_plain(model, inputs._replace(causal=True))
    last = torch.tensor(lengths).cumsum(0)[torch.tensor(lengths) > 0] - 1
    assert not torch.allclose(causal[0], both[0], rtol=1e-3)  # of a token that others follow
    assert torch.isfinite(causal[last]).all()


@pytest.mark.parametrize(
    ("case", "lengths"),
    [
        ("BERT", (10, 10)),
        *(
            pytest.param(case, (9, 4, 0, 7), marks=[pytest.mark.slow] * (case in _CHOSEN_IS_SLOW))
            for case in CASES
        ),
    ],
)
def test_chosen_tokens_have_the_states_and_the_gradients_that_they_have_among_all(
    case: str, lengths: tuple[int, ...]
) -> None:
    model, inputs = stack(dropout=0.2, **CASES[case]), batch(*lengths)
    model.fused = True
    at = torch.tensor([19, 0, 4, 0, 8, 13, 0], device=DEVICE)  # with slots that are filled up
    results = []
    for chosen in (None, at):
        model.zero_grad()
        torch.manual_seed(3)
        states = model(inputs, at=chosen).hidden_states
        states = states if chosen is not None else states[at]
        (
            states * torch.linspace(-1, 1, states.numel(), device=DEVICE).view_as(states)
        ).sum().backward()
        results.append([states.detach(), *(p.grad for p in model.parameters())])
    assert len(results[1][0]) == len(at)
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("case", "halves"), [("ModernBERT", 2), ("MosaicBERT", 0), ("NeoBERT", 2), ("DeBERTa", 2)]
)
def test_modern_blocks_take_the_kernels(
    case: str, halves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many attentions as there are layers that are known, and both norms and gates of each."""
    called: list[str] = []
    for name, module, kernel in (
        ("attention", attention, "attend"),
        ("norm", sums, "add_norm"),
        ("gate", activation, "activated_product"),
    ):
        original = getattr(module, kernel)

        def noted(*a: Any, name: str = name, original: Any = original, **k: Any) -> Any:
            called.append(name)
            return original(*a, **k)

        monkeypatch.setattr(module, kernel, noted)
    model = stack(**CASES[case])
    model.fused = True
    model(batch(9, 4))
    wanted = {"attention": halves, "norm": 4, "gate": 2}
    assert {name: called.count(name) for name in wanted} == wanted


def test_a_loss_of_an_intermediate_layer_alone_has_the_gradients_of_the_plain_layers() -> None:
    model = stack(norm="pre", layers=3)

    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        middle = model(batch(9, 4), keep=True).layers[2]
        (
            middle * torch.linspace(-1, 1, middle.numel(), device=DEVICE).view_as(middle)
        ).sum().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    plain = gradients()
    model.fused = True
    fused = gradients()
    for name, gradient in plain.items():
        torch.testing.assert_close(fused[name], gradient, rtol=1e-3, atol=1e-5)


def run_streams(model: Streams, inputs: Input) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The states of both streams, and every gradient of a sum with weights of its own."""
    model.zero_grad()
    out = model(inputs)
    assert out.queries is not None
    states = [out.hidden_states, out.queries]
    weighted_sum(states).backward()
    return states, {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("lengths", "memory"),
    [
        *(([7, 7], 0), ([7, 7], 9), ([66, 5, 1], 9)),
        pytest.param([66, 5, 1], 0, marks=pytest.mark.slow),
    ],
)
def test_both_streams_are_those_of_the_plain_attention(lengths: list[int], memory: int) -> None:
    torch.manual_seed(0)
    model = xlnet_batches.shape(width=32, inner=24, memory=6).build(50).to(DEVICE)
    old = xlnet_batches.memories(2, len(lengths), memory, 32) if memory else None
    inputs = on_device(
        xlnet_batches.batch(lengths, seed=3, remembered=None if old is None else old.float())
    )

    plain, plain_gradients = run_streams(model, inputs)
    model.fused = True
    ours, gradients = run_streams(model, inputs)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
    largest = max(float(plain_gradient.abs().max()) for plain_gradient in plain_gradients.values())
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, plain_gradients[name], rtol=1e-3, atol=1e-5 * largest)


@pytest.mark.parametrize(
    "precision",
    [
        None,
        pytest.param(
            torch.bfloat16,
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="on a GPU alone"),
        ),
    ],
)
def test_fused_streams_compile_whole(precision: torch.dtype | None) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = xlnet_batches.shape(width=32, inner=24).build(50).to(DEVICE)
    inputs = on_device(xlnet_batches.batch([9, 6], seed=3))
    plain, plain_gradients = run_streams(model, inputs)
    model.precision, model.fused = precision, True
    backend = "aot_eager" if precision is None else "inductor"
    model.compile(fullgraph=True, dynamic=False, backend=backend)
    ours, gradients = run_streams(model, inputs)
    tolerance = 1e-5 if precision is None else 0.02
    for states, plain_states in zip(ours, plain, strict=True):
        assert float((states.float() - plain_states).abs().mean()) < tolerance
    largest = max(float(plain_gradient.norm()) for plain_gradient in plain_gradients.values())
    for name, gradient in gradients.items():
        assert float((gradient - plain_gradients[name]).norm()) < tolerance * largest, name
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "product", ["attention.0.value", "attention.0.key", "ffn.0.inner", "ffn.0.output"]
)
def test_what_xlnet_drops_is_what_its_gradient_is_of(product: str) -> None:
    torch.manual_seed(0)
    part = replace(xlnet_batches.shape(width=32, inner=24), dropout=0.2, attention_dropout=0.3)
    model, inputs = part.build(50).to(DEVICE), on_device(xlnet_batches.batch([9, 6], seed=3))
    model.fused = True

    def loss(seed: int) -> Tensor:
        torch.manual_seed(seed)
        value: Tensor = (model(inputs).queries * torch.linspace(-1, 1, 32, device=DEVICE)).sum()
        return value

    weight = model.get_submodule(product).get_parameter("weight")
    loss(3).backward()
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    expected = float((weight.grad * direction).sum())
    with torch.no_grad():
        weight += 1e-2 * direction
        above, another = float(loss(3)), float(loss(4))
        weight -= 2e-2 * direction
        below = float(loss(3))
    assert (above - below) / 2e-2 == pytest.approx(expected, rel=1e-2)
    assert another != above


@pytest.mark.parametrize("case", ["BERT", pytest.param("ModernBERT", marks=pytest.mark.slow)])
def test_layers_made_again_on_the_way_back_drop_the_same(case: str) -> None:
    model, inputs = stack(dropout=0.2, **CASES[case]), batch(9, 5)
    model.fused = True
    torch.manual_seed(5)
    states, gradients = run(model, inputs)
    model.recompute = True
    torch.manual_seed(5)
    again, gradients_again = run(model, inputs)
    torch.testing.assert_close(again, states, rtol=0, atol=0)
    torch.testing.assert_close(gradients_again, gradients)
    torch.manual_seed(6)
    assert not torch.equal(run(model, inputs)[0][0], states[0])


def test_gradients_with_dropout_are_those_of_what_was_dropped() -> None:
    model, inputs = stack(dropout=0.2, norm="pre"), batch(9, 5)
    model.fused = True

    def loss() -> Tensor:
        torch.manual_seed(3)
        value: Tensor = (
            model(inputs).hidden_states * torch.linspace(-1, 1, 32, device=DEVICE)
        ).sum()
        return value

    weight: Any = model.ffn[1].output.weight
    loss().backward()
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    expected = float((weight.grad * direction).sum())
    with torch.no_grad():
        weight += 1e-2 * direction
        above = float(loss())
        weight -= 2e-2 * direction
        below = float(loss())
    assert (above - below) / 2e-2 == pytest.approx(expected, rel=1e-2)


def test_nothing_is_dropped_when_judged() -> None:
    model, inputs = stack(dropout=0.5).eval(), batch(9, 5)
    plain = model(inputs).hidden_states
    model.fused = True
    torch.testing.assert_close(model(inputs).hidden_states, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("plain_head", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_fused_head_has_the_sums_and_the_gradients_of_a_plain_one(
    plain_head: bool, rounded: bool, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stack()
    head = (PlainHead if plain_head else VocabularyHead)(model.shape, 50).to(DEVICE)
    targets = {
        "at": torch.tensor([0, 3, 7, 12], device=DEVICE),
        "labels": torch.tensor([4, Targets.IGNORED, 49, 0], device=DEVICE),
        "decisions": torch.tensor([0, 1, 2, 0], device=DEVICE),
    }
    if weighted:
        weights = torch.tensor([3.0, 3.0, 1.5, 0.5], dtype=torch.float64, device=DEVICE)
        targets["weights"] = weights

    def step() -> tuple[Sums, list[Tensor]]:
        model.zero_grad()
        head.zero_grad()
        sums = head(model(batch(9, 5)), targets)
        sums["loss"].backward()
        return sums, [p.grad.clone() for part in (model, head) for p in part.parameters()]

    plain, plain_gradients = step()
    monkeypatch.setattr(vocabulary, "_wants_round", lambda _: rounded)
    also, also_gradients = step()
    torch.testing.assert_close(also, plain, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(also_gradients, plain_gradients, rtol=1e-3, atol=1e-5)
    head.fused = True
    ours, gradients = step()
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients, plain_gradients, rtol=1e-3, atol=1e-5)


def test_long_blocks_without_dropout_and_window_take_the_library_s_kernel_and_others_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = []
    kernel = attention.attend
    monkeypatch.setattr(attention, "SHORT_SEQLEN", 8)
    monkeypatch.setattr(attention, "LONG_SEQLEN", 12)
    monkeypatch.setattr(attention, "attend", lambda *a, **k: (called.append(1), kernel(*a, **k))[1])
    cases = [
        ("BERT", (9, 5), 0.0, 2),
        ("BERT", (9, 9), 0.0, 0),
        ("BERT", (9, 9), 0.1, 2),
        ("BERT", (6, 6), 0.0, 2),
        ("BERT", (13, 5), 0.0, 0),
        ("BERT", (13, 5), 0.1, 2),
        ("ModernBERT", (13, 5), 0.0, 1),  # the other layer has no window
        ("ModernBERT", (13, 13), 0.0, 1),
        ("DeBERTa", (13, 13), 0.0, 2),  # the library adds no distances
    ]
    for case, lengths, dropout, times in cases:
        model = stack(dropout=dropout, **CASES[case])
        model.fused = True
        called.clear()
        model(batch(*lengths))
        assert len(called) == times


@pytest.mark.parametrize(
    ("case", "at"),
    [
        *(("BERT", None), ("ModernBERT", None), ("DeBERTa", None)),
        pytest.param("NeoBERT", None, marks=pytest.mark.slow),
        *(("BERT", (13, 2, 0, 0)), ("ModernBERT", (13, 2, 0, 0))),
    ],
)
def test_a_fused_model_compiles_whole(case: str, at: tuple[int, ...] | None) -> None:
    assert_compiles_whole(case, at, batch(9, 5))


def test_it_compiles_where_attention_sums_the_gradient_of_its_bias() -> None:
    assert attention.sums_bias_gradient(160, 2, 140)
    assert_compiles_whole("BERT", None, batch(140, 20))


@pytest.mark.thorough
def test_gradients_to_which_products_are_added_in_place_are_the_same() -> None:
    # Without dropout the gradient of the sum is also that of the product before it.
    assert_compiles_whole("BERT", None, batch(9, 5), backend="inductor")


def assert_compiles_whole(
    case: str, at: tuple[int, ...] | None, inputs: Input, *, backend: str = "aot_eager"
) -> None:
    torch._dynamo.reset()
    model = stack(**CASES[case])
    some = None if at is None else torch.tensor(at, device=DEVICE)
    model.fused = True
    plain, plain_gradients = run(model, inputs, at=some)
    model.compile(fullgraph=True, dynamic=False, backend=backend)
    ours, gradients = run(model, inputs, at=some)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients, plain_gradients, rtol=1e-3, atol=1e-4)
    torch._dynamo.reset()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="on a GPU alone")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("fused", [False, True])
def test_layers_are_compiled_in_half_precision(case: str, fused: bool) -> None:
    torch._dynamo.reset()  # a process compiles the same code for eight kinds of layers at most
    model, inputs = stack(**CASES[case]), on_device(batch(9, 130, 30))
    (plain,), plain_gradients = run(model, inputs)
    model.precision, model.fused = torch.bfloat16, fused
    model.compile(fullgraph=True)
    (half,), gradients = run(model, inputs)
    assert float((half.float() - plain).abs().mean()) < 0.02  # of states of deviation 1
    largest = max(float(plain_gradient.norm()) for plain_gradient in plain_gradients.values())
    for name, gradient in gradients.items():
        assert float((gradient - plain_gradients[name]).norm()) < 0.02 * largest, name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="on a GPU alone")
def test_gradients_of_distances_are_the_same_every_time() -> None:
    model, inputs = stack(**CASES["DeBERTa"]), on_device(batch(130, 60))
    model.fused = True
    (states,), gradients = run(model, inputs)
    for _ in range(5):
        (again,), gradients_again = run(model, inputs)
        assert torch.equal(again, states)
        assert torch.equal(gradients_again["relative.weight"], gradients["relative.weight"])
