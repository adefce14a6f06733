"""Distillation: the losses against a teacher, and where a student starts (cards G1, G2)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.masked_blocks import make_blocks
from support.objective_cases import Shape, complete
from torch import Tensor, nn

from clozelab.contracts import Encoded, Input, Sums, Targets
from clozelab.encoder.transformer import Transformer
from clozelab.errors import UserError
from clozelab.masking.words import SpanMasking
from clozelab.objectives.distillation import Distillation
from clozelab.objectives.heads import chunks
from clozelab.objectives.heads.teacher import start_from
from clozelab.objectives.heads.vocabulary import VocabularyHead

torch.set_num_threads(1)
V, N = 23, 31
SHAPE = Shape(hidden_size=8, embedding_size=6)


def side(seed: int, shape: Shape = SHAPE) -> tuple[Encoded, VocabularyHead]:
    """States and a masked_lm head, made lively enough to have opinions."""
    torch.manual_seed(seed)
    head = VocabularyHead(shape, V).double()
    nn.init.normal_(head.dense.weight)
    states = torch.randn(N, shape.hidden_size, dtype=torch.float64, requires_grad=True)
    table = torch.randn(V, shape.embedding_size, dtype=torch.float64, requires_grad=True)
    return Encoded(states, table), head


def slots(count: int = N, idle: int = 0) -> dict[str, Tensor]:
    at = torch.cat([torch.arange(count), torch.zeros(idle, dtype=torch.long)])
    labels = torch.cat([torch.ones(count), torch.full((idle,), float(Targets.IGNORED))]).long()
    return {"at": at, "labels": labels}


def taught(
    part: Distillation,
    student: tuple[Encoded, VocabularyHead],
    teacher: tuple[Encoded, VocabularyHead],
    targets: dict[str, Tensor] | None = None,
) -> Sums:
    head = part.build(SHAPE, V).double()
    sums: Sums = head(
        student[0],
        teacher[0],
        slots() if targets is None else targets,
        predict=student[1].logits,
        teach=teacher[1].logits,
    )
    return sums


def test_student_and_teacher_meet_at_every_token_or_at_the_hidden_ones() -> None:
    case = complete(make_blocks([[1, 2, 1, 4] * 5, [3, 1]]), SpanMasking(mask_rate=0.3))
    blocks, at = case.blocks, case.hidden.positions
    every = case.targets(Distillation())
    assert every.starts.tolist() == blocks.starts.tolist()
    assert every.columns["at"].tolist() == blocks.positions.tolist()
    assert every.columns["labels"].tolist() == blocks.ids.tolist()
    hidden = case.targets(Distillation(over="targets"))
    assert hidden.columns["at"].tolist() == blocks.positions[at].tolist()
    assert hidden.columns["labels"].tolist() == blocks.ids[at].tolist()
    assert every.columns.keys() == hidden.columns.keys() == {"at", "labels"}


def test_a_student_like_its_teacher_has_nothing_to_learn() -> None:
    sums = taught(Distillation(), side(1), side(1))
    for name in ("loss", "soft", "cosine"):
        assert abs(sums[name].item()) < 1e-12
    assert sums["count"] == N


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_the_losses_are_those_of_the_card(temperature: float) -> None:
    (mine, predict), (theirs, teach) = side(1), side(2)
    part = Distillation(temperature=temperature, soft=5.0, cosine=0.25)
    sums = taught(part, (mine, predict), (theirs, teach), slots(20, idle=4))
    soft, cosine = 0.0, 0.0
    for row in range(20):
        s, t = mine.hidden_states[row], theirs.hidden_states[row]
        p = (teach.logits(t[None], theirs.table)[0] / temperature).softmax(0)
        q = (predict.logits(s[None], mine.table)[0] / temperature).softmax(0)
        soft += temperature**2 * (p * (p / q).log()).sum().item()
        cosine += 1 - (s @ t / s.norm() / t.norm()).item()
    assert sums["soft"].item() == pytest.approx(soft, rel=1e-10)
    assert sums["cosine"].item() == pytest.approx(cosine, rel=1e-10)
    assert sums["loss"].item() == pytest.approx(5.0 * soft + 0.25 * cosine, rel=1e-10)
    assert sums["count"] == 20
    assert soft > 0 and cosine > 0


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
def test_no_row_is_ever_better_than_equal(seed: int) -> None:
    for row in range(N):
        targets = {"at": torch.tensor([row]), "labels": torch.tensor([0])}
        sums = taught(Distillation(), side(seed), side(seed + 50), targets)
        assert sums["soft"] >= 0
        assert 0 <= sums["cosine"] <= 2


def test_the_teacher_gets_no_gradient_and_the_student_both_kinds() -> None:
    student, teacher = side(1), side(2)
    taught(Distillation(), student, teacher)["loss"].backward()
    assert teacher[0].hidden_states.grad is None
    assert teacher[0].table is not None and teacher[0].table.grad is None
    assert all(parameter.grad is None for parameter in teacher[1].parameters())
    for value in (student[0].hidden_states, student[0].table, *student[1].parameters()):
        assert value is not None and value.grad is not None and value.grad.any()


def test_a_weight_of_nothing_removes_its_term_exactly() -> None:
    grads = []
    for part in (Distillation(soft=0.0), Distillation(cosine=0.0), Distillation()):
        student = side(1)
        taught(part, student, side(2))["loss"].backward()
        grads.append((student[0].hidden_states.grad, student[1].dense.weight.grad))
    assert grads[0][1] is None  # the states alone: no logits, so no head
    both = 0
    for states, _ in grads[:2]:
        assert states is not None
        both = both + states
    assert torch.allclose(both, grads[2][0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 4, 30, 31])
def test_stretches_change_no_sum_and_no_gradient(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    results = []
    for size in (10**9, rows * V):
        monkeypatch.setattr(chunks, "LOGITS", size)
        student = side(1)
        sums = taught(Distillation(), student, side(2), slots(N, idle=5))
        sums["loss"].backward()
        encoded, head = student
        assert encoded.table is not None
        grads = [
            encoded.hidden_states.grad,
            encoded.table.grad,
            *(p.grad for p in head.parameters()),
        ]
        results.append([*sums.values(), *grads])
    for first, second in zip(*results, strict=True):
        assert torch.allclose(first, second, rtol=1e-12, atol=1e-12)


@pytest.mark.thorough
def test_stretches_compile_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "LOGITS", 8 * V)
    torch.compiler.reset()
    results = []
    for compiled in (False, True):
        student, teacher, targets = side(1), side(2), slots(N, idle=1)
        head = Distillation().build(SHAPE, V).double()
        call = torch.compile(head, backend="aot_eager", fullgraph=True) if compiled else head
        loss = call(
            student[0], teacher[0], targets, predict=student[1].logits, teach=teacher[1].logits
        )["loss"]
        loss.backward()
        results.append((loss.detach(), student[0].hidden_states.grad))
    for first, second in zip(*results, strict=True):
        assert torch.allclose(first, second, rtol=1e-10)


def test_a_student_of_another_width_is_projected_for_the_angle_alone() -> None:
    wide = Shape(hidden_size=12, embedding_size=6)
    (mine, predict), (theirs, teach) = side(1), side(2, wide)
    head = Distillation().build(SHAPE, V, teacher_width=12).double()
    sums = head(mine, theirs, slots(), predict=predict.logits, teach=teach.logits)
    sums["loss"].backward()
    assert head.projection.weight.shape == (12, 8)
    assert head.projection.weight.grad.any()
    plain = Distillation(cosine=0.0).build(SHAPE, V, teacher_width=12).double()
    again = plain(mine, theirs, slots(), predict=predict.logits, teach=teach.logits)
    assert again["soft"].item() == pytest.approx(sums["soft"].item(), rel=1e-12)
    assert not list(Distillation().build(SHAPE, V, teacher_width=8).parameters())


# Where a student starts


@pytest.mark.parametrize(
    ("teacher", "student", "layers"),
    [
        (12, 6, (0, 2, 4, 7, 9, 11)),
        (24, 12, (0, 2, 4, 6, 8, 10, 13, 15, 17, 19, 21, 23)),
        (12, 3, (0, 6, 11)),
        (12, 1, (0,)),
        (4, 4, (0, 1, 2, 3)),
    ],
)
def test_layers_are_spread_evenly(teacher: int, student: int, layers: tuple[int, ...]) -> None:
    assert Distillation().layer_choice(teacher, student) == layers


def test_layers_may_be_listed_or_left_to_chance() -> None:
    listed = Distillation(start="listed", layers=(1, 5))
    assert listed.layer_choice(6, 2) == (1, 5)
    assert Distillation(start="random").layer_choice(6, 9) == ()
    with pytest.raises(UserError, match="0 to 4"):
        listed.layer_choice(5, 2)
    with pytest.raises(UserError, match="must be 3"):
        listed.layer_choice(6, 3)
    with pytest.raises(UserError, match="teacher of 2"):
        Distillation().layer_choice(2, 3)


TEACHER = Transformer(
    layers=4,
    heads=2,
    hidden_size=8,
    intermediate_size=16,
    embedding_size=8,
    positions=12,
    dropout=0,
    attention_dropout=0,
)


class Model(nn.Module):
    def __init__(self, shape: Transformer, seed: int, *, vocabulary: int = V) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.shape = shape
        self.encoder = shape.build(vocabulary)
        self.heads = nn.ModuleDict({"masked_lm": VocabularyHead(shape, vocabulary)})
        self.heads["sentence_order"] = nn.Linear(2, 2)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5)
        self.double()

    def start(self, teacher: Model, *, choice: tuple[int, ...] | None = None) -> dict[str, Tensor]:
        layers = Distillation().layer_choice(teacher.shape.layers, self.shape.layers)
        state = start_from(
            teacher.state_dict(),
            self.state_dict(),
            choice=choice or layers,
            teacher=teacher.shape,
            student=self.shape,
        )
        self.load_state_dict(state)
        return state

    def logits(self) -> Tensor:
        batch = Input(
            ids=torch.arange(19) % V,
            position_ids=torch.cat([torch.arange(12), torch.arange(7)]),
            segments=torch.zeros(19, dtype=torch.long),
            cu_seqlens=torch.tensor([0, 12, 19], dtype=torch.int32),
            max_seqlen=12,
        )
        encoded: Encoded = self.encoder(batch)
        logits: Tensor = self.heads["masked_lm"].logits(encoded.hidden_states, encoded.table)  # type: ignore[operator]
        return logits


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre"},
        {"embedding_size": 6, "position_offset": 2},
        {"sharing": "all", "groups": 2},
        {"sharing": "attention"},
        {"norm": "pre", "gated": True, "bias": False, "qk_norm": True, "normalisation": "rms"},
    ],
)
def test_a_student_as_deep_as_its_teacher_starts_as_its_equal(changes: dict[str, object]) -> None:
    shape = replace(TEACHER, **changes)  # type: ignore[arg-type]
    teacher = Model(shape, 1)
    unshared = replace(shape, sharing="none", groups=1)
    for other in (unshared, replace(unshared, types=0), replace(shape, types=0)):
        student = Model(other, 2)
        student.start(teacher)
        assert torch.allclose(student.logits(), teacher.logits(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("positions", ["alibi", "rotary"])
def test_types_are_folded_into_tokens_where_positions_have_no_table(positions: str) -> None:
    shape = replace(TEACHER, position_embedding=positions)
    teacher, student = Model(shape, 1), Model(replace(shape, types=0), 2)
    student.start(teacher)
    mine, others = (model.logits().log_softmax(-1) for model in (student, teacher))
    assert torch.allclose(mine, others, rtol=0, atol=1e-9)


def test_types_are_folded_into_positions() -> None:
    teacher, bare = Model(TEACHER, 1), replace(TEACHER, types=0)
    student = Model(bare, 2)
    positions = "encoder.embeddings.positions.weight"
    folded = student.start(teacher)[positions]
    types = teacher.state_dict()["encoder.embeddings.types.weight"]
    assert torch.equal(folded, teacher.state_dict()[positions] + types[0])


def test_the_chosen_layers_are_copied_bit_for_bit_and_the_rest_stays() -> None:
    teacher, student = Model(TEACHER, 1), Model(replace(TEACHER, layers=2, positions=9), 2)
    before = {name: value.clone() for name, value in student.state_dict().items()}
    state, theirs = student.start(teacher, choice=(1, 3)), teacher.state_dict()
    for name, value in state.items():
        if name.startswith("heads.sentence_order"):
            assert torch.equal(value, before[name])
            continue
        source = theirs[name.replace(".1.", ".3.").replace(".0.", ".1.")]
        assert torch.equal(value, source[: len(value)]), name
        assert value.shape == before[name].shape
        assert value.data_ptr() != source.data_ptr()


def test_a_student_that_shares_layers_starts_each_copy_from_its_first_use() -> None:
    student = Model(replace(TEACHER, sharing="ffn", groups=2), 2)
    teacher = Model(TEACHER, 1)
    state, theirs = student.start(teacher), teacher.state_dict()
    for copy, layer in ((0, 0), (1, 2)):
        source = theirs[f"encoder.ffn.{layer}.inner.weight"]
        assert torch.equal(state[f"encoder.ffn.{copy}.inner.weight"], source)


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        (
            {"hidden_size": 12, "heads": 2, "embedding_size": 12},
            "hidden_size is 12 and the teacher's 8",
        ),
        ({"intermediate_size": 20}, "intermediate_size is 20 and the teacher's 16"),
        ({"embedding_size": 4}, "embedding_size is 4 and the teacher's 8"),
        ({"heads": 4}, "heads is 4 and the teacher's 2"),
        ({"norm": "pre"}, "norm is pre and the teacher's post"),
        ({"bias": False}, "bias is False and the teacher's True"),
        (
            {"position_embedding": "rotary"},
            "position_embedding is rotary and the teacher's learned",
        ),
        ({"gated": True}, "gated is True and the teacher's False"),
        ({"positions": 20}, "20 positions and the teacher only 12"),
    ],
)
def test_a_student_of_another_size_cannot_start_from_its_teacher(
    changes: dict[str, object], phrase: str
) -> None:
    student = Model(replace(TEACHER, **changes), 2)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=phrase):
        student.start(Model(TEACHER, 1))


def test_a_student_with_another_vocabulary_cannot_start_from_its_teacher() -> None:
    student = Model(TEACHER, 2, vocabulary=V + 1)
    with pytest.raises(UserError, match=f"vocabulary is {V + 1} and the teacher's {V}"):
        student.start(Model(TEACHER, 1))
