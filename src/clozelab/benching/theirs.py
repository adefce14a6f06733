"""transformers as a contender, with the same weights: its class in a plain loop, or its Trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from clozelab.benching.ours import Lap
from clozelab.benching.padding import padded, whole_rows
from clozelab.contracts import Vocabulary
from clozelab.errors import UserError
from clozelab.models.build import build
from clozelab.models.interop.exporting import Exported, to_transformers
from clozelab.pretraining.job import PretrainJob
from clozelab.runs.machine import now
from clozelab.text.store import Corpus
from clozelab.training.loop import Prepared

_PEERS = ("transformers",)


def check(peer: str | None) -> None:
    """Refuse a peer that is unknown or not installed."""
    if peer is None:
        return
    if peer not in _PEERS:
        raise UserError(f"--against {peer}: is unknown; choose {', '.join(_PEERS)}")
    if find_spec(peer) is None:
        raise UserError(f"--against {peer}: is not installed; pip install 'clozelab[bench]'")
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def exported(job: PretrainJob) -> Exported:
    """The initial model in transformers' format; a UserError if it has no such class."""
    recipe = job.recipe
    if any(part.generates_input for part in recipe.objectives):
        raise UserError("it does not train an encoder together with a generator")
    if recipe.schedule.causal:
        raise UserError("no model there reads some blocks causally and others in both directions")
    vocabulary = job.stores[0][0].vocabulary
    # RoBERTa's class counts positions from the padding id, which must match the offset.
    offset = getattr(recipe.encoder, "position_offset", 0)
    roles = {**vocabulary.roles, "pad": offset - 1} if offset else vocabulary.roles
    model = build(recipe, recipe.tokenizer.vocabulary, seed=job.seed)
    converted = to_transformers(
        recipe.encoder,
        {name: value.detach() for name, value in model.named_parameters()},
        vocabulary=Vocabulary(recipe.tokenizer.vocabulary, roles, vocabulary.special),
        length=recipe.blocks.length,
    )
    if converted.config["model_type"] == "xlnet":  # our memory is the first half of a block
        converted.config["reuse_len"] = -(-recipe.blocks.length // 2)
    return converted


def opened(model: Exported) -> Any:
    """The class of transformers with those weights."""
    import transformers

    config = dict(model.config)
    kind = getattr(transformers, config.pop("architectures")[0])
    settings = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    return kind.from_pretrained(None, config=settings, state_dict=dict(model.tensors))


class Theirs:
    """Training steps in a plain loop: autocast, mean losses, clipping, AdamW."""

    def __init__(
        self, model: Exported, *, device: torch.device, dtype: torch.dtype | None, compiled: bool
    ) -> None:
        self.config, self.compiled = model.config, compiled
        self.device, self.dtype = device, dtype
        self.model: nn.Module = opened(model).to(device).train()
        self.forward: Any = torch.compile(self.model) if compiled else self.model
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.streams = model.config["model_type"] == "xlnet"
        self._memory: dict[int, Any] = {}  # XLNet's, of each micro-batch

    def lap(self, prepared: Sequence[Prepared]) -> Lap:
        """Take a turn over prepared steps, which are padded before the clock starts."""
        steps = [
            [padded(batch, self.config, full=self.compiled) for batch in step.batches]
            for step in prepared
        ]
        loss = float(self._step(steps[0]))
        began = now(self.device)
        for step in steps[1:]:
            self._step(step)
        return Lap(sum(step.tokens for step in prepared[1:]), now(self.device) - began, loss)

    def _step(self, batches: Sequence[Mapping[str, Tensor]]) -> Tensor:
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(batches):
            arguments: dict[str, Any] = {
                name: value.to(self.device, non_blocking=True) for name, value in batch.items()
            }
            if self.streams:
                arguments |= {"mems": self._memory.get(number), "use_mems": True}
            with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
                out = self.forward(**arguments)
            (out.loss / len(batches)).backward()
            total += out.loss.detach() / len(batches)
            if self.streams:
                self._memory[number] = [state.detach() for state in out.mems]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return total


class Trained:
    """A model trained by transformers' Trainer, with its own settings and masks."""

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
        """Take a turn over the blocks of prepared steps, with the Trainer's order and masks."""
        rows = [
            {"input_ids": row}
            for step in prepared
            for batch in step.batches
            for row in whole_rows(batch)
        ]
        parts = len(prepared[0].batches)
        tokens: list[int] = []  # of each micro-batch

        def collate(batch: list[dict[str, list[int]]]) -> Any:
            tokens.append(sum(len(row["input_ids"]) for row in batch))
            return self.collate(batch)

        size = -(-len(rows) // (parts * len(prepared)))
        times = self._train(rows, collate, steps=len(prepared), parts=parts, size=size)
        return Lap(sum(tokens[parts : parts * len(prepared)]), times[-1] - times[0])

    def _train(
        self, rows: list[Any], collate: Any, *, steps: int, parts: int, size: int
    ) -> list[float]:
        """Train, and return the time at the end of each step."""
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
                per_device_train_batch_size=size,
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
