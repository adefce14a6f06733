"""Text from nothing but masks: unmask some tokens in each step until none is left.

Masked diffusion generates so (MDLM, arXiv:2406.07524; LLaDA, arXiv:2502.09992 §2.4), and any masked
language model can.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozelab.contracts import Bools, Counts, Ids, Ints, Keys
from clozelab.errors import UserError
from clozelab.keys import key, mix, uniform
from clozelab.models.fill import from_both, written
from clozelab.models.model import Model
from clozelab.objectives import language_models
from clozelab.text.encoding import CachedTokenizer
from clozelab.training.world import join

Remasking = Literal["confidence", "random"]


@dataclass(frozen=True)
class Unmasked:
    """A token that a step put in the place of a mask."""

    position: int  # among the generated tokens
    token: str
    number: int
    probability: float  # by the model, whatever the temperature
    joins: bool  # it goes on the word before it


@dataclass(frozen=True)
class Generated:
    """A generated text, and what was unmasked in each step."""

    prompt: str
    text: str  # with the prompt
    steps: tuple[tuple[Unmasked, ...], ...]

    @property
    def tokens(self) -> tuple[Unmasked, ...]:
        """All generated tokens, in the order of the text."""
        every = [token for step in self.steps for token in step]
        return tuple(sorted(every, key=lambda token: token.position))

    def as_json(self) -> dict[str, Any]:
        """The whole of it for other programs."""
        return asdict(self)


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, and which of them stay."""

    temperature: float = 1.0  # 0: always the likeliest token
    top_k: int | None = None  # draw from so many of the likeliest alone
    remasking: Remasking = "confidence"  # the likeliest of the drawn tokens stay, or any
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"--temperature {self.temperature:g}: must be a number from 0 up")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"--top-k {self.top_k}: at least 1, or leave it out")

    def draw(self, logits: Tensor, at: Ints, step: int) -> tuple[Ints, Tensor]:
        """[K] a column for each row of logits, and their probabilities."""
        logits = logits.double()
        if self.temperature:
            columns = self._sampled(logits, uniform(self._keys("token", at, step)))
        else:
            columns = logits.argmax(-1)
        return columns.numpy(), logits.softmax(-1).gather(1, columns[:, None])[:, 0]

    def _sampled(self, logits: Tensor, draws: NDArray[np.float64]) -> Tensor:
        """The first column of each row whose cumulative probability exceeds the row's draw."""
        warm = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        if self.top_k is not None:
            least = warm.topk(min(self.top_k, warm.shape[1])).values[:, -1:]
            warm = warm.masked_fill(warm < least, -math.inf)
        cumulative = warm.softmax(-1).cumsum(-1)
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
    """Generate so many tokens, after a prompt, in so many steps."""
    sampling = sampling or Sampling()
    heads = language_models(model.module.heads, "masked")
    if not heads:
        raise UserError(
            f"{model.place}: has no masked language model to generate with; name a model that was"
            " pretrained with masked_lm"
        )
    ids = _masked(model, prompt, length)
    if not 1 <= steps <= length:
        raise UserError(
            f"--steps {steps}: must be from 1 to {length}, the tokens to generate, since each step"
            " unmasks at least one"
        )
    first = len(ids) - length
    ordinary = model.vocabulary.ordinary  # special tokens were never hidden
    hidden: Bools = np.arange(len(ids)) >= first
    done: list[tuple[Unmasked, ...]] = []
    with join(device) as world, torch.inference_mode():
        model.module.to(world.device)
        head = model.module.heads[heads[0]]
        for step in range(steps):
            at = np.flatnonzero(hidden)
            logits = from_both(model, head, ids, at=at).cpu()[:, ordinary]
            columns, probabilities = sampling.draw(logits, at - first, step)
            tokens = ordinary[columns]
            count = -(-len(at) // (steps - step))  # an even part of what is left
            stay = sampling.keep(probabilities, at - first, step, count=count)
            ids[at[stay]], hidden[at[stay]] = tokens[stay], False
            done.append(_unmasked(model, at[stay] - first, tokens[stay], probabilities[stay]))
    return Generated(prompt, _text(model, prompt, ids[first:]), tuple(done))


def _masked(model: Model, prompt: str, length: int) -> Ids:
    """The tokens of the prompt, then masks."""
    if length < 1:
        raise UserError(f"--length {length}: at least 1")
    mask = model.vocabulary.role("mask")
    encoder = CachedTokenizer(model.tokenizer, segment=False, counts=Counts())
    before = encoder.encode([prompt]).ids
    most = model.reader().limit
    if most is not None and len(before) + length > most:
        after = f" after {len(before):,} of the prompt" if len(before) else ""
        raise UserError(
            f"--length {length}: {model.place} reads {most:,} tokens at a time; generate at most"
            f" {max(most - len(before), 0):,}{after}"
        )
    return np.concatenate([before, np.full(length, mask, dtype=before.dtype)])


def _unmasked(model: Model, at: Ints, tokens: Ids, chances: Tensor) -> tuple[Unmasked, ...]:
    unmasked = []
    for position, number, chance in zip(
        at.tolist(), tokens.tolist(), chances.tolist(), strict=True
    ):
        token, joins = written(model.tokenizer, number)
        unmasked.append(Unmasked(position, token, number, chance, joins))
    return tuple(unmasked)


def _text(model: Model, prompt: str, ids: Ids) -> str:
    """The prompt as it was given, and the tokens behind it."""
    behind = model.tokenizer.decode(ids.tolist(), skip_special_tokens=False).strip()
    joins = written(model.tokenizer, int(ids[0]))[1]
    space = "" if joins or not prompt or prompt[-1].isspace() else " "
    return prompt + space + (behind.removeprefix("##") if joins else behind)
