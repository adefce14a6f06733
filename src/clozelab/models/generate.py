"""Generate text from masks: each step unmasks some tokens until none is masked.

Masked diffusion generates this way (MDLM, arXiv:2406.07524; LLaDA, arXiv:2502.09992 §2.4), and any
masked language model can.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozelab.contracts import Bools, Ids, Ints, Keys
from clozelab.errors import UserError
from clozelab.keys import key, mix, uniform
from clozelab.models.fill import from_both, written
from clozelab.models.model import Model, refuse_nan
from clozelab.objectives import language_models
from clozelab.training.world import join

Remasking = Literal["confidence", "random"]


@dataclass(frozen=True)
class Unmasked:
    """A token that replaced a mask."""

    position: int  # among the generated tokens
    token: str
    number: int
    probability: float  # by the model, without temperature
    joins: bool  # it continues the word before it


@dataclass(frozen=True, repr=False)
class Generated:
    """A generated text, and what was unmasked in each step."""

    prompt: str
    text: str  # with the prompt
    steps: tuple[tuple[Unmasked, ...], ...]

    def __repr__(self) -> str:
        return f"Generated({self.text!r}, tokens={len(self.tokens)}, steps={len(self.steps)})"

    @property
    def tokens(self) -> tuple[Unmasked, ...]:
        """All generated tokens, in the order of the text."""
        every = [token for step in self.steps for token in step]
        return tuple(sorted(every, key=lambda token: token.position))

    def as_json(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Sampling:
    """How tokens are sampled, and which of them stay."""

    temperature: float = 1.0  # 0: always the likeliest token
    top_k: int | None = None  # sample only from so many of the most probable tokens
    remasking: Remasking = "confidence"  # the most probable tokens stay, or random ones
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"--temperature {self.temperature:g}: must be 0 or more")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"--top-k {self.top_k}: must be at least 1; or leave it out")

    def draw(self, logits: Tensor, at: Ints, step: int) -> tuple[Ints, Tensor]:
        """[K] a sampled column for each row of logits, and their probabilities."""
        logits = logits.double()
        if self.temperature:
            columns = self._sampled(logits, uniform(self._keys("token", at, step)))
        else:
            columns = logits.argmax(-1)
        return columns.numpy(), logits.softmax(-1).gather(1, columns[:, None])[:, 0]

    def _sampled(self, logits: Tensor, draws: NDArray[np.float64]) -> Tensor:
        """The first column of each row whose cumulative probability exceeds the row's draw."""
        scaled = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        if self.top_k is not None:
            threshold = scaled.topk(min(self.top_k, scaled.shape[1])).values[:, -1:]
            scaled = scaled.masked_fill(scaled < threshold, -math.inf)
        cumulative = scaled.softmax(-1).cumsum(-1)
        return (cumulative <= torch.from_numpy(draws)[:, None] * cumulative[:, -1:]).sum(-1)

    def keep(self, probabilities: Tensor, at: Ints, step: int, *, count: int) -> Ints:
        """Which of the positions, `count` of them, keep their token; the others stay masked."""
        if self.remasking == "random":
            order = np.argsort(self._keys("keep", at, step), kind="stable")
        else:
            order = np.argsort(-probabilities.numpy(), kind="stable")
        return np.sort(order[:count])

    def _keys(self, purpose: str, at: Ints, step: int) -> Keys:
        return mix(key(self.seed, f"generate {purpose}", step), at)


def generate(
    model: Model,
    *,
    length: int,
    steps: int,
    prompt: str = "",
    sampling: Sampling | None = None,
    device: str | None = None,
) -> Generated:
    """Generate `length` tokens after a prompt in `steps` steps."""
    sampling = sampling or Sampling()
    heads = language_models(model.module.heads, "masked")
    if not heads:
        raise UserError(
            f"{model.place}: has no masked language model to generate with; name a model that was"
            " pretrained with masked_lm"
        )
    ids = _prompt_and_masks(model, prompt, length)
    if not 1 <= steps <= length:
        raise UserError(
            f"--steps {steps}: must be from 1 to --length {length}, because each step"
            " unmasks at least one token"
        )
    first = len(ids) - length
    ordinary = model.vocabulary.ordinary  # special tokens were never masked
    masked: Bools = np.arange(len(ids)) >= first
    unmasked: list[tuple[Unmasked, ...]] = []
    with join(device) as world, torch.inference_mode():
        model.module.to(world.device)
        head = model.module.heads[heads[0]]
        for step in range(steps):
            at = np.flatnonzero(masked)
            logits = from_both(model, head, ids, at=at).cpu()[:, ordinary]
            columns, probabilities = sampling.draw(logits, at - first, step)
            refuse_nan(model, probabilities)  # NaN where a logit is infinite, too
            tokens = ordinary[columns]
            count = -(-len(at) // (steps - step))  # an even share of the masked tokens
            kept = sampling.keep(probabilities, at - first, step, count=count)
            ids[at[kept]], masked[at[kept]] = tokens[kept], False
            unmasked.append(_unmasked(model, at[kept] - first, tokens[kept], probabilities[kept]))
    return Generated(prompt, _decode(model, prompt, ids[first:]), tuple(unmasked))


def _prompt_and_masks(model: Model, prompt: str, length: int) -> Ids:
    """The tokens of the prompt, then masks."""
    if length < 1:
        raise UserError(f"--length {length}: must be at least 1")
    mask = model.vocabulary.role("mask")
    prompt_ids = model.reader().pieces([prompt]).columns["ids"]
    limit = model.reader().limit
    if limit is not None and len(prompt_ids) + length > limit:
        note = f" after {len(prompt_ids):,} of the prompt" if len(prompt_ids) else ""
        raise UserError(
            f"--length {length}: {model.place} reads at most {limit:,} tokens; generate at"
            f" most {max(limit - len(prompt_ids), 0):,}{note}"
        )
    return np.concatenate([prompt_ids, np.full(length, mask, dtype=prompt_ids.dtype)])


def _unmasked(model: Model, at: Ints, tokens: Ids, chances: Tensor) -> tuple[Unmasked, ...]:
    unmasked = []
    for position, number, chance in zip(
        at.tolist(), tokens.tolist(), chances.tolist(), strict=True
    ):
        token, joins = written(model.tokenizer, number)
        unmasked.append(Unmasked(position, token, number, chance, joins))
    return tuple(unmasked)


def _decode(model: Model, prompt: str, ids: Ids) -> str:
    """The prompt as it was given, and the generated text."""
    generated = model.tokenizer.decode(ids.tolist(), skip_special_tokens=False).strip()
    joins = written(model.tokenizer, int(ids[0]))[1]
    space = "" if joins or not prompt or prompt[-1].isspace() else " "
    return prompt + space + (generated.removeprefix("##") if joins else generated)
