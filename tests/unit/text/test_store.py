"""The store: what is built is what was read, token by token, and how it is parted and counted."""

from __future__ import annotations

import json
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.corpora import build, decoded, digests, texts, write
from support.processes import run_process
from tokenizers import Tokenizer, models, pre_tokenizers

from clozelab import files
from clozelab.contracts import Counts, Mark
from clozelab.errors import UserError
from clozelab.keys import fold
from clozelab.text.encoding import CachedTokenizer
from clozelab.text.reading import layouts
from clozelab.text.reading.sentences import splitter
from clozelab.text.store import Corpus, shards
from clozelab.text.store.comparing import text_digest
from clozelab.text.tokenizers import ByteBpe, Wordpiece
from clozelab.text.vocabulary import BERT, bert_like, finished

TEXTS = [*texts(40), "Ein Wort: naïve café.\nZweiter Absatz 你好世界。他说：“走吧！”然后走了。"]


@pytest.fixture(scope="module")
def byte_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("made")
    return build(write(folder / "a.jsonl", TEXTS), folder / "c", held_out=0)


def sizes(corpus: Corpus, split: str = "train") -> list[int]:
    """Sentences in each document."""
    return np.diff(corpus.documents(split).documents).tolist()


def test_a_row_has_as_many_sentences_as_texts_however_long_they_are(tmp_path: Path) -> None:
    rows = [
        {"text": "word " * 5_000, "positive": "A cat."},
        {"text": "B", "positive": "x" * 25_000},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    counts = Counts()
    reading = layouts.Reading(field="text,positive")
    corpus = build(str(file), tmp_path / "c", reading=reading, held_out=0, counts=counts)
    assert sizes(corpus) == [2, 2]
    assert not any("cut" in what for what in counts.numbers)
    assert [len(text) for text in decoded(corpus)] == [5_000 * 5 + 6, 25_002]


SENTENCES = [
    "The small cat sat on the old mat near the door.",
    "Two dogs ran over the green hill until it was dark.",
    "It rained all day in the little town by the river.",
    "Nobody knew why the boats had left before the morning.",
]


@pytest.mark.parametrize("unique", [None, "documents", "lines", "paragraphs"])
@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("held_out", [0.0, 0.3])
def test_a_row_is_kept_whole_or_not_at_all(
    tmp_path: Path, unique: str | None, exclude: bool, held_out: float
) -> None:
    draw = np.random.default_rng(0)
    odd = ["\u0007", "\0", "\0 \0", ""]  # a text without tokens, and texts that are empty
    texts = [*SENTENCES, *(f"{word} {number}" for number in range(40) for word in ("A", "Be"))]
    rows = [[*draw.choice([*texts, *odd], 3)] for _ in range(150)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(dict(zip("abc", row, strict=True))) + "\n" for row in rows))
    (tmp_path / "dev.txt").write_text(SENTENCES[0] + "\n")
    evaluation = {"exclude": [str(tmp_path / "dev.txt")], "exclude_ngram": 5} if exclude else {}
    reading = layouts.Reading(field="a,b,c")
    corpus = build(
        str(file),
        tmp_path / "c",
        Wordpiece(2000),
        reading=reading,
        unique=unique,
        held_out=held_out,
        **evaluation,
    )
    wanted: list[list[str]] = []
    for row in rows:
        ends = [number for number, text in enumerate(row) if not text.strip("\0 ")]
        present = row[: ends[0]] if ends else row
        left_out = "\u0007" in present or (exclude and SENTENCES[0] in present)
        if len(present) > 1 and not left_out and not (unique and present in wanted):
            wanted.append(present)
    found = []
    for split in ("train", "held_out"):
        documents = corpus.documents(split)
        bounds = documents.sentences.tolist()
        read = [
            corpus.tokenizer.decode(documents.ids[a:b].tolist())
            for a, b in zip(bounds[:-1], bounds[1:], strict=True)
        ]
        found += [read[a:b] for a, b in pairwise(documents.documents.tolist()) if b > a]
    known = corpus.tokenizer
    expected = [[known.decode(known.encode(text).ids) for text in row] for row in wanted]
    assert sorted(found) == sorted(expected)


def test_documents_decode_to_their_text_under_bytes(byte_corpus: Corpus) -> None:
    assert decoded(byte_corpus) == [text.strip() for text in TEXTS]


def test_documents_decode_to_the_normalised_text_under_wordpiece(tmp_path: Path) -> None:
    plain = [text for text in TEXTS if text.isascii()]
    corpus = build(write(tmp_path / "a.jsonl", plain), tmp_path / "c", Wordpiece(2000), held_out=0)
    normal = corpus.tokenizer.normalizer.normalize_str
    for decoded_text, text in zip(decoded(corpus), plain, strict=True):
        assert "".join(decoded_text.split()) == "".join(normal(text).split())


def test_sentences_are_the_splitters(byte_corpus: Corpus) -> None:
    documents, split = byte_corpus.documents(), splitter()
    pieces = [split.split(text) for text in TEXTS]
    assert sizes(byte_corpus) == [len(sentences) for sentences in pieces]
    starts = documents.sentences.tolist()
    sentences_read = [
        byte_corpus.tokenizer.decode(documents.ids[a:b].tolist())
        for a, b in zip(starts[:-1], starts[1:], strict=True)
    ]
    assert sentences_read == [sentence for sentences in pieces for sentence in sentences]


def test_word_marks_begin_the_words_of_the_text(tmp_path: Path) -> None:
    corpus = build(write(tmp_path / "a.jsonl", TEXTS), tmp_path / "c", Wordpiece(3000), held_out=0)
    documents = corpus.documents()
    first = np.flatnonzero(documents.marks & Mark.WORD)
    words = [
        corpus.tokenizer.decode(documents.ids[a:b].tolist(), skip_special_tokens=False)
        for a, b in zip(first, np.append(first[1:], len(documents.ids)), strict=True)
    ]
    normal = corpus.tokenizer.normalizer.normalize_str
    cut = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    expected = [word for text in TEXTS for word, _ in cut(normal(text))]
    known = [(a, b) for a, b in zip(words, expected, strict=True) if a != "[UNK]"]
    assert all(a == b for a, b in known)
    assert len(known) > 0.99 * len(words)


def test_the_first_token_of_a_sentence_begins_every_unit(byte_corpus: Corpus) -> None:
    documents = byte_corpus.documents()
    assert (documents.marks[documents.sentences[:-1]] == Mark.ALL).all()


def test_small_vocabularies_take_two_bytes_an_id(byte_corpus: Corpus) -> None:
    assert byte_corpus.documents().ids.dtype == np.uint16
    assert isinstance(byte_corpus.documents().ids, np.memmap)


@pytest.mark.thorough
def test_large_vocabularies_take_four_bytes_an_id(tmp_path: Path) -> None:
    names = [*BERT, *(f"w{number}" for number in range(70_000))]
    model = models.WordPiece({name: n for n, name in enumerate(names)}, unk_token="[UNK]")
    corpus = build(
        write(tmp_path / "a.jsonl", ["w0 w65530 w65531 w69999"]),
        tmp_path / "c",
        finished(bert_like(model, True), BERT),
    )
    assert corpus.documents().ids.dtype == np.uint32
    assert corpus.documents().ids.tolist() == [5, 65535, 65536, 70004]


def test_counts_are_of_train(tmp_path: Path) -> None:
    corpus = build(write(tmp_path / "a.jsonl", TEXTS), tmp_path / "c", held_out=0.3)
    ids = corpus.documents("train").ids
    assert corpus.vocabulary.counts is not None
    assert (corpus.vocabulary.counts == np.bincount(ids, minlength=corpus.vocabulary.size)).all()
    assert len(corpus.documents("held_out").ids) > 0


@pytest.mark.thorough
@pytest.mark.parametrize(("share", "moved"), [(0.4, 0), (0.3, 6)])
def test_a_document_keeps_its_side(share: float, moved: int, tmp_path: Path) -> None:
    """All but a few, where those that a hash draws would miss the share."""
    documents = texts(150)
    tokenizer = build(write(tmp_path / "t.jsonl", TEXTS), tmp_path / "t").tokenizer
    few = build(
        write(tmp_path / "a.jsonl", documents[:100]), tmp_path / "a", tokenizer, held_out=share
    )
    larger = build(
        write(tmp_path / "b.jsonl", documents[::-1]), tmp_path / "b", tokenizer, held_out=share
    )
    held = set(decoded(few, "held_out"))
    again = set(decoded(larger, "held_out")) & {text.strip() for text in documents[:100]}
    assert 20 <= len(held) < 50
    assert again <= held and len(held - again) == moved
    assert sorted(decoded(larger) + decoded(larger, "held_out")) == sorted(
        t.strip() for t in documents
    )


def long(count: int) -> list[str]:
    """A few documents of many sentences."""
    short = texts(150)
    return ["\n".join(short[number::count]) for number in range(count)]


def share(corpus: Corpus) -> float:
    """Of the tokens, those held out."""
    tokens = [corpus.manifest["splits"][split]["tokens"] for split in ("train", "held_out")]
    return float(tokens[1] / sum(tokens))


@pytest.mark.thorough
@pytest.mark.parametrize("count", [5, 3, 1])
@pytest.mark.parametrize("share_asked", [0.01, 0.2])
def test_a_few_long_documents_give_the_share_asked_for(
    tmp_path: Path, count: int, share_asked: float
) -> None:
    corpus = build(write(tmp_path / "a.jsonl", long(count)), tmp_path / "c", held_out=share_asked)
    assert share(corpus) == pytest.approx(share_asked, rel=0.15)
    assert corpus.manifest["held_out"]["parts"] > 0
    line = " ".join(" ".join(decoded(corpus) + decoded(corpus, "held_out")).split())
    assert sorted(line) == sorted(" ".join(" ".join(long(count)).split()))  # nothing is lost


def test_what_is_cut_is_cut_between_sentences(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", long(3))
    whole = build(file, tmp_path / "whole", held_out=0)
    corpus = build(file, tmp_path / "c", whole.tokenizer, held_out=0.05)
    all_sentences = sentences(corpus, "train") + sentences(corpus, "held_out")
    assert sorted(all_sentences) == sorted(sentences(whole, "train"))


def sentences(corpus: Corpus, split: str) -> list[bytes]:
    """The ids of every sentence of a split."""
    documents = corpus.documents(split)
    starts = documents.sentences.tolist()
    return [documents.ids[a:b].tobytes() for a, b in zip(starts[:-1], starts[1:], strict=True)]


@pytest.mark.thorough
def test_equal_documents_are_cut_alike(tmp_path: Path) -> None:
    first, second = long(2)
    corpus = build(write(tmp_path / "a.jsonl", [first, second, first, first]), tmp_path / "c")
    assert share(corpus) == pytest.approx(0.01, rel=0.5)
    held = sentences(corpus, "held_out")
    assert held and not set(held) & set(sentences(corpus, "train"))


@pytest.mark.parametrize("share", [1e-9, 0.999999])
def test_a_small_corpus_has_a_sentence_on_either_side(tmp_path: Path, share: float) -> None:
    corpus = build(write(tmp_path / "a.jsonl", TEXTS[:1]), tmp_path / "c", held_out=share)
    sizes = [corpus.manifest["splits"][split]["sentences"] for split in ("train", "held_out")]
    assert min(sizes) == 1 and sum(sizes) == len(splitter().split(TEXTS[0]))


def test_a_single_sentence_is_trained_on(tmp_path: Path) -> None:
    corpus = build(write(tmp_path / "a.jsonl", ["One sentence."]), tmp_path / "c", held_out=0.5)
    assert [len(corpus.documents(split)) for split in ("train", "held_out")] == [1, 0]


def test_many_documents_stay_whole(tmp_path: Path) -> None:
    """As they were parted before any were cut: by the second digest alone."""
    documents = texts(150)
    corpus = build(write(tmp_path / "a.jsonl", documents), tmp_path / "c", held_out=0.25)
    drawn = [text.strip() for text in documents if text_digest(text)[1] < 2**62]
    assert decoded(corpus, "held_out") == drawn
    assert corpus.manifest["held_out"] == {"whole": len(drawn), "parts": 0}


def test_nothing_is_held_out_where_nothing_is_asked(byte_corpus: Corpus) -> None:
    assert len(byte_corpus.documents("held_out")) == 0
    assert len(byte_corpus.documents("train")) == len(TEXTS)


def test_repeats_are_left_out_and_counted(tmp_path: Path) -> None:
    repeated = [TEXTS[0], TEXTS[1], TEXTS[0], TEXTS[2], TEXTS[1], TEXTS[0], TEXTS[0] + " More."]
    counts = Counts()
    corpus = build(
        write(tmp_path / "a.jsonl", repeated),
        tmp_path / "c",
        unique="documents",
        held_out=0,
        counts=counts,
    )
    assert decoded(corpus) == [repeated[n].strip() for n in (0, 1, 3, 6)]
    assert counts.numbers["documents left out as repeats"] == 3
    assert corpus.manifest["notes"]["documents left out as repeats"] == 3


def test_repeats_stay_unless_asked(tmp_path: Path) -> None:
    corpus = build(write(tmp_path / "a.jsonl", [TEXTS[0]] * 3), tmp_path / "c", held_out=0)
    assert len(corpus.documents()) == 3


@pytest.mark.parametrize("unique", [None, "documents"])
def test_the_words_vocabulary_counts_the_words_kept(tmp_path: Path, unique: str | None) -> None:
    plain = [text for text in TEXTS if text.isascii()]
    corpus = build(
        write(tmp_path / "a.jsonl", plain + plain[:5]),
        tmp_path / "c",
        Wordpiece(2000),
        unique=unique,
        words=50,
    )
    normal = corpus.tokenizer.normalizer.normalize_str
    cut = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    counted = plain if unique else plain + plain[:5]
    expected = Counter(word for text in counted for word, _ in cut(normal(text)))
    lines = (tmp_path / "c" / "words.txt").read_text(encoding="utf-8").splitlines()
    word_counts = {line.rsplit("\t", 1)[0]: int(line.rsplit("\t", 1)[1]) for line in lines}
    assert len(word_counts) == 50
    assert list(word_counts.values()) == sorted(expected.values(), reverse=True)[:50]
    assert all(expected[word] == number for word, number in word_counts.items())


def test_a_words_number_is_its_line(byte_corpus: Corpus) -> None:
    spelling = byte_corpus.spelling
    lines = (byte_corpus.path / "words.txt").read_text(encoding="utf-8").splitlines()
    assert (np.diff(spelling.words.astype(object)) > 0).all()
    assert sorted(set(spelling.numbers.tolist())) == list(range(3, 3 + len(lines)))
    assert len({line.rsplit("\t", 1)[0] for line in lines}) == len(lines)


def test_a_word_is_one_word_with_and_without_its_space(byte_corpus: Corpus) -> None:
    encoder = CachedTokenizer(byte_corpus.tokenizer, segment=False, counts=Counts())
    encoded = encoder.encode(["the", " the"])
    keys = fold(encoded.ids, encoded.starts[:-1])
    assert keys[0] != keys[1]  # byte BPE has two tokens for it
    at = np.searchsorted(byte_corpus.spelling.words, keys)
    assert (byte_corpus.spelling.words[at] == keys).all()
    assert byte_corpus.spelling.numbers[at[0]] == byte_corpus.spelling.numbers[at[1]]


def test_the_manifest_tells_what_was_made(byte_corpus: Corpus) -> None:
    manifest = json.loads((byte_corpus.path / "manifest.json").read_text(encoding="utf-8"))
    documents = byte_corpus.documents()
    assert manifest["splits"]["train"] == {
        "documents": len(TEXTS),
        "sentences": len(documents.sentences) - 1,
        "tokens": len(documents.ids),
    }
    assert manifest["vocabulary"] == byte_corpus.tokenizer.get_vocab_size()
    assert set(manifest["files"]) == digests(byte_corpus.path).keys() - {"manifest.json"}
    assert manifest["inputs"][0].endswith("a.jsonl")
    assert manifest["options"]["held_out"] == 0 and "workers" not in manifest["options"]


@pytest.mark.parametrize(
    "options",
    [
        {"held_out": 0.3},
        {"phrases": True},
        {"unique": "documents"},
        {"unique": "lines"},
        {"words": 40},
        {"entities": "names"},
        {"sentences": "plain"},
    ],
)
def test_the_fingerprint_is_of_everything_that_training_reads(
    tmp_path: Path, built: Corpus, options: dict[str, Any]
) -> None:
    (tmp_path / "names").write_text("Hormel\n", encoding="utf-8")
    if "entities" in options:
        options = {"entities": str(tmp_path / "names")}
    file = write(tmp_path / "a.jsonl", [*TEXTS, TEXTS[0]])
    other = build(file, tmp_path / "c", built.tokenizer, **options)
    assert other.manifest["fingerprint"] != built.manifest["fingerprint"]


@pytest.mark.thorough
def test_the_fingerprint_is_of_nothing_else(
    tmp_path: Path, built: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD", 5000)
    lines = [write(tmp_path / f"{n}.jsonl", [text]) for n, text in enumerate([*TEXTS, TEXTS[0]])]
    other = build(lines, tmp_path / "c", built.tokenizer, workers=2)
    assert other.manifest["fingerprint"] == built.manifest["fingerprint"]
    shorter = build(lines[:-2], tmp_path / "d", built.tokenizer)
    cased = build(lines, tmp_path / "e", ByteBpe(vocabulary=500))
    fingerprints = {each.manifest["fingerprint"] for each in (built, shorter, cased)}
    assert len(fingerprints) == 3


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A corpus as it is built where nothing is said, with one document twice."""
    folder = tmp_path_factory.mktemp("built")
    return build(write(folder / "text.jsonl", [*TEXTS, TEXTS[0]]), folder / "c")


def test_names_become_entities(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", ["We saw New York and Oslo. New York is big."])
    (tmp_path / "names").write_text("New York\nOslo\n", encoding="utf-8")
    corpus = build(file, tmp_path / "c", entities=str(tmp_path / "names"))
    corpus.needs("entity")
    assert corpus.manifest["units"] == {"phrase": 0, "entity": 3}
    with pytest.raises(UserError, match=r"no phrase units.*--phrases"):
        corpus.needs("phrase")


def test_given_spans_become_units(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", ["Nothing here.", "We saw New York. It is big."])
    spans = f"{file}:2\t7\t15\tentity\n{file}:2\t17\t22\tphrase\n{file}:2\t20\t9000\tentity\n"
    (tmp_path / "spans").write_text(spans + "nowhere:1\t0\t3\tentity\n", encoding="utf-8")
    counts = Counts()
    corpus = build(file, tmp_path / "c", spans=str(tmp_path / "spans"), held_out=0, counts=counts)
    corpus.needs("entity")
    corpus.needs("phrase")
    documents = corpus.documents()
    inside = np.flatnonzero((documents.marks & Mark.ENTITY) == 0)
    span = documents.ids[inside[0] - 1 : inside[-1] + 1].tolist()
    assert corpus.tokenizer.decode(span) == " New York"
    assert counts.numbers["documents named in --spans and not found"] == 1
    assert sum(number for what, number in counts.numbers.items() if what.startswith("spans")) == 1


def test_spans_of_a_document_that_is_cut_are_those_of_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "LIMIT", 40)
    text = "We saw a big city. It was cold there in May.  Then New York came, and Oslo after it."
    names = ["big city", "New York", "Oslo"]
    places = [(text.index(name), text.index(name) + len(name)) for name in names]
    files = [write(tmp_path / "a.jsonl", [text]), str(tmp_path / "b.txt")]
    Path(files[1]).write_text(text, encoding="utf-8")
    for file in files:
        rows = [f"{file}:1\t{a}\t{b}\tentity\n" for a, b in [*places, (900, 905), (36, 50)]]
        (tmp_path / "spans").write_text("".join(rows), encoding="utf-8")
        counts, out = Counts(), tmp_path / f"{Path(file).stem}.corpus"
        corpus = build(file, out, spans=str(tmp_path / "spans"), held_out=0, counts=counts)
        documents = corpus.documents()
        assert len(documents) == 3 and corpus.manifest["units"]["entity"] == 3
        inside = (documents.marks & Mark.ENTITY) == 0
        assert corpus.tokenizer.decode(documents.ids[inside].tolist()) == " city York"
        assert counts.numbers[shards.PAST_END] == 2


def test_files_of_units_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", ["We saw New York and Oslo. It\u2028is big."])
    (tmp_path / "names").write_text("New York\nIt\u2028is\n", encoding="utf-8-sig")
    (tmp_path / "spans").write_text(f"{file}:1\t20\t24\tphrase\n", encoding="utf-8-sig")
    options = {"entities": str(tmp_path / "names"), "spans": str(tmp_path / "spans")}
    corpus = build(file, tmp_path / "c", **options)
    assert corpus.manifest["units"] == {"phrase": 1, "entity": 2}


def test_phrases_are_mined(tmp_path: Path) -> None:
    lines = [f"The word{n} of machine learning came word{n + 1}." for n in range(30)]
    corpus = build(write(tmp_path / "a.jsonl", lines), tmp_path / "c", Wordpiece(500), phrases=True)
    corpus.needs("phrase")
    documents = corpus.documents()
    inside = np.flatnonzero((documents.marks & (Mark.PHRASE | Mark.WORD)) == Mark.WORD)
    begun = {corpus.tokenizer.id_to_token(int(documents.ids[at])) for at in inside}
    assert "learning" in begun


def test_text_without_a_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no token in this text"):
        build(write(tmp_path / "a.jsonl", ["\x01\x02\x03"]), tmp_path / "c", Wordpiece(400))


def test_a_broken_shard_is_known_by_any_byte(tmp_path: Path) -> None:
    work = shards.TokenisingSettings(
        ByteBpe(300).train(iter(["abc"])).to_str(), "plain", False, shards.NgramTable()
    )
    encoder = shards.CachedTokenizer(
        Tokenizer.from_str(work.tokenizer), segment=False, counts=Counts()
    )
    job = shards.ShardJob([shards.RawDocument("One two. Three.", "a:1")])
    content = shards.pack(shards.tokenise(job, work, encoder, Counts()), Counts())
    shards.save(content, tmp_path / "a.npz")
    whole = (tmp_path / "a.npz").read_bytes()
    assert shards.sound(tmp_path / "a.npz")
    for stop in range(0, len(whole), 97):
        (tmp_path / "b.npz").write_bytes(whole[:stop])
        assert not shards.sound(tmp_path / "b.npz")
    content = whole.index(b"NUMPY") + 130  # ids.npy, past its header
    flipped = whole[:content] + bytes([whole[content] ^ 1]) + whole[content + 1 :]
    (tmp_path / "b.npz").write_bytes(flipped)
    assert not shards.sound(tmp_path / "b.npz")


def test_shards_of_other_versions_of_the_packages_are_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segmented, plain = (
        shards.TokenisingSettings("{}", "plain", segment, shards.NgramTable())
        for segment in (True, False)
    )
    before = segmented.digest(), plain.digest()
    monkeypatch.setattr(shards, "segmenter", lambda: "rjieba 99")
    assert segmented.digest() != before[0] and plain.digest() == before[1]
    monkeypatch.setattr(shards.tokenizers, "__version__", "99")
    assert plain.digest() != before[1]


def test_a_new_text_gets_the_units_of_the_corpus(tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("New York\n", encoding="utf-8")
    text = "He saw New York and the old oak tree. " + "The old oak tree fell. " * 20
    corpus = build(write(tmp_path / "a.jsonl", [text]), tmp_path / "c", entities=str(names))
    encoder = CachedTokenizer(corpus.tokenizer, segment=False, counts=Counts())
    encoded = encoder.encode(["In New York he slept."])
    assert (encoded.marks & Mark.ENTITY).all()
    corpus.mark_units(encoded)
    inside = encoded.ids[(encoded.marks & Mark.ENTITY) == 0].tolist()
    assert corpus.tokenizer.decode(inside).replace(" ", "") in "NewYork"
    assert inside


def test_a_second_build_is_kept_out_and_leaves_the_first_alone(tmp_path: Path) -> None:
    file, out = write(tmp_path / "a.jsonl", TEXTS[:3]), tmp_path / "c"
    files.claim(out, "corpus")
    files.claim(out / "building", "unfinished corpus")
    with files.locked(out), pytest.raises(UserError, match=r"another build is writing.*process"):
        build(file, out)
    assert (out / "building").is_dir()
    assert len(build(file, out, held_out=0).documents()) == 3


def test_no_lock_of_one_system_alone_is_needed() -> None:
    """What Windows does not have is not imported."""
    script = "import sys; sys.modules['fcntl'] = None; import clozelab.text.store.build"
    assert run_process([sys.executable, "-c", script], check=False).returncode == 0
