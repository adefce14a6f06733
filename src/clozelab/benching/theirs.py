"""transformers as a contender: its class for the recipe, with the same weights and targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from clozelab.benching.laps import Lap
from clozelab.benching.padding import padded
from clozelab.contracts import Vocabulary
from clozelab.errors import UserError
from clozelab.models.build import build
from clozelab.models.interop.exporting import Exported, to_transformers
from clozelab.pretraining.job import PretrainJob
from clozelab.runs.machine import now
from clozelab.training.loop import Prepared

_PEERS = ("transformers",)


def check(peer: str | None) -> None:
    """Refuse a peer that is none or is not here."""
    if peer is None:
        return
    if peer not in _PEERS:
        raise UserError(f"--against {peer}: unknown; there is {', '.join(_PEERS)}")
    if find_spec(peer) is None:
        raise UserError(f"--against {peer}: is not installed; pip install 'clozelab[bench]'")
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def exported(job: PretrainJob) -> Exported:
    """The model that the task begins with, as transformers has it; a UserError if it has none."""
    recipe = job.recipe
    given = job.stores[0][0].vocabulary
    # RoBERTa's class counts positions from the padding id: that one is padding which suits them.
    offset = getattr(recipe.encoder, "position_offset", 0)
    roles = {**given.roles, "pad": offset - 1} if offset else given.roles
    model = build(recipe, recipe.tokenizer.vocabulary, seed=job.seed)
    found = to_transformers(
        recipe.encoder,
        {name: value.detach() for name, value in model.named_parameters()},
        vocabulary=Vocabulary(recipe.tokenizer.vocabulary, roles, given.special),
        length=recipe.blocks.length,
    )
    if found.config["model_type"] == "xlnet":  # what of a block is remembered is our first half
        found.config["reuse_len"] = -(-recipe.blocks.length // 2)
    return found


def opened(model: Exported) -> Any:
    """The class of transformers with those weights."""
    import transformers

    config = dict(model.config)
    kind = getattr(transformers, config.pop("architectures")[0])
    made = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    return kind.from_pretrained(None, config=made, state_dict=dict(model.tensors))


class Theirs:
    """Whole steps as a plain loop takes them: autocast, mean losses, clipping, AdamW."""

    def __init__(
        self, model: Exported, *, device: torch.device, dtype: torch.dtype | None, compiled: bool
    ) -> None:
        self.name = "transformers compiled" if compiled else "transformers"
        self.config, self.compiled = model.config, compiled
        self.device, self.dtype = device, dtype
        self.model: nn.Module = opened(model).to(device).train()
        self.forward: Any = torch.compile(self.model) if compiled else self.model
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.streams = model.config["model_type"] == "xlnet"
        self._memory: dict[int, Any] = {}  # XLNet's, of each micro-batch

    def lap(self, prepared: Sequence[Prepared]) -> Lap:
        """A turn over prepared steps, whose rows are laid out before the clock starts."""
        steps = [
            [padded(batch, self.config, full=self.compiled) for batch in one.batches]
            for one in prepared
        ]
        loss = float(self._step(steps[0]))
        began = now(self.device)
        for step in steps[1:]:
            self._step(step)
        return Lap(sum(one.tokens for one in prepared[1:]), now(self.device) - began, loss)

    def _step(self, batches: Sequence[Mapping[str, Tensor]]) -> Tensor:
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(batches):
            given: dict[str, Any] = {
                name: value.to(self.device, non_blocking=True) for name, value in batch.items()
            }
            if self.streams:
                given |= {"mems": self._memory.get(number), "use_mems": True}
            with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
                out = self.forward(**given)
            (out.loss / len(batches)).backward()
            total += out.loss.detach() / len(batches)
            if self.streams:
                self._memory[number] = [one.detach() for one in out.mems]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return total
