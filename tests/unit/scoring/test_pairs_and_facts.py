"""Minimal pairs and cloze facts: counted by hand, with ties, from files of every accepted form."""

from __future__ import annotations

import csv
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.random_models import model

from clozelab.errors import UserError
from clozelab.models.model import Model
from clozelab.scoring.facts import Fact, FactScores, find_facts
from clozelab.scoring.likelihood import drained, likelihoods, scorer
from clozelab.scoring.pairs import MinimalPair, PairScores, find_pairs

torch.set_num_threads(1)
PAIRS = [
    ("The cats sleep.", "The cats sleeps.", "agreement", "verbs"),
    ("A dog was here.", "A dog were here.", "agreement", "verbs"),
    ("No dog ever slept.", "A dog ever slept.", "ever", "negation"),
    ("The same text.", "The same text.", "ever", "negation"),
]


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def own_file(folder: Path) -> Path:
    names = ("good", "bad", "paradigm", "phenomenon")
    rows = [dict(zip(names, pair, strict=True)) for pair in PAIRS]
    (folder / "own.jsonl").write_text(lines(rows))
    return folder / "own.jsonl"


def scored(word: str, loaded: Model, **how: Any) -> PairScores:
    pairs_set = find_pairs(word, columns={}, **how)
    return drained(pairs_set.follow(scorer(loaded), device="cpu"))


def constant() -> Model:
    """A model to which every token is as likely as any other."""
    from dataclasses import replace

    whole = model("bert")
    from copy import deepcopy

    module = deepcopy(whole.module)
    with torch.no_grad():
        for parameter in module.heads["masked_lm"].parameters():
            parameter.zero_()
    return replace(whole, module=module)


def test_pairs_are_compared_by_their_likelihoods(tmp_path: Path) -> None:
    loaded = model("bert")
    pair_scores = scored(str(own_file(tmp_path)), loaded)
    sums = likelihoods(loaded, [text for pair in PAIRS for text in pair[:2]], device="cpu").sums
    assert pair_scores.good == pytest.approx(sums[::2]) and pair_scores.bad == pytest.approx(
        sums[1::2]
    )
    right = [1.0 if a > b else 0.0 for a, b in zip(sums[:6:2], sums[1:6:2], strict=True)]
    assert pair_scores.outcomes.tolist() == [*right, 0.5]
    assert pair_scores.phenomena["negation"].ties == 1 and list(pair_scores.paradigms) == [
        "agreement",
        "ever",
    ]


def test_ties_count_half_and_errors_are_those_of_the_mean() -> None:
    pairs = tuple(MinimalPair("", "", *pair[2:], "") for pair in PAIRS)
    pair_scores = PairScores(
        "x", "original", pairs, np.array([3.0, 1, 2, 5]), np.array([1.0, 2, 2, 2])
    )
    assert pair_scores.outcomes.tolist() == [1, 0, 0.5, 1]
    assert (
        pair_scores.all.accuracy == 62.5
        and pair_scores.all.ties == 1
        and pair_scores.all.items == 4
    )
    # Of 100, 0, 50, 100 the standard deviation is 47.87; of the two paradigms' 50 and 75, 17.68.
    assert pair_scores.all.standard_error == pytest.approx(47.871 / 2, abs=1e-3)
    assert pair_scores.over_paradigms == (62.5, pytest.approx(17.678 / 2**0.5, abs=1e-3))
    assert pair_scores.paradigms["ever"].accuracy == 75.0
    assert repr(pair_scores) == "PairScores('x', 62.50 % of 4 pairs right)"
    record = json.loads(json.dumps(pair_scores.as_json()))
    assert record["all"]["accuracy"] == 62.5 and record["over_paradigms"]["items"] == 2
    items = [json.loads(line) for line in pair_scores.items()]
    assert [item["good"] for item in items] == [3, 1, 2, 5]


def test_a_model_that_knows_nothing_is_at_chance(tmp_path: Path) -> None:
    rows = [{"good": f"The {a} cat", "bad": f"A {a} cat"} for a in ("small", "big", "old")]
    (tmp_path / "same.jsonl").write_text(lines(rows))
    pair_scores = scored(str(tmp_path / "same.jsonl"), constant())
    assert pair_scores.all.accuracy == 50.0 and pair_scores.all.ties == 3


def test_a_few_pairs_are_drawn_from_the_whole_file_and_stay_in_order(tmp_path: Path) -> None:
    rows = [{"good": f"{n} cats sleep", "bad": f"{n} cats sleeps"} for n in range(100)]
    (tmp_path / "many.jsonl").write_text(lines(rows))
    pair_files = find_pairs(str(tmp_path / "many.jsonl"), columns={})
    few, more, every = (
        [int(pair.good.split()[0]) for pair in pair_files.read(most)] for most in (10, 40, 0)
    )
    assert len(few) == 10 and few == sorted(few) and {*few} < {*more} and len(more) == 40
    assert few[0] < 50 < few[-1] and every == list(range(100))


def test_blimp_and_its_like_go_by_name(tmp_path: Path) -> None:
    row = {"sentence_good": "The cats sleep.", "sentence_bad": "The cats sleeps.", "pairID": "0"}
    blimp = [
        {**row, "UID": f"p{n}", "linguistics_term": t} for n, t in enumerate(("s-selection", "x"))
    ]
    (tmp_path / "blimp").mkdir()
    with lzma.open(tmp_path / "blimp" / "blimp.jsonl.xz", "wt") as file:
        file.write(lines(blimp))
    pair_scores = scored("blimp", model("bert"), root=str(tmp_path))
    assert (
        list(pair_scores.phenomena) == ["argument_structure", "x"]
        and len(pair_scores.paradigms) == 2
    )
    (tmp_path / "zhoblimp" / "data").mkdir(parents=True)
    for name in ("a", "b"):  # as it is published, a file for each paradigm
        rows = [{**row, "UID": name, "phenomenon": "BA"}]
        (tmp_path / "zhoblimp" / "data" / f"{name}.jsonl").write_text(lines(rows))
    pair_scores = scored("zhoblimp", model("bert"), root=str(tmp_path))
    assert list(pair_scores.paradigms) == ["a", "b"] and pair_scores.phenomena["BA"].items == 2


def test_crows_pairs_counts_the_tokens_that_both_texts_have(tmp_path: Path) -> None:
    (tmp_path / "crows_pairs").mkdir()
    with (tmp_path / "crows_pairs" / "crows_pairs_anonymized.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["", "sent_more", "sent_less", "stereo_antistereo", "bias_type"])
        writer.writerow(["0", "The old man, here.", "The cat, here.", "stereo", "age"])
    loaded = model("bert")
    pair_scores = scored("crows_pairs", loaded, root=str(tmp_path))
    both = likelihoods(loaded, ["The old man, here.", "The cat, here."], device="cpu")
    texts = (both.pieces.text(0), both.pieces.text(1))
    ids = [both.pieces.columns["ids"][text_span].tolist() for text_span in texts]
    for sums, text_span, own, other in (
        (pair_scores.good, 0, *ids),
        (pair_scores.bad, 1, *reversed(ids)),
    ):
        nats = both.nats[texts[text_span]]
        shared = [value for value, number in zip(nats, own, strict=True) if number in other]
        assert 3 <= len(shared) < len(own)
        assert sums[0] == pytest.approx(sum(shared), abs=1e-9)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.jsonl", '{"good": "x"}\n', "has no column for the bad sentence"),
        ("a.tsv", "good\tworse\nx\ty\n", "has no column for the bad sentence"),
        ("a.jsonl", "", "is empty"),
        ("a.jsonl", '{"good": "", "bad": "x"}\n', "a.jsonl:1: has no token"),
        ("a.jsonl", '{"good": "x", "bad": null}\n', "a.jsonl:1 has no text"),
        ("a.jsonl", "{oh\n", "a.jsonl:1 is not JSON"),
    ],
)
def test_files_that_are_no_pairs_are_refused(
    name: str, text: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=says):
        scored(str(tmp_path / name), model("bert"))


def test_pairs_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean blimp"):
        find_pairs("blmp", columns={})
    with pytest.raises(UserError, match="has no data for blimp"):
        find_pairs("blimp", root=str(tmp_path), columns={})
    with pytest.raises(UserError, match="does not exist"):
        find_pairs(str(tmp_path / "a.jsonl"), columns={})


def facts_file(folder: Path) -> Path:
    rows = [
        {"masked_sentences": ["The queen was [MASK] ."], "obj_label": "here", "relation": "P1"},
        {"masked_sentences": ["[MASK] of the king ."], "obj_label": "the", "relation": "P1"},
        {"masked_sentences": ["All of it was [MASK]."], "obj_label": "one", "relation": "P2"},
        {"masked_sentences": ["It is [MASK]."], "obj_label": "Xanthippezzz", "relation": "P2"},
    ]
    (folder / "facts.jsonl").write_text(lines(rows))
    return folder / "facts.jsonl"


def test_facts_are_ranked_among_objects(tmp_path: Path) -> None:
    loaded = model("bert")
    facts_set = find_facts(str(facts_file(tmp_path)), columns={})
    result = drained(facts_set.follow(scorer(loaded), device="cpu"))
    assert result.left_out == 1 and result.candidates == 3
    assert list(result.relations) == ["P1", "P2"] and result.relations["P1"].items == 2
    ids = [loaded.tokenizer.token_to_id(word) for word in ("here", "the", "one")]
    reader, mask = loaded.reader(), loaded.vocabulary.role("mask")
    for number, fact in enumerate(result.facts):
        (row,) = reader.read([fact.filled])
        at = row.columns["ids"].tolist().index(loaded.tokenizer.token_to_id(fact.object))
        row.columns["ids"][at] = mask
        states, table = loaded.module.encode(packed_alone(row))[:2]
        logits = loaded.module.heads["masked_lm"].logits(states[at][None], table)[0, ids]
        assert result.at_1[number] == float(ids[int(logits.argmax())] == ids[number])
        assert result.at_10[number] == 1.0


def packed_alone(row: Any) -> Any:
    from clozelab.models.reader import packed

    return packed([row], torch.device("cpu"))


def test_equal_candidates_count_by_chance(tmp_path: Path) -> None:
    facts_set = find_facts(str(facts_file(tmp_path)), columns={})
    result = drained(facts_set.follow(scorer(constant()), device="cpu"))
    assert result.at_1.tolist() == [pytest.approx(1 / 3)] * 3 and result.all.at_10 == 100.0


def test_the_mean_of_relations_is_not_that_of_facts() -> None:
    facts = tuple(Fact("", "", relation, "") for relation in ("a", "a", "a", "b"))
    ones, zeros = np.array([1.0, 1, 1, 0]), np.array([1.0, 1, 1, 1])
    result = FactScores("x", facts, 0, 5, ones, zeros)
    assert result.all.at_1 == 75.0 and result.over_relations.at_1 == 50.0
    shown = "FactScores('x', 75.00 % of 4 facts right, 100.00 % among the first ten)"
    assert repr(result) == shown


def test_facts_that_cannot_be_asked_are_refused(tmp_path: Path) -> None:
    file = facts_file(tmp_path)
    with pytest.raises(UserError, match="is not a masked language model"):
        drained(find_facts(str(file), columns={}).follow(scorer(model("gpt")), device="cpu"))
    for sentence, says in (("no blank", "has 0 blanks"), ("[MASK] [MASK]", "has 2 blanks")):
        file.write_text(lines([{"sentence": sentence, "object": "x"}]))
        with pytest.raises(UserError, match=says):
            drained(find_facts(str(file), columns={}).follow(scorer(model("bert"))))
    with pytest.raises(UserError, match="did you mean lama_trex"):
        find_facts("lama", columns={})
