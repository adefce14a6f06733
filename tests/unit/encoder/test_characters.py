"""ELMo's encoder: words from characters, LSTMs both ways over packed blocks (card H1)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from clozelab.config.recipe import read
from clozelab.contracts import Encoded, Input
from clozelab.encoder.characters import BothWays, CharacterLstm, Characters
from clozelab.encoder.lstm import Lstm
from clozelab.encoder.recurrence import recur

torch.set_num_threads(1)
SMALL = Lstm(
    layers=2,
    hidden_size=6,
    cell_size=5,
    filters=((1, 3), (3, 4)),
    alphabet=40,
    character_width=4,
    dropout=0,
)
LENGTHS = [4, 1, 7, 3]


def random_encoder(shape: Lstm = SMALL, *, seed: int = 0, scale: float = 1.0) -> CharacterLstm:
    torch.manual_seed(seed)
    encoder = shape.build(0).double()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(scale)
    return encoder


def packed_words(
    lengths: list[int], *, idle: tuple[int, ...] = (), max_seqlen: int | None = None, seed: int = 1
) -> Input:
    """Blocks of that many words; `idle` are the lengths of dummies behind them."""
    every = [*lengths, *idle]
    total = sum(every)
    generator = torch.Generator().manual_seed(seed)
    characters = torch.randint(0, SMALL.alphabet, (sum(lengths), 9), generator=generator)
    padding = torch.full((total - sum(lengths), 9), SMALL.alphabet - 1)
    return Input(
        ids=torch.zeros(total, dtype=torch.long),
        position_ids=torch.cat([torch.arange(n) for n in every]),
        segments=torch.zeros(total, dtype=torch.long),
        cu_seqlens=torch.tensor([0, *every]).cumsum(0).int(),
        max_seqlen=max_seqlen or max(every),
        characters=torch.cat([characters, padding]),
    )


def altered(batch: Input, word: int) -> Input:
    assert batch.characters is not None
    characters = batch.characters.clone()
    characters[word] = (characters[word] + 1) % SMALL.alphabet
    return batch._replace(characters=characters)


def spelled(module: Characters, letters: Tensor) -> Tensor:
    """One word's vector, filter by filter and place by place."""
    vectors = module.embedding.weight[letters]
    values = []
    for filters in module.filters:
        count, _, wide = filters.weight.shape
        for number in range(count):
            weight = filters.weight[number].T
            responses = [
                torch.relu((vectors[at : at + wide] * weight).sum() + filters.bias[number])
                for at in range(len(letters) - wide + 1)
            ]
            values.append(torch.stack(responses).max())
    x = torch.stack(values)
    for highway in module.highways:
        size = len(x)
        transform = highway.dense.weight[:size] @ x + highway.dense.bias[:size]
        gate = torch.sigmoid(highway.dense.weight[size:] @ x + highway.dense.bias[size:])
        x = gate * torch.relu(transform) + (1 - gate) * x
    return module.projection.weight @ x + module.projection.bias


def read_one_way(layer: BothWays, way: int, vectors: list[Tensor]) -> list[Tensor]:
    """One direction over one block, word by word, gate by gate."""
    inner = layer.projection.shape[1]
    state = torch.zeros(layer.projection.shape[2], dtype=torch.float64)
    cell = torch.zeros(inner, dtype=torch.float64)
    out = []
    for vector in vectors:
        gates = vector @ layer.inputs[way] + state @ layer.states[way] + layer.bias[way]
        admit, new, keep, let = (gates[g * inner : (g + 1) * inner] for g in range(4))
        cell = cell * torch.sigmoid(keep) + torch.sigmoid(admit) * torch.tanh(new)
        cell = torch.clamp(cell, -layer.clip, layer.clip)
        state = (torch.sigmoid(let) * torch.tanh(cell)) @ layer.projection[way]
        state = torch.clamp(state, -layer.clip, layer.clip)
        out.append(state)
    return out


def by_hand(encoder: CharacterLstm, batch: Input) -> list[Tensor]:
    """Every layer of `encoder`, [N, 2W] each, one block and one word at a time."""
    assert batch.characters is not None
    words = [spelled(encoder.characters, letters) for letters in batch.characters]
    layers: list[list[Tensor]] = [[] for _ in range(1 + len(encoder.layers))]
    for first, last in zip(
        batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True
    ):
        ways = [words[first:last], words[first:last][::-1]]
        layers[0] += [torch.cat([word, word]) for word in words[first:last]]
        for number, layer in enumerate(encoder.layers):
            read = [read_one_way(layer, way, ways[way]) for way in (0, 1)]
            if number:
                read = [
                    [a + b for a, b in zip(x, y, strict=True)]
                    for x, y in zip(ways, read, strict=True)
                ]
            ways = read
            both = zip(ways[0], reversed(ways[1]), strict=True)
            layers[number + 1] += [torch.cat(pair) for pair in both]
    return [torch.stack(layer) for layer in layers]


@pytest.mark.parametrize("scale", [1.0, 3.0, 30.0])
def test_the_encoder_equals_a_loop_over_words(scale: float) -> None:
    encoder, batch = random_encoder(scale=scale), packed_words(LENGTHS)
    layers = encoder(batch, keep=True).layers
    assert len(layers) == 3
    for layer, expected in zip(layers, by_hand(encoder, batch), strict=True):
        assert torch.allclose(layer, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 3.0, 30.0])
def test_its_gradients_are_those_of_the_loop_through_clips_too(scale: float) -> None:
    batch, grads = packed_words(LENGTHS, seed=4), []
    weights = torch.randn(sum(LENGTHS), 12, generator=torch.Generator().manual_seed(0)).double()
    for states in (lambda e: e(batch).hidden_states, lambda e: by_hand(e, batch)[-1]):
        encoder = random_encoder(scale=scale)
        (states(encoder) * weights).sum().backward()
        grads.append({name: p.grad for name, p in encoder.named_parameters()})
    for name, grad in grads[0].items():
        assert grad is not None
        assert torch.allclose(grad, grads[1][name], rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.thorough
def test_the_recurrence_is_a_proper_operation(steps: int) -> None:
    torch.manual_seed(0)
    shapes = [(2, steps, 3, 20), (2, 4, 20), (2, 5, 4)]
    values = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    torch.library.opcheck(recur, (*values, 0.7))
    assert torch.autograd.gradcheck(lambda *x: recur(*x, 0.7)[0], values)
    out, _, cells = recur(*(value.bfloat16() for value in values), 0.7)
    assert (out.dtype, cells.dtype) == (torch.bfloat16, torch.float32)


def test_the_first_layer_kept_is_the_word_twice_and_the_last_the_states() -> None:
    encoder, batch = random_encoder(), packed_words(LENGTHS)
    encoded: Encoded = encoder(batch, keep=True)
    first, last = encoded.layers[0], encoded.layers[-1]
    assert torch.equal(first[:, :6], first[:, 6:])
    assert torch.equal(last, encoded.hidden_states)
    assert encoded.hidden_states.shape == (sum(LENGTHS), 12)
    assert encoded.table is None
    assert encoder(batch).layers == ()


def test_batch_mates_and_dummies_change_nothing() -> None:
    encoder = random_encoder(seed=3)
    batch = packed_words(LENGTHS)
    together = encoder(batch).hidden_states
    filled = encoder(packed_words(LENGTHS, idle=(7, 2, 0, 0), max_seqlen=8)).hidden_states
    assert torch.allclose(filled[: sum(LENGTHS)], together, rtol=1e-12, atol=1e-12)
    assert torch.isfinite(filled).all()
    assert batch.characters is not None
    for row, length in enumerate(LENGTHS):
        first = int(batch.cu_seqlens[row])
        word_span = slice(first, first + length)
        alone = packed_words([length])._replace(characters=batch.characters[word_span])
        assert torch.allclose(
            encoder(alone).hidden_states, together[word_span], rtol=1e-12, atol=1e-12
        )


def test_each_half_reads_in_its_own_direction_only() -> None:
    encoder, batch = random_encoder(scale=3.0), packed_words([7, 5])
    before, after = encoder(batch).hidden_states, encoder(altered(batch, 3)).hidden_states
    changed = (before - after).abs() > 1e-9
    forward, backward = changed[:, :6].any(1), changed[:, 6:].any(1)
    assert forward.tolist() == [False] * 3 + [True] * 4 + [False] * 5
    assert backward.tolist() == [True] * 4 + [False] * 8


def test_cells_and_projections_are_clipped() -> None:
    shape = replace(SMALL, layers=1, clip=0.25)
    bounded, free = (
        random_encoder(shape, scale=20.0),
        random_encoder(replace(shape, clip=1e9), scale=20.0),
    )
    batch = packed_words(LENGTHS)
    states = bounded(batch).hidden_states
    assert states.abs().max() == 0.25
    assert free(batch).hidden_states.abs().max() > 1
    # Where the projection is far from its bound, only the clipped cell can tell the two apart.
    with torch.no_grad():
        for encoder in (bounded, free):
            encoder.layers[0].projection.mul_(1e-4)
    gap = (bounded(batch).hidden_states - free(batch).hidden_states).abs().max()
    assert bounded(batch).hidden_states.abs().max() < 0.25
    assert gap > 1e-4


@pytest.mark.parametrize(
    "shape",
    [
        SMALL,
        replace(SMALL, highways=0, layers=1),
        replace(SMALL, layers=3, cell_size=2, filters=((2, 5),)),
    ],
)
def test_the_formula_counts_what_is_built(shape: Lstm) -> None:
    built = sum(parameter.numel() for parameter in shape.build(0).parameters())
    assert built == sum(shape.parameters(0).values())


def test_the_published_size_is_counted_part_by_part() -> None:
    shape = read("elmo").encoder
    assert isinstance(shape, Lstm)
    with torch.device("meta"):
        encoder = shape.build(0)
    counts: dict[str, int] = {}
    for name, parameter in encoder.named_parameters():
        part = ".".join(name.split(".")[:2]) if name.startswith("characters") else "layers"
        counts[part] = counts.get(part, 0) + parameter.numel()
    expected = shape.parameters(0)
    both = expected.pop("layers.forward") + expected.pop("layers.backward")
    assert counts == {**expected, "layers": both}
    assert round(sum(counts.values()) / 1e6, 1) == 93.6


def test_every_parameter_gets_gradient() -> None:
    encoder = random_encoder()
    encoder(packed_words([30, 20])).hidden_states.pow(2).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.abs().sum() > 0, name


def test_a_fresh_encoder_remembers_and_passes_words_on() -> None:
    encoder = random_encoder()
    inner, size = SMALL.cell_size, 7
    for layer in encoder.layers:
        assert layer.bias[:, 2 * inner : 3 * inner].eq(1).all()
        assert layer.bias.sum() == 2 * inner
    for highway in encoder.characters.highways:
        assert highway.dense.bias.tolist() == [0.0] * size + [-2.0] * size


def test_dropout_falls_on_training_alone() -> None:
    encoder, batch = random_encoder(replace(SMALL, dropout=0.5)), packed_words(LENGTHS)
    torch.manual_seed(0)
    first, second = encoder(batch).hidden_states, encoder(batch).hidden_states
    assert not torch.equal(first, second)
    encoder.eval()
    plain = random_encoder()(batch).hidden_states
    assert torch.equal(encoder(batch).hidden_states, plain)


def test_recomputing_a_layer_changes_no_gradient() -> None:
    batch = packed_words(LENGTHS)
    grads = []
    for recompute in (False, True):
        encoder = random_encoder(replace(SMALL, dropout=0.3))
        encoder.recompute = recompute
        torch.manual_seed(7)
        encoder(batch).hidden_states.sum().backward()
        grads.append([parameter.grad for parameter in encoder.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_half_precision_stays_near_and_leaves_the_weights_alone() -> None:
    encoder, batch = random_encoder().float(), packed_words(LENGTHS)
    exact = encoder(batch).hidden_states
    encoder.precision = torch.bfloat16
    near = encoder(batch).hidden_states
    assert near.dtype == torch.bfloat16
    assert (near.float() - exact).abs().max() < 0.02 * exact.abs().max()
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}


@pytest.mark.thorough
def test_the_encoder_compiles_whole() -> None:
    batch, grads = packed_words([3, 2], idle=(3,)), []
    for compiled in (False, True):
        encoder = random_encoder()
        run = torch.compile(encoder, backend="aot_eager", fullgraph=True) if compiled else encoder
        run(batch).hidden_states.sum().backward()
        grads.append([parameter.grad for parameter in encoder.parameters()])
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(*grads, strict=True))
