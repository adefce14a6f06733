"""The optimisers, cards E1 to E3, E5 and E7: steps worked out by hand, groups, clipping, shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.hypothesis_settings import max_examples
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from clozelab.encoder import Transformer
from clozelab.errors import UserError
from clozelab.finetuning.config import FinetuneConfig
from clozelab.training import PARTS, Optimiser, orthogonal
from clozelab.training.optimiser import Adamw, BertAdam, Lamb, Muon
from clozelab.training.updates import clip

torch.set_num_threads(1)

MATRIX = "encoder.ffn.0.inner.weight"


def parameter(*values: float | list[float]) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def take(part: Optimiser, named: dict[str, nn.Parameter], gradients: list[Tensor]) -> None:
    """Steps with the same gradient for every parameter."""
    built = part.build(named.items())
    for gradient in gradients:
        for weight in named.values():
            weight.grad = gradient.clone().to(weight.dtype)
        for optimiser in built:
            optimiser.step()


def model(query_biases: bool = False) -> nn.Module:
    shape = Transformer(
        layers=2,
        heads=2,
        hidden_size=8,
        intermediate_size=16,
        embedding_size=4,
        dropout=0,
        attention_dropout=0,
    )
    torch.manual_seed(0)
    module = nn.Module()
    module.encoder = shape.build(20)
    module.heads = nn.ModuleDict({"pair": nn.Linear(8, 2)})
    if query_biases:
        module.encoder.attention[0].content_bias = nn.Parameter(torch.zeros(2, 4))
    return module


def by_name(part: Optimiser, whole: nn.Module) -> dict[str, dict[str, object]]:
    """Each parameter's group, with the kind of its optimiser."""
    names = {weight: name for name, weight in whole.named_parameters()}
    return {
        names[weight]: {**group, "by": type(optimiser).__name__}
        for optimiser in part.build(whole.named_parameters())
        for group in optimiser.param_groups
        for weight in group["params"]
    }


# --- Adam, as BERT's code has it (E1) and corrected (E2) ---


def test_two_steps_of_berts_adam_are_those_worked_out_by_hand() -> None:
    theta = parameter([1.0, -2.0])
    part = BertAdam(learning_rate=0.1, betas=(0.9, 0.99), epsilon=0.01, weight_decay=0.5)
    take(part, {MATRIX: theta}, [torch.tensor([[2.0, -4.0]]), torch.tensor([[1.0, 3.0]])])
    values = []
    for value, first, second in ((1.0, 2.0, 1.0), (-2.0, -4.0, 3.0)):
        m, v = 0.1 * first, 0.01 * first**2
        value -= 0.1 * (m / (sqrt(v) + 0.01) + 0.5 * value)
        m, v = 0.9 * m + 0.1 * second, 0.99 * v + 0.01 * second**2
        value -= 0.1 * (m / (sqrt(v) + 0.01) + 0.5 * value)
        values.append(value)
    assert theta.detach().tolist()[0] == pytest.approx(values, rel=1e-12)
    # And in plain numbers: the first step moves 1.0 by 0.1 · (0.2 / 0.21 + 0.5).
    theta = parameter([1.0])
    take(part, {MATRIX: theta}, [torch.tensor([[2.0]])])
    assert theta.item() == pytest.approx(1 - 0.1 * (0.2 / 0.21 + 0.5), rel=1e-12)


@given(st.floats(1e-2, 1e3), st.sampled_from([-1.0, 1.0]))
@max_examples(30)
def test_the_first_step_of_berts_adam_is_3_16_rates_long(size: float, sign: float) -> None:
    theta = parameter([0.0])
    part = BertAdam(learning_rate=1e-3, epsilon=1e-12, weight_decay=0.0)
    take(part, {MATRIX: theta}, [torch.tensor([[sign * size]], dtype=torch.float64)])
    assert theta.item() == pytest.approx(-1e-3 * sign * sqrt(10), rel=1e-6)  # 0.1 / √0.001


@given(st.floats(1e-2, 1e3), st.sampled_from([-1.0, 1.0]))
@max_examples(30)
def test_the_first_step_of_adamw_is_one_rate_long(size: float, sign: float) -> None:
    theta = parameter([0.0])
    take(
        Adamw(learning_rate=1e-3, epsilon=1e-12, weight_decay=0.0),
        {MATRIX: theta},
        [torch.tensor([[sign * size]], dtype=torch.float64)],
    )
    assert theta.item() == pytest.approx(-1e-3 * sign, rel=1e-6)


def test_two_steps_of_adamw_are_those_worked_out_by_hand() -> None:
    theta = parameter([1.0])
    part = Adamw(learning_rate=0.1, betas=(0.9, 0.99), epsilon=0.01, weight_decay=0.5)
    take(part, {MATRIX: theta}, [torch.tensor([[2.0]]), torch.tensor([[1.0]])])
    value = 1.0
    value = value * (1 - 0.1 * 0.5) - 0.1 * 2.0 / (2.0 + 0.01)
    m, v = (0.9 * 0.2 + 0.1) / (1 - 0.9**2), (0.99 * 0.04 + 0.01) / (1 - 0.99**2)
    value = value * (1 - 0.1 * 0.5) - 0.1 * m / (sqrt(v) + 0.01)
    assert theta.item() == pytest.approx(value, rel=1e-12)


# --- LAMB (E3) ---


def test_two_steps_of_lamb_are_those_worked_out_by_hand() -> None:
    theta = parameter([3.0, 4.0])
    part = Lamb(learning_rate=0.1, betas=(0.9, 0.99), epsilon=0.01, weight_decay=0.5)
    take(part, {MATRIX: theta}, [torch.tensor([[2.0, -4.0]]), torch.tensor([[1.0, 3.0]])])
    values, m, v = [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]
    for gradient in ([2.0, -4.0], [1.0, 3.0]):
        m = [0.9 * a + 0.1 * g for a, g in zip(m, gradient, strict=True)]
        v = [0.99 * b + 0.01 * g * g for b, g in zip(v, gradient, strict=True)]
        r = [a / (sqrt(b) + 0.01) + 0.5 * t for a, b, t in zip(m, v, values, strict=True)]
        ratio = sqrt(values[0] ** 2 + values[1] ** 2) / sqrt(r[0] ** 2 + r[1] ** 2)
        values = [t - 0.1 * ratio * s for t, s in zip(values, r, strict=True)]
    assert theta.detach().tolist()[0] == pytest.approx(values, rel=1e-12)


@given(st.floats(0.01, 100), st.integers(0, 99))
@max_examples(30)
def test_scaling_a_matrix_scales_lambs_step_alike(scale: float, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    start, gradient = (torch.randn(3, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    moves = []
    for factor in (1.0, scale):
        theta = nn.Parameter(start * factor)
        take(Lamb(learning_rate=0.01, weight_decay=0.0), {MATRIX: theta}, [gradient])
        moves.append(theta.detach() - start * factor)
    assert torch.allclose(moves[1], scale * moves[0], rtol=1e-9)
    assert moves[0].norm().item() == pytest.approx(0.01 * start.norm().item(), rel=1e-9)


def test_lamb_steps_by_the_rate_where_a_norm_is_nought_and_on_biases_and_norms() -> None:
    gradient = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    plain = parameter([5.0, 5.0])
    take(BertAdam(learning_rate=0.01, weight_decay=0.0), {MATRIX: plain}, [gradient])
    move = plain.detach() - 5.0
    nought = parameter([0.0, 0.0])
    take(Lamb(learning_rate=0.01, weight_decay=0.0), {MATRIX: nought}, [gradient])
    assert torch.allclose(nought.detach(), move)
    for name in ("encoder.attention.0.content_bias", "encoder.norm.weight"):
        spared = parameter([5.0, 5.0])
        take(Lamb(learning_rate=0.01, weight_decay=0.0), {name: spared}, [gradient])
        assert torch.allclose(spared.detach() - 5.0, move)
    still = parameter([5.0, 5.0])
    take(Lamb(learning_rate=0.01, weight_decay=0.0), {MATRIX: still}, [gradient * 0])
    assert still.detach().tolist() == [[5.0, 5.0]]


def test_lamb_spares_biases_its_ratio_even_where_everything_decays() -> None:
    bias = parameter(3.0, 4.0)
    take(
        Lamb(learning_rate=0.1, weight_decay=0.5, decay_all=True),
        {"x.bias": bias},
        [torch.zeros(2).double()],
    )
    assert bias.detach().tolist() == pytest.approx([3 * 0.95, 4 * 0.95])


# --- Muon ---


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """Muon's products as on a processor with bfloat16 instructions, and as on one without."""
    monkeypatch.setattr(orthogonal, "product_dtype", lambda device: request.param)
    chosen: torch.dtype = request.param
    return chosen


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("shape", [(12, 12), (24, 8), (8, 24)])
def test_muon_steps_are_nearly_orthogonal(shape: tuple[int, int]) -> None:
    draw = torch.Generator().manual_seed(3)
    theta = nn.Parameter(torch.zeros(shape))
    take(
        Muon(learning_rate=1e-3, matrix_learning_rate=0.02),
        {MATRIX: theta},
        [torch.randn(shape, generator=draw)],
    )
    stretch = max(1, shape[0] / shape[1]) ** 0.5
    values = torch.linalg.svdvals(theta.detach() / 0.02 / stretch)
    assert values.min() > 0.5 and values.max() < 1.3


def steps_of(optimiser: torch.optim.Optimizer, values: list[nn.Parameter]) -> None:
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        for value in values:
            value.grad = torch.randn(value.shape, generator=draw)
        optimiser.step()


@pytest.mark.parametrize(
    ("capability", "instructions", "dtype"),
    [
        ("AVX512", True, torch.bfloat16),
        ("AVX512", False, torch.float32),  # which has AVX-512, but not for bfloat16
        ("AVX2", True, torch.float32),  # which torch was told not to use
        ("DEFAULT", False, torch.float32),
    ],
)
def test_muon_multiplies_in_what_the_processor_is_fast_at(
    capability: str, instructions: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": instructions})
    assert orthogonal.product_dtype(torch.device("cpu")) == dtype
    assert orthogonal.orthogonal(torch.eye(4)[None], orthogonal.steep(5)).dtype == dtype


def test_many_matrices_at_once_step_as_torchs_muon_has_each_of_them(
    precision: torch.dtype,
) -> None:
    shapes = [(8, 8), (24, 8), (8, 24), (8, 8), (24, 8)]
    start = [torch.randn(shape, generator=torch.Generator().manual_seed(9)) for shape in shapes]
    ours, theirs = ([nn.Parameter(matrix.clone()) for matrix in start] for _ in range(2))
    names = [f"encoder.ffn.{number}.inner.weight" for number in range(len(shapes))]
    (mine,) = Muon(learning_rate=1e-3, matrix_learning_rate=0.03, weight_decay=0.1).build(
        zip(names, ours, strict=True)
    )
    steps_of(mine, ours)
    steps_of(torch.optim.Muon(theirs, lr=0.03, weight_decay=0.1, momentum=0.95), theirs)
    for own, other in zip(ours, theirs, strict=True):
        # Theirs rounds to bfloat16 in every iteration.
        rounding = 0.01 if precision is torch.bfloat16 else 0.02
        torch.testing.assert_close(own, other, rtol=0, atol=rounding * 0.03 * 3)


def test_queries_keys_and_values_are_each_made_orthogonal() -> None:
    joint = nn.Parameter(torch.zeros(24, 8))
    name = "encoder.attention.0.qkv.weight"
    gradient = torch.randn(24, 8, generator=torch.Generator().manual_seed(3))
    gradient[8:16] *= 100  # which would drown the others
    take(Muon(learning_rate=1e-3, matrix_learning_rate=1.0), {name: joint}, [gradient])
    for third in joint.detach().split(8):
        values = torch.linalg.svdvals(third)
        assert values.min() > 0.5 and values.max() < 1.3


def test_a_gate_and_what_it_gates_are_each_made_orthogonal() -> None:
    shapes = {"inner": (24, 8), "output": (8, 12)}
    layer = {f"encoder.ffn.0.{n}.weight": nn.Parameter(torch.zeros(s)) for n, s in shapes.items()}
    for parameter in layer.values():
        parameter.grad = torch.randn_like(parameter)
    layer["encoder.ffn.0.inner.weight"].grad[:12] *= 100  # type: ignore[index]  # drowns the rest
    Muon(learning_rate=1e-3, matrix_learning_rate=1.0).build(layer.items())[0].step()
    for half in layer["encoder.ffn.0.inner.weight"].detach().split(12):
        values = torch.linalg.svdvals(half)
        assert values.min() > 0.5 and values.max() < 1.3 * (12 / 8) ** 0.5


def test_muon_takes_the_layers_of_a_generator_too() -> None:
    names = ["heads.generator.encoder.ffn.0.inner.weight", "heads.pooler.projection.weight"]
    matrices = {name: nn.Parameter(torch.ones(4, 4)) for name in names}
    groups = Muon(learning_rate=1e-3).build(matrices.items())
    (taken,), (left,) = (one.param_groups[0]["params"] for one in groups)
    assert taken is matrices[names[0]] and left is matrices[names[1]]


def test_muon_takes_the_layers_matrices_and_adam_the_rest() -> None:
    groups = by_name(Muon(learning_rate=1e-3, matrix_learning_rate=0.03), model(query_biases=True))
    taken = {name for name, group in groups.items() if group["by"] == "MuonOptimizer"}
    halves = ("attention.{}.qkv", "attention.{}.output", "ffn.{}.inner", "ffn.{}.output")
    layers = {f"encoder.{half.format(n)}.weight" for half in halves for n in (0, 1)}
    assert taken == layers | {"encoder.embeddings.projection.weight"}
    assert {groups[name]["peak"] for name in taken} == {0.03}
    assert {group["peak"] for name, group in groups.items() if name not in taken} == {1e-3}
    assert set(groups) == {name for name, _ in model(query_biases=True).named_parameters()}


def test_muon_without_matrices_is_adam_alone() -> None:
    (optimiser,) = Muon(learning_rate=1e-3).build({"words.weight": parameter([1.0, 2.0])}.items())
    assert isinstance(optimiser, torch.optim.AdamW)
    with pytest.raises(UserError, match="iterations = 100"):
        Muon(learning_rate=1e-3, iterations=100)


def test_polar_express_has_the_polynomials_of_its_paper() -> None:
    # arXiv:2505.16932, the listing; all but the last with the margin of 1.01.
    listed = [
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    ]
    *first, last = orthogonal.polar_express(5)
    for polynomial, (a, b, c) in zip(first, listed[:-1], strict=True):
        assert polynomial == pytest.approx((a / 1.01, b / 1.01**3, c / 1.01**5), rel=1e-7)
    assert last == pytest.approx(listed[-1], rel=1e-7)


@pytest.mark.parametrize("iterations", [1, 3, 6, 9, 30])
def test_polar_express_brings_values_nearer_to_one_than_muons_polynomial(iterations: int) -> None:
    values = torch.logspace(-3, 0, 200, dtype=torch.float64)
    distance = {}
    for polynomials in (orthogonal.polar_express, orthogonal.steep):
        after = values.clone()
        for a, b, c in polynomials(iterations):
            after = a * after + b * after**3 + c * after**5
        distance[polynomials] = (after - 1).abs().max()
    assert distance[orthogonal.polar_express] < distance[orthogonal.steep]
    if iterations > 6:
        assert distance[orthogonal.polar_express] < 1e-6


@pytest.mark.usefixtures("precision")
def test_muon_by_polar_express_is_nearer_to_orthogonal() -> None:
    gradient = torch.randn(16, 16, generator=torch.Generator().manual_seed(3))
    spread = {}
    for polynomial in ("steep", "polar_express"):
        theta = nn.Parameter(torch.zeros(16, 16))
        settings = {"matrix_learning_rate": 1.0, "iterations": 6, "polynomial": polynomial}
        take(Muon(learning_rate=1e-3, **settings), {MATRIX: theta}, [gradient])  # type: ignore[arg-type]
        values = torch.linalg.svdvals(theta.detach())
        spread[polynomial] = (values.max() - values.min()).item()
    assert spread["polar_express"] < 0.1 < spread["steep"]


@pytest.mark.usefixtures("precision")
def test_normalised_neurons_step_alike_and_the_matrix_as_far() -> None:
    """NorMuon by hand: rows by the root of their mean squares so far, then the old norm."""
    gradients = [torch.randn(6, 8, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    plain, normalised = nn.Parameter(torch.zeros(6, 8)), nn.Parameter(torch.zeros(6, 8))
    settings = {"learning_rate": 1e-3, "matrix_learning_rate": 1.0, "weight_decay": 0.0}
    ours = Muon(**settings).build([(MATRIX, plain)])[0]
    theirs = Muon(**settings, neuron_beta=0.9).build([(MATRIX, normalised)])[0]
    squares = torch.zeros(6)
    for gradient in gradients:
        before, expected = plain.detach().clone(), normalised.detach().clone()
        plain.grad, normalised.grad = gradient.clone(), gradient.clone()
        ours.step()
        theirs.step()
        step = before - plain.detach()
        squares = 0.9 * squares + 0.1 * step.square().mean(1)
        divided = step / squares.sqrt()[:, None]
        expected -= divided * step.norm() / divided.norm()
        torch.testing.assert_close(normalised.detach(), expected, rtol=1e-4, atol=1e-5)
    assert theirs.state[normalised]["neuron_squares"].shape == (6, 1)


def test_each_stacked_matrix_keeps_its_own_norm_when_neurons_are_normalised() -> None:
    name = "encoder.attention.0.qkv.weight"
    gradient = torch.randn(24, 8, generator=torch.Generator().manual_seed(3))
    settings = {"learning_rate": 1e-3, "matrix_learning_rate": 1.0}
    plain, normalised = nn.Parameter(torch.zeros(24, 8)), nn.Parameter(torch.zeros(24, 8))
    take(Muon(**settings), {name: plain}, [gradient])
    take(Muon(**settings, neuron_beta=0.95), {name: normalised}, [gradient])
    for before, after in zip(plain.detach().split(8), normalised.detach().split(8), strict=True):
        torch.testing.assert_close(after.norm(), before.norm(), rtol=1e-3, atol=0)
        rows = after.norm(dim=1)  # which have one length after the first step
        torch.testing.assert_close(rows, rows.mean().expand(8), rtol=1e-3, atol=0)


# --- groups ---


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("everything", [False, True])
def test_biases_norms_and_vectors_decay_only_if_everything_does(
    name: str, everything: bool
) -> None:
    part = PARTS[name](learning_rate=1e-3, weight_decay=0.07, decay_all=everything)
    whole = model(query_biases=True)
    groups = by_name(part, whole)
    assert set(groups) == {name for name, _ in whole.named_parameters()}
    for parameter_name, group in groups.items():
        spared = parameter_name.endswith("bias") or "norm." in parameter_name
        assert group["weight_decay"] == (0.07 if everything or not spared else 0.0), parameter_name
        assert group["lr"] == group["peak"]
    decayed = {parameter_name for parameter_name, group in groups.items() if group["weight_decay"]}
    assert {"encoder.embeddings.words.weight", "encoder.attention.1.qkv.weight"} <= decayed
    assert ("encoder.attention.0.content_bias" in decayed) is everything


@pytest.mark.parametrize("name", PARTS)
def test_what_does_not_train_is_left_out(name: str) -> None:
    whole = model()
    whole.encoder.embeddings.requires_grad_(False)  # type: ignore[union-attr]
    groups_by_name = by_name(PARTS[name](learning_rate=1e-3), whole)
    assert groups_by_name and not any(
        "embeddings" in parameter_name for parameter_name in groups_by_name
    )


@pytest.mark.parametrize("name", PARTS)
def test_a_parameter_without_a_gradient_stays_as_it_is(name: str) -> None:
    whole = model()
    built = PARTS[name](learning_rate=1e-1).build(whole.named_parameters())
    before = {
        parameter_name: value.detach().clone() for parameter_name, value in whole.named_parameters()
    }
    moving = "encoder.ffn.1.inner.weight"
    dict(whole.named_parameters())[moving].grad = torch.ones(16, 8)
    for optimiser in built:
        optimiser.step()
    moved = {n for n, p in whole.named_parameters() if not torch.equal(p.detach(), before[n])}
    assert moved == {moving}


@pytest.mark.parametrize("name", PARTS)
def test_a_rate_of_nought_moves_nothing(name: str) -> None:
    whole = model()
    built = PARTS[name](learning_rate=1e-1).build(whole.named_parameters())
    before = [value.detach().clone() for value in whole.parameters()]
    for value in whole.parameters():
        value.grad = torch.ones_like(value)
    for optimiser in built:
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * 0.0
        optimiser.step()
    assert all(map(torch.equal, before, (value.detach() for value in whole.parameters())))


# --- rates by layer (E7) ---

DEEP = Transformer(
    layers=3, heads=2, hidden_size=8, intermediate_size=16, embedding_size=4, dropout=0
)
TUNING = FinetuneConfig(
    learning_rate=1e-3, batch_size=1, length=8, steps=1, epsilon=1e-12, weight_decay=0.01
)


def tuned(shape: Transformer = DEEP) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Module()
    module.encoder = shape.build(20)
    module.heads = nn.ModuleDict({"classify": nn.Linear(8, 2)})
    return module.double()


def layered(
    tuning: FinetuneConfig, whole: nn.Module, *, shared: bool = False
) -> torch.optim.Optimizer:
    (optimiser,) = tuning.optimiser_part().build(
        whole.named_parameters(),
        scale=lambda name: tuning.scale(name, DEEP.layers, shared=shared),
    )
    return optimiser


def first_steps(tuning: FinetuneConfig, *, shared: bool = False) -> dict[str, float]:
    """How far the first number of every parameter moves, whatever its gradient."""
    whole = tuned(replace(DEEP, sharing="all") if shared else DEEP)
    optimiser = layered(tuning, whole, shared=shared)
    before = {name: value.detach().clone() for name, value in whole.named_parameters()}
    draw = torch.Generator().manual_seed(5)
    for value in whole.parameters():
        size = 10 ** (4 * torch.rand((), generator=draw).item() - 2)
        value.grad = size * torch.randn(value.shape, generator=draw, dtype=torch.float64)
    optimiser.step()
    return {
        name: (value.detach() - before[name]).abs().max().item()
        for name, value in whole.named_parameters()
    }


@pytest.mark.parametrize("kind", ["adamw", "bert_adam"])
@pytest.mark.parametrize("share", [0.75, 0.5])
def test_first_steps_of_adjacent_layers_have_the_ratio_of_the_layer_decay(
    kind: str, share: float
) -> None:
    tuning = replace(TUNING, optimiser=kind, layer_decay=share, weight_decay=0.0)
    moved = first_steps(tuning)
    last = moved["encoder.ffn.2.output.weight"]
    assert last == pytest.approx(1e-3 * (sqrt(10) if kind == "bert_adam" else 1), rel=1e-6)
    for half in ("attention.{}.qkv.weight", "attention.{}.norm.bias", "ffn.{}.inner.bias"):
        steps = [moved[f"encoder.{half.format(number)}"] for number in range(3)]
        assert steps == pytest.approx([last * share**2, last * share, last], rel=1e-6)
    for part in ("words.weight", "positions.weight", "norm.bias", "projection.weight"):
        assert moved[f"encoder.embeddings.{part}"] == pytest.approx(last * share**3, rel=1e-6)
    assert moved["heads.classify.weight"] == pytest.approx(last, rel=1e-6)


def test_shared_layers_step_as_the_last_one_does() -> None:
    moved = first_steps(replace(TUNING, layer_decay=0.5, weight_decay=0.0), shared=True)
    assert moved["encoder.attention.0.qkv.weight"] == pytest.approx(1e-3, rel=1e-6)
    assert moved["encoder.ffn.0.inner.weight"] == pytest.approx(1e-3, rel=1e-6)
    assert moved["encoder.embeddings.words.weight"] == pytest.approx(1e-3 / 8, rel=1e-6)


def test_a_head_may_have_a_rate_of_its_own() -> None:
    moved = first_steps(replace(TUNING, head_learning_rate=2e-2, weight_decay=0.0))
    assert moved["heads.classify.weight"] == pytest.approx(2e-2, rel=1e-6)
    assert {round(v, 9) for name, v in moved.items() if name.startswith("encoder")} == {1e-3}


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("encoder.embeddings.words.weight", 0.5**12),
        ("encoder.embeddings.query", 0.5**12),
        ("encoder.characters.highways.1.dense.weight", 0.5**12),
        ("encoder.attention.0.qkv.weight", 0.5**11),
        ("encoder.ffn.10.inner.weight", 0.5),
        ("encoder.layers.11.projection", 1.0),
        ("encoder.norm.weight", 1.0),
        ("heads.classify.dense.weight", 1.0),
        ("features.recurrent.lstm.weight_ih_l0", 1.0),
    ],
)
def test_the_rate_of_a_parameter_goes_by_its_name(name: str, share: float) -> None:
    tuning = replace(TUNING, layer_decay=0.5)
    assert tuning.scale(name, 12) == share
    apart = replace(tuning, head_learning_rate=tuning.learning_rate * 4).scale(name, 12)
    assert apart == pytest.approx(share if name.startswith("encoder") else 4.0)
    assert TUNING.scale(name, 12) == 1


@pytest.mark.parametrize("name", ["adamw", "bert_adam", "lamb"])
def test_groups_are_split_by_decay_and_by_rate_and_hold_each_parameter_once(name: str) -> None:
    part, whole = PARTS[name](learning_rate=1e-3, weight_decay=0.07), tuned()
    tuning = replace(TUNING, layer_decay=0.5, head_learning_rate=4e-3)
    (built,) = part.build(  # type: ignore[call-arg]
        whole.named_parameters(),
        scale=lambda parameter_name: tuning.scale(parameter_name, DEEP.layers),
    )
    groups = [(g["spared"], g["weight_decay"], g["lr"], g["peak"]) for g in built.param_groups]
    peaks = [1e-3, 4e-3, 5e-4, 2.5e-4, 1.25e-4]  # the settings' own rate first, which is reported
    assert [group[:2] for group in groups] == [(False, 0.07)] * 5 + [(True, 0.0)] * 5
    assert [group[2] for group in groups] == pytest.approx(peaks * 2)
    assert [group[3] for group in groups] == [group[2] for group in groups]
    held = [weight for group in built.param_groups for weight in group["params"]]
    assert len(held) == len({*held}) == len([*whole.parameters()])
    assert {*held} == {*whole.parameters()}


@pytest.mark.parametrize("name", ["adamw", "bert_adam", "lamb"])
def test_without_rates_of_their_own_the_groups_are_what_checkpoints_hold(name: str) -> None:
    """The order of groups and of their members is that of the optimiser's saved state."""
    whole = model()
    names = {weight: parameter_name for parameter_name, weight in whole.named_parameters()}
    one_rate = {"scale": lambda _: 1.0}
    for scaling in ({}, {"scale": None}, one_rate):
        (built,) = PARTS[name](learning_rate=1e-3).build(whole.named_parameters(), **scaling)  # type: ignore[call-arg]
        matrices = ["qkv.weight", "output.weight"]
        vectors = ["qkv.bias", "output.bias", "norm.weight", "norm.bias"]
        inner = [part_name.replace("qkv", "inner") for part_name in matrices + vectors]
        table = ["words", "positions", "types", "projection"]
        decays = [f"embeddings.{part_name}.weight" for part_name in table]
        spared = ["embeddings.norm.weight", "embeddings.norm.bias", "embeddings.projection.bias"]
        for half, kinds in (("attention", matrices + vectors), ("ffn", inner)):
            for number in (0, 1):
                decays += [f"{half}.{number}.{part_name}" for part_name in kinds[:2]]
                spared += [f"{half}.{number}.{part_name}" for part_name in kinds[2:]]
        assert [[names[weight] for weight in group["params"]] for group in built.param_groups] == [
            [*(f"encoder.{part_name}" for part_name in decays), "heads.pair.weight"],
            [*(f"encoder.{part_name}" for part_name in spared), "heads.pair.bias"],
        ]
        assert {group["peak"] for group in built.param_groups} == {1e-3}


# --- clipping (E5) ---


def gradients(*lists: list[float]) -> list[nn.Parameter]:
    parameters = [parameter(*([0.0] * len(row))) for row in lists]
    for weight, values in zip(parameters, lists, strict=True):
        weight.grad = torch.tensor(values, dtype=torch.float64)
    return parameters


def test_clipping_is_by_the_norm_over_all_parameters() -> None:
    held = gradients([3.0], [0.0, 4.0])
    assert clip([*held, parameter(1.0)], 1.0).item() == pytest.approx(5.0)
    assert [weight.grad.tolist() for weight in held] == [  # type: ignore[union-attr]
        pytest.approx([0.6], rel=1e-6),
        pytest.approx([0.0, 0.8], rel=1e-6),
    ]


def test_small_gradients_and_a_limit_of_nought_change_nothing() -> None:
    for most in (0.0, 6.0):
        held = gradients([3.0], [4.0])
        assert clip(held, most).item() == pytest.approx(5.0)
        assert [weight.grad.item() for weight in held] == [3.0, 4.0]  # type: ignore[union-attr]
    assert clip([parameter(1.0)], 1.0).item() == 0.0


# --- sharded parameters ---


@pytest.fixture
def mesh() -> Iterator[distributed.device_mesh.DeviceMesh]:
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.mark.parametrize(
    "part",
    [
        *(part(learning_rate=0.1) for part in PARTS.values()),
        Muon(learning_rate=0.1, neuron_beta=0.9),
    ],
    ids=[*PARTS, "normuon"],
)
def test_sharded_parameters_step_as_whole_ones_do(
    part: Optimiser, mesh: distributed.device_mesh.DeviceMesh
) -> None:
    results = []
    for sharded in (False, True):
        draw = torch.Generator().manual_seed(0)
        named, grads = {}, {}
        for parameter_name, shape in ((MATRIX, (6, 4)), ("encoder.ffn.0.inner.bias", (6,))):
            value = torch.randn(shape, generator=draw)
            grads[parameter_name] = torch.randn(shape, generator=draw)
            if sharded:
                value = distribute_tensor(value, mesh, [Shard(0)])
                grads[parameter_name] = distribute_tensor(grads[parameter_name], mesh, [Shard(0)])
            named[parameter_name] = nn.Parameter(value)
        built = part.build(named.items())
        for _ in range(2):
            for parameter_name, value in named.items():
                value.grad = grads[parameter_name].clone()
            norm = clip(named.values(), 1.0)
            assert not isinstance(norm, DTensor)
            for optimiser in built:
                optimiser.step()
        full = [value.full_tensor() if sharded else value for value in named.values()]  # type: ignore[operator]
        results.append([norm, *(value.detach() for value in full)])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*results, strict=True))
