"""Old tokenizer files, read here and by transformers: the same ids on any text."""

from __future__ import annotations

import json
import random
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from clozelab import data
from clozelab.errors import UserError
from clozelab.models.exchange import export, import_model
from clozelab.models.fill import fill
from clozelab.models.load import load as open_model
from clozelab.text.loading import load
from clozelab.text.vocabulary import describe

sentencepiece = pytest.importorskip("sentencepiece")

TEXTS = [
    "The river was wide, and slow (nobody crossed it).",
    "  Ein Fluß, größer als ``die'' Spree;   naïve café, Ångström, ﬁne ① ½ ™",
    "在冬天，没有人过河。 河很宽！",
    "tabs\tand\nlines\r\nand　wide　spaces, no-break spaces, thin spaces",
    "Ĳssel ﬀ ㎏ Ⅷ  ´ ¨ … – £5 €7",
    "▁already marked ▁ words▁here",
    "e\u0301 a\u0308 \u200b zero \u00ad width ́",
    "1,000 and 2,5 and 9, 10",
    "emoji 😀 and <cls> marks [MASK] in <mask> text",
    " ",
    "",
]
SYMBOLS = {
    "albert": ("[CLS],[SEP],[MASK]", {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}),
    "xlnet": ("<cls>,<sep>,<pad>,<mask>,<eod>", {"unk_id": 0, "bos_id": 1, "eos_id": 2}),
    "xlm-roberta": ("", {"unk_id": 0, "bos_id": 1, "eos_id": 2}),
    "camembert": ("", {"unk_id": 0, "bos_id": 1, "eos_id": 2}),
}
CLASSES = {
    "albert": "AlbertTokenizer",
    "xlnet": "XLNetTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
}


@cache
def sentencepiece_model(family: str, symbols: str) -> bytes:
    """A small model of sentencepiece, as that library trains and normalises it."""
    lines = data.task("pairs", "dev").read_text(encoding="utf-8").splitlines()
    control, ids = SYMBOLS[family]
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*lines[:400], *TEXTS[:5]]),
        model_writer=model,
        vocab_size=300,
        model_type="unigram",
        hard_vocab_limit=False,
        control_symbols=control,
        user_defined_symbols=symbols,
        minloglevel=2,
        num_threads=1,
        **ids,
    )
    return model.getvalue()


def trained(folder: Path, family: str, symbols: str = "") -> Path:
    """Its file in a folder, beside a config."""
    folder.mkdir()
    name = "spiece.model" if family in ("albert", "xlnet") else "sentencepiece.bpe.model"
    (folder / name).write_bytes(sentencepiece_model(family, symbols))
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    return folder / name


def noise(seed: int) -> list[str]:
    """Texts of letters from everywhere."""
    draw = random.Random(seed)
    letters = (
        "aeiou tnrs.,()'`\"-ÄéñøŁßıİ\u0301\u0327　\u00a0\u2009\u2028\u0085在河ｱ㌔ﬃ①½Ωμ☃😀\x01\x7f"
    )
    return ["".join(draw.choices(letters, k=40)) for _ in range(40)]


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("albert", {}),
        ("albert", {"do_lower_case": False, "keep_accents": True}),
        ("xlnet", {}),
        ("xlnet", {"do_lower_case": True}),
        ("xlm-roberta", {}),
        ("camembert", {}),
    ],
)
@pytest.mark.parametrize("symbols", ["", "<eop>,.,(,),–,£,€"])
def test_a_sentencepiece_file_gives_the_ids_of_transformers(
    tmp_path: Path, family: str, settings: dict[str, bool], symbols: str
) -> None:
    file = trained(tmp_path / "in", family, symbols)
    (file.parent / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": CLASSES[family], **settings})
    )
    peer = getattr(transformers, CLASSES[family]).from_pretrained(file.parent)
    tokenizer = load(file.parent)
    for text in (*TEXTS, *noise(1)):
        wanted = peer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.encode(text, add_special_tokens=False).ids == wanted, text
    roles = describe(tokenizer).roles
    for role in ("cls", "sep", "pad", "mask", "unk"):
        assert roles[role] == getattr(peer, f"{role}_token_id"), role


@pytest.mark.parametrize(
    ("family", "stem"), [("xlm-roberta", "XLMRoberta"), ("camembert", "Camembert")]
)
def test_a_relative_s_tokenizer_goes_out_with_it(tmp_path: Path, family: str, stem: str) -> None:
    """The class that reads tokenizer.json as it stands: the same ids and marks, one text or two."""
    file = trained(tmp_path / "in", family)
    settings = {"tokenizer_class": CLASSES[family]}
    (file.parent / "tokenizer_config.json").write_text(json.dumps(settings))
    before = transformers.AutoTokenizer.from_pretrained(file.parent)
    assert type(before).__name__ == CLASSES[family]
    cls = getattr(transformers, f"{stem}ForMaskedLM")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape |= {"intermediate_size": 24, "max_position_embeddings": 60, "type_vocab_size": 1}
    ids = {"pad_token_id": before.pad_token_id, "vocab_size": len(before)}
    cls(cls.config_class(**shape, **ids)).save_pretrained(file.parent)
    import_model(str(file.parent), tmp_path / "run")
    export(str(tmp_path / "run"), tmp_path / "out")
    after = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    mask = f"a {before.mask_token} b"
    for texts in [*((text,) for text in (*TEXTS, *noise(2), mask)), (TEXTS[0], TEXTS[1])]:
        assert after(*texts)["input_ids"] == before(*texts)["input_ids"], texts
    assert after.all_special_ids and {*after.all_special_ids} <= {*before.all_special_ids}
    assert len(transformers.pipeline("fill-mask", str(tmp_path / "out"))(mask)) == 5


def test_sentencepiece_s_family_is_seen_by_its_pieces(tmp_path: Path) -> None:
    for family in ("albert", "xlnet"):
        file = trained(tmp_path / family, family)
        before = load(file.parent).to_str()
        (file.parent / "config.json").unlink()
        assert load(file.parent).to_str() == before
    file = trained(tmp_path / "other", "camembert")
    (file.parent / "config.json").unlink()
    with pytest.raises(UserError, match=r"sentencepiece\.bpe\.model: the model family is unknown"):
        load(file.parent)


@pytest.mark.parametrize("name", ["spm.model", "spiece.model"])
def test_deberta_s_sentencepiece_file_is_named_with_the_remedy(tmp_path: Path, name: str) -> None:
    folder = trained(tmp_path / "in", "albert").rename(tmp_path / "in" / name).parent
    (folder / "config.json").write_text('{"model_type": "deberta-v2"}')
    remedy = (
        rf"{name}: .*DeBERTa's .* AutoTokenizer\.from_pretrained\('{folder}'\)\.save_pretrained"
    )
    for place in (folder, folder / name):
        with pytest.raises(UserError, match=remedy):
            load(place)
    peer = transformers.DebertaV2Tokenizer(vocab=[("[PAD]", 0.0), ("[UNK]", 0.0), ("▁a", -1.0)])
    peer.save_pretrained(folder)
    assert load(folder).encode("a a", add_special_tokens=False).ids == [2, 2]


def test_a_damaged_sentencepiece_file_is_refused_or_read(tmp_path: Path) -> None:
    file = trained(tmp_path / "in", "albert")
    whole = file.read_bytes()
    draw = random.Random(0)
    refused = 0
    for trial in range(150):
        content = bytearray(whole)
        if trial % 3:
            content[draw.randrange(min(len(content), 9000))] ^= 1 << draw.randrange(8)
        else:
            del content[draw.randrange(len(content)) :]
        file.write_bytes(content)
        try:
            load(file.parent)
        except UserError as error:
            refused += str(file) in str(error)
    assert refused > 50


SPECIALS = {
    "OpenAIGPTTokenizer": ["<unk>"],
    "RobertaTokenizer": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    "GPT2Tokenizer": ["<|endoftext|>"],
}


def small_bpe(folder: Path, suffix: str, specials: list[str]) -> None:
    """A BPE in its two files."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>" if suffix else None))
    tokenizer.pre_tokenizer = (
        pre_tokenizers.BertPreTokenizer() if suffix else pre_tokenizers.ByteLevel(False)
    )
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=specials,
        **({"end_of_word_suffix": suffix} if suffix else {}),
        initial_alphabet=[] if suffix else pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text.lower() for text in TEXTS] * 3, trainer)
    folder.mkdir()
    tokenizer.model.save(str(folder))


@pytest.mark.parametrize(
    ("kind", "suffix", "settings"),
    [
        ("OpenAIGPTTokenizer", "</w>", {}),
        ("RobertaTokenizer", "", {}),
        ("RobertaTokenizer", "", {"add_prefix_space": True}),
        ("GPT2Tokenizer", "", {}),
    ],
)
def test_merges_give_the_ids_of_transformers(
    tmp_path: Path, kind: str, suffix: str, settings: dict[str, bool]
) -> None:
    small_bpe(tmp_path / "in", suffix, SPECIALS[kind])
    (tmp_path / "in" / "tokenizer_config.json").write_text(json.dumps(settings))
    peer = getattr(transformers, kind).from_pretrained(tmp_path / "in")
    tokenizer = load(tmp_path / "in")
    for text in (*TEXTS, *noise(2)):
        wanted = peer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.encode(text, add_special_tokens=False).ids == wanted, text


def test_words_that_were_added_have_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "river"]
    (tmp_path / "in" / "vocab.txt").write_text("\n".join(pieces))
    added = tmp_path / "in" / "added_tokens.json"
    added.write_text(json.dumps({"<b>": 8, "<a>": 7}))
    assert load(tmp_path / "in").encode("the <b><a>", add_special_tokens=False).ids == [5, 8, 7]
    for wrong in ({"<a>": 9}, {"<a>": "x"}, ["<a>"]):
        added.write_text(json.dumps(wrong))
        with pytest.raises(UserError, match=r"added_tokens\.json: "):
            load(tmp_path / "in")


@pytest.mark.parametrize("content", ['{"do_lower_case": 5}', "[]", "{", '{"strip_accents": "no"}'])
def test_odd_settings_of_a_tokenizer_are_named(tmp_path: Path, content: str) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "river"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(UserError, match=r"tokenizer_config\.json: "):
        load(tmp_path)


@pytest.mark.parametrize(("family", "kind"), [("albert", "ForMaskedLM"), ("xlnet", "LMHeadModel")])
def test_a_model_with_a_sentencepiece_file_is_filled_and_goes_out(
    tmp_path: Path, family: str, kind: str
) -> None:
    file = trained(tmp_path / "in", family, "<eop>,.,(,)")
    peer = getattr(transformers, CLASSES[family]).from_pretrained(file.parent)
    sizes = {
        "albert": {"hidden_size": 16, "embedding_size": 8, "num_hidden_layers": 1,
                   "num_attention_heads": 2, "intermediate_size": 24},
        "xlnet": {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 24},
    }[family]  # fmt: skip
    stem = CLASSES[family].removesuffix("Tokenizer")
    config = getattr(transformers, f"{stem}Config")(vocab_size=len(peer), **sizes)
    torch.manual_seed(0)
    getattr(transformers, f"{stem}{kind}")(config).save_pretrained(file.parent)
    import_model(str(file.parent), tmp_path / "run")
    filled = fill(open_model(str(tmp_path / "run")), "The [MASK] was wide (and slow).", top=3)
    assert len(filled.blanks) == 1 and len(filled.blanks[0]) == 3
    export(str(tmp_path / "run"), tmp_path / "out")
    back = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in (*TEXTS, *noise(3)):
        if "mask" not in text.lower():  # around which theirs leaves a space of its own
            assert back(text)["input_ids"] == peer(text)["input_ids"], text
