"""Replaced tokens (ELECTRA): samples by key, what is written where, and the losses by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from support.masked_blocks import make_blocks
from support.objective_cases import VOCABULARY, Alone, Shape, columns, complete
from support.pretrain_runs import shrunk
from torch import Tensor
from torch.nn import functional

from clozelab.config import recipe as recipes
from clozelab.contracts import Batch, Blocks, Corrupted, Encoded, Hidden, Input, Targets
from clozelab.errors import UserError
from clozelab.keys import mix
from clozelab.masking import Corruption
from clozelab.masking.token import Token
from clozelab.models.build import PretrainingModel, build, weights_of
from clozelab.objectives import PARTS, MaskedLm
from clozelab.objectives.heads.generator import sampled
from clozelab.objectives.replaced import BITS, AllTokensLm, Generator, ReplacedToken
from clozelab.runs.saving import begin_with
from clozelab.testing import check_part, vocabulary

torch.set_num_threads(1)
RECIPE = shrunk("electra", "encoder.embedding_size=16")
DEBERTA = shrunk("deberta", "encoder.layers=2")
WORDS, DELTA = "encoder.embeddings.words.weight", "encoder.embeddings.delta"
IGNORED = Targets.IGNORED


def draws(count: int, key: int = 3) -> Tensor:
    keys = mix(key, np.arange(count)) >> np.uint64(64 - BITS)
    return torch.from_numpy(keys.astype(np.int64))


def test_samples_follow_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.5, -2.0, 0.7, -30.0]).double()
    count = 40_000
    counts = sampled(logits.expand(count, -1), draws(count)).bincount(minlength=5)
    shares = logits.softmax(0)
    deviation = (shares * (1 - shares) / count).sqrt()
    assert ((counts / count - shares).abs() < 4 * deviation + 1e-9).all()
    assert counts[4] == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_smallest_and_the_largest_draw_are_tokens_that_may_be(dtype: torch.dtype) -> None:
    logits = torch.full((2, 300), -torch.inf, dtype=dtype)
    logits[:, 100:200] = 0.25
    ends = torch.tensor([0, 2**BITS - 1])
    assert sampled(logits, ends).tolist() == [100, 199]


def test_samples_are_drawn_a_stretch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, some = torch.randn(37, 11), draws(37)
    whole = sampled(logits, some)
    monkeypatch.setattr("clozelab.objectives.heads.generator.LOGITS", 50)
    assert torch.equal(sampled(logits, some), whole)
    assert sampled(logits[:0], some[:0]).shape == (0,)


def test_keys_of_samples_are_their_own_and_never_those_of_batch_mates() -> None:
    blocks = make_blocks([[1] * 9, [2, 1, 1]])
    hidden = Token(mask_rate=0.5).hide(blocks, 1, vocabulary=vocabulary())
    part = Corruption(mask=1.0, same=0.0)
    corrupted = [part.corrupt(blocks, hidden, key, vocabulary=vocabulary()) for key in (5, 5, 6)]
    keys = [each.keys for each in corrupted]
    assert keys[0] is not None and len(np.unique(keys[0])) == len(blocks.ids)
    assert np.array_equal(keys[0], keys[1]) and not np.isin(keys[2], keys[0]).any()


def batch_of(recipe: recipes.Recipe, *, idle: int = 0, seed: int = 0) -> Batch:
    """Two blocks with every objective's targets, and slots to spare."""
    case = complete(make_blocks([[1, 2, 1, 1], [1, 1, 3, 1, 1]]), Token(mask_rate=0.4), seed=seed)
    keys = mix(seed + 9, np.arange(len(case.blocks.ids)))
    case = replace(case, corrupted=replace(case.corrupted, draw=lambda: keys))
    blocks = case.blocks
    targets = {
        name: columns(case.targets(part), blocks.lengths, idle=idle)
        for part in recipe.objectives
        if (name := next(n for n, p in PARTS.items() if p is type(part)))
    }
    ids = torch.from_numpy(blocks.ids.astype(np.int64))
    ids[torch.from_numpy(case.hidden.positions)] = 4
    places = torch.from_numpy(blocks.positions)
    starts = torch.from_numpy(blocks.starts.astype(np.int32))
    return Batch(Input(ids, places, torch.zeros_like(ids), starts, 16), targets)


class Watched(PretrainingModel):
    """It remembers what its encoder read."""

    read: Tensor

    def forward(self, batch: Batch) -> tuple[dict[str, Any], Tensor | None]:
        handle = self.encoder.register_forward_pre_hook(lambda _, inputs: self.keep(inputs[0]))
        try:
            return super().forward(batch)
        finally:
            handle.remove()

    def keep(self, inputs: Input) -> None:
        self.read = inputs.ids


def model_of(recipe: recipes.Recipe, seed: int = 0) -> Watched:
    built = build(recipe, VOCABULARY, seed=seed).double().eval()
    built.__class__ = Watched
    assert isinstance(built, Watched)
    return built


def test_the_encoder_reads_samples_at_the_hidden_tokens_and_nothing_else_is_changed() -> None:
    batch, model = batch_of(RECIPE, idle=5), model_of(RECIPE)
    sums, _ = model(batch)
    targets = batch.targets["generator"]
    real = targets["labels"] != IGNORED
    at = targets["at"][real]
    others = torch.ones(len(batch.input.ids), dtype=torch.bool)
    others[at] = False
    assert torch.equal(model.read[others], batch.input.ids[others])
    generator: Any = model.heads["generator"]
    logits, _ = generator.head.predict(generator.encoder(batch.input), targets)
    assert torch.equal(model.read[at], sampled(logits, targets["draws"])[real])
    originals = batch.targets["replaced_token"]["labels"][: len(others)]
    replaced = (model.read != originals).sum()
    assert sums["replaced_token"]["count_replaced"] == replaced > 0
    assert sums["replaced_token"]["count"] == len(others)


def test_idle_slots_and_a_batch_without_targets_change_nothing() -> None:
    model = model_of(RECIPE)
    plain, filled = (model(batch_of(RECIPE, idle=idle))[0] for idle in (0, 7))
    for name, sums in plain.items():
        assert {key: value.item() for key, value in filled[name].items()} == pytest.approx(
            {key: value.item() for key, value in sums.items()}, rel=1e-12
        )
    blank = batch_of(RECIPE, idle=3)
    for columns_ in blank.targets.values():
        columns_["labels"].fill_(IGNORED)
    sums, _ = model(blank)
    assert torch.equal(model.read, blank.input.ids)
    sum(each["loss"] for each in sums.values()).backward()
    assert all(value == 0 for each in sums.values() for value in each.values())
    for parameter in model.parameters():
        assert parameter.grad is None or not parameter.grad.any()


def test_detection_teaches_the_generator_nothing_but_the_tables_they_share() -> None:
    model = model_of(RECIPE)
    model(batch_of(RECIPE))[0]["replaced_token"]["loss"].backward()
    for name, parameter in model.named_parameters():
        touched = parameter.grad is not None and bool(parameter.grad.any())
        assert touched != name.startswith("heads.generator."), name
    model.zero_grad()
    model(batch_of(RECIPE))[0]["generator"]["loss"].backward()
    for name, parameter in model.named_parameters():
        touched = parameter.grad is not None and bool(parameter.grad.any())
        mine = name.startswith("heads.generator.")
        shared = "embeddings" in name and "projection" not in name
        assert touched == (mine or shared), name


def test_shared_tables_are_saved_once_and_others_twice() -> None:
    shared = {name for name, _ in build(RECIPE, VOCABULARY, seed=0).named_parameters()}
    alone = build(RECIPE.override(["objectives.0.sharing=none"]), VOCABULARY, seed=0)
    own = {name for name, _ in alone.named_parameters()} - shared
    tables = ("words.weight", "positions.weight", "types.weight", "norm.weight", "norm.bias")
    assert own == {f"heads.generator.encoder.embeddings.{name}" for name in tables}


def touched(model: Watched, objective: str) -> dict[str, bool]:
    """Which parameters one objective moves."""
    model.zero_grad()
    model(batch_of(DEBERTA))[0][objective]["loss"].backward()
    return {
        name: parameter.grad is not None and bool(parameter.grad.any())
        for name, parameter in model.named_parameters()
    }


def test_of_a_table_that_is_disentangled_detection_moves_the_delta_alone() -> None:
    """DeBERTa-v3 §3.3: E_D = sg(E_G) + E_Δ; whatever else is its own, the norm too."""
    model = model_of(DEBERTA)
    mine = touched(model, "generator")
    assert mine == {n: n.startswith("heads.generator.") or n == WORDS for n in mine}
    mine = touched(model, "replaced_token")
    assert mine == {n: not n.startswith("heads.generator.") and n != WORDS for n in mine}
    assert mine[DELTA]


def test_what_leaks_into_the_shared_table_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    leaky = property(lambda self: self.words.weight + (0 if self.delta is None else self.delta))
    monkeypatch.setattr("clozelab.encoder.embeddings.Embeddings.table", leaky)
    assert touched(model_of(DEBERTA), "replaced_token")[WORDS]


def test_a_delta_begins_at_zero_and_is_the_encoder_s_alone() -> None:
    model, batch = model_of(DEBERTA), batch_of(DEBERTA).input
    generator: Any = model.heads["generator"]
    encoder: Any = model.encoder
    assert generator.encoder.embeddings.words is encoder.embeddings.words
    assert generator.encoder.embeddings.norm is not encoder.embeddings.norm
    assert not encoder.embeddings.delta.any() and generator.encoder.embeddings.delta is None
    with torch.no_grad():
        before = [module(batch).hidden_states for module in (encoder, generator.encoder)]
        encoder.embeddings.delta.normal_(0, 0.1)
        after = [module(batch).hidden_states for module in (encoder, generator.encoder)]
    assert not torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])


def test_an_encoder_alone_has_the_sum() -> None:
    model, batch = model_of(DEBERTA), batch_of(DEBERTA).input
    encoder: Any = model.encoder
    with torch.no_grad():
        encoder.embeddings.delta.normal_(0, 0.1)
        states = encoder(batch).hidden_states
        weights = weights_of(model)
        assert torch.equal(
            weights[WORDS], encoder.embeddings.words.weight + encoder.embeddings.delta
        )
        assert DELTA not in weights
        plain = DEBERTA.encoder.build(VOCABULARY).double().eval()
        begin_with(plain, {n.removeprefix("encoder."): w for n, w in weights.items()})
        assert torch.equal(plain(batch).hidden_states, states)
        model.keep_heads(["replaced_token"])
        assert torch.equal(encoder(batch).hidden_states, states)
    assert DELTA not in dict(model.named_parameters())


@pytest.mark.parametrize("sharing", ["embeddings", "gradient_disentangled", "none"])
@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("narrow", [8, 16])
def test_the_formula_counts_what_is_built(sharing: str, share: float, narrow: int) -> None:
    settings = [f"objectives.0.share={share}", f"objectives.0.sharing={sharing}"]
    recipe = RECIPE.override([*settings, f"encoder.embedding_size={narrow}"])
    recipe = replace(recipe, tokenizer=replace(recipe.tokenizer, vocabulary=VOCABULARY))
    model = build(recipe, VOCABULARY, seed=0)
    assert sum(p.numel() for p in model.parameters()) == sum(recipe.parameters().values())


def test_a_generator_may_be_half_as_deep() -> None:
    base = recipes.read("deberta", size="base")
    part: Any = base.objectives[0]
    shape = part.shape(base.encoder)
    assert shape == replace(base.encoder, layers=6)
    assert part.shape(replace(base.encoder, layers=1)).layers == 1


def test_a_generator_is_as_deep_as_the_encoder_and_a_share_as_wide() -> None:
    base = recipes.read("electra", size="base")
    part: Any = base.objectives[0]
    shape = part.shape(base.encoder)
    assert (shape.layers, shape.hidden_size, shape.heads, shape.intermediate_size) == (
        12,
        256,
        4,
        1024,
    )
    assert shape.embedding_size == base.encoder.embedding_size == 768


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["objectives.0.share=1.5"], r"share = 1.5: must be above 0 and at most 1, since a gen"),
        (["objectives.0.share=0"], r"share = 0.*must be above 0"),
        (["objectives.0.depth=2"], r"depth = 2.*must be above 0 and at most 1, since a generator"),
        (["objectives.0.sharing=delta"], r'sharing = "delta" is unknown; use embeddings, gradient_'
         "disentangled or none"),
        (["encoder.position_embedding=disentangled", "encoder.absolute_positions=decoder"],
         r'absolute_positions = "decoder" serves masked_lm alone, which is not listed; list it'),
        (["objectives.0.share=0.3"],
         r"objective generator: share = 0.3: 230 of encoder.hidden_size = 768"
         r", which heads of 64 do not divide; use for instance 0.333"),
        (["encoder.causal=true"], "generator needs both directions"),
        (["masking.use=nothing"], "generator needs targets"),
        (["encoder.use=relative"], "needs shared_embeddings, which encoder relative does not"),
    ],
)  # fmt: skip
def test_a_generator_that_cannot_be_is_refused(changes: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        recipes.read("electra", overrides=changes)


def test_detection_without_a_generator_is_of_random_tokens() -> None:
    electra = recipes.read("electra")
    with pytest.raises(UserError, match=r"would find \[MASK\], with corruption.mask = 1.0; list"):
        replace(electra, objectives=electra.objectives[1:])
    random = replace(electra, objectives=electra.objectives[1:], corruption=Corruption(mask=0.0))
    assert random.parameters().keys() >= {"replaced_token.dense", "replaced_token.classifier"}


def test_the_loss_of_detection_is_the_binary_cross_entropy() -> None:
    model = Alone(ReplacedToken(), Shape())
    states = torch.randn(6, 8).double()
    targets = {"at": torch.tensor([0, 2, 5]), "labels": torch.tensor([7, 8, IGNORED])}
    read = torch.tensor([7, 1, 9, 1, 1, 1])  # the first is the original, the second is not
    sums = model.head(Encoded(states, None, ids=read), targets)
    scores = model.head.logits(states[[0, 2]]).squeeze(1)
    wanted = -(functional.logsigmoid(-scores[0]) + functional.logsigmoid(scores[1]))
    assert sums["loss"].item() == pytest.approx(wanted.item(), rel=1e-12)
    right = int(scores[0] <= 0), int(scores[1] > 0)
    assert (sums["correct"], sums["correct_replaced"]) == (sum(right), right[1])
    assert (sums["count"], sums["count_replaced"]) == (2, 1)


def test_all_tokens_mix_a_copy_and_a_softmax() -> None:
    model = Alone(AllTokensLm(), Shape())
    states = torch.randn(5, 8).double()
    targets = {"at": torch.tensor([0, 1, 3]), "labels": torch.tensor([6, 6, IGNORED])}
    read = torch.tensor([6, 9, 1, 1, 1])
    sums = model.head(Encoded(states, model.table, ids=read), targets)
    copy = torch.sigmoid(model.head.copy(states[:2])).squeeze(1)
    p = model.head.logits(states[:2], model.table).softmax(1) * (1 - copy[:, None])
    p[0, 6] += copy[0]
    p[1, 9] += copy[1]
    torch.testing.assert_close(p.sum(1), torch.ones(2).double())
    wanted = -(p[0, 6].log() + p[1, 6].log())
    assert sums["loss"].item() == pytest.approx(wanted.item(), rel=1e-9)
    assert sums["correct"] == (p.argmax(1) == 6).sum()


@pytest.mark.parametrize(
    "second",
    [ReplacedToken(), ReplacedToken(over="targets"), AllTokensLm(), MaskedLm()],
    ids=["electra", "15 %", "all tokens", "replace"],
)
def test_the_paper_s_ablations_train_beside_one_generator(second: Any) -> None:
    recipe = replace(RECIPE, objectives=(Generator(), second))
    model = model_of(recipe)
    sums, _ = model(batch_of(recipe))
    assert len(sums) == 2 and all(each["loss"] > 0 for each in sums.values())
    sum(each["loss"] for each in sums.values()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", [RECIPE, DEBERTA], ids=["electra", "deberta"])
def test_both_encoders_are_one_graph(recipe: recipes.Recipe) -> None:
    model, batch = model_of(recipe), batch_of(recipe, idle=4)
    model.__class__ = PretrainingModel
    plain, _ = model(batch)
    torch.compiler.reset()
    compiled, _ = torch.compile(model, backend="eager", fullgraph=True)(batch)
    for name, sums in plain.items():
        for key, value in sums.items():
            assert compiled[name][key].item() == pytest.approx(value.item(), rel=1e-9)


@dataclass(frozen=True)
class Restless(Generator):
    """Its samples depend on the slot, not on the key."""

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """With draws counted over the batch."""
        targets = super().targets(blocks, hidden, corrupted)
        counted = np.arange(targets.starts[-1]) * (2**BITS // 97) % 2**BITS
        return replace(targets, columns={**targets.columns, "draws": counted})


@dataclass(frozen=True)
class Miscounted(Generator):
    """It counts the tables that it shares."""

    def parameters(self, encoder: Any, vocabulary: int) -> dict[str, int]:
        """Too many."""
        return Generator(sharing="none").parameters(encoder, vocabulary)


@dataclass(frozen=True)
class Everywhere(Generator):
    """It writes beside its targets."""

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """One position too early."""
        targets = super().targets(blocks, hidden, corrupted)
        at = np.maximum(targets.columns["at"] - 1, 0)
        return replace(targets, columns={**targets.columns, "at": at})


FAULTS: Sequence[tuple[Any, str]] = [
    (Restless(), "depends on the other blocks"),
    (Miscounted(), "miscounts"),
    (Everywhere(), "writes where nothing is hidden"),
]


@pytest.mark.parametrize(("part", "sentence"), FAULTS)
def test_planted_faults_are_found(part: Any, sentence: str) -> None:
    check_part(Generator())
    check_part(Generator(sharing="gradient_disentangled", depth=0.5))
    with pytest.raises(AssertionError, match=sentence):
        check_part(part, slot="objectives")
