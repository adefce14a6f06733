"""Classes and numbers for texts; and what every kind of task with one vector a slot promises."""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.hypothesis_settings import max_examples
from support.task_examples import CLS, NOTHING, SEP, WIDTH, FakeReader, Small, batch, rows, share

from clozelab.contracts import Encoded, Targets
from clozelab.errors import UserError
from clozelab.finetuning.examples import (
    Choice,
    Class,
    Document,
    GoldAnswer,
    Mention,
    Number,
    Question,
    Sentences,
    Tagged,
)
from clozelab.finetuning.kinds import Answer, Choose, Classify, Coreference, Regress, Tag
from clozelab.training.packing import BatchShape

torch.set_num_threads(1)
READER = FakeReader()
LABELS = ("no", "yes", "maybe")
TAGS = ("O", "B-PER", "I-PER")
KINDS: list[Any] = [
    Classify(LABELS),
    Classify(LABELS, pair=True, pool="mean", summary="relu", drop_first=True),
    Classify(LABELS, summary="none", bias=False),
    Regress(pair=True),
    Regress(pool="mean", bias=False),
    Choose(4, limit=6),
    Choose(3, limit=9, pool="mean", summary="none"),
    Tag(TAGS),
]
each = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)

words = st.text("abcde", min_size=1, max_size=7) | st.just(NOTHING)
texts = st.lists(words, max_size=30).map(" ".join)


@st.composite
def examples_of(draw: st.DrawFn, kind: Any, *, labelled: bool = True) -> list[Any]:
    """A few examples of a kind, some longer than the reader reads."""

    def label(strategy: Any) -> Any:
        return draw(strategy) if labelled else None

    examples: list[Any] = []
    for number in range(draw(st.integers(1, 6))):
        name = f"e{number}"
        if isinstance(kind, Choose):
            drawn = draw(st.lists(texts, min_size=1, max_size=kind.choices))
            # No two alike: which of equals is the largest is a matter of rounding.
            seconds = [f"{text} {end}" for text, end in zip(drawn, "pqrs", strict=False)]
            right = label(st.integers(0, len(seconds) - 1))
            examples.append(Choice(name, draw(texts), tuple(seconds), right))
        elif isinstance(kind, Tag):
            sentence = tuple(draw(st.lists(words, max_size=40)))
            tags = [label(st.sampled_from(TAGS)) for _ in sentence]
            examples.append(Tagged(name, sentence, tuple(tags) if labelled else None))
        else:
            values = st.floats(-9, 9) if isinstance(kind, Regress) else st.sampled_from(LABELS)
            second = draw(texts) if kind.pair else None
            examples.append(Sentences(name, draw(texts), second, label(values)))
    return examples


def labelled_examples(kind: Any, count: int = 12) -> list[Any]:
    """Examples enough for every class and choice to be right somewhere."""
    rng = np.random.default_rng(3)

    def text() -> str:
        return " ".join("abcdefg"[: rng.integers(1, 8)] for _ in range(rng.integers(1, 14)))

    examples: list[Any] = []
    for number in range(count):
        name = f"e{number}"
        if isinstance(kind, Choose):
            choices = kind.choices - number % 2
            examples.append(
                Choice(name, text(), tuple(text() for _ in range(choices)), number % choices)
            )
        elif isinstance(kind, Tag):
            sentence = tuple(text().split())
            tags = tuple(TAGS[(number + place) % 3] for place in range(len(sentence)))
            examples.append(Tagged(name, sentence, tags))
        else:
            label = float(number) if isinstance(kind, Regress) else LABELS[number % 3]
            examples.append(Sentences(name, text(), text() if kind.pair else None, label))
    return examples


@each
@max_examples(30)
@given(data=st.data(), idle=st.integers(1, 5))
def test_dummies_and_batch_mates_change_no_logits(
    kind: Any, data: st.DataObject, idle: int
) -> None:
    examples = data.draw(examples_of(kind))
    model = Small(kind)
    tokenized = kind.tokenize(examples, READER)
    together = rows(tokenized, model.predict(batch(tokenized, kind.name, idle=idle)))
    alone = []
    for example in examples:
        tokenized_alone = kind.tokenize([example], READER)
        alone += rows(tokenized_alone, model.predict(batch(tokenized_alone, kind.name)))
    assert len(alone) == len(together) == len(tokenized.groups) - 1
    for mine, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-12)


@each
@max_examples(30)
@given(data=st.data(), idle=st.integers(1, 5))
def test_sums_add_over_examples_and_dummies_count_nothing(
    kind: Any, data: st.DataObject, idle: int
) -> None:
    examples = data.draw(examples_of(kind))
    model = Small(kind)
    whole = model(batch(kind.tokenize(examples, READER), kind.name, idle=idle))
    parts = [model(batch(kind.tokenize([example], READER), kind.name)) for example in examples]
    assert all(value.shape == () for value in whole.values())
    for name, value in whole.items():
        total = sum(sums[name].item() for sums in parts)
        assert value.item() == pytest.approx(total, rel=1e-12, abs=1e-12)


@each
@max_examples(30)
@given(data=st.data(), tokens=st.integers(128, 300))
def test_micro_batches_of_constant_size_give_the_sums_of_one(
    kind: Any, data: st.DataObject, tokens: int
) -> None:
    examples = data.draw(examples_of(kind))
    model, tokenized = Small(kind), kind.tokenize(examples, READER)
    whole = model(batch(tokenized, kind.name))
    most = max(len(kind.tokenize([example], READER).starts) for example in examples)
    room = BatchShape(tokens, most + 10, {kind.name: 45}, READER.length, constant=True)
    parts = [model(part) for part in room.batches(share(tokenized, kind.name))]
    for name, value in whole.items():
        total = sum(sums[name].item() for sums in parts)
        assert value.item() == pytest.approx(total, rel=1e-12, abs=1e-12)


@each
def test_a_blank_micro_batch_gives_nothing_and_finite_gradients(kind: Any) -> None:
    tokenized = kind.tokenize(labelled_examples(kind), READER)
    for constant in (True, False):
        room = BatchShape(64, 4, {kind.name: 5}, READER.length, constant)
        model = Small(kind)
        sums = model(room.collate(share(tokenized, kind.name), slice(0, 0)))
        sums["loss"].backward()
        assert all(value.item() == 0 for value in sums.values())
        for parameter in model.parameters():
            assert parameter.grad is None or not parameter.grad.any()


@each
@max_examples(20)
@given(data=st.data())
def test_blocks_fit_and_targets_lie_in_them(kind: Any, data: st.DataObject) -> None:
    examples = data.draw(examples_of(kind))
    tokenized = kind.tokenize(examples, READER)
    lengths = np.diff(tokenized.starts)
    assert lengths.max() <= READER.length
    assert len(tokenized.targets.starts) == len(tokenized.starts)
    assert (
        tokenized.groups[-1] == len(lengths) and len(tokenized.owners) == len(tokenized.groups) - 1
    )
    assert sorted(set(tokenized.owners.tolist())) == list(range(len(examples)))
    at = tokenized.targets.columns["at"]
    assert (at >= 0).all() and (at < np.repeat(lengths, np.diff(tokenized.targets.starts))).all()
    for values in tokenized.targets.columns.values():
        assert len(values) == tokenized.targets.starts[-1]


@each
@max_examples(20)
@given(data=st.data())
def test_unlabelled_examples_are_ignored_and_predicted_as_the_labelled_are(
    kind: Any, data: st.DataObject
) -> None:
    examples = data.draw(examples_of(kind))
    bare = [
        example._replace(tags=None) if isinstance(example, Tagged) else example._replace(label=None)
        for example in examples
    ]
    tokenized, blank = kind.tokenize(examples, READER), kind.tokenize(bare, READER)
    assert (blank.targets.columns["labels"] == Targets.IGNORED).all()
    model = Small(kind)
    sums = model(batch(blank, kind.name))
    assert all(value.item() == 0 for value in sums.values())
    assert not model.head.labelled(batch(blank, kind.name).targets[kind.name]).any()
    decoded = [
        kind.decode(each, rows(each, model.predict(batch(each, kind.name))), examples)
        for each in (tokenized, blank)
    ]
    assert decoded[0] == decoded[1] and len(decoded[0]) == len(examples)
    with pytest.raises(UserError, match="nothing to score"):
        kind.score(decoded[0], bare)


@each
def test_every_parameter_gets_gradient(kind: Any) -> None:
    model = Small(kind)
    sums = model(batch(kind.tokenize(labelled_examples(kind), READER), kind.name, idle=2))
    sums["loss"].backward()
    for name, parameter in model.head.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
        # What all choices have in common changes nothing between them.
        common = isinstance(kind, Choose) and name == "classifier.bias"
        assert common or parameter.grad.abs().sum() > 1e-9, name


@each
def test_a_fresh_head_knows_nothing(kind: Any) -> None:
    """Its loss is that of a guess: ln C, and of numbers about their mean square."""
    examples = labelled_examples(kind, 60)
    if isinstance(kind, Choose):
        examples = [example for example in examples if len(example.seconds) == kind.choices]
    head = kind.build(256).double().eval()
    micro_batch = batch(kind.tokenize(examples, READER), kind.name)
    states = torch.randn(len(micro_batch.input.ids), 256, dtype=torch.float64)
    sums = head(Encoded(states, None), micro_batch.input, micro_batch.targets[kind.name])
    mean = (sums["loss"] / sums["count"]).item()
    if isinstance(kind, Regress):
        assert mean == pytest.approx(np.mean([example.label**2 for example in examples]), rel=0.2)
    else:
        several = kind.choices if isinstance(kind, Choose) else 3
        assert mean == pytest.approx(log(several), abs=0.2)


@each
@pytest.mark.thorough
def test_a_head_compiles_whole(kind: Any) -> None:
    model = Small(kind)
    micro_batch = batch(kind.tokenize(labelled_examples(kind, 4), READER), kind.name, idle=3)
    encoded, targets = model.encoded(micro_batch), micro_batch.targets[kind.name]
    torch.compiler.reset()
    plain = model.head(encoded, micro_batch.input, targets)
    whole = torch.compile(model.head, backend="eager", fullgraph=True)
    for name, value in whole(encoded, micro_batch.input, targets).items():
        assert value.item() == pytest.approx(plain[name].item(), rel=1e-12)


@each
def test_half_precision_states_give_single_precision_sums(kind: Any) -> None:
    micro_batch = batch(kind.tokenize(labelled_examples(kind), READER), kind.name)
    model = Small(kind)
    exact = model(micro_batch)["loss"].item()
    states = model.encoded(micro_batch).hidden_states.bfloat16()
    loss_sums = model.head.float()(
        Encoded(states, None), micro_batch.input, micro_batch.targets[kind.name]
    )
    assert loss_sums["loss"].dtype == torch.float32
    assert loss_sums["loss"].item() == pytest.approx(exact, rel=0.03)


@each
def test_dropout_is_of_training_alone_and_at_the_rate_told(kind: Any) -> None:
    micro_batch = batch(kind.tokenize(labelled_examples(kind), READER), kind.name)
    for rate in (0.0, 0.5):
        model = Small(replace(kind, dropout=rate))
        model.head.train()
        assert torch.equal(model.predict(micro_batch), model.predict(micro_batch)) == (rate == 0)
        model.head.eval()
        assert torch.equal(model.predict(micro_batch), model.predict(micro_batch))


def test_the_summary_is_the_activation_of_that_name() -> None:
    micro_batch = batch(
        Classify(LABELS).tokenize(labelled_examples(Classify(LABELS)), READER), "classify"
    )
    for name, activate in (("tanh", torch.tanh), ("relu", torch.relu)):
        model = Small(Classify(LABELS, summary=name))  # type: ignore[arg-type]
        states = model.encoded(micro_batch).hidden_states[micro_batch.targets["classify"]["at"]]
        wanted = model.head.classifier(activate(model.head.dense(states)))
        torch.testing.assert_close(model.predict(micro_batch), wanted, rtol=0, atol=1e-12)


def test_dropping_first_drops_before_the_dense_layer() -> None:
    kind = Classify(LABELS, dropout=0.5)
    micro_batch = batch(kind.tokenize(labelled_examples(kind), READER), kind.name)
    for first in (False, True):
        model = Small(replace(kind, drop_first=first))
        seen: list[torch.Tensor] = []
        model.head.dense.register_forward_pre_hook(lambda _, x, seen=seen: seen.append(x[0]))
        model.head.train()
        model.predict(micro_batch)
        assert bool((seen[0] == 0).any()) == first


@each
def test_perfect_predictions_score_100(kind: Any) -> None:
    examples = labelled_examples(kind)
    tokenized = kind.tokenize(examples, READER)
    labels = tokenized.targets.columns["labels"]
    if isinstance(kind, Regress):
        scores = labels[:, None]
    elif isinstance(kind, Choose):
        right = np.repeat(labels[:: kind.choices], kind.choices)
        scores = (np.arange(len(labels)) % kind.choices == right)[:, None] * 9.0
    else:
        scores = np.eye(3)[labels] * 9.0
    outputs = rows(tokenized, torch.from_numpy(scores))
    perfect = kind.score(kind.decode(tokenized, outputs, examples), examples)
    assert perfect == dict.fromkeys(kind.metrics, pytest.approx(100.0))
    assert kind.selects(perfect) == pytest.approx(100.0)


def test_a_pair_is_laid_with_its_marks_and_the_longer_text_is_cut_at_its_end() -> None:
    kind = Classify(LABELS, pair=True)
    reader = FakeReader(length=9, piece=9)
    examples = [
        Sentences("x", "a b", "c", "yes"),
        Sentences("y", "a b c d e f g h", "p q", "no"),
        Sentences("z", "a b c d e f", "p q r s t u", "maybe"),
    ]
    tokenized = kind.tokenize(examples, reader)
    known = {reader.pieces([letter]).columns["ids"][0]: letter for letter in "abcdefghpqrstu"}
    known |= {CLS: "[", SEP: "|"}
    spelled = "".join(known[number] for number in tokenized.columns["ids"])
    assert [spelled[a:b] for a, b in zip(tokenized.starts, tokenized.starts[1:], strict=False)] == [
        "[ab|c|",
        "[abcd|pq|",
        "[abc|pqr|",
    ]
    assert tokenized.targets.columns["labels"].tolist() == [1, 0, 2]
    assert tokenized.counts.numbers == {"texts truncated to the maximum length": 2}
    assert tokenized.counts.places == {"texts truncated to the maximum length": "example y"}


def test_a_pair_is_truncated_as_in_berts_code() -> None:
    sizes = [(first, second) for first in range(1, 12) for second in range(1, 12)]
    texts = [Sentences("x", " ".join("a" * a), " ".join("b" * b), "yes") for a, b in sizes]
    for length in range(5, 14):
        reader = FakeReader(length=length, piece=9)
        a, b = (reader.pieces([letter]).columns["ids"][0] for letter in "ab")
        tokenized = Classify(LABELS, pair=True).tokenize(texts, reader)
        blocks = np.split(tokenized.columns["ids"], tokenized.starts[1:-1])
        for (first, second), block in zip(sizes, blocks, strict=True):
            while first + second > length - 3:  # BERT's _truncate_seq_pair
                if first > second:
                    first -= 1
                else:
                    second -= 1
            assert ((block == a).sum(), (block == b).sum()) == (first, second)


def test_the_slot_is_at_the_mark_wherever_that_is() -> None:
    kind = Regress()
    for last in (False, True):
        tokenized = kind.tokenize([Sentences("x", "a b c", None, 0.5)], FakeReader(mark_last=last))
        assert tokenized.columns["ids"][tokenized.targets.columns["at"][0]] == CLS
        assert tokenized.targets.columns["at"][0] == (4 if last else 0)


def test_the_mean_is_over_every_token_of_the_block_and_no_other() -> None:
    kind = Classify(LABELS, pool="mean", summary="none")
    head = kind.build(WIDTH).double().eval()
    tokenized = kind.tokenize(labelled_examples(kind), READER)
    micro_batch = batch(tokenized, kind.name, idle=3)
    states = torch.randn(len(micro_batch.input.ids), WIDTH, dtype=torch.float64)
    predictions = head.predict(
        Encoded(states, None), micro_batch.input, micro_batch.targets[kind.name]
    )
    for number, (first, last) in enumerate(
        zip(tokenized.starts, tokenized.starts[1:], strict=False)
    ):
        wanted = head.classifier(states[first:last].mean(0))
        torch.testing.assert_close(predictions[number], wanted, rtol=0, atol=1e-12)


def test_padding_inside_dense_rows_is_no_part_of_the_mean() -> None:
    kind = Classify(LABELS, pool="mean", summary="none")
    head = kind.build(WIDTH).double().eval()
    micro_batch = batch(
        kind.tokenize([Sentences("x", "a b c d", None, "no")] * 3, READER), kind.name
    )
    seen = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]]).bool()
    states = torch.randn(18, WIDTH, dtype=torch.float64)
    padded = micro_batch.input._replace(dense=True, attention_mask=seen)
    predictions = head.predict(Encoded(states, None), padded, micro_batch.targets[kind.name])
    for number, size in enumerate((6, 3, 5)):
        wanted = head.classifier(states[6 * number : 6 * number + size].mean(0))
        torch.testing.assert_close(predictions[number], wanted, rtol=0, atol=1e-12)


def test_the_loss_of_a_number_is_its_squared_error_on_its_own_scale() -> None:
    kind = Regress()
    examples = [Sentences("x", "a", None, -2.75), Sentences("y", "b"), Sentences("z", "c", None, 5)]
    tokenized = kind.tokenize(examples, READER)
    model, micro_batch = Small(kind), batch(tokenized, kind.name, idle=2)
    values = model.predict(micro_batch)[:, 0]
    sums = model(micro_batch)
    wanted = (values[0] + 2.75) ** 2 + (values[2] - 5) ** 2
    assert sums["loss"].item() == pytest.approx(wanted.item(), rel=1e-12)
    assert sums["count"].item() == 2 and "correct" not in sums


def test_a_number_that_means_no_label_is_still_a_number() -> None:
    tokenized = Regress().tokenize([Sentences("x", "a", None, float(Targets.IGNORED))], READER)
    value = tokenized.targets.columns["labels"][0]
    assert value == pytest.approx(-100, abs=1e-4) and np.float32(value) != -100


def test_scores_are_over_the_examples_that_have_a_label() -> None:
    kind = Classify(("no", "yes"), metrics=("accuracy", "f1"), positive="yes")
    truth = ["yes", "yes", "no", None, "no"]
    guesses = ["yes", "no", "no", "yes", "yes"]
    examples = [Sentences(str(n), "a", None, label) for n, label in enumerate(truth)]
    scores = kind.score([Class(label, {}) for label in guesses], examples)
    assert scores == {"accuracy": pytest.approx(50.0), "f1": pytest.approx(50.0)}
    assert kind.selects({"accuracy": 80.0, "f1": 90.0}) == pytest.approx(85.0)
    constant = Classify(LABELS, metrics=("matthews", "macro_f1"))
    same = constant.score([Class("no", {})] * 3, labelled_examples(constant, 3))
    assert same["matthews"] == 0 and same["macro_f1"] == pytest.approx(100 / 6)
    twice = Regress().score(
        [Number(2.0), Number(4.0), Number(3.0)], labelled_examples(Regress(), 3)
    )
    assert twice == {"pearson": pytest.approx(50.0), "spearman": pytest.approx(50.0)}


def test_probabilities_are_those_of_the_logits_by_name() -> None:
    kind = Classify(LABELS)
    examples = labelled_examples(kind, 2)
    outputs = [np.log([[0.2, 0.5, 0.3]]), np.array([[900.0, -900.0, 900.5]], dtype=np.float32)]
    first, second = kind.decode(kind.tokenize(examples, READER), outputs, examples)
    assert first.label == "yes" and second.label == "maybe"
    assert first.probabilities == pytest.approx({"no": 0.2, "yes": 0.5, "maybe": 0.3})
    assert sum(second.probabilities.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Classify(("a",)), "labels"),
        (lambda: Classify(("a", "a")), "labels"),
        (lambda: Classify(("a", "b"), metrics=("f1",)), "positive"),
        (lambda: Classify(("a", "b"), positive="c"), "positive"),
        (lambda: Classify(("a", "b"), metrics=("pearson",)), "metrics"),
        (lambda: Classify(("a", "b"), metrics=()), "metrics"),
        (lambda: Classify(("a", "b"), summary="silu"), "summary"),  # type: ignore[arg-type]
        (lambda: Regress(pool="max"), "pool"),  # type: ignore[arg-type]
        (lambda: Regress(dropout=1.0), "dropout"),
        (lambda: Choose(1), "choices"),
        (lambda: Choose(4, limit=0), "limit"),
        (lambda: Tag(("O",)), "tags"),
        (lambda: Tag(TAGS, scheme="iob3"), "scheme"),  # type: ignore[arg-type]
        (lambda: Classify(LABELS).tokenize([Sentences("17", "a", None, "nay")], READER), "17.*nay"),
        (
            lambda: Classify(LABELS).tokenize([Sentences("17", "a", "b", "no")], READER),
            "17.*two texts",
        ),
        (lambda: Regress(pair=True).tokenize([Sentences("17", "a")], READER), "17.*one text"),
        (lambda: Regress().tokenize([Sentences("17", "a", None, "b")], READER), "17.*not a number"),
        (lambda: Regress().tokenize([Sentences("17", "a", None, float("nan"))], READER), "17.*nan"),
        (lambda: Choose(2).tokenize([Choice("17", "a", ())], READER), "17 has 0"),
        (lambda: Choose(2).tokenize([Choice("17", "a", ("b",) * 3)], READER), "17 has 3"),
        (lambda: Choose(2).tokenize([Choice("17", "a", ("b",), 1)], READER), "17.*choice 1"),
        (
            lambda: Tag(TAGS).tokenize([Tagged("17", ("a",), ("O", "O"))], READER),
            "17.*1 words and 2",
        ),
        (lambda: Tag(TAGS).tokenize([Tagged("17", ("a",), ("B-LOC",))], READER), "17.*B-LOC"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is(make: Any, word: str) -> None:
    with pytest.raises(UserError, match=word):
        make()


def test_a_constant_answer_is_the_most_frequent_class_a_guess_or_no_correlation() -> None:
    labelled = [
        Sentences(str(n), "a", None, label) for n, label in enumerate(["yes", "no", "yes", None])
    ]
    kind = Classify(LABELS, metrics=("accuracy", "macro_f1", "matthews"))
    assert kind.constant(labelled) == pytest.approx(
        {"accuracy": 200 / 3, "macro_f1": 40.0, "matthews": 0.0}
    )
    assert kind.constant([labelled[-1]]) == {}
    assert Regress().constant([]) == {"pearson": 0.0, "spearman": 0.0}
    choices = [Choice("x", "a", ("b", "c"), 0), Choice("y", "a", ("b", "c", "d", "e"), 1)]
    assert Choose().constant(choices) == pytest.approx({"accuracy": 37.5})
    assert Tag(TAGS).constant([]) == {}


def test_a_constant_answer_is_no_entity_no_answer_and_no_cluster() -> None:
    tagged = [Tagged("0", ("in", "Rome", "now"), ("O", "B-LOC", "O")), Tagged("1", ("x",))]
    kind = Tag(("O", "B-LOC"), metrics=("f1", "accuracy"))
    assert kind.constant(tagged) == pytest.approx({"f1": 0.0, "accuracy": 200 / 3})
    asked = Question("0", "Who?", "Ada did.", (GoldAnswer("Ada", 0),))
    scores = Answer().constant([asked])
    assert (scores["exact"], scores["f1"]) == (0.0, 0.0)
    scores = Answer(impossible=True).constant([asked, asked._replace(answers=())])
    assert (scores["exact"], scores["f1"]) == (50.0, 50.0)
    document = Document("0", (("Ada", "said", "she"),), ((Mention(0, 0), Mention(2, 2)),))
    assert Coreference().constant([document])["conll"] == 0.0
