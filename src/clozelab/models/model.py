"""A trained model as a user holds it: its weights, its tokenizer, and the recipe that made it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

import clozelab
from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.config.tables import build
from clozelab.contracts import Encoded, Pooling, Vocabulary
from clozelab.errors import UserError
from clozelab.models.build import PretrainingModel
from clozelab.models.reader import TaskReader, Text, packed
from clozelab.options import described
from clozelab.options import texts as texts_of
from clozelab.text.blanks import with_blanks
from clozelab.text.vocabulary import describe
from clozelab.training.loop import DivergedError

if TYPE_CHECKING:
    from clozelab.finetuning.task import TunedTask
    from clozelab.finetuning.tuned import Tuned
    from clozelab.models.embed import Neighbours, Vectors
    from clozelab.models.fill import Filled
    from clozelab.models.generate import Generated
    from clozelab.scoring.probe import Probes

ORIGIN = "origin.json"  # only beside imported weights that were not trained since


@dataclass(frozen=True)
class Origin:
    """How a model was stored in transformers, so that it is exported the same way."""

    family: str
    heads: tuple[str, ...]  # of its pretraining; a bare encoder has none
    bare: bool  # it is an encoder without heads
    dtype: str  # of its weights, by torch's name
    model_type: str  # the family's, or another name in transformers for the same model
    pad: int | None = None  # the id that its config pads with
    pooling: Pooling | None = None  # of a model of sentence-transformers
    length: int | None = None  # the tokenizer's maximum length, if it has one
    text_length: int | None = None  # the most tokens that sentence-transformers reads of a text
    separators: int | None = None  # between two texts, if its tokenizer says how many

    def to_json(self) -> str:
        """The text that `parse` reads back."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def parse(cls, text: str, place: str) -> Origin:
        """The origin from its JSON; `place` names it in errors."""
        try:
            fields = {name: each for name, each in json.loads(text).items() if each is not None}
            fields.setdefault("model_type", fields["family"])  # absent in old files
            origin: Origin = build(cls, fields, place=place, key="origin")
            return origin
        except (ValueError, KeyError, AttributeError, UserError):
            raise UserError(f"{place}: cannot be read; import the model again") from None


@dataclass(frozen=True)
class Model:
    """A trained model with its tokenizer and its recipe."""

    place: str
    recipe: Recipe
    tokenizer: Tokenizer
    module: PretrainingModel | Tuned  # in eval mode
    step: int = 0
    notes: tuple[str, ...] = ()
    task: TunedTask | None = None  # what it was fine-tuned for
    origin: Origin | None = None  # if it was imported and not trained since

    def __repr__(self) -> str:
        return f"Model({self.place!r}, {self.recipe.name}, step {self.step:,})"

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The token ids that the model knows."""
        return describe(self.tokenizer)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.module.parameters()).device

    @property
    def pooling(self) -> Pooling | None:
        """Which vector of a text it was trained to let stand for it, if it was trained so."""
        own = self.origin.pooling if self.origin else None
        return next((part.pooling for part in self.recipe.objectives if part.pooling), own)

    @property
    def separators(self) -> int | None:
        """How many separate two texts, if an imported model's tokenizer says so."""
        return self.origin.separators if self.origin else None

    @property
    def text_length(self) -> int | None:
        """The most tokens of a text for its vector, if it came from sentence-transformers."""
        return self.origin.text_length if self.origin else None

    @property
    def shift(self) -> int:
        """How many places before a masked token the state lies that predicts it."""
        parts = (part for part in self.recipe.objectives if part.language_model == "masked")
        return next((part.shift for part in parts), 0)

    def reader(self, length: int | None = None, *, special_tokens: bool = True) -> TaskReader:
        """Texts as the model reads them, in blocks of that length at most.

        `special_tokens` is whether the texts of a task get special tokens.
        Each is made once: its tables take longer to make than a text takes to be read.
        """
        length = length or self.recipe.blocks.length
        reader = TaskReader(
            self.recipe,
            self.tokenizer,
            length,
            special_tokens=special_tokens,
            separators=self.separators,
        )
        return self._readers.setdefault((length, special_tokens), reader)

    def read(self, texts: Sequence[str]) -> list[Text]:
        """Texts for their vectors, each truncated to what the model reads of a text at most."""
        reader, most = self.reader(), self.text_length
        if most is not None:
            most = max(most - reader.own_special_tokens, 0)
        return reader.read(texts, most=most)

    def block_length(self, length: int) -> int:
        """That many tokens, or as many as the encoder has learned positions for."""
        positions = self.recipe.encoder.max_positions
        return length if positions is None else min(length, positions, self.recipe.blocks.length)

    @cached_property
    def blank_reader(self) -> Tokenizer | None:
        """What reads a text with masks in it, where its parts may not be read apart."""
        mask = self.vocabulary.role("mask")
        return with_blanks(self.tokenizer, mask, foreign=self.origin is not None)

    @cached_property
    def _readers(self) -> dict[tuple[int, bool], TaskReader]:
        return {}

    @cached_property
    def digest(self) -> str:
        """The sha256 of the weights, by which a record names the model whose numbers it has."""
        hasher = hashlib.sha256()
        for name, value in sorted(self.module.state_dict().items()):
            hasher.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            hasher.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return hasher.hexdigest()

    def probe(self, task: str | Sequence[str], **options: Any) -> Probes:
        """Score the layers on tasks with linear probes: `clozelab.probe`."""
        return clozelab.probe(self, task, **options)

    def score(self, text: str | Sequence[str] | None = None, **options: Any) -> Any:
        """Compute how likely texts are, or score minimal pairs or facts: `clozelab.score`."""
        return clozelab.score(self, text=text, **options)

    def fill(self, text: str, **options: Any) -> Filled:
        """Predict the blanks of a text: `clozelab.fill`."""
        return clozelab.fill(self, text, **options)

    def generate(self, **options: Any) -> Generated:
        """Generate a text: `clozelab.generate`."""
        return clozelab.generate(self, **options)

    def embed(self, text: str | Sequence[str], **options: Any) -> Vectors | Neighbours:
        """Compute the vectors of texts, or find the nearest: `clozelab.embed`."""
        return clozelab.embed(self, text, **options)

    def export(self, out: Any, **options: Any) -> Path | str:
        """Write the model for other libraries: `clozelab.export`."""
        return clozelab.export(self, out, **options)

    def encode(self, texts: str | Sequence[str]) -> tuple[Tensor, Tensor]:
        """The last layer's hidden states of texts, [B, L, W], and a mask of the tokens, [B, L].

        Both are on the model's device. The states carry gradients unless autograd is switched off.
        """
        texts = texts_of(texts, "encode")
        if not texts:
            raise UserError("encode needs texts; the list of texts is empty")
        rows = self.read(texts)
        states_of = torch.split(
            encoder_output(self, rows).hidden_states, [len(row) for row in rows]
        )
        masks = [torch.ones(len(row), dtype=torch.bool, device=self.device) for row in rows]
        pad = nn.utils.rnn.pad_sequence
        return pad(list(states_of), batch_first=True), pad(masks, batch_first=True)

    def predict(self, inputs: Sequence[Any], *, device: str | None = None) -> list[Any]:
        """The predictions of a fine-tuned model for a list of inputs, as in `clozelab predict`.

        An input is a text or a pair of texts (classify, regress), a sentence or its words (tag), a
        question and its passage (answer), a text and its continuations (choose), or a document in
        sentences of words (coreference).
        """
        from clozelab.finetuning.loading import predict

        if isinstance(inputs, str):
            raise UserError("predict takes a list of inputs; put the text into a list, as [text]")
        if isinstance(inputs, Mapping | bytes) or not isinstance(inputs, Iterable):
            raise UserError(f"predict takes a list of inputs, not {described(inputs)}; give a list")
        return predict(self, inputs, device=device)

    def _repr_html_(self) -> str:
        """The model in a notebook."""
        encoder, tokenizer = self.recipe.encoder, self.recipe.tokenizer
        rows = {
            "recipe": self.recipe.name,
            "task": self.task.called if self.task else "",
            "size": f"{encoder.layers} layers of {encoder.hidden_size}",
            "parameters": f"{sum(weight.numel() for weight in self.module.parameters()):,}",
            "tokenizer": f"{slots.use('tokenizer', tokenizer)}, {self.vocabulary.size:,} tokens",
            "from": f"{self.place}, step {self.step:,}" if self.step else self.place,
        }
        cells = (f"<tr><th>{a}</th><td>{escape(b)}</td></tr>" for a, b in rows.items() if b)
        return f"<table>{''.join(cells)}</table>"


def encoder_output(model: Model, texts: Sequence[Text], *, keep: bool = False) -> Encoded:
    """The encoder's output for texts as the model reads them; with `keep` also of every layer."""
    if any(map(len, texts)):
        return model.module.encode(packed(texts, model.device), keep=keep)
    encoder = model.recipe.encoder  # no text has a token, and special tokens are not added
    none = torch.zeros(0, encoder.vector_width, device=model.device)
    return Encoded(none, None, (none,) * (encoder.layers + 1) if keep else ())


def refuse_nan(model: Model, values: Tensor) -> None:
    """Refuse what a model gives if it is NaN, which would else count as no likelihood or a tie."""
    if values.isnan().any():
        raise DivergedError(
            f"{model.place}: gives NaN, because its training diverged; try an earlier step"
        )
