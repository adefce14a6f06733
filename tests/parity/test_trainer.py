"""What README says of transformers' Trainer; if it is corrected there, README has to be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    Trainer,
    TrainingArguments,
)

SHAPE = {
    **{"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"intermediate_size": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}


def model(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if family == "bert":
        return BertForMaskedLM(BertConfig(**SHAPE))
    return RobertaForMaskedLM(RobertaConfig(**SHAPE))


def gradient_norm(family: str, folder: Path, *, micro_batches: int) -> float:
    """The norm of the gradient of one step of eight blocks, in so many micro-batches."""
    numbers = torch.randint(0, 50, (8, 2, 8), generator=torch.Generator().manual_seed(1))
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=8 // micro_batches,
        gradient_accumulation_steps=micro_batches,
        max_steps=1,
        max_grad_norm=1e9,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    examples = [{"input_ids": ids, "labels": labels} for ids, labels in numbers]
    trainer = Trainer(model(family), arguments, train_dataset=examples)
    trainer.train()
    return next(row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_four_micro_batches_have_four_times_the_gradient_there(family: str, tmp_path: Path) -> None:
    whole = gradient_norm(family, tmp_path, micro_batches=1)
    split = gradient_norm(family, tmp_path, micro_batches=4)
    assert split == pytest.approx(4 * whole, rel=1e-4)
