"""The settings of a fine-tuning: its length, learning rates, and the layers that are read.

The papers' settings by system and task are the files of config/protocols/ (BERT A.3, …).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Annotated, Literal

from clozelab.errors import UserError
from clozelab.ranges import (
    BelowOne,
    Checked,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    Share,
)
from clozelab.training.optimiser import Adamw, BertAdam
from clozelab.training.schedule import Schedule

_POSITIVE_SHARE = Range(lambda value: 0 < value <= 1, "must be above 0 and at most 1")

# The layers of a frozen encoder that a head reads.
Layers = Literal[
    "embeddings",
    "last",
    "second_to_last",
    "sum_last_four",
    "weighted_last_four",
    "concat_last_four",
    "weighted_all",
    "sum_all",
]


@dataclass(frozen=True)
class FinetuneConfig(Checked):
    """The settings of a fine-tuning, without its data and its seed."""

    learning_rate: float  # of the head and the last layer
    batch_size: PositiveInt  # examples of a step
    length: PositiveInt  # the most tokens of a block
    epochs: PositiveFloat | None = None  # passes over the examples, unless `steps` are given
    steps: PositiveInt | None = None
    warmup: Share | None = None  # share of the steps, unless `warmup_steps` are given
    warmup_steps: NonNegativeInt | None = None
    shape: Literal["linear", "google_linear", "polynomial", "constant", "cosine"] = "linear"
    optimiser: Literal["adamw", "bert_adam"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    decay_all: bool = False
    clip: float = 1.0
    # The learning rate of a layer is this multiple of that of the layer above.
    layer_decay: Annotated[float, _POSITIVE_SHARE] = 1.0
    head_learning_rate: PositiveFloat | None = None
    dropout: BelowOne | None = None  # None: the encoder's
    attention_dropout: BelowOne | None = None
    head_dropout: BelowOne = 0.1
    # "tuned" trains the encoder; the others freeze it and read these layers.
    features: Literal["tuned", Layers] = "tuned"
    reader: Literal["linear", "bilstm"] = "linear"  # between vectors and head
    hidden: PositiveInt = 768  # of each direction of the BiLSTM
    head: Literal["span", "beam"] = "span"  # of questions: BERT's or XLNet's
    lm_weight: NonNegativeFloat = 0.0  # weight of GPT's language model loss beside the task's
    after: str | None = None  # a task to fine-tune on first
    alpha: Share = 0.5  # weight of the labels beside a teacher's answers
    temperature: PositiveFloat = 2.0  # of a teacher's answers
    task: tuple[str, ...] = ()  # settings of the kind of task, as lines of TOML: "stride = 64"

    def __post_init__(self) -> None:
        self.optimiser_part()  # checks the optimiser's settings
        super().__post_init__()
        if self.epochs is None and self.steps is None:
            raise UserError("epochs is missing; set epochs or steps")
        for name, other in (("epochs", "steps"), ("warmup", "warmup_steps")):
            if getattr(self, name) is not None and getattr(self, other) is not None:
                raise UserError(f"{name} and {other} are both set; set only one of them")

    def schedule(self, examples: int) -> Schedule:
        """The steps of a run over so many examples."""
        steps = self.steps
        if steps is None:
            steps = max(1, round(ceil(examples / self.batch_size) * (self.epochs or 0)))
        if self.warmup_steps is not None and self.warmup_steps > steps:
            raise UserError(
                f"warmup_steps = {self.warmup_steps}: the run has only {steps} steps;"
                " set warmup = 0.1, a share of them, instead"
            )
        # A share is rounded down to whole steps, as in BERT's code and RoBERTa's settings.
        warmup = int((self.warmup or 0) * steps) if self.warmup_steps is None else self.warmup_steps
        return Schedule(steps=steps, warmup=warmup, batch_size=self.batch_size, decay=self.shape)

    def optimiser_part(self) -> Adamw | BertAdam:
        """The optimiser; `scale` gives the learning rates of its groups."""
        part = Adamw if self.optimiser == "adamw" else BertAdam
        shared = ("learning_rate", "betas", "epsilon", "weight_decay", "decay_all", "clip")
        return part(**{name: getattr(self, name) for name in shared})

    def scale(self, name: str, layers: int, *, shared: bool = False) -> float:
        """A parameter's learning rate by its name, as a multiple of `learning_rate`.

        A parameter that layers share (`shared`) has the rate of the last layer.
        """
        # Differs from XLNet's code: that scales gradients, which Adam undoes, and no embedding.
        owner, _, rest = name.partition(".")
        if owner != "encoder":
            return (self.head_learning_rate or self.learning_rate) / self.learning_rate
        place, number = f"{rest}.".split(".")[:2]
        if place in ("embeddings", "characters"):
            return self.layer_decay**layers
        if shared or not number.isdigit():  # a norm after the last layer belongs to it
            return 1.0
        return self.layer_decay ** (layers - 1 - int(number))
