"""Coreference: segments, spans, antecedents, clusters."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as over
from hypothesis import strategies as some
from support.coreference import Letters, batch, marked, stories
from support.hypothesis_settings import max_examples
from torch import Tensor
from torch.nn import functional

from clozelab.contracts import Encoded, Input, Targets
from clozelab.encoder import Transformer
from clozelab.errors import UserError
from clozelab.finetuning.examples import Clusters, Document, Mention, Pronoun
from clozelab.finetuning.heads.coreference import (
    DISTANCES,
    ClustersHead,
    Spans,
    _bucket,
    averaged,
    gathered,
    placed,
    uncrossed,
)
from clozelab.finetuning.kinds.coreference import Coreference, answered, linked
from clozelab.finetuning.kinds.segments import AGAIN, MENTION, WORD, shifted, spelled, stretches

torch.set_num_threads(1)
WIDTH = 12
SMALL = Coreference(segment=24, hidden=16, feature=4, antecedents=6, widest=5, dropout=0.0)
LONG = marked(
    "[1 Anna ] met [2 Paul ] near [3 [1 her ] garden ] . [1 She ] said that [3 it ] was green . "
    * 6,
    "long",
)


def head_and_inputs(
    task: Coreference = SMALL, document: Document = LONG, *, seed: int = 0, idle: int = 0
) -> tuple[ClustersHead, Encoded, Input, dict[str, Tensor]]:
    """A fresh head in float64, and one document in states drawn at random."""
    tokenized = task.tokenize([document], Letters())
    inputs, targets = batch(tokenized, 0, idle=idle)
    torch.manual_seed(seed)
    head = task.build(WIDTH).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    states = torch.randn(len(inputs.ids), WIDTH, dtype=torch.float64, requires_grad=True)
    return head, Encoded(states, None), inputs, targets


def sorted_clusters(document: Document) -> tuple[Any, ...]:
    """Its clusters, whatever their order."""
    return tuple(sorted(tuple(sorted(cluster)) for cluster in document.clusters or ()))


# Segments


@max_examples(60)
@over(some.lists(some.lists(some.integers(1, 9), min_size=1, max_size=9), max_size=9))
def test_segments_hold_every_word_once_and_end_with_sentences_if_they_can(
    lengths: list[list[int]],
) -> None:
    room = 12
    document = Document("d", tuple(tuple("x" * size for size in sizes) for sizes in lengths))
    words = spelled(document, Letters(size=1), most=room)
    count = len(words.numbers)
    cut = stretches(words, 0, count, room=room)
    assert [word for a, b in cut for word in range(a, b)] == list(range(count))
    ends = set(np.cumsum([len(sentence) for sentence in lengths]).tolist())
    for begin, stop in cut:
        assert words.starts[stop] - words.starts[begin] <= room
        if stop not in ends and stop < count:
            # No sentence ended inside, and not one word more would have fitted.
            assert not ends & set(range(begin + 1, stop))
            assert words.starts[stop + 1] - words.starts[begin] > room
        if stop in ends and stop < count:
            after = min(end for end in ends if end > stop)
            assert words.starts[after] - words.starts[begin] > room
    again = shifted(words, 0, count, room=room)
    if len(cut) == 1:
        assert not again
    if again:
        assert again[-1][1] == count and 0 < again[0][0] <= cut[0][1]


@pytest.mark.parametrize("opening", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_word_is_laid_where_its_row_says(overlap: bool, opening: bool) -> None:
    reader = Letters(opening=opening)
    task = replace(SMALL, overlap=overlap)
    tokenized = task.tokenize([stories()[0], LONG], reader)
    flat = [word for sentence in LONG.sentences for word in sentence]
    names = {number: piece for piece, number in reader.known.items()}
    inputs, targets = batch(tokenized, 1)
    seen: dict[int, list[int]] = {WORD: [], AGAIN: []}
    for kind, at, right, word in zip(
        *(targets[name].tolist() for name in ("kind", "at", "right", "word")), strict=True
    ):
        if kind in seen:
            seen[kind].append(word)
            ids = inputs.ids[at : right + 1].tolist()
            assert [names[number] for number in ids] == reader.spelled(flat[word])
    assert seen[WORD] == list(range(len(flat)))
    assert len(seen[AGAIN]) == (len(flat) - seen[AGAIN][0] if overlap else 0)
    words = placed(inputs, targets)
    assert torch.equal(inputs.ids[words.places], inputs.ids[words.again])
    for segment in range(len(inputs.cu_seqlens) - 1):
        inside = (words.places >= inputs.cu_seqlens[segment]) & (
            words.places < inputs.cu_seqlens[segment + 1]
        )
        assert (words.segments[words.owners[inside]] == segment).all()
    assert bool((words.places != words.again).any()) == overlap


def test_the_second_pass_gives_words_another_neighbourhood() -> None:
    inputs, targets = batch(replace(SMALL, overlap=True).tokenize([LONG], Letters()), 0)
    words = placed(inputs, targets)
    ends = set((inputs.cu_seqlens - 2).tolist()) | set((inputs.cu_seqlens + 1).tolist())
    borders = [word in ends for word in words.places.tolist()]
    assert any(borders)  # what is at a border in one pass is not in the other
    assert any(
        border and place not in ends
        for border, place in zip(borders, words.again.tolist(), strict=True)
    )


def test_words_without_tokens_have_no_row_and_overlong_ones_are_cut() -> None:
    document = Document("d", (("a", "~", "b" * 200), ("~", "c")), ((Mention(1, 2), Mention(4, 4)),))
    tokenized = SMALL.tokenize([document], Letters())
    _, targets = batch(tokenized, 0)
    real = targets["kind"] == WORD
    assert targets["word"][real].tolist() == [0, 2, 4]
    assert targets["sentence"][real].tolist() == [0, 0, 1]
    assert np.diff(tokenized.starts).max() <= SMALL.segment
    assert [*tokenized.counts.numbers.values()] == [1]
    assert [*tokenized.counts.places.values()] == ["example d"]


def test_long_documents_are_several_for_training_and_one_for_prediction() -> None:
    task = replace(SMALL, train_segments=2)
    whole, parts = (
        task.tokenize([LONG, stories()[1]], Letters(), training=t) for t in (False, True)
    )
    assert whole.owners.tolist() == [0, 1]
    assert (np.diff(parts.groups) <= 2).all() and len(parts.owners) > 3
    assert parts.owners.tolist() == sorted(parts.owners.tolist())
    assert (parts.targets.columns["labels"] != Targets.IGNORED).sum() == len(parts.owners)
    assert np.array_equal(whole.columns["ids"], parts.columns["ids"])
    for group in range(len(parts.owners)):
        _, targets = batch(parts, group)
        words = set(targets["word"][targets["kind"] == WORD].tolist())
        gold = targets["kind"] == MENTION
        assert words >= {*targets["word"][gold].tolist(), *targets["last"][gold].tolist()}


# Spans


def test_a_span_is_summed_by_the_softmax_of_its_pieces() -> None:
    torch.manual_seed(0)
    owners = torch.tensor([0, 0, 1, 2, 2, 2, 3])
    pieces, scores = torch.randn(7, 5).double(), 9 * torch.randn(7).double()
    together, mean = gathered(pieces, scores, owners, count=4)
    spans = Spans(torch.tensor([0, 0, 1, 3]), torch.tensor([0, 2, 3, 3]))
    averages = averaged(mean, together, spans)
    for row, first, last in zip(averages, spans.first, spans.last, strict=True):
        inside = (owners >= first) & (owners <= last)
        torch.testing.assert_close(row, scores[inside].softmax(0) @ pieces[inside])


def test_spans_stay_in_a_sentence_are_no_wider_than_allowed_and_do_not_cross() -> None:
    for seed in range(5):
        head, encoded, inputs, targets = head_and_inputs(seed=seed)
        _, _, ends = head.logits(encoded, inputs, targets)
        real = targets["kind"] == WORD
        sentence = targets["sentence"][real]
        assert torch.equal(sentence[ends[:, 0]], sentence[ends[:, 1]])
        assert int((ends[:, 1] - ends[:, 0]).max()) < SMALL.widest
        assert int((ends[:, 1] - ends[:, 0]).max()) > 0
        assert len(ends) <= int(SMALL.ratio * int(real.sum()))
        spans = ends.tolist()
        assert spans == sorted(spans) and len(set(map(tuple, spans))) == len(spans)
        assert not any(a < c <= b < d for (a, b), (c, d) in combinations(spans, 2))


@max_examples(50)
@over(some.integers(0, 10**6), some.integers(1, 12))
def test_the_best_spans_are_kept(seed: int, most: int) -> None:
    generator = np.random.default_rng(seed)
    every = [(a, b) for a in range(8) for b in range(a, min(8, a + 4))]
    scores = generator.permutation(len(every))
    wanted: list[tuple[int, int]] = []
    for number in np.argsort(-scores):
        a, b = every[number]
        if len(wanted) < most and not any(a < c <= b < d or c < a <= d < b for c, d in wanted):
            wanted.append((a, b))
    spans = Spans(*torch.tensor(every).T)
    best_spans = uncrossed(spans, torch.tensor(scores), most=most).tolist()
    assert [every[number] for number in best_spans] == sorted(wanted)


# Antecedents


def test_probabilities_sum_to_one_over_antecedents_that_come_before() -> None:
    head, encoded, inputs, targets = head_and_inputs()
    scores, antecedents, ends = head.logits(encoded, inputs, targets)
    assert scores.shape == (len(ends), 1 + SMALL.antecedents)
    assert torch.equal(scores[:, 0], torch.zeros(len(ends), dtype=torch.float64))
    share = scores.softmax(dim=1)
    torch.testing.assert_close(share.sum(dim=1), torch.ones_like(share[:, 0]))
    before = antecedents < torch.arange(len(ends))[:, None]
    assert before.sum(dim=1).tolist() == [min(n, SMALL.antecedents) for n in range(len(ends))]
    assert (share[:, 1:][~before] == 0).all()
    assert all(len(set(row.tolist())) == len(row) for row in antecedents)


def plain(
    head: ClustersHead, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]
) -> Tensor:
    """[S, S] the scores again, with vectors side by side and every antecedent compared."""
    words = placed(inputs, targets)
    first, second = encoded.hidden_states[words.places], encoded.hidden_states[words.again]
    pieces = first
    if head.mix is not None:
        share = torch.sigmoid(head.mix(torch.cat([first, second], dim=1)))
        pieces = share * first + (1 - share) * second
    _, _, ends = head.logits(encoded, inputs, targets)
    vectors = []
    for begin, end in ends.tolist():
        inside = pieces[words.firsts[begin] : words.lasts[end] + 1]
        weights = (inside @ head.attention.weight[0]).softmax(dim=0)
        width = head.widths.weight[end - begin]
        vectors.append(torch.cat([inside[0], inside[-1], weights @ inside, width]))
    g = torch.stack(vectors)

    def scored(scorer: Any, x: Tensor) -> Tensor:
        weight = torch.cat([part.weight for part in scorer.inner], dim=1)
        hidden = functional.linear(x, weight, scorer.inner[0].bias).relu()
        return scorer.output(hidden).squeeze(-1)

    mention = scored(head.mention, g) + head.width_prior.weight[ends[:, 1] - ends[:, 0], 0]
    count = len(g)
    fast = torch.zeros(count, count, dtype=g.dtype)
    segment = words.segments[ends[:, 0]]
    for turn in range(head.task.rounds):
        scores = torch.full((count, count), -torch.inf, dtype=g.dtype)
        for i in range(count):
            for j in range(i):
                near = int(_bucket(torch.tensor(i - j)))
                if turn == 0:
                    coarse = head.coarse(g[i]) @ g[j] / g.shape[1] ** 0.5
                    prior = head.distance_prior.weight[near, 0]
                    fast[i, j] = mention[i] + mention[j] + coarse + prior
                far = head.segments.weight[min(int(segment[i] - segment[j]), 2)]
                pair = torch.cat([g[i], g[j], g[i] * g[j], head.distances.weight[near], far])
                scores[i, j] = fast[i, j] + scored(head.antecedent, pair)
        if turn + 1 < head.task.rounds:
            share = torch.cat([torch.zeros(count, 1), scores], dim=1).softmax(dim=1)
            expected = share[:, :1] * g + share[:, 1:] @ g
            gate = torch.sigmoid(head.gate(torch.cat([g, expected], dim=1)))
            g = gate * g + (1 - gate) * expected
    return scores


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("rounds", [1, 3])
def test_scores_are_those_of_the_plain_model(overlap: bool, rounds: int) -> None:
    task = replace(SMALL, overlap=overlap, rounds=rounds, antecedents=99)
    head, encoded, inputs, targets = head_and_inputs(task)
    with torch.no_grad():
        scores, antecedents, _ = head.logits(encoded, inputs, targets)
        wanted = plain(head, encoded, inputs, targets)
    before = antecedents < torch.arange(len(scores))[:, None]
    own_scores = torch.full_like(wanted, -torch.inf).scatter(
        1, antecedents, scores[:, 1:].masked_fill(~before, -torch.inf)
    )
    assert int(inputs.cu_seqlens.numel()) > 4  # several segments, so that their distance counts
    torch.testing.assert_close(own_scores, wanted, rtol=1e-9, atol=1e-9)


def test_distances_fall_into_ten_buckets() -> None:
    edges = [0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 63, 64, 9999]
    assert _bucket(torch.tensor(edges)).tolist() == [0, 1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9]
    assert _bucket(torch.tensor(-5)) == 0 and DISTANCES == 10


def test_the_loss_is_that_of_all_right_antecedents_together() -> None:
    for seed in range(4):
        head, encoded, inputs, targets = head_and_inputs(seed=seed)
        logits = head.logits(encoded, inputs, targets)
        scores, antecedents, ends = logits
        owner = {m: n for n, cluster in enumerate(LONG.clusters or ()) for m in cluster}
        spans = [Mention(*row) for row in ends.tolist()]
        wanted, linkable = 0.0, 0
        for row, share in enumerate(scores.softmax(dim=1)):
            right = [
                share[1 + column]
                for column, other in enumerate(antecedents[row].tolist())
                if other < row and owner.get(spans[row], -1) == owner.get(spans[other], -2)
            ]
            linkable += bool(right)
            wanted -= float(torch.stack(right or [share[0]]).sum().log().detach())
        sums = head.loss(logits, targets)
        assert float(sums["loss"].detach()) == pytest.approx(wanted, rel=1e-9)
        assert int(sums["count"]) == 1 and 0 <= float(sums["correct"]) <= 1
        assert linkable or seed


def test_gold_clusters_as_scores_lose_nothing_and_decode_to_themselves() -> None:
    for document in [LONG, *stories()]:
        task = replace(SMALL, antecedents=99)
        head, _, inputs, targets = head_and_inputs(task, document)
        gold = sorted((mention, n) for n, c in enumerate(document.clusters or ()) for mention in c)
        count = len(gold)
        owner = torch.tensor([number for _, number in gold])
        scores = torch.where((owner[:, None] == owner).tril(-1), 50.0, -50.0).double()
        scores = torch.cat([torch.zeros(count, 1), scores], dim=1)
        ends = torch.tensor([list(mention) for mention, _ in gold])
        logits = scores, torch.arange(count).expand(count, count), ends
        sums = head.loss(logits, targets)
        assert float(sums["loss"]) < 1e-9 and float(sums["correct"]) == 1
        head.logits = lambda *_, logits=logits: logits  # type: ignore[method-assign]
        tokenized = task.tokenize([document], Letters())
        empty = Encoded(torch.zeros(0, WIDTH), None)
        (decoded,) = task.decode(
            tokenized, [head.predict(empty, inputs, targets).numpy()], [document]
        )
        several = [cluster for cluster in document.clusters or () if len(cluster) > 1]
        assert sorted_clusters(Document("", (), decoded.clusters)) == sorted_clusters(
            Document("", (), tuple(several))
        )
        assert task.score([decoded], [document])["conll"] == pytest.approx(100)


def test_a_document_of_one_segment_needs_no_second_pass() -> None:
    document = stories()[3]
    task = replace(SMALL, segment=64)
    head, encoded, inputs, targets = head_and_inputs(task, document)
    other, *rest = head_and_inputs(replace(task, overlap=True), document)
    other.load_state_dict({**other.state_dict(), **head.state_dict()})
    assert torch.equal(rest[1].ids, inputs.ids)
    mine = head.logits(encoded, inputs, targets)
    for a, b in zip(mine, other.logits(encoded, *rest[1:]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("overlap", [False, True])
def test_gradients_reach_every_parameter_and_both_passes(overlap: bool) -> None:
    task = replace(SMALL, overlap=overlap)
    head, encoded, inputs, targets = head_and_inputs(task)
    head(encoded, inputs, targets)["loss"].backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    touched = encoded.hidden_states.grad.abs().sum(dim=1) > 0  # type: ignore[union-attr]
    words = placed(inputs, targets)
    _, _, ends = head.logits(encoded, inputs, targets)
    inside = ((words.owners >= ends[:, :1]) & (words.owners <= ends[:, 1:])).any(dim=0)
    places = torch.cat([words.places[inside], words.again[inside]])
    assert torch.equal(touched.nonzero()[:, 0], places.unique())


def test_dummies_change_nothing() -> None:
    head, encoded, inputs, targets = head_and_inputs()
    other, more, *rest = head_and_inputs(idle=7)
    states = torch.cat(
        [
            encoded.hidden_states,
            torch.randn(len(more.hidden_states) - len(encoded.hidden_states), WIDTH),
        ]
    )
    assert len(rest[0].ids) > len(inputs.ids) and len(rest[1]["at"]) > len(targets["at"])
    for a, b in zip(
        head.logits(encoded, inputs, targets),
        head.logits(Encoded(states, None), *rest),
        strict=True,
    ):
        assert torch.equal(a, b)
    losses = [head(Encoded(states, None), *rest)["loss"], head(encoded, inputs, targets)["loss"]]
    assert torch.equal(*losses)


def test_nothing_to_predict_costs_nothing() -> None:
    for document in (LONG._replace(clusters=None), Document("empty", ((),), ())):
        head, encoded, inputs, targets = head_and_inputs(document=document)
        sums = head(encoded, inputs, targets)
        assert [float(sums[name].detach()) for name in ("loss", "count", "correct")] == [0, 0, 0]
        sums["loss"].backward()
        assert encoded.hidden_states.grad is not None and not encoded.hidden_states.grad.any()
        assert head.predict(encoded, inputs, targets).shape[1] == 3


def test_dropout_is_for_training_alone() -> None:
    head, encoded, inputs, targets = head_and_inputs(replace(SMALL, dropout=0.3))
    scored = partial(head.logits, encoded, inputs, targets)
    head.eval()
    assert torch.equal(scored()[0], scored()[0])
    head.train()
    assert not torch.equal(scored()[0], scored()[0])


# What users get


@pytest.mark.thorough
def test_short_stories_are_learnt() -> None:
    reader = Letters(size=99, length=64)
    documents = stories()
    task = Coreference(segment=40, hidden=32, feature=8, widest=4, ratio=0.7, dropout=0.2)
    tokenized = task.tokenize(documents, reader, training=True)
    batches = [batch(tokenized, group) for group in range(len(documents))]
    torch.manual_seed(0)
    sizes = {
        "layers": 1,
        "heads": 2,
        "hidden_size": 48,
        "intermediate_size": 96,
        "embedding_size": 48,
    }
    encoder = Transformer(**sizes, positions=40, dropout=0.0, attention_dropout=0.0).build(128)
    head = task.build(48)
    losses = []
    optimiser = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=2e-3)
    for _ in range(30):
        losses.append(0.0)
        for inputs, targets in batches:
            optimiser.zero_grad()
            loss = head(encoder(inputs), inputs, targets)["loss"]
            loss.backward()
            optimiser.step()
            losses[-1] += loss.item()
    head.eval()
    with torch.no_grad():
        outputs = [head.predict(encoder(g), g, targets).numpy() for g, targets in batches]
    scores = task.score(task.decode(tokenized, outputs, documents), documents)
    every = [Clusters((tuple(m for c in d.clusters or () for m in c),)) for d in documents]
    none = [Clusters(())] * len(documents)
    assert task.score(none, documents)["conll"] == 0
    assert scores["conll"] > 80 > task.score(every, documents)["conll"] + 20
    assert task.selects(scores) == scores["conll"]
    assert losses[-1] < losses[0] / 10


def test_links_make_clusters_and_lone_spans_make_none() -> None:
    rows = np.array([[0, 0, -1], [2, 3, -1], [4, 4, 0], [5, 5, -1], [6, 6, 2], [8, 9, 1]], float)
    assert linked(rows) == [
        (Mention(0, 0), Mention(4, 4), Mention(6, 6)),
        (Mention(2, 3), Mention(8, 9)),
    ]


def test_a_pronoun_means_the_name_its_cluster_ends_with() -> None:
    # Speaker Ellen Nott knew Ellen 's brother Paul , and she …
    clusters = Clusters(((Mention(0, 2), Mention(9, 9)), (Mention(4, 7), Mention(11, 11))))
    ellen, brother = Mention(1, 2), Mention(4, 4)

    def judged(pronoun: Mention, names: list[Mention]) -> tuple[bool, bool] | None:
        question = Pronoun("she", pronoun, *names, is_a=True, is_b=False)
        assert answered(clusters, question).gold == (True, False)
        return answered(clusters, question).predicted

    assert judged(Mention(9, 9), [ellen, brother]) == (True, False)
    assert judged(Mention(11, 11), [ellen, brother]) == (False, False)
    assert judged(Mention(11, 11), [Mention(7, 7), ellen]) == (True, False)
    assert judged(Mention(12, 12), [ellen, brother]) == (False, False)


@pytest.mark.parametrize(
    "wrong",
    [{"segment": 0}, {"ratio": 0.0}, {"dropout": 1.0}, {"metrics": ("accuracy",)}, {"rounds": 0}],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        Coreference(**wrong)


def test_what_cannot_be_done_is_said() -> None:
    with pytest.raises(UserError, match="segment = 2: leaves no room"):
        Coreference(segment=2).tokenize([LONG], Letters())
    with pytest.raises(UserError, match="no example has a label"):
        SMALL.score([Clusters(())], [LONG._replace(clusters=None)])
