"""A checkpoint of any family with another vocabulary: transformers gives the same outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.corpora import texts, write
from support.pretrain_runs import pretrain_job, run_pretraining
from test_import_export import FAMILIES, saved
from torch import nn

import clozelab

torch.set_num_threads(1)
SILENT: dict[str, Any] = {"progress": False}
TEXT = "the river was slow . nobody crossed it"
CLASSES = [
    (family, kind)
    for family, (*_, kinds) in FAMILIES.items()
    for kind in kinds
    if kind in ("ForPreTraining", "ForMaskedLM", "LMHeadModel", "ForSequenceClassification")
]


def opened(folder: Path, cls: type) -> tuple[Any, nn.Module]:
    model_class: Any = cls
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer, model_class.from_pretrained(folder).double().eval()


def outputs(model: nn.Module, ids: list[int]) -> dict[str, torch.Tensor]:
    inputs = {"input_ids": torch.tensor([ids])}
    with torch.no_grad():
        result = model(**inputs, output_hidden_states=True)
    tensors = {name: value for name, value in result.items() if torch.is_tensor(value)}
    return {**tensors, "last": result["hidden_states"][-1]}


@pytest.mark.parametrize(
    ("family", "kind", "tied"),
    [
        ("bert", "ForMaskedLM", False),
        *(
            pytest.param(*each, True, marks=[pytest.mark.slow] * ("Classification" in each[1]))
            for each in CLASSES
        ),
    ],
)
def test_a_trimmed_checkpoint_of_any_family_says_the_same(
    tmp_path: Path, family: str, kind: str, tied: bool
) -> None:
    model = saved(tmp_path / "in", family, kind, tie_word_embeddings=tied)
    (tmp_path / "a.txt").write_text(TEXT)
    change = clozelab.trim_vocabulary(
        tmp_path / "in", tmp_path / "a.txt", out=tmp_path / "out", **SILENT
    )
    before, after = (opened(tmp_path / name, type(model)) for name in ("in", "out"))
    table, old = after[0].get_vocab(), before[0].get_vocab()
    assert len(table) < len(old) and change.after.tokens == len(table)
    assert after[1].config.vocab_size == len(table)
    tokens = [old[name] for name in sorted(table, key=table.__getitem__)]
    names = TEXT.split()
    was, now = (
        outputs(each, [t[name] for name in names])
        for each, t in ((before[1], old), (after[1], table))
    )
    for name, value in was.items():
        value = value[..., tokens] if value.shape[-1] == len(old) else value
        torch.testing.assert_close(now[name], value, rtol=0, atol=1e-6)
    again = clozelab.load(tmp_path / "out", **SILENT)
    assert again.vocabulary.size == len(table)


def test_positions_are_still_counted_from_the_padding(tmp_path: Path) -> None:
    saved(tmp_path / "in", "roberta", "Model")
    file = tmp_path / "in" / "tokenizer.json"
    text = file.read_text()  # with a word that is not used before the padding
    file.write_text(text.replace('"<s>"', '"?"').replace('"w0"', '"<s>"').replace('"?"', '"w0"'))
    (tmp_path / "a.txt").write_text(TEXT)
    change = clozelab.trim_vocabulary(
        tmp_path / "in", tmp_path / "a.txt", out=tmp_path / "out", **SILENT
    )
    assert change.load().vocabulary.roles["pad"] == 1
    before, after = (clozelab.load(tmp_path / name, **SILENT) for name in ("in", "out"))
    assert after.tokenizer.token_to_id("w0") == 0 and after.tokenizer.token_to_id("w1") is None
    torch.testing.assert_close(before.encode([TEXT]), after.encode([TEXT]), rtol=0, atol=1e-6)
    assert_alike(tmp_path / "out", TEXT)


@pytest.mark.parametrize(("pad", "wanted"), [(13, 9), (20, None)])  # "." stays, "w6" goes
def test_the_id_of_the_padding_goes_with_its_token(
    tmp_path: Path, pad: int, wanted: int | None
) -> None:
    saved(tmp_path / "in", "gpt2", "ForSequenceClassification", pad_token_id=pad)
    (tmp_path / "a.txt").write_text(TEXT)
    clozelab.trim_vocabulary(tmp_path / "in", tmp_path / "a.txt", out=tmp_path / "out", **SILENT)
    assert clozelab.load(tmp_path / "out", **SILENT).tokenizer.token_to_id(".") == 9
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").pad_token_id == wanted


NEW = "The plasmation of gastrology is a plasmation."
OLD = "The river was wide, and slow."
# The last four share their tokenizers or their heads with others.
RECIPES = ["bert", "roberta", "albert", "electra", "gpt", "xlnet", "deberta", "modernbert"]
SHAPES = {"gpt": ["encoder.intermediate_size=128"]}  # as transformers has it


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Text with words that no tokenizer has whole."""
    folder = tmp_path_factory.mktemp("text")
    return write(folder / "a.jsonl", [*texts(6), *[f"{NEW} " * 8] * 3])


@pytest.fixture(
    scope="module",
    params=[*RECIPES[:4], *(pytest.param(each, marks=pytest.mark.slow) for each in RECIPES[4:])],
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary") / request.param
    run_pretraining(pretrain_job(request.param, *SHAPES.get(request.param, ()), steps=1), folder)
    return folder


def assert_alike(place: Path, line: str) -> None:
    """Clozelab and transformers have the same states of a line."""
    model = clozelab.load(place, **SILENT)
    ours, _ = model.encode([line])
    inputs = transformers.AutoTokenizer.from_pretrained(place)(line, return_tensors="pt")
    with torch.no_grad():
        peer = transformers.AutoModel.from_pretrained(place).eval()
        theirs = peer(**inputs).last_hidden_state
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)


def test_new_words_are_read_alike_here_and_in_transformers_and_other_text_as_before(
    run: Path, text: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    change = clozelab.add_to_vocabulary(run, text, words=2, least=20, out=out, **SILENT)
    assert {*change.added} == {"plasmation", "gastrology"}
    before, after = clozelab.load(run, **SILENT), clozelab.load(out, **SILENT)
    lengths = [len(each.reader().read([NEW])[0]) for each in (before, after)]
    assert lengths[1] < lengths[0]
    assert change.after.text.tokens < change.before.text.tokens
    torch.testing.assert_close(before.encode([OLD]), after.encode([OLD]), rtol=0, atol=1e-6)
    assert_alike(out, NEW)
    if run.name != "gpt":  # which needs rows, but for no word
        assert change.after.tokens == change.before.tokens + 2
    if run.name in ("electra", "deberta"):
        assert clozelab.fill(out, "A [MASK] text.", **SILENT).blanks
        assert_alike(out / "generator", NEW)


def test_a_trimmed_run_says_the_same(run: Path, text: str, tmp_path: Path) -> None:
    change = clozelab.trim_vocabulary(run, text, out=tmp_path / "out", **SILENT)
    before, after = clozelab.load(run, **SILENT), change.load()
    assert change.after.tokens < change.before.tokens
    assert change.after.bytes < change.before.bytes
    for line in (NEW, *(each[:60] for each in texts(6)[0].split("\n")[:3])):
        torch.testing.assert_close(before.encode([line]), after.encode([line]), rtol=0, atol=1e-6)
    assert_alike(tmp_path / "out", NEW)
    if run.name in ("xlnet", "gpt"):
        return
    was, now = (  # of the generator, where there is one; by a constant more without the others
        {each.tokenizer.id_to_token(guess.number): guess.probability for guess in guesses(each)}
        for each in (before, after)
    )
    assert now.keys() < was.keys()
    shares = [now[token] / was[token] for token in now]
    assert shares == pytest.approx([shares[0]] * len(shares), rel=1e-4) and shares[0] > 1


def guesses(model: clozelab.Model) -> Any:
    return clozelab.fill(model, NEW.replace("is", "[MASK]"), top=2000, **SILENT).blanks[0]


def test_rows_begin_as_they_are_asked_to(text: str, tmp_path: Path) -> None:
    run_pretraining(pretrain_job("bert", steps=1), tmp_path / "run")
    model = clozelab.load(tmp_path / "run", **SILENT)
    word = "plasmation"
    ids = [token.id for token in model.tokenizer.model.tokenize(word)]
    old = dict(model.module.named_parameters())
    rows = {}
    for init in ("mean", "focus", "random"):
        out = tmp_path / init
        clozelab.add_to_vocabulary(
            tmp_path / "run", text, words=2, least=20, out=out, init=init, **SILENT
        )
        more = clozelab.load(out, **SILENT)
        new = dict(more.module.named_parameters())
        at = more.tokenizer.token_to_id(word)
        rows[init] = new["encoder.embeddings.words.weight"][at]
        table = old["encoder.embeddings.words.weight"]
        assert torch.equal(new["encoder.embeddings.words.weight"][: len(table)], table)
        bias = new["heads.masked_lm.bias"]
        if init == "mean":
            torch.testing.assert_close(rows[init], table[ids].mean(0))
            torch.testing.assert_close(bias[at], old["heads.masked_lm.bias"][ids].mean())
        if init == "random":
            assert bias[at] == 0
    assert len({tuple(row.tolist()) for row in rows.values()}) == 3
    assert all(torch.isfinite(row).all() for row in rows.values())
