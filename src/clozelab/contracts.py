"""The data types that clozelab's parts exchange, and what each part guarantees; of ours this
imports only the error that a mistake raises.

Everything is batched and packed: many documents, or many blocks, one after another in flat
arrays, with an array of offsets. Shape letters used throughout:
N tokens, B blocks, S sentences, D documents, V vocabulary, K chosen positions; of tensors also
H heads, A the size of a head, E the embedding size, W the hidden size, L the longest
block, C characters, R queries, P distances, T target slots. A tensor's name may end in its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from clozelab.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Keys = NDArray[np.uint64]
Ids = NDArray[np.int32]
Array = NDArray[np.generic]
# The vector of a text: that of [CLS], the mean over its own tokens, or the mean over these and the
# special tokens, as in sentence-transformers.
Pooling = Literal["cls", "mean", "mean_all"]
# The share of tokens that heads read, above which the states of all are computed. Calculated, not
# measured: gathering rows and scattering their gradients takes an H200 about a fifth of the time of
# the part after attention at a width of 256, and less in wider layers.
MOST_CHOSEN = 0.75


class Mark:
    """Bits of a token's mark: it begins a unit of that kind (special tokens have all bits)."""

    WORD = 1
    SEGMENT = 2  # a word found by a segmenter, for scripts that write no spaces
    PHRASE = 4
    ENTITY = 8
    ALL = 15


@dataclass(frozen=True)
class Vocabulary:
    """The ids of a tokenizer, and those of its special tokens."""

    size: int
    roles: Mapping[str, int]  # "cls", "sep", "pad", "mask", "unk", "eod" where it has them
    special: Ids  # sorted; never masked, never drawn as a replacement
    counts: Ints | None = None  # [V] how often each id occurs in the training text

    def role(self, name: str) -> int:
        """The id of a special token; the separator stands in for an end-of-document token."""
        if name in self.roles:
            return self.roles[name]
        if name == "eod" and "sep" in self.roles:
            return self.roles["sep"]
        raise UserError(
            f"the tokenizer has no {name!r} token, only"
            f" {', '.join(sorted(self.roles)) or 'none'}; build the corpus with a tokenizer"
            " that has one"
        )

    @cached_property
    def ordinary(self) -> Ids:
        """Every id that is not special, ascending: random replacements are drawn from these."""
        keep = np.ones(self.size, dtype=bool)
        keep[self.special] = False
        return np.flatnonzero(keep).astype(np.int32)


@dataclass(frozen=True)
class Spelling:
    """How tokens spell words: each id's bytes, and the store's vocabulary of whole words."""

    letters: Bytes  # the bytes of every id, one after another
    starts: Ints  # [V + 1] first byte of each id
    words: Keys  # sorted keys.fold of the known words' ids
    numbers: Ids  # each one's number in the word vocabulary


@dataclass(frozen=True, repr=False)
class Documents:
    """Tokenised documents of a store (arrays may be memory-mapped).

    Guarantee: a document's ids decode to its normalised text, and marks align with that text.
    """

    ids: Array  # [N] uint16 or uint32
    marks: Bytes  # [N] bits of Mark
    sentences: Ints  # [S + 1] first token of each sentence, then N
    documents: Ints  # [D + 1] first sentence of each document, then S
    vocabulary: Vocabulary
    spelling: Spelling | None = None

    def __len__(self) -> int:
        return len(self.documents) - 1

    def __repr__(self) -> str:
        sentences, tokens = len(self.sentences) - 1, len(self.ids)
        return f"Documents({len(self):,} documents, {sentences:,} sentences, {tokens:,} tokens)"


@dataclass(frozen=True)
class Spelled:
    """The words of some blocks spelled out for a model that reads characters."""

    starts: Ints  # [B + 1] first word of each block
    ids: Ids  # [W] in the store's word vocabulary; 0 is an unknown word
    characters: NDArray[np.uint16]  # [W, length]


@dataclass(frozen=True)
class Blocks:
    """Blocks of text before masking, packed one after another.

    Guarantee: no block is longer than the format's length; no token is lost or repeated except as
    the format says.
    """

    ids: Ids  # [N]
    starts: Ints  # [B + 1] first token of each block, then N
    marks: Bytes  # [N] bits of Mark
    segments: Bytes  # [N]
    fixed: Bools  # [N] special tokens: never masked
    numbers: Ints  # [B] which blocks of the plan these are
    labels: Ints | None = None  # [B] pair label: 0 in order or next, 1 swapped or random
    reverse: Bools | None = None  # [B] the block is read from its end (XLNet's second direction)
    words: Spelled | None = None
    views: Ints | None = None  # [B] in a row of blocks that belong together: 0 the first, 1 …

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def lengths(self) -> Ints:
        """[B] the number of tokens of each block."""
        return np.diff(self.starts)

    @cached_property
    def rows(self) -> Ints:
        """[N] the block each token belongs to."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def positions(self) -> Ints:
        """[N] each token's position inside its block."""
        positions = np.arange(len(self.ids))
        positions -= np.repeat(self.starts[:-1], self.lengths)
        return positions


@dataclass(frozen=True)
class Hidden:
    """The masked positions of some blocks.

    Guarantee: never a fixed position; never over the budget, or, where the strategy says so, at the
    budget on average; the same key gives the same choice.
    """

    spans: Ints  # [·, 2] half-open over the packed tokens: sorted, disjoint, each inside one block
    order: Ints | None = None  # [N] XLNet: each token's rank in its half's factorisation order

    @cached_property
    def positions(self) -> Ints:
        """[K] the masked positions, ascending."""
        first, lengths = self.spans[:, 0], self.spans[:, 1] - self.spans[:, 0]
        if (lengths == 1).all():
            return first.copy()
        return np.repeat(first - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())


@dataclass(frozen=True)
class Corrupted:
    """The ids that the encoder sees, and the decision at each masked position."""

    MASK: ClassVar[int] = 0
    RANDOM: ClassVar[int] = 1
    SAME: ClassVar[int] = 2

    ids: Ids  # [N]
    decisions: Bytes  # [K] MASK, RANDOM or SAME
    draw: Callable[[], Keys] | None = None  # makes `keys`, which few objectives read

    @cached_property
    def keys(self) -> Keys | None:
        """[N] a key for what is drawn at each token when the model runs."""
        return None if self.draw is None else self.draw()


@dataclass(frozen=True)
class Targets:
    """The targets of one objective in some blocks, packed.

    Columns named in `POSITIONS` hold positions inside the target's own block, `queries` those of
    the encoder's query stream; `labels` (and all columns that end in "labels") hold what is to be
    predicted, IGNORED where there is nothing; `weights`, if targets have different weights: those
    of a block sum to an integer.
    """

    IGNORED: ClassVar[int] = -100
    POSITIONS: ClassVar[tuple[str, ...]] = ("at", "left", "right", "queries")

    starts: Ints  # [B + 1] first target of each block
    columns: Mapping[str, NDArray[Any]]  # [K] each

    def emptied(self) -> Targets:
        """The same blocks without any targets."""
        none = {name: values[:0] for name, values in self.columns.items()}
        return Targets(np.zeros_like(self.starts), none)


class Input(NamedTuple):
    """The input of an encoder: packed blocks as tensors.

    Where models are compiled, shapes are constant from step to step, so there may be dummies:
    blocks of padding after the real ones, then empty blocks. For an encoder that reads words, N
    counts words.
    """

    ids: Tensor  # [N]
    position_ids: Tensor  # [N] each token's position inside its block
    segments: Tensor  # [N]
    cu_seqlens: Tensor  # [B + 1] int32: first token of each block, then N
    max_seqlen: int  # no block is longer
    dense: bool = False  # every block has `max_seqlen` tokens and there are no dummies
    real: Tensor | None = None  # [] how many tokens are not dummies; None is all
    order: Tensor | None = None  # [N] XLNet: rank in the factorisation order of its half
    kinds: Tensor | None = None  # [N] XLNet: 0 plain, 1 special, 2 target
    reverse: Tensor | None = None  # [B] XLNet: read from its end
    queries: Tensor | None = None  # [B, T] XLNet: packed positions of the targets; rest ignored
    memory: Tensor | None = None  # [layers, B, M, W] XLNet: states of the previous blocks
    characters: Tensor | None = None  # [N, C] ELMo
    attention_mask: Tensor | None = None  # [B, L] dense with padding: which cells are tokens
    causal: bool = False  # read causally, by an encoder that is otherwise bidirectional


class Projections(NamedTuple):
    """Queries, keys and values of one layer, with the blocks as padded rows."""

    qkv: Tensor  # [B, L, 3, W] all heads concatenated
    seen: Tensor  # [B, L] which cells are tokens; of an empty block all
    cell: Tensor  # [N] the cell of each token, counted over the rows


class Encoded(NamedTuple):
    """The output of an encoder; if tokens were chosen by `at`, N counts these.

    Guarantee: padding and other blocks never change a state; every parameter gets a gradient.
    """

    hidden_states: Tensor  # [N, W] the last layer (ELMo: both directions, [N, 2W])
    table: Tensor | None  # [V, E] the embedding table, which heads are tied to
    layers: tuple[Tensor, ...] = ()  # [N, W] the embedding's output and each layer's, if asked for
    queries: Tensor | None = None  # [B · T, W] XLNet: the query stream
    memory: Tensor | None = None  # [layers, B, M, W] XLNet: for the next blocks
    ids: Tensor | None = None  # [N] the ids that it read, if an objective needs them
    input: Input | None = None  # its whole input, if an objective needs it
    projections: Projections | None = None  # of a layer, if asked for
    decoded: Tensor | None = None  # [N, W] of a mask decoder, where the encoder has one

    @property
    def predicting(self) -> Tensor:
        """[N, W] the states that predict tokens."""
        return self.hidden_states if self.decoded is None else self.decoded


Sums = dict[str, "Tensor"]  # "loss", "count", "correct" and the like: each a sum, never a mean


class Batch(NamedTuple):
    """One micro-batch: the input, and for each objective the columns of its targets, [K] each."""

    input: Input
    targets: dict[str, dict[str, Tensor]]


class TextLayout(NamedTuple):
    """Where special tokens, named by their roles, stand around the texts of a task."""

    before: tuple[str, ...] = ("cls",)
    between: str = "sep"
    after: tuple[str, ...] = ("sep",)
    # The token whose vector represents the texts; None: no position has read them all.
    summary: Literal["first", "last"] | None = "first"
    cls_segment: int | None = None  # of a closing [CLS] that has a segment of its own
    passage_first: bool = False  # whether a passage comes before its question or after it
    fallback: str | None = None  # the role that stands in for one that the tokenizer lacks
    in_pretraining: bool = True  # whether pretraining showed these special tokens


class EncoderPart:
    """The base class of a recipe's encoders, with the facts that the rest of clozelab needs.

    A part inherits from this and overrides what differs. It is a frozen dataclass with the fields
    `layers`, `hidden_size` and `embedding_size`, the columns of its embedding table.
    """

    hidden_size: int
    provides: ClassVar[frozenset[str]] = frozenset({"token_vectors"})
    needs: ClassVar[frozenset[str]] = frozenset()
    # Words are read by their characters, in Input.characters.
    reads: ClassVar[Literal["tokens", "words"]] = "tokens"
    # Whether it reads token by token: any length, but not as one graph for a compiler or ONNX.
    recurrent: ClassVar[bool] = False
    # What torch.compile compiles as one graph.
    compiles: ClassVar[Literal["model", "layers"]] = "model"
    # The fields that a student takes from its teacher, unless its recipe states them.
    block_settings: ClassVar[frozenset[str]] = frozenset()

    @property
    def causal(self) -> bool:
        """Whether tokens always attend only to those on their left."""
        return False

    @property
    def bias(self) -> bool:
        """Whether dense layers and norms have biases, also those of its heads."""
        return True

    @property
    def normalisation(self) -> Literal["layer", "rms"]:
        """The kind of its norms, also of its heads'."""
        return "layer"

    @property
    def vector_width(self) -> int:
        """The width of the states that a head reads; by default the hidden size."""
        return self.hidden_size

    @property
    def max_positions(self) -> int | None:
        """The longest block it can read; None: any length."""
        return None

    @property
    def free_settings(self) -> frozenset[str]:
        """The fields that a run which starts from its weights may change: none affects a weight."""
        return frozenset()

    @property
    def segment_types(self) -> int | None:
        """How many segments it distinguishes; 0: it ignores segments, None: any number."""
        return 0

    @property
    def pretraining_parameters(self) -> frozenset[str]:
        """The parameters that only pretraining uses, not fine-tuning."""
        return frozenset()

    @property
    def memory(self) -> int:
        """How many states of the previous block stay visible."""
        return 0

    @property
    def shared_modules(self) -> frozenset[str]:
        """The module lists whose weights several layers share."""
        return frozenset()

    @property
    def layout(self) -> TextLayout:
        """Where special tokens stand around the texts of a task."""
        return TextLayout()

    def resized(self, layers: int, hidden_size: int) -> Any:
        """The same encoder at another size."""
        raise NotImplementedError

    def build(self, vocabulary: int) -> Any:
        """The module with fresh weights, for a vocabulary of that size: `Input` → `Encoded`.

        It keeps the part as `shape`. If it provides "chosen_tokens", it takes `at`, packed
        positions [T], and then returns the states [T, W] of these tokens.
        """
        raise NotImplementedError

    def parameters(self, vocabulary: int) -> dict[str, int]:
        """How many parameters each of its modules has, for a vocabulary of that size."""
        raise NotImplementedError

    def training_flops(self, length: float, *, read: float = 1.0) -> float:
        """Useful operations per token, forward and backward; a token attends to `length` others.

        `read` is the share of tokens whose states are read: if it provides "chosen_tokens", the
        last layer after its attention is computed only for these.
        """
        return 6.0 * sum(self.parameters(0).values())


class ObjectivePart:
    """The base class of a recipe's objectives, with the facts that the rest of clozelab needs.

    A part inherits from this and overrides what differs. It is a frozen dataclass with the fields
    `weight` and `course`.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    # The kind of language model over the vocabulary that it trains, if any.
    language_model: ClassVar[Literal["masked", "causal", "permutation"] | None] = None
    # Whether its head compares the student with a teacher's model, which is also run.
    needs_teacher: ClassVar[bool] = False
    # The kind of language model by which it compares student and teacher, if any.
    compares: ClassVar[Literal["masked"] | None] = None
    # Whether the size of its student is its recipe's, whatever the teacher's.
    own_size: ClassVar[bool] = False
    # Whether its module comes before the encoder: `Input`, targets → the `Input` that the encoder
    # reads, and the sums.
    generates_input: ClassVar[bool] = False
    # Whether it detects replaced tokens: by a generator, or by the corruption.
    detects_replaced: ClassVar[bool] = False
    # Whether it contrasts the rows of a group, `in_batch` of them or a whole step: each row is two
    # blocks or more, those of the format or one that is read twice. It has one target per block,
    # whose column `groups` is filled in when groups are made.
    contrasts: ClassVar[bool] = False
    # Whether its loss at a target also depends on which other targets there are.
    targets_interact: ClassVar[bool] = False

    @property
    def reads(self) -> tuple[str, ...] | None:
        """The columns of its targets that have the positions of the states that its head reads.

        None: the head may read the states of every token.
        """
        return None

    @property
    def head_of(self) -> str | None:
        """The other objective whose head it uses, if it has none of its own."""
        return None

    @property
    def also_trains(self) -> str | None:
        """The other objective whose head is also trained by this loss, if any."""
        return self.head_of

    @property
    def in_batch(self) -> int | None:
        """The number of rows of a group, if it contrasts them; None: a whole step."""
        return None

    @property
    def pooling(self) -> Pooling | None:
        """How a text's vector is computed that it trains, if any."""
        return None

    @property
    def shift(self) -> int:
        """How many positions before a masked token its prediction is made."""
        return 0

    def with_words(self, most: int) -> Self:
        """The same objective for a store with at most that many words; few predict words."""
        return self

    def built_as(self, other: Self) -> Self:
        """The same objective, with a module that can load the weights of another's."""
        return self

    def check_encoder(self, encoder: Any) -> None:
        """Refuse an encoder that does not suit it, beyond what `needs` says."""

    def check_teacher(self, encoder: Any) -> None:
        """Refuse the encoder of a teacher that it cannot learn from."""

    def layer_choice(self, teacher_layers: int, student_layers: int) -> tuple[int, ...]:
        """The teacher layer that initialises each layer of the student; none: fresh weights."""
        return ()

    def training_flops(
        self, encoder: Any, vocabulary: int, *, length: float, predicted: float
    ) -> float:
        """Useful operations per token, forward and backward, besides the encoder's.

        A token attends to `length` others; `predicted` is the share of tokens that are targets,
        for which there are logits.
        """
        head = encoder.hidden_size * encoder.embedding_size + encoder.embedding_size * vocabulary
        return float(6 * head * predicted)


class Plan(Protocol):
    """Every block of one pass over the documents, by number, without their tokens."""

    @property
    def notes(self) -> Mapping[str, float]:
        """Counts of what was skipped, forced or split."""

    def __len__(self) -> int: ...

    def blocks(self, numbers: Ints) -> Blocks:
        """Gather the blocks of these numbers."""


class PlanStretch(NamedTuple):
    """Some consecutive rows of a plan's columns, and counts of what was skipped or split there.

    All stretches concatenated, with their counts added, are the plan, however it is divided.
    """

    columns: Mapping[str, Any]  # arrays, each of a type of its own
    counts: Mapping[str, int]


class Format(Protocol):
    """An input format: documents → blocks."""

    provides: ClassVar[frozenset[str]]
    needs: ClassVar[frozenset[str]]

    @property
    def length(self) -> int:
        """The maximum tokens of a block."""

    def plan(self, documents: Documents, key: int) -> Plan:
        """Plan a pass; `key` stands for (seed, purpose, copy)."""


class Masking(Protocol):
    """A masking strategy: blocks → masked positions, vectorised over the blocks.

    A curriculum also has a method `stage(progress)`: the strategy at that share of a run.
    """

    provides: ClassVar[frozenset[str]]
    needs: ClassVar[frozenset[str]]

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose positions; `key` stands for (seed, purpose, copy), block numbers for the rest."""


@dataclass
class Counts:
    """Counts of what a long job skipped, cut or repaired, with first places and examples."""

    EXAMPLES: ClassVar[int] = 5

    numbers: dict[str, int] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)  # where some were given

    def add(
        self, what: str, place: str = "", number: int = 1, *, examples: Iterable[str] = ()
    ) -> None:
        """Count `number` more of `what`; remember the first place, and the first examples."""
        if number:
            self.numbers[what] = self.numbers.get(what, 0) + number
            self.places[what] = self.places.get(what) or place
        if all_examples := list(dict.fromkeys([*self.examples.get(what, ()), *examples])):
            self.examples[what] = all_examples[: self.EXAMPLES]

    def expect(self, what: str) -> None:
        """Have a count of `what` even if it never happens."""
        self.numbers.setdefault(what, 0)
        self.places.setdefault(what, "")

    def merge(self, other: Counts) -> None:
        """Add what another job counted."""
        for what, number in other.numbers.items():
            self.add(what, other.places[what], number, examples=other.examples.get(what, ()))

    def lines(self) -> list[str]:
        """Each count in words, with the first place."""
        first = {what: f" (first at {place})" for what, place in self.places.items() if place}
        return [f"{what}: {n:,}{first.get(what, '')}" for what, n in self.numbers.items()]

    def clear(self) -> None:
        """Reset all counts."""
        for table in (self.numbers, self.places, self.examples):
            table.clear()


class Pieces(NamedTuple):
    """Tokenised texts, packed; for an encoder that reads words, a token is a word."""

    columns: Mapping[str, Array]  # "ids" and the encoder's other inputs, a row per token
    starts: Ints  # [T + 1] first token of each text
    spans: Ints  # [N, 2] the characters of its text that each stands for
    begins: Bools  # [N] which begin a word
    words: Ints  # [N] the word of its text that each belongs to

    def text(self, number: int) -> slice:
        """The tokens of one text."""
        return slice(int(self.starts[number]), int(self.starts[number + 1]))

    def part(self, where: slice) -> dict[str, Array]:
        """The columns of some tokens."""
        return {name: values[where] for name, values in self.columns.items()}


class Row(NamedTuple):
    """One block: one text or two with the special tokens of the encoder."""

    columns: dict[str, Array]  # a row per token, special tokens included
    first: slice  # the tokens of the first text
    second: slice  # those of the second; empty if there is none
    mark: int  # the position whose vector represents the block


class Reader(Protocol):
    """Converts texts to the input of one encoder."""

    @property
    def length(self) -> int:
        """The maximum tokens of a block, special tokens included."""

    @property
    def passage_first(self) -> bool:
        """Whether a passage comes before its question (XLNet) or after it."""

    def pieces(self, texts: Sequence[str]) -> Pieces:
        """Tokenise texts."""

    def words(self, sentences: Sequence[Sequence[str]]) -> Pieces:
        """Tokenise sentences given as words: `begins` and `words` follow these words.

        A word that the tokenizer drops has no token.
        """

    def num_special_tokens(self, texts: int) -> int:
        """The number of special tokens in a block of one text, or two."""

    def with_special_tokens(
        self, first: Mapping[str, Array], second: Mapping[str, Array] | None = None
    ) -> Row:
        """A block of texts, which are cut to fit, with special tokens."""
