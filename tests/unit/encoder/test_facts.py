"""What parts state of themselves holds for what they build, and is all that others ask of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from clozelab import data, encoder, registry
from clozelab.config import recipe as recipes
from clozelab.contracts import Encoded, EncoderPart, Input, TextLayout, Vocabulary
from clozelab.errors import UserError
from clozelab.models.build import build
from clozelab.models.interop.fitting import check_family, family_for
from clozelab.models.reader import TaskReader
from clozelab.runs.machine import flops_a_token
from clozelab.testing import check_part

RECIPES = ("bert", "albert", "gpt", "xlnet", "elmo")


class Bag(nn.Module):
    """Each token's own vector."""

    def __init__(self, shape: BagOfTokens, vocabulary: int) -> None:
        super().__init__()
        self.shape = shape
        self.words = nn.Embedding(vocabulary, shape.hidden_size)

    def forward(self, batch: Input, *, keep: bool = False) -> Encoded:
        states = self.words(batch.ids)
        return Encoded(states, self.words.weight, (states,) * 2 if keep else ())


@dataclass(frozen=True)
class BagOfTokens(EncoderPart):
    """An encoder that no file of clozelab knows."""

    layers: int = 1
    hidden_size: int = 8
    activation: ClassVar[str] = "gelu"
    epsilon: ClassVar[float] = 1e-12

    @property
    def embedding_size(self) -> int:
        return self.hidden_size

    @property
    def vector_width(self) -> int:
        return self.hidden_size

    @property
    def layout(self) -> TextLayout:
        return TextLayout(before=(), after=("sep", "cls"), summary="last")

    def resized(self, layers: int, hidden_size: int) -> BagOfTokens:
        return replace(self, hidden_size=hidden_size)

    def build(self, vocabulary: int) -> Bag:
        return Bag(self, vocabulary)

    def parameters(self, vocabulary: int) -> dict[str, int]:
        return {"words": vocabulary * self.hidden_size}


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.check("encoder", "bag_of_tokens", BagOfTokens)
    monkeypatch.setitem(encoder.PARTS, "bag_of_tokens", BagOfTokens)  # type: ignore[arg-type]


@pytest.mark.usefixtures("outside")
def test_an_encoder_from_outside_is_used_by_its_facts() -> None:
    bag: Any = BagOfTokens()
    check_part(bag, slot="encoder")
    recipe = replace(recipes.read("bert", size="tiny"), encoder=bag)
    model = build(recipe, 100, seed=0)
    assert model.encoder.words.weight.shape == (100, 8)
    assert flops_a_token(recipe, 100, length=9, predicted={}) == 0  # it has no layers to speak of
    tokenizer = Tokenizer.from_file(str(data.tokenizer("wordpiece")))
    reader = TaskReader(recipe, tokenizer, 16)
    row = reader.with_special_tokens(reader.pieces(["The river."]).part(slice(0, 3)))
    roles = reader.vocabulary.roles
    assert row.columns["ids"][-2:].tolist() == [roles["sep"], roles["cls"]]
    assert (row.first, row.mark, reader.num_special_tokens(1), reader.num_special_tokens(2)) == (
        slice(0, 3),
        4,
        2,
        3,
    )
    ids = Vocabulary(100, roles, np.zeros(0, np.int32))
    with pytest.raises(UserError, match="encoder bag_of_tokens: transformers has no such class"):
        check_family(bag, family_for(bag, frozenset(), ids))


def test_a_part_without_facts_is_refused() -> None:
    @dataclass(frozen=True)
    class Bare:
        build = parameters = resized = BagOfTokens.build

    with pytest.raises(UserError, match=r"class Bare\(EncoderPart\)"):
        registry.check("encoder", "bare", Bare)


@pytest.mark.parametrize("name", RECIPES)
def test_facts_hold_for_the_module(name: str) -> None:
    part: Any = recipes.read(name, size="tiny").encoder
    with torch.device("meta"):
        module = part.build(50)
    assert module.shape == part
    names = {name for name, _ in module.named_parameters()}
    assert part.pretraining_parameters <= names
    lists = {name.split(".")[0] for name in names}
    assert part.shared_modules <= lists
    for shared in part.shared_modules:
        assert len(getattr(module, shared)) < part.layers
    if part.max_positions is not None:
        table = module.embeddings.positions.weight
        assert len(table) - part.position_offset == part.max_positions
    assert part.training_flops(64) > 0
    assert part.causal == (name == "gpt") and part.recurrent == (name == "elmo")
    assert (part.reads == "words") == ("words" in part.needs)
    assert part.vector_width == part.hidden_size * (2 if "two_directions" in part.provides else 1)


def test_operations_of_the_last_layer_are_counted_where_states_are_read() -> None:
    recipe = recipes.read("spanbert", size="tiny")  # masked_lm and span_boundary
    shape: Any = recipe.encoder
    after = 6 * (
        shape.hidden_size**2 + 2 * shape.hidden_size * shape.intermediate_size
    )  # attention, a token
    base = shape.training_flops(64)
    assert shape.training_flops(64, read=0.25) == pytest.approx(base - 0.75 * after)
    shares = {"masked_lm": 0.15, "span_boundary": 0.1}

    def encoder_alone(**changed: float) -> float:
        predicted = {**shares, **changed}
        heads = sum(
            part.training_flops(shape, 100, length=64, predicted=share)
            for part, share in zip(recipe.objectives, predicted.values(), strict=True)
        )
        return flops_a_token(recipe, 100, length=64, predicted=predicted) - heads

    # A span's token reads both of its neighbours.
    assert encoder_alone() == pytest.approx(base - 0.65 * after)
    assert encoder_alone(masked_lm=0.6) == pytest.approx(base)  # nearly all: all are computed
    assert flops_a_token(recipe, 100, length=64, predicted={}) == base


@pytest.mark.parametrize("length", [1, 8, 128])
def test_a_pair_head_costs_what_torch_counts(length: int) -> None:
    """It has two classes, and no logits over the vocabulary."""
    recipe = recipes.read("bert", size="tiny")
    shape, part = recipe.encoder, next(p for p in recipe.objectives if "next" in p.needs)
    head: Any = part.build(shape, 30_522)
    states = torch.randn(3 * length, shape.hidden_size, requires_grad=True)
    targets = {"at": torch.arange(3) * length, "labels": torch.tensor([0, 1, 1])}
    with FlopCounterMode(display=False) as counted:
        head(Encoded(states, None), targets)["loss"].backward()
    stated = part.training_flops(shape, 30_522, length=length, predicted=1 / length)
    assert stated * 3 * length == pytest.approx(counted.get_total_flops())


def test_a_layer_with_a_window_costs_what_it_sees() -> None:
    shape: Any = recipes.read("modernbert").encoder
    whole = replace(shape, window=0, global_every=1)
    local = sum(number % shape.global_every > 0 for number in range(shape.layers))
    assert local and shape.window < 500
    unseen = 500 - (shape.window + 1)
    less = whole.training_flops(500) - shape.training_flops(500)
    assert less == pytest.approx(local * 12 * shape.hidden_size * unseen)
    assert shape.training_flops(9) == whole.training_flops(9)  # nothing lies outside it


@pytest.mark.parametrize(
    ("name", "hidden_size"), [("bert", 200), ("bert", 31), ("xlnet", 200), ("xlnet", 1030)]
)
def test_the_number_of_heads_that_a_refusal_proposes_is_accepted(
    name: str, hidden_size: int
) -> None:
    sizes = {"hidden_size": hidden_size, "heads": 7}
    shape: Any = recipes.Recipe.read(name).encoder
    with pytest.raises(UserError, match="heads = 7: must divide") as refusal:
        replace(shape, **sizes)
    proposed = int(str(refusal.value).rsplit(" ", 1)[1])
    assert replace(shape, **{**sizes, "heads": proposed}).heads == proposed


def test_a_stream_of_odd_width_has_no_number_of_heads() -> None:
    shape: Any = recipes.Recipe.read("xlnet").encoder
    with pytest.raises(UserError, match="hidden_size = 33: must be even"):
        replace(shape, hidden_size=33, heads=3)
    assert shape.resized(2, 32).heads == 1
