"""The heads that find an answer's ends: whole windows, whatever lies around them (F2, F3)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from support.question_answering import FakeReader, ask, batch, encode
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Encoded, Targets
from clozelab.finetuning.examples import Question, TokenizedExamples
from clozelab.finetuning.kinds.answer import Answer

torch.set_num_threads(1)
WIDTH = 6
KINDS = [
    Answer(dropout=0.0),
    Answer(head="beam", beams=3, dropout=0.0),
    Answer(head="beam", beams=3, impossible=True, dropout=0.0),
]
NAMES = ["span", "beam", "beam2"]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=NAMES)
both_orders = pytest.mark.parametrize("first", [False, True], ids=["question first", "passage"])


def examples() -> list[Question]:
    long = " ".join("abcdefghijklmnopqrs")
    return [
        ask(long, "h i"),
        ask("the cat sat", "cat sat"),
        Question("none", "where is it", "here , not there", ()),
        Question("unknown", "what", "nobody knows", None),
        ask("  ", id="blank"),
        ask(long, "r s", question="is this the very last ?"),
    ]


def tokenized_for(kind: Answer, *, first: bool = False, length: int = 18) -> TokenizedExamples:
    return Answer.tokenize(kind, examples(), FakeReader(length=length, passage_first=first))


def head_of(kind: Answer, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    head = kind.build(WIDTH).double().eval()
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=0.7)
    return head


def sums(kind: Answer, tokenized: TokenizedExamples, **how: object) -> dict[str, float]:
    micro_batch = batch(tokenized, **how)  # type: ignore[arg-type]
    encoded = encode(micro_batch.input, WIDTH)
    with torch.no_grad():
        loss_sums = head_of(kind)(encoded, micro_batch.input, micro_batch.targets["answer"])
    return {name: float(value) for name, value in loss_sums.items()}


def slots(tokenized: TokenizedExamples, window: int) -> dict[str, list[int]]:
    """A window's slots by column, each place counted in the block."""
    mine = slice(tokenized.targets.starts[window], tokenized.targets.starts[window + 1])
    return {name: values[mine].tolist() for name, values in tokenized.targets.columns.items()}


def alone(tokenized: TokenizedExamples, window: int) -> Tensor:
    """The vectors of one block."""
    micro_batch = batch(tokenized, blocks=slice(window, window + 1))
    return encode(micro_batch.input, WIDTH).hidden_states


def cross(logits: Tensor, at: int) -> Tensor:
    return logits.logsumexp(0) - logits[at]


def expected_span(head: nn.Module, tokenized: TokenizedExamples) -> float:
    total = 0.0
    for window in range(len(tokenized.owners)):
        slot = slots(tokenized, window)
        if slot["labels"] != [Targets.IGNORED]:
            scores = functional.linear(
                alone(tokenized, window), head.scores.weight, head.scores.bias
            )
            total += float(cross(scores[:, 0], slot["left"][0])) / 2
            total += float(cross(scores[:, 1], slot["right"][0])) / 2
    return total


def end_logits(head: nn.Module, states: Tensor, start: Tensor) -> Tensor:
    pairs = torch.cat([states, start.expand_as(states)], dim=1)
    return head.end_scores(head.end_norm(torch.tanh(head.end_dense(pairs))))[:, 0]


def class_logit(head: nn.Module, states: Tensor, chance: Tensor, mark: int) -> Tensor:
    both = torch.cat([chance @ states, states[mark]])
    return head.class_score(torch.tanh(head.class_dense(both)))[0]


def expected_beam(head: nn.Module, tokenized: TokenizedExamples, *, impossible: bool) -> float:
    total = 0.0
    for window in range(len(tokenized.owners)):
        slot = slots(tokenized, window)
        if slot["labels"][0] == Targets.IGNORED:
            continue
        states, mark = alone(tokenized, window), slot["at"][0]
        # The mark and the passage alone, the mark first.
        legal = [mark, *(p for p in range(slot["left"][1], slot["right"][1] + 1) if p != mark)]
        start = head.start(states)[:, 0][legal]
        end = end_logits(head, states, states[slot["left"][0]])[legal]
        total += float(cross(start, legal.index(slot["left"][0]))) / 2
        total += float(cross(end, legal.index(slot["right"][0]))) / 2
        if impossible:
            chance = torch.zeros(len(states), dtype=torch.float64)
            chance[legal] = start.softmax(0)
            logit = class_logit(head, states, chance, mark)
            missing = torch.tensor(float(slot["labels"][0] == 0), dtype=torch.float64)
            total += float(functional.binary_cross_entropy_with_logits(logit, missing)) / 2
    return total


@every_kind
@both_orders
def test_the_loss_is_the_plain_one_window_by_window(kind: Answer, first: bool) -> None:
    tokenized = tokenized_for(kind, first=first)
    head = head_of(kind)
    loss_sums = sums(kind, tokenized)
    with torch.no_grad():
        if kind.head == "span":
            expected = expected_span(head, tokenized)
        else:
            expected = expected_beam(head, tokenized, impossible=kind.impossible)
    assert loss_sums["loss"] == pytest.approx(expected, rel=1e-12)
    known = tokenized.targets.columns["labels"] != Targets.IGNORED
    assert loss_sums["count"] == known.sum() > 5
    assert 0 <= loss_sums["correct"] <= loss_sums["count"]


@every_kind
@both_orders
def test_dummies_and_neighbours_do_not_change_the_loss(kind: Answer, first: bool) -> None:
    tokenized = tokenized_for(kind, first=first)
    whole = sums(kind, tokenized)
    for spare in (1, 7, 40):
        assert sums(kind, tokenized, spare=spare) == pytest.approx(whole, rel=1e-12)
    assert sums(kind, tokenized, longest=31) == pytest.approx(whole, rel=1e-12)
    count = len(tokenized.owners)
    parts = [sums(kind, tokenized, blocks=slice(i, i + 1), spare=3) for i in range(count)]
    for name in whole:
        assert sum(part[name] for part in parts) == pytest.approx(whole[name], rel=1e-12)


@every_kind
def test_a_batch_of_nothing_has_no_loss(kind: Answer) -> None:
    for spare in (1, 8):
        empty = sums(kind, tokenized_for(kind), blocks=slice(0, 0), spare=spare)
        assert empty == {"loss": 0.0, "count": 0.0, "correct": 0.0}


@every_kind
def test_right_scores_are_counted_as_right(kind: Answer) -> None:
    tokenized = tokenized_for(kind)
    micro_batch = batch(tokenized)
    targets, head = micro_batch.targets["answer"], head_of(kind)
    logits = head.logits(encode(micro_batch.input, WIDTH), micro_batch.input, targets)
    there = head.labelled(targets)
    step = 2 if kind.head == "beam" else 1
    at, left, right = (targets[name][::step] for name in ("at", "left", "right"))
    columns = logits[0].shape[1]
    scores = [torch.zeros_like(logits[0]) for _ in range(2)]
    scores[0][torch.arange(len(at)), (left - at) % columns] = 50.0
    scores[1][torch.arange(len(at)), (right - at) % columns] = 50.0
    loss_sums = head.loss((*scores, *logits[2:]), targets)
    assert int(loss_sums["correct"]) == int(loss_sums["count"]) == int(there.sum())
    for tensor in logits:
        assert len(tensor) == len(there) and torch.isfinite(tensor).all()


@every_kind
def test_every_parameter_gets_gradient(kind: Answer) -> None:
    head = head_of(kind)
    micro_batch = batch(tokenized_for(kind), spare=5)
    head(encode(micro_batch.input, WIDTH), micro_batch.input, micro_batch.targets["answer"])[
        "loss"
    ].backward()
    for name, parameter in head.named_parameters():
        # A number added to every score of a softmax changes nothing.
        shift = name in ("scores.bias", "start.bias", "end_scores.bias")
        assert parameter.grad is not None and (shift or (parameter.grad != 0).any()), name


@every_kind
@pytest.mark.thorough
def test_the_head_compiles_whole(kind: Answer) -> None:
    head = head_of(kind)
    micro_batch = batch(tokenized_for(kind), spare=5)
    call = (encode(micro_batch.input, WIDTH), micro_batch.input, micro_batch.targets["answer"])
    compiled = torch.compile(head, fullgraph=True, backend="eager")
    assert float(compiled(*call)["loss"]) == pytest.approx(float(head(*call)["loss"]), rel=1e-12)
    predict = torch.compile(head.predict, fullgraph=True, backend="eager")
    torch.testing.assert_close(predict(*call), head.predict(*call))


@every_kind
def test_half_precision_vectors_give_losses_in_full(kind: Answer) -> None:
    head = kind.build(WIDTH)
    micro_batch = batch(tokenized_for(kind))
    states = encode(micro_batch.input, WIDTH).hidden_states
    targets = micro_batch.targets["answer"]
    exact = head(Encoded(states.float(), None), micro_batch.input, targets)["loss"]
    rough = head(Encoded(states.bfloat16(), None), micro_batch.input, targets)["loss"]
    assert rough.dtype == exact.dtype == torch.float32
    assert float(rough) == pytest.approx(float(exact), rel=0.02)
    assert (
        head.predict(Encoded(states.bfloat16(), None), micro_batch.input, targets).dtype
        == torch.float32
    )


def test_dropout_falls_in_training_alone() -> None:
    for kind in (Answer(dropout=0.5), Answer(head="beam", impossible=True, dropout=0.5)):
        head = head_of(kind)
        micro_batch = batch(tokenized_for(kind))
        call = (encode(micro_batch.input, WIDTH), micro_batch.input, micro_batch.targets["answer"])
        assert float(head(*call)["loss"]) == float(head(*call)["loss"])
        head.train()
        assert float(head(*call)["loss"]) != float(head(*call)["loss"])


def rows_of(kind: Answer, tokenized: TokenizedExamples, **how: int) -> list[np.ndarray]:
    """What the head says, a window each."""
    micro_batch = batch(tokenized, **how)  # type: ignore[arg-type]
    head = head_of(kind)
    with torch.no_grad():
        rows = head.predict(
            encode(micro_batch.input, WIDTH), micro_batch.input, micro_batch.targets["answer"]
        )
    if kind.head == "beam":
        assert len(rows) == len(micro_batch.targets["answer"]["at"])
    starts = tokenized.starts if head.rows == "tokens" else tokenized.targets.starts
    return [rows[a:b].numpy() for a, b in itertools.pairwise(starts)]


@every_kind
@both_orders
def test_predictions_do_not_depend_on_what_lies_around(kind: Answer, first: bool) -> None:
    tokenized = tokenized_for(kind, first=first)
    plain = kind.decode(tokenized, rows_of(kind, tokenized), examples())
    for spare in (1, 13):
        again = kind.decode(tokenized, rows_of(kind, tokenized, spare=spare), examples())
        for own, other in zip(plain, again, strict=True):
            assert own.text == other.text and own.score == pytest.approx(other.score)
    assert kind.impossible or all(span.text for span in plain if span.best)
    assert [bool(span.best) for span in plain] == [True, True, True, True, False, True]


@pytest.mark.parametrize("beams", [1, 3, 40])
@both_orders
def test_beams_as_many_as_tokens_are_an_exhaustive_search(beams: int, first: bool) -> None:
    kind = Answer(head="beam", beams=beams, impossible=True, longest=5, best=1000, threshold=1e9)
    tokenized = tokenized_for(kind, first=first)
    head = head_of(kind)
    rows = rows_of(kind, tokenized)
    spans = kind.decode(tokenized, rows, examples())
    for owner, example in enumerate(examples()):
        texts: dict[str, float] = {}
        for window in np.flatnonzero(tokenized.owners == owner).tolist():
            texts |= _texts(head, tokenized, window, example, kind, texts)
        decoded = {c.text: float(np.log(c.probability)) for c in spans[owner].best}
        assert set(decoded) <= set(texts)
        if beams == 40:
            exhaustive = max(texts.values(), default=0.0)
            assert set(decoded) == set(texts)
            assert spans[owner].score == pytest.approx(exhaustive)
            for text, chance in decoded.items():
                relative = texts[text] - exhaustive
                assert chance - np.log(spans[owner].best[0].probability) == pytest.approx(relative)


def _texts(
    head: nn.Module,
    tokenized: TokenizedExamples,
    window: int,
    example: Question,
    kind: Answer,
    before: dict,
) -> dict[str, float]:
    """Every legal text of a window with log p(start) + log p(end | start)."""
    slot = slots(tokenized, window)
    states, mark = alone(tokenized, window), slot["at"][0]
    bounds = range(slot["left"][1], slot["right"][1] + 1)
    if mark in bounds:
        return {}
    legal = [mark, *bounds]
    begin = tokenized.starts[window]
    texts = dict(before)
    with torch.no_grad():
        start = head.start(states)[:, 0][legal].log_softmax(0)
        for first in bounds:
            end = end_logits(head, states, states[first])[legal].log_softmax(0)
            assert float(end.exp().sum()) == pytest.approx(1)
            for last in range(first, min(first + kind.longest, bounds.stop)):
                if tokenized.token_facts["most"][begin + first]:
                    text = example.passage[
                        tokenized.token_facts["begin"][begin + first] : tokenized.token_facts[
                            "end"
                        ][begin + last]
                    ]
                    score = float(start[legal.index(first)] + end[legal.index(last)])
                    texts[text] = max(texts.get(text, -np.inf), score)
    return texts


def test_the_chances_of_all_ends_of_a_start_add_up_to_one() -> None:
    kind = Answer(head="beam", beams=40, impossible=True)
    tokenized = tokenized_for(kind)
    for output in rows_of(kind, tokenized):
        start, _, rest = np.split(output[0][:-1], [40, 80])
        ends = rest[:1600].reshape(40, 40)
        assert np.exp(start).sum() == pytest.approx(1)
        np.testing.assert_allclose(np.exp(ends).sum(1), 1)


@pytest.mark.thorough
@both_orders
def test_the_beam_head_agrees_with_xlnet_in_transformers(first: bool) -> None:
    xlnet = pytest.importorskip("transformers.models.xlnet.modeling_xlnet")
    config = pytest.importorskip("transformers").XLNetConfig(d_model=WIDTH, n_head=2)
    kind = Answer(head="beam", beams=3, impossible=True)
    head, tokenized = head_of(kind), tokenized_for(kind, first=first)
    theirs = {
        "start": xlnet.XLNetPoolerStartLogits(config).double(),
        "end": xlnet.XLNetPoolerEndLogits(config).double(),
        "class": xlnet.XLNetPoolerAnswerClass(config).double(),
    }
    pairs = [
        ("start", "dense", head.start),
        ("end", "dense_0", head.end_dense),
        ("end", "LayerNorm", head.end_norm),
        ("end", "dense_1", head.end_scores),
        ("class", "dense_0", head.class_dense),
        ("class", "dense_1", head.class_score),
    ]
    for part, name, mine in pairs:
        getattr(theirs[part], name).load_state_dict(mine.state_dict())
    for window, output in enumerate(rows_of(kind, tokenized)):
        slot, states = slots(tokenized, window), alone(tokenized, window)[None]
        barred = torch.ones(1, states.shape[1], dtype=torch.float64)
        barred[0, slot["left"][1] : slot["right"][1] + 1] = 0
        barred[0, slot["at"][0]] = 0
        with torch.no_grad():
            chance = theirs["start"](states, p_mask=barred).softmax(-1)
            mean = torch.einsum("blh,bl->bh", states, chance)
            logit = theirs["class"](
                states, start_states=mean, cls_index=torch.tensor(slot["at"][:1])
            )
            assert output[0][-1] == pytest.approx(float(logit), abs=1e-12)
            top = chance[0].log().topk(min(3, int((barred == 0).sum())))
            size = len(top.values)
            np.testing.assert_allclose(output[0][:size], top.values, atol=1e-12)
            assert output[0][3 : 3 + size].tolist() == top.indices.tolist()
            for beam, place in enumerate(top.indices):
                end = theirs["end"](states, start_positions=place[None], p_mask=barred)
                best = end[0].log_softmax(0).topk(size)
                mine = output[0][6 + 3 * beam :][:size]
                np.testing.assert_allclose(mine, best.values, atol=1e-12)
                assert output[0][15 + 3 * beam :][:size].tolist() == best.indices.tolist()
