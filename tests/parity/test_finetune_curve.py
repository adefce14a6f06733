"""Fine-tuning beside transformers: an imported checkpoint has the same loss at every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from support.pretrain_runs import HERE, MACHINE
from torch import Tensor

from clozelab import data
from clozelab.contracts import Batch, Targets
from clozelab.finetuning.inputs import inputs_for
from clozelab.finetuning.request import Data, FinetuneRequest
from clozelab.finetuning.trial import Trial
from clozelab.models.interop.exporting import to_transformers
from clozelab.models.interop.heads import TaskHead, summary
from clozelab.text.vocabulary import describe
from clozelab.training.loop import train

torch.set_num_threads(1)

LENGTH, RATE, WARMUP, DECAY, EPSILON = 24, 1e-2, 5, 0.1, 1e-6
SETTINGS = (
    *(f"length={LENGTH}", f"learning_rate={RATE}", f"warmup_steps={WARMUP}", "shape=linear"),
    *("batch_size=8", "optimiser=adamw", "betas=[0.9, 0.98]", f"epsilon={EPSILON}", "clip=1.0"),
    *(f"decay={DECAY}", "layer_decay=1.0", "dropout=0.0", "attention_dropout=0.0"),
    "head_dropout=0.0",
)
SHAPE: dict[str, Any] = {
    "vocab_size": 8000,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.1,
}
OWN = {
    "bert": {"max_position_embeddings": 64, "pad_token_id": 0},
    "roberta": {
        **{"max_position_embeddings": 66, "pad_token_id": 1, "type_vocab_size": 1},
        **{"layer_norm_eps": 1e-5, "bos_token_id": 0, "eos_token_id": 2},
    },
}
STEMS = {"bert": "Bert", "roberta": "Roberta"}
MARKS = {
    "bert": ("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"),
    "roberta": ("<unk>", "<pad>", "<s>", "</s>", "<mask>"),
}
ROLES = ("unk_token", "pad_token", "cls_token", "sep_token", "mask_token")
TOKENIZERS = {"bert": "wordpiece", "roberta": "byte_bpe"}
CLASSES = {
    "classify": "ForSequenceClassification",
    "tag": "ForTokenClassification",
    "answer": "ForQuestionAnswering",
}
FILES = {"classify": "definitions", "pairs": "pairs", "tag": "tags", "answer": "spans"}


def peer(family: str, kind: str, **more: Any) -> Any:
    """A tiny model of transformers with random weights."""
    stem = STEMS[family]
    torch.manual_seed(3)
    config = getattr(transformers, f"{stem}Config")(**SHAPE, **OWN[family], **more)
    return getattr(transformers, f"{stem}{CLASSES[kind]}")(config)


@pytest.fixture(scope="module", params=["bert", "roberta"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder such as transformers saves: a classifier and its tokenizer."""
    family: str = request.param
    folder = tmp_path_factory.mktemp("peers") / family
    peer(family, "classify").save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(data.tokenizer(TOKENIZERS[family])),
        **dict(zip(ROLES, MARKS[family], strict=True)),
    ).save_pretrained(folder)
    return folder


def trial(folder: Path, task: str, *, steps: int) -> Trial:
    """A fine-tuning of what lies in a folder, on few examples, so that it is soon seen to learn."""
    file = data.task(FILES[task], "train")
    if task in ("classify", "pairs"):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        file = folder / f"{task}.tsv"
        file.write_text("".join(lines[:61]), encoding="utf-8")
    data_spec = Data(task, train=str(file), dev=str(file))
    order = FinetuneRequest(str(folder), data_spec, settings=(*SETTINGS, f"steps={steps}"))
    return Trial(inputs_for(order), MACHINE, HERE)


@dataclass
class Peer:
    """A model of transformers that learns as the protocol says."""

    model: Any
    kind: str
    steps: int

    def __post_init__(self) -> None:
        bare = [p for n, p in self.model.named_parameters() if "LayerNorm" in n or "bias" in n]
        rest = [p for p in self.model.parameters() if not any(p is parameter for parameter in bare)]
        groups = [{"params": rest, "weight_decay": DECAY}, {"params": bare, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98), eps=EPSILON)
        self.schedule = transformers.get_linear_schedule_with_warmup(
            self.optimiser, WARMUP, self.steps
        )
        self.model.train()

    def step(self, batches: list[Batch]) -> float:
        """Learn from a step's blocks as padded rows; the loss before."""
        self.optimiser.zero_grad()
        loss = self.loss(batches)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.schedule.step()
        return loss.item()

    def loss(self, batches: list[Batch]) -> Tensor:
        """The mean over a step; of answers one by one, since there padding has logits as well."""
        if self.kind == "answer":
            rows = [row for batch in batches for row in self.rows(batch, together=False)]
            return torch.stack([self.model(**row).loss for row in rows]).mean()
        (batch,) = batches
        (row,) = self.rows(batch, together=True)
        loss: Tensor = self.model(**row).loss
        return loss

    def rows(self, batch: Batch, *, together: bool) -> Iterator[dict[str, Tensor]]:
        """Blocks filled up on the right, all in one table, or each alone."""
        inputs, targets = batch.input, batch.targets[self.kind]
        starts = inputs.cu_seqlens.tolist()
        blocks = list(zip(starts[:-1], starts[1:], strict=True))
        for some in [blocks] if together else [[block] for block in blocks]:
            longest = max(stop - first for first, stop in some)
            shape = (len(some), longest)
            ids = torch.full(shape, self.model.config.pad_token_id)
            seen, types = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
            labels = torch.full(shape, Targets.IGNORED)
            ends: dict[str, Tensor] = {}
            for row, (first, stop) in enumerate(some):
                ids[row, : stop - first] = inputs.ids[first:stop]
                seen[row, : stop - first] = 1
                types[row, : stop - first] = inputs.segments[first:stop]
                for slot, at in enumerate(targets["at"].tolist()):
                    if first <= at < stop:
                        labels[row, at - first] = targets["labels"][slot]
                        for name, column in (("start", "left"), ("end", "right")):
                            if column in targets:
                                place = targets[column][slot : slot + 1] - first
                                ends[f"{name}_positions"] = place
            columns = {"input_ids": ids, "attention_mask": seen, "token_type_ids": types}
            if self.kind == "answer":
                yield {**columns, **ends}
            else:
                yield {**columns, "labels": labels[:, 0] if self.kind == "classify" else labels}


def beside(own_trial: Trial, folder: Path, steps: int) -> Peer:
    """The class of transformers with all the weights of a trial."""
    kind: Any = own_trial.kind
    labels = getattr(kind, "labels", getattr(kind, "tags", ()))
    shape: Any = own_trial.inputs.recipe.encoder
    head = TaskHead(kind.name, labels, summary=summary(folder.name, kind.name), dropout=0.0)
    exported = to_transformers(
        shape,
        {name: value.detach().clone() for name, value in own_trial.model.named_parameters()},
        vocabulary=describe(own_trial.inputs.tokenizer),
        length=shape.positions,
        task=head,
    )
    model = peer(folder.name, kind.name, num_labels=max(len(labels), 2))
    missing, unknown = model.load_state_dict(dict(exported.tensors), strict=False)
    assert not unknown and not [name for name in missing if "position_ids" not in name]
    return Peer(model, kind.name, steps)


def curves(own_trial: Trial, other: Peer, steps: int) -> list[tuple[float, float]]:
    """Every step's mean loss, ours and theirs."""
    prepared = [own_trial.prepare(step) for step in range(steps)]
    mine = []
    for step in train(own_trial.train_state, prepared, HERE):
        sums = step.sums[own_trial.kind.name]
        mine.append(sums["loss"] / sums["count"])
    return list(
        zip(
            mine,
            (other.step(list(prepared_step.batches)) for prepared_step in prepared),
            strict=True,
        )
    )


def apart(losses: list[tuple[float, float]]) -> float:
    """The most by which the losses of a step differ."""
    return max(abs(mine - theirs) for mine, theirs in losses)


def test_a_checkpoint_learns_to_classify_as_it_does_in_transformers(checkpoint: Path) -> None:
    steps = 50
    ours = trial(checkpoint, "classify", steps=steps)
    other = beside(ours, checkpoint, steps)
    # What both begin with is what the file holds.
    for name, value in load_file(checkpoint / "model.safetensors").items():
        if ".encoder.layer" in name or "embeddings." in name:
            assert torch.equal(other.model.state_dict()[name], value), name
    losses = curves(ours, other, steps)
    assert len(losses) == steps and apart(losses) < 1e-4
    first, last = (sum(mine for mine, _ in part) for part in (losses[:8], losses[-8:]))
    assert last < 0.8 * first, "both learned"
    batch = ours.prepare(0).batches[0]
    ours.model.eval()
    with torch.no_grad():
        encoded = ours.model.vectors(batch.input)
        (logits,) = ours.model.head.logits(encoded, batch.input, batch.targets["classify"])
        (row,) = other.rows(batch, together=True)
        torch.testing.assert_close(other.model.eval()(**row).logits, logits, rtol=0, atol=2e-3)


@pytest.mark.parametrize("task", ["pairs", "tag", "answer"])
def test_other_kinds_of_tasks_learn_alike_for_a_dozen_steps(checkpoint: Path, task: str) -> None:
    steps = 12
    ours = trial(checkpoint, task, steps=steps)
    losses = curves(ours, beside(ours, checkpoint, steps), steps)
    assert apart(losses) < 1e-4
    assert losses[0] != losses[-1]
