"""Recipes: every one in the folder reads, writes and differs; every mistake is named and mended."""

from __future__ import annotations

import io
import sys
import tomllib
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from support.processes import run_process

from clozelab.cli.views import recipes as report
from clozelab.config import slots
from clozelab.config.recipe import Recipe, chain, difference, names, parse, read, sizes, to_toml
from clozelab.config.sizes import DIAL
from clozelab.config.toml import written
from clozelab.errors import UserError
from clozelab.training.optimiser import Muon

BERT_FAMILY = {
    *("bert", "bert_cased", "bert_chinese", "bert_multilingual", "bert_whole_word", "roberta"),
    *("spanbert", "albert", "xlnet", "distilbert", "roberta_wwm", "ernie", "gpt", "elmo"),
}
MINE = 'extends = "bert"\n'


def source(name: str) -> dict[str, object]:
    return tomllib.loads(
        (resources.files("clozelab") / "config" / "recipes" / f"{name}.toml").read_text()
    )


def refusal(text: str) -> str:
    with pytest.raises(UserError) as caught:
        parse(text, "mine.toml")
    return one_line(caught.value)


def one_line(error: UserError) -> str:
    assert "\n" not in str(error)
    return str(error)


def test_the_folder_holds_the_family() -> None:
    assert set(names()) >= BERT_FAMILY


@pytest.mark.parametrize("name", names())
def test_recipe_round_trips_at_every_size(name: str) -> None:
    for size in (None, "2x128", *sizes(name)):
        recipe = read(name, size=size)
        assert parse(to_toml(recipe), "elsewhere.toml") == recipe
        assert difference(recipe, parse(to_toml(recipe), "elsewhere.toml")) == []


@pytest.mark.parametrize("name", sorted(set(names()) - {"bert"}))
def test_difference_from_what_it_extends_is_what_the_file_says(name: str) -> None:
    changes = difference(read(source(name).get("extends", "bert")), read(name))
    changed = {key.split(".")[0] for key, _, _ in changes}
    listed = set(source(name)) - {"extends", "title", "sizes"}
    assert changed == listed


@pytest.mark.parametrize("name", names())
def test_recipe_says_only_what_it_changes_and_names_its_paper(name: str) -> None:
    assert read(name).title != name
    if name not in ("bert", "elmo"):
        others = {
            "roberta": ("modernbert", "diffusion", "causal_then_masked", "gpt_bert", "dna"),
            "distilbert": ("minilm",),
            "electra": ("deberta",),
        }
        base = next((other for other, names in others.items() if name in names), "bert")
        assert source(name)["extends"] == base


def test_difference_of_one_key() -> None:
    changes = difference(read("bert"), read("bert", overrides=["masking.mask_rate=0.3"]))
    assert changes == [("masking.mask_rate", 0.15, 0.3)]


def test_difference_counts_objectives_and_marks_what_is_absent() -> None:
    changes = {key: pair for key, *pair in difference(read("bert"), read("spanbert"))}
    assert changes["objectives.1.use"] == ["next_sentence", "span_boundary"]
    assert changes["objectives.1.dimension"] == [None, 200]
    assert changes["masking.count"] == ["round", None]
    assert "encoder.layers" not in changes


def test_what_came_later_is_told_where_it_is_not_the_default() -> None:
    """A study that was begun before there was such a key is still the same."""
    assert "tied" not in to_toml(read("bert"))
    untied = read("bert", overrides=["objectives.0.tied=false"])
    assert "tied = false" in to_toml(untied) and parse(to_toml(untied), "here") == untied


def test_a_table_replaces_its_counterpart_whole() -> None:
    recipe = parse(MINE + '[masking]\nuse = "token"\nmask_rate = 0.4\n', "mine.toml")
    assert recipe.name == recipe.title == "mine"
    assert recipe.masking == read("bert", overrides=["masking.mask_rate=0.4"]).masking
    only = parse(MINE + '[[objectives]]\nuse = "masked_lm"\n', "mine.toml")
    assert len(only.objectives) == 1


def test_a_file_may_extend_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text(to_toml(read("bert", size="tiny")))
    (tmp_path / "more.toml").write_text('extends = "ours.toml"\n[masking]\nuse = "span"\n')
    assert read(tmp_path / "more.toml").encoder == read("bert", size="tiny").encoder
    assert read(str(tmp_path / "more.toml")).name == "more"
    (tmp_path / "marked.toml").write_text('\ufeffextends = "ours.toml"\n', encoding="utf-8")
    assert read(tmp_path / "marked.toml").encoder == read("bert", size="tiny").encoder


def test_a_table_without_use_changes_only_what_it_names(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "choices.md").read_text(encoding="utf-8")
    (tmp_path / "mine.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    roberta, mine = read("roberta"), read(tmp_path / "mine.toml")
    assert mine.masking == replace(roberta.masking, mask_rate=0.3)
    assert mine.optimiser == Muon(learning_rate=1e-3)
    child = tmp_path / "child.toml"
    tables = "[encoder]\nlayers = 2\n[schedule]\nbatch_size = 32\n[masking]\nspecials = true\n"
    child.write_text(f'extends = "mine.toml"\n{tables}')
    assert read(child) == replace(
        mine,
        name="child",
        title="child",
        masking=replace(mine.masking, specials=True),
        encoder=replace(roberta.encoder, layers=2),
        schedule=replace(roberta.schedule, batch_size=32),
    )
    for key, message in (("mask_rat = 0.3", "did you mean mask_rate"), ('rate = "a"', "a number")):
        child.write_text(f'extends = "mine.toml"\n[masking]\n{key}\n')
        with pytest.raises(UserError, match=message):
            read(child)


def test_a_recipe_extends_any_recipe_and_the_nearest_table_counts(tmp_path: Path) -> None:
    (tmp_path / "often.toml").write_text(
        'extends = "roberta"\n[masking]\nuse = "token"\nmask_rate = 0.4\n'
    )
    (tmp_path / "below").mkdir()
    last = tmp_path / "below" / "last.toml"
    last.write_text('extends = "../often.toml"\n[corruption]\nmask = 1.0\nsame = 0.0\n')
    recipe, roberta = read(last), read("roberta")
    assert recipe == replace(
        roberta,
        name="last",
        title="last",
        masking=replace(roberta.masking, mask_rate=0.4),
        corruption=replace(roberta.corruption, mask=1.0, same=0.0),
    )
    assert sizes(last) == sizes("roberta")
    assert [Path(place).stem for place in chain(last)] == ["last", "often", "roberta", "bert"]
    assert parse(to_toml(recipe), "recorded.toml") == recipe


def test_recipes_that_extend_each_other_are_refused_with_the_circle(tmp_path: Path) -> None:
    for name, parent in (("a", "b"), ("b", "c"), ("c", "a"), ("self", "self")):
        (tmp_path / f"{name}.toml").write_text(f'extends = "./{parent}.toml"\n')
    (tmp_path / "roberta").write_text('extends = "roberta"\n')  # a file called as the recipe is
    with pytest.raises(
        UserError, match=r"a\.toml: extends .*b\.toml, which extends .*c\.toml"
    ) as circle:
        read(tmp_path / "a.toml")
    assert "which is a circle; let one of them" in one_line(circle.value)
    with pytest.raises(UserError, match="is a circle"):
        read(str(tmp_path / "self.toml"))
    assert read(tmp_path / "roberta").masking == read("roberta").masking


def test_what_is_wrong_in_a_table_is_said_of_the_file_that_has_it(tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text('extends = "bert"\n[masking]\nuse = "tokn"\n')
    (tmp_path / "mine.toml").write_text(
        'extends = "ours.toml"\n[corruption]\nmask = 1.0\nsame = 0\n'
    )
    with pytest.raises(UserError, match=r"ours\.toml: masking\.use = .*did you mean token"):
        read(tmp_path / "mine.toml")
    (tmp_path / "ours.toml").write_text('extends = "bert"\nmaskin = 3\n')
    with pytest.raises(UserError, match=r"ours\.toml: maskin is not a key"):
        read(tmp_path / "mine.toml")


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("a = [1\n\nb = 2\n", ("mine.toml", "line 3", "TOML")),
        ("", ("mine.toml", "tokenizer", "missing", "extends")),
        ("extends = 3", ("mine.toml", "extends", "quotes")),
        ('extends = "bort"', ("mine.toml", "bort", "did you mean bert?", "roberta")),
        (MINE + "[maskin]\nrate = 0.1", ("mine.toml", "maskin", "did you mean masking?")),
        (MINE + "zzz = 1", ("mine.toml", "zzz", "masking", "blocks")),
        (MINE + "masking = 1", ("mine.toml", "masking", "table")),
        (MINE + '[objectives]\nuse = "masked_lm"', ("mine.toml", "[[objectives]]")),
        (
            "[masking]\nmask_rate = 0.1\n[tokenizer]\nuse = 'wordpiece'\n[blocks]\nuse = 'causal'",
            ("mine.toml", "masking.use", "missing", "whole_word"),
        ),
        (MINE + '[masking]\nuse = "spam"', ("mine.toml", "masking.use", "did you mean span?")),
        (MINE + '[masking]\nuse = "zzz"', ("mine.toml", "masking.use", "token", "whole_word")),
        (
            MINE + '[masking]\nuse = "span"\nlongst = 3',
            ("mine.toml", "masking.longst", "did you mean longest?"),
        ),
        (MINE + '[optimiser]\nuse = "adamw"', ("mine.toml", "optimiser.learning_rate", "missing")),
        (MINE + '[masking]\nuse = "token"\nmask_rate = "x"', ("masking.mask_rate", "a number")),
        (MINE + '[masking]\nuse = "token"\ncap = 2.5', ("masking.cap", "a whole number")),
        (MINE + '[masking]\nuse = "token"\nmask_rate = true', ("masking.mask_rate", "a number")),
        (MINE + '[masking]\nuse = "token"\ncap = true', ("masking.cap", "a whole number")),
        (MINE + '[masking]\nuse = "token"\nspecials = 1', ("masking.specials", "true or false")),
        (
            MINE + '[masking]\nuse = "token"\ncount = "rond"',
            ("masking.count", "did you mean round?"),
        ),
        (MINE + '[masking]\nuse = "token"\ncount = "zzz"', ("masking.count", "floor", "bernoulli")),
        (
            MINE + '[masking]\nuse = "token"\nmask_rate = 2',
            ("mine.toml: masking.mask_rate", "0.15"),
        ),
        (MINE + '[masking]\nuse = "knowledge"\nlevels = { wrd = 1 }', ("levels.wrd", "word")),
        (MINE + '[masking]\nuse = "knowledge"\nlevels = { word = "a" }', ("levels.word",)),
        (
            MINE + '[optimiser]\nuse = "adamw"\nlearning_rate = nan',
            ("optimiser.learning_rate", "a number"),
        ),
        (
            MINE + '[optimiser]\nuse = "adamw"\nlearning_rate = 1\nbetas = [0.9]',
            ("optimiser.betas", "2 items"),
        ),
        (
            MINE + '[optimiser]\nuse = "adamw"\nlearning_rate = 1\nbetas = [0.9, "b"]',
            ("optimiser.betas.1", "a number"),
        ),
        (MINE + "[schedule]\nsteps = 9\nwarmup = 10\nsequences = 1", ("schedule.warmup", "steps")),
        (
            MINE + "[schedule]\nsteps = 9\nwarmup = 1\nsequences = 1\nphases = [[512, 0.5]]",
            ("schedule.phases", "sum to 1"),
        ),
        (MINE + "[sizes.tiny]\nlayers = 3", ("mine.toml", "sizes.tiny", "another name")),
        (MINE + "[sizes.huge]\nlayrs = 3", ("mine at huge", "layrs", "did you mean layers?")),
        (MINE + "[sizes.huge.shedule]\nsteps = 3", ("mine at huge", "did you mean schedule?")),
        (MINE + "[sizes.huge.imports]\na = 1", ("mine at huge", "imports is unknown")),
        (MINE + "[sizes.huge]\nencoder = 3", ("mine at huge", "[sizes.huge.encoder]")),
        (MINE + "[sizes.huge]\nobjectives = 3", ("mine at huge", "[sizes.huge.objectives]")),
        (
            MINE + "[sizes.huge.objectives]\nmasked_lm = 3",
            ("mine at huge", "[sizes.huge.objectives.masked_lm]"),
        ),
        (
            MINE + "[sizes.huge.objectives.maskd_lm]\nweight = 3",
            ("mine at huge", "objectives.maskd_lm", "did you mean masked_lm?"),
        ),
        (MINE + "[sizes]\nlayers = 3", ("mine.toml", "sizes", "[sizes.large]")),
    ],
)
def test_a_bad_file_is_refused_with_the_place_and_the_remedy(
    text: str, phrases: tuple[str, ...]
) -> None:
    message = refusal(text)
    for word in phrases:
        assert word in message


@pytest.mark.parametrize(
    ("name", "changes", "phrases"),
    [
        (
            "bert",
            ["objectives.1.use=span_boundary"],
            ("span_boundary needs spans", "masking token does not provide", "use masking", "span"),
        ),
        ("bert", ["blocks.use=full_sentences"], ("next_sentence needs next", "segment_pair")),
        ("albert", ["blocks.use=segment_pair"], ("sentence_order needs order", "sentence_order")),
        ("xlnet", ["masking.use=token"], ("permutation_lm needs order_of_prediction", "partial")),
        ("elmo", ["blocks.use=causal"], ("needs words", "use blocks words")),
        ("bert", ["encoder.heads=7"], ("encoder.heads = 7", "768", "12")),
        ("bert", ["encoder.positions=128"], ("blocks.length = 512", "encoder.positions = 128")),
        ("bert", ["blocks.length=128"], ("schedule.phases", "blocks.length is 128", "[]")),
        ("bert", ["encoder.causal=true"], ("masked_lm", "encoder.causal = false", "causal_lm")),
        ("gpt", ["encoder.causal=false"], ("causal_lm", "encoder.causal = true")),
        ("gpt", ["masking.use=token"], ("masking token", "use masking nothing")),
        ("gpt", ["encoder.embedding_size=64"], ("plain head", "encoder.embedding_size = 768")),
        ("bert", ["encoder.types=1"], ("encoder.types = 1", "segment_pair", "use 2")),
        ("xlnet", ["schedule.batch_size=64"], ("blocks.rows = 8192", "set both")),
        (
            "xlnet",
            ["schedule.phases=[[384, 0.5], [512, 0.5]]"],
            ("schedule.phases change the length", "encoder.memory = 0"),
        ),
        (
            "xlnet",
            ["schedule.phases=[[512, 0.9], [128, 0.1]]", "encoder.memory=0"],
            ("schedule.phases have the length 128", "reuse = 256, length = 128"),
        ),
        ("bert", ["objectives.1.use=masked_lm"], ("masked_lm", "twice")),
        ("bert", ["objectives=[]"], ("objectives", "masked_lm")),
        ("bert", ["tokenizer.vocabulary=3"], ("tokenizer.vocabulary = 3", "specials")),
        ("bert", ["encoder.groups=2"], ("encoder.groups = 2", "sharing")),
        (
            "distilbert",
            ["objectives.1.start=listed", "objectives.1.layers=[0, 11]"],
            ("lists 2 layers", "encoder.layers = 6", "spread"),
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    name: str, changes: list[str], phrases: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as caught:
        read(name, overrides=changes)
    for word in (f"{name}: ", *phrases):
        assert word in one_line(caught.value)


def test_the_memory_needs_text_in_order() -> None:
    changes = ["blocks.use=full_sentences", 'objectives=[{use="masked_lm"}]']
    with pytest.raises(UserError, match="use blocks stream_pair"):
        read("xlnet", overrides=changes)
    assert read("xlnet", overrides=[*changes, "encoder.memory=0"])


@pytest.mark.parametrize("name", names())
def test_no_released_size_spends_its_run_on_the_warm_up(name: str) -> None:
    for size in sizes(name):
        schedule = read(name, size=size).schedule
        assert schedule.warmup <= max(0.25 * schedule.total, 1), size


def test_overrides_set_values_and_swap_parts() -> None:
    recipe = read(
        "bert",
        overrides=[
            *("masking.p=0.3", "masking.use=span", "objectives.0.weight=2"),
            *("corruption.unit=span", "schedule.phases=[]", "title=Mine, all mine"),
        ],
    )
    assert slots.use("masking", recipe.masking) == "span"
    assert recipe.tables()["masking"] == {
        **{"use": "span", "mask_rate": 0.15, "p": 0.3, "longest": 10, "ends": "cut"}
    }
    assert recipe.objectives[0].weight == 2
    assert recipe.corruption.unit == "span"
    assert recipe.title == "Mine, all mine"
    assert read("bert", overrides=["masking.cap=20", "masking.cap=none"]) == read("bert")


@pytest.mark.parametrize(
    ("change", "phrases"),
    [
        ("masking.mask_rate", ("masking.mask_rate=0.3",)),
        ("masking.mask_rat=0.3", ("masking.mask_rat", "did you mean mask_rate?")),
        ("maskin.rate=0.3", ("maskin.rate", "did you mean masking?")),
        ("masking.mask_rate.x=0.3", ("masking.mask_rate.x", "cannot be set")),
        ("masking.use=spam", ("masking.use", "did you mean span?")),
        ("objectives.5.weight=1", ("objectives.5.weight", "from 0 to 1")),
        ("objectives.0.wight=1", ("objectives.0.wight", "did you mean weight?")),
        ("sizes.large.layers=3", ("sizes.large.layers", "encoder")),
        ("title=3", ("title", "quotes")),
        ("masking.mask_rat=0.3,masking.use = span", ("masking.mask_rat", "did you mean")),
    ],
)
def test_a_bad_override_is_refused(change: str, phrases: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as caught:
        read("bert", overrides=change.split(","))
    for word in ("bert: ", *phrases):
        assert word in one_line(caught.value)


@pytest.mark.parametrize(
    ("name", "phrases"),
    [
        ("robberta", ("robberta", "did you mean roberta?", "spanbert")),
        ("zzz", ("zzz", "spanbert", "xlnet")),
        ("nowhere/mine.toml", ("nowhere/mine.toml", "does not exist")),
    ],
)
def test_an_unknown_recipe_is_refused(name: str, phrases: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as caught:
        read(name)
    for word in phrases:
        assert word in one_line(caught.value)


@pytest.mark.parametrize(
    ("size", "phrases"),
    [
        ("lage", ("lage", "did you mean large?", "tiny", "4x256")),
        ("zzz", ("zzz", "tiny", "base", "4x256")),
        ("4x100", ("4x100", "did you mean 4x128?")),
        ("0x128", ("0x128", "4x256")),
    ],
)
def test_an_unknown_size_is_refused(size: str, phrases: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as caught:
        read("bert", size=size)
    for word in phrases:
        assert word in one_line(caught.value)


@pytest.mark.parametrize("size", DIAL)
@pytest.mark.parametrize("name", names())
def test_the_dial_is_the_same_for_every_recipe(name: str, size: str) -> None:
    dial, own, recipe = DIAL[size], read(name), read(name, size=size)
    assert (recipe.encoder.layers, recipe.encoder.hidden_size) == (dial.layers, dial.hidden_size)
    assert getattr(recipe.encoder, "heads", dial.hidden_size // 64) == dial.hidden_size // 64
    assert recipe.blocks.length == min(dial.length, own.blocks.length)
    assert recipe.schedule.batch_size == dial.batch_size
    assert recipe.optimiser.learning_rate == dial.learning_rate
    assert recipe.schedule.phases == ()
    assert recipe.schedule.steps == own.schedule.steps
    assert recipe.masking == own.masking


def test_the_dial_keeps_what_makes_a_recipe() -> None:
    assert read("bert", size="mini").encoder.embedding_size == 256
    albert = read("albert", size="mini").encoder
    assert (albert.embedding_size, albert.parameters(1)["layers.ffn"]) == (128, 526_080)
    xlnet = read("xlnet", size="tiny").tables()
    assert (xlnet["blocks"]["reuse"], xlnet["encoder"]["memory"]) == (32, 48)
    assert xlnet["blocks"]["rows"] == xlnet["schedule"]["batch_size"] == 32
    elmo = read("elmo", size="tiny").tables()
    assert elmo["encoder"]["cell_size"] == 8 * 128
    assert sum(filters for _, filters in elmo["encoder"]["filters"]) == 4 * 128
    assert elmo["objectives"][0]["words"] == 256 * 128


def test_layers_by_width_keeps_length_and_schedule() -> None:
    recipe, own = read("roberta", size="4x256"), read("roberta")
    changed = {key for key, _, _ in difference(own, recipe)}
    assert changed == {
        f"encoder.{k}"
        for k in ("layers", "heads", "hidden_size", "intermediate_size", "embedding_size")
    }


def test_released_sizes_carry_their_own_settings() -> None:
    large = read("roberta", size="large")
    assert (large.optimiser.learning_rate, large.schedule.warmup) == (4e-4, 30_000)
    assert read("roberta_wwm", size="large").schedule.steps == 2_000_000
    assert read("albert", size="xxlarge").encoder.hidden_size == 4096


def test_an_override_comes_after_the_size() -> None:
    recipe = read("bert", size="tiny", overrides=["encoder.layers=3"])
    assert (recipe.encoder.layers, recipe.encoder.hidden_size) == (3, 128)


@given(
    st.recursive(
        st.one_of(
            st.booleans(),
            st.integers(-(2**60), 2**60),
            st.floats(allow_nan=False),
            st.text(st.characters(exclude_categories=("Cs",))),
        ),
        lambda inner: st.one_of(
            st.lists(inner), st.dictionaries(st.text('aé "\\.\x7f😀', min_size=1), inner)
        ),
        max_leaves=8,
    )
)
def test_every_value_is_written_so_that_toml_reads_it_back(value: object) -> None:
    assert tomllib.loads(f"value = {written(value)}")["value"] == value


def rendered(*things: object) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(*things)
    return console.export_text()


@pytest.mark.parametrize("name", names())
def test_every_recipe_can_be_shown(name: str) -> None:
    recipe = read(name)
    text = rendered(report.resolved(recipe))
    assert recipe.title in text
    assert f"{sum(recipe.parameters().values()):,}" in text


def test_show_says_what_a_step_holds() -> None:
    text = rendered(report.resolved(read("bert")))
    for phrase in (
        "110,106,428",
        "up to 32,768 (length 128, 90% of the steps)",
        "about 77",
        "static",
    ):
        assert phrase in text


def test_difference_is_shown_as_a_table() -> None:
    text = rendered(*report.difference(read("bert").diff("roberta"), {"a": "bert", "b": "roberta"}))
    for phrase in ("blocks.use", '"segment_pair"', '"full_sentences"', "[0.9, 0.98]"):
        assert phrase in text
    assert "encoder.layers" not in text
    assert "the same" in rendered(*report.difference([], {"a": "bert", "b": "bert"}))


def test_a_recipe_is_read_and_shown_without_torch() -> None:
    code = "import sys, clozelab.cli.views.recipes; sys.exit('torch' in sys.modules)"
    run_process([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_a_recipe_checked_once_stays_checked() -> None:
    recipe: Recipe = read("bert")
    with pytest.raises(UserError, match="next_sentence needs next"):
        replace(recipe, blocks=read("roberta").blocks)


def test_a_cap_left_from_shorter_blocks_is_warned_of() -> None:
    (warning,) = read("bert", overrides=["masking.cap=20"]).warnings()
    assert "3.9%" in warning and "77" in warning
    assert not read("bert", overrides=["masking.cap=77"]).warnings()
    assert not any(read(name).warnings() for name in names())
    (warning,) = read("neobert", overrides=["schedule.decay=constant"]).warnings()
    assert "schedule.final = 0.1 has no effect" in warning


def test_windows_are_no_wider_than_blocks_and_shrink_with_them() -> None:
    with pytest.raises(
        UserError, match=r"modernbert: encoder.window = 128 is more than twice blocks\.le"
    ):
        read("modernbert", overrides=["schedule.phases=[]", "blocks.length=60"])
    windows = {size: read("modernbert", size=size).encoder for size in ("tiny", "mini", "base")}
    assert [encoder.window for encoder in windows.values()] == [8, 16, 128]  # type: ignore[union-attr]


def test_a_block_is_told_where_it_is_not_bert_s() -> None:
    assert "window" not in to_toml(read("roberta")) and "gated" not in to_toml(read("bert"))
    text = to_toml(read("neobert"))
    assert "gated = true" in text and parse(text, "here") == read("neobert")
    course = read("bert", overrides=["masking.course=[[0, 2], [1, 1]]"])
    assert "course = [[0.0, 2.0], [1.0, 1.0]]" in to_toml(course)
