"""Parameters counted by formula, against the exact numbers of the published architectures."""

from __future__ import annotations

import pytest
import torch

from clozelab.config.recipe import Recipe, names, read, sizes
from clozelab.config.sizes import DIAL
from clozelab.models.build import build


def total(recipe: Recipe) -> int:
    return sum(recipe.parameters().values())


def encoder(recipe: Recipe) -> int:
    return sum(recipe.encoder.parameters(recipe.tokenizer.vocabulary).values())


def with_pooler(recipe: Recipe) -> int:
    return encoder(recipe) + recipe.encoder.hidden_size**2 + recipe.encoder.hidden_size


@pytest.mark.parametrize(
    ("name", "size", "pooled", "whole"),
    [
        ("bert", "2x128", 4_385_920, 4_433_468),
        ("bert", "4x256", 11_170_560, 11_267_900),
        ("bert", "4x512", 28_763_648, 29_058_876),
        ("bert", "8x512", 41_373_184, 41_668_412),
        ("bert", "base", 109_482_240, 110_106_428),
        ("bert", "12x768", 109_482_240, 110_106_428),
        ("bert_whole_word", "large", 335_141_888, 336_226_108),
        ("bert_cased", "base", 108_310_272, 108_932_934),
        ("bert_chinese", "base", 102_267_648, 102_882_442),
        ("bert_multilingual", "base", 177_853_440, 178_566_653),
        ("bert", "large", 335_141_888, 336_226_108),
        ("bert_cased", "large", 333_579_264, 334_661_958),
        ("albert", "base", 11_683_584, 11_813_810),
        ("albert", "large", 17_683_968, 17_847_474),
        ("albert", "xlarge", 58_724_864, 59_021_490),
        ("albert", "xxlarge", 222_595_584, 223_158_450),
    ],
)
def test_models_with_a_pooler(name: str, size: str, pooled: int, whole: int) -> None:
    recipe = read(name, size=size)
    assert with_pooler(recipe) == pooled
    assert total(recipe) == whole


@pytest.mark.parametrize(
    ("name", "size", "bare", "whole"),
    [
        ("roberta", "base", 124_054_272, 124_696_665),
        ("roberta", "large", 354_309_120, 355_411_033),
        ("xlnet", "base", 116_718_336, 116_750_336),
        ("xlnet", "large", 360_268_800, 360_300_800),
        ("distilbert", "base", 66_362_880, 66_985_530),
        ("minilm", "6x384", 22_565_376, 22_565_376),
        ("minilm", "12x384", 33_212_160, 33_212_160),
        ("gpt", "base", 116_534_784, 116_534_784),
    ],
)
def test_models_without_a_pooler(name: str, size: str, bare: int, whole: int) -> None:
    recipe = read(name, size=size)
    assert encoder(recipe) == bare
    assert total(recipe) == whole


def test_ernie_with_heads() -> None:
    assert total(read("ernie")) == 100_477_778


@pytest.mark.parametrize(
    ("size", "millions"), [("base", 102), ("large", 325), ("rbt3", 38), ("rbtl3", 61)]
)
def test_chinese_models_as_their_page_rounds_them(size: str, millions: int) -> None:
    # Their page counts fine-tuned models: encoder and pooler, no masked-LM head.
    assert int(with_pooler(read("roberta_wwm", size=size)) / 1e6) == millions


@pytest.mark.parametrize(
    ("size", "bare", "masked", "boundary"),
    [
        ("base", 107_719_680, 108_340_804, 1_996_676),
        ("large", 332_529_664, 333_610_308, 3_425_668),
    ],
)
def test_spanbert_and_its_extra_head(size: str, bare: int, masked: int, boundary: int) -> None:
    recipe = read("spanbert", size=size)
    counts = recipe.parameters()
    head = sum(count for key, count in counts.items() if key.startswith("masked_lm."))
    extra = sum(count for key, count in counts.items() if key.startswith("span_boundary."))
    assert encoder(recipe) == bare
    assert encoder(recipe) + head == masked
    assert extra == boundary
    assert total(recipe) == masked + boundary


ALBERT_SHARING = {
    64: (87_728_882, 61_725_938, 35_765_234, 9_762_290),
    128: (89_780_402, 63_777_458, 37_816_754, 11_813_810),
    256: (93_883_442, 67_880_498, 41_919_794, 15_916_850),
    768: (109_705_010, 83_702_066, 57_741_362, 31_738_418),
}


@pytest.mark.parametrize("embedding", ALBERT_SHARING)
@pytest.mark.parametrize(("place", "sharing"), list(enumerate(("none", "attention", "ffn", "all"))))
def test_albert_by_embedding_and_sharing(embedding: int, place: int, sharing: str) -> None:
    changes = [f"encoder.embedding_size={embedding}", f"encoder.sharing={sharing}"]
    assert total(read("albert", overrides=changes)) == ALBERT_SHARING[embedding][place]


def test_groups_share_between_none_and_all() -> None:
    counts = [total(read("albert", overrides=[f"encoder.groups={n}"])) for n in (1, 2, 12)]
    layer = 7_087_872
    assert counts == [11_813_810, 11_813_810 + layer, 89_780_402]


@pytest.mark.parametrize(
    ("changes", "bare", "whole"),
    [
        (["tokenizer.vocabulary=28996"], 65_190_912, None),
        (["tokenizer.vocabulary=119547"], 134_734_080, None),
        (["tokenizer.vocabulary=50265", "encoder.position_offset=2"], 81_527_040, 82_169_433),
    ],
)
def test_other_students(changes: list[str], bare: int, whole: int | None) -> None:
    recipe = read("distilbert", overrides=changes)
    assert encoder(recipe) == bare
    assert whole is None or total(recipe) == whole


def test_elmo_near_the_number_it_is_known_by() -> None:
    assert encoder(read("elmo")) == pytest.approx(93.6e6, rel=1e-3)


def test_a_causal_ablation_of_bert_has_berts_head() -> None:
    plain, transform = (
        total(read("gpt", overrides=[f"objectives.0.head={head}"]))
        for head in ("plain", "transform")
    )
    assert transform - plain == 768 * 768 + 768 + 2 * 768 + 40_478


@pytest.mark.parametrize("name", ["bert", "albert", "xlnet", "gpt"])
def test_a_head_that_is_not_tied_adds_a_table(name: str) -> None:
    tied, untied = read(name), read(name, overrides=["objectives.0.tied=false"])
    width = untied.encoder.embedding_size
    assert total(untied) - total(tied) == untied.tokenizer.vocabulary * width
    with torch.device("meta"):
        model = build(untied, untied.tokenizer.vocabulary, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == total(untied)


def test_before_norm_adds_one_norm() -> None:
    post, pre = (
        total(read("bert", overrides=[f"encoder.norm={norm}"])) for norm in ("post", "pre")
    )
    assert pre - post == 2 * 768


RELEASED = [(name, size) for name in names() for size in sizes(name) if size not in DIAL]


@pytest.mark.parametrize(("name", "size"), RELEASED)
def test_the_formula_counts_what_is_built(name: str, size: str) -> None:
    recipe = read(name, size=size)
    with torch.device("meta"):
        model = build(recipe, recipe.tokenizer.vocabulary, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == total(recipe)


@pytest.mark.parametrize("embedding", ALBERT_SHARING)
@pytest.mark.parametrize("sharing", ["none", "attention", "ffn", "all"])
def test_the_formula_counts_every_embedding_and_sharing(embedding: int, sharing: str) -> None:
    changes = [f"encoder.embedding_size={embedding}", f"encoder.sharing={sharing}"]
    recipe = read("albert", overrides=changes)
    with torch.device("meta"):
        model = build(recipe, recipe.tokenizer.vocabulary, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == total(recipe)
