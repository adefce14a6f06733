"""transformers' own Trainer as a contender, with its default settings and its own masks."""

from __future__ import annotations

from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

import torch

from clozelab.benching.laps import Lap
from clozelab.benching.padding import whole_rows
from clozelab.benching.theirs import opened
from clozelab.models.interop.exporting import Exported
from clozelab.runs.machine import now
from clozelab.text.store import Corpus
from clozelab.training.loop import Prepared


class Trained:
    """A model that the Trainer goes on with turn by turn, on the blocks of prepared steps."""

    name = "Trainer"

    def __init__(self, model: Exported, corpus: Corpus, *, device: torch.device) -> None:
        from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

        roles = {k: n for k, n in corpus.vocabulary.roles.items() if k != "eod"}
        names = {f"{role}_token": corpus.tokenizer.id_to_token(n) for role, n in roles.items()}
        tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=corpus.tokenizer, **names
        )
        self.collate = DataCollatorForLanguageModeling(tokenizer)
        self.model, self.device = opened(model), device

    def lap(self, prepared: Sequence[Prepared]) -> Lap:
        """A turn over the blocks of prepared steps, in an order and with masks of its own."""
        rows = [
            {"input_ids": row}
            for one in prepared
            for batch in one.batches
            for row in whole_rows(batch)
        ]
        parts = len(prepared[0].batches)
        tokens: list[int] = []  # of each micro-batch

        def collate(batch: list[dict[str, list[int]]]) -> Any:
            tokens.append(sum(len(row["input_ids"]) for row in batch))
            return self.collate(batch)

        many = -(-len(rows) // (parts * len(prepared)))
        times = self._train(rows, collate, steps=len(prepared), parts=parts, many=many)
        return Lap(sum(tokens[parts : parts * len(prepared)]), times[-1] - times[0])

    def _train(
        self, rows: list[Any], collate: Any, *, steps: int, parts: int, many: int
    ) -> list[float]:
        """When each step was done."""
        from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

        times: list[float] = []
        device = self.device

        class Clock(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                times.append(now(device))

        with TemporaryDirectory() as folder:
            settings = TrainingArguments(
                output_dir=folder,
                max_steps=steps,
                per_device_train_batch_size=many,
                gradient_accumulation_steps=parts,
                use_cpu=device.type == "cpu",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            )
            trainer = Trainer(
                model=self.model,
                args=settings,
                train_dataset=rows,
                data_collator=collate,
                callbacks=[Clock()],
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        return times
