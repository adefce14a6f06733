"""Models: open one, fill blanks, generate, embed, hand it to other libraries and take it back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clozelab.api.texts import (
    count_empty,
    lines_of,
    read_text,
    refuse_empty,
    refuse_existing,
    sound,
)
from clozelab.api.watching import Watch
from clozelab.errors import UserError
from clozelab.nearest import counted
from clozelab.options import (
    LocalFolder,
    ModelLike,
    ModelPlace,
    Overwrite,
    Place,
    Text,
    Texts,
    command,
    located,
)
from clozelab.remote.access import is_url
from clozelab.runs.directory import Run
from clozelab.runs.options import Device

if TYPE_CHECKING:
    from clozelab.models.embed import Layer, Neighbours, Vectors
    from clozelab.models.exchange import Exchanged
    from clozelab.models.fill import Filled
    from clozelab.models.generate import Generated
    from clozelab.models.model import Model


@command
def load(model: ModelLike, *, watch: Watch) -> Model:
    """Open a trained model; of several fine-tuning runs, the best one."""
    return opened(model, watch)


def opened(model: Any, watch: Watch) -> Model:
    """The model, its notes said when it is opened."""
    from clozelab.models.load import load
    from clozelab.models.model import Model

    if isinstance(model, Model):
        return model
    loaded = load(located(model, "model"))
    watch.warn(*loaded.notes)
    return loaded


def predicting(model: Any, watch: Watch) -> Model:
    """The model that predicts tokens: as opened, or its generator, and then it is said."""
    from clozelab.models import generator

    loaded = opened(model, watch)
    predictor = generator.predicting(loaded)
    if predictor is not loaded:
        watch.warn("the encoder itself predicts no tokens; its generator is used instead")
    return predictor


def warn_of_length(model: Model, longest: int, watch: Watch) -> None:
    """Say that a text is longer than any block of training, if one is."""
    from clozelab.models.history import longest_block

    trained = longest_block(model)
    if trained is None or longest <= trained:
        return
    known = "the model was trained on blocks of"
    if model.origin is not None:  # an import, of whose training nothing else is known
        known = "the model's tokenizer says at most"
    watch.warn(
        f"the longest text has {longest:,} tokens, but {known} {trained:,}; do not rely on the"
        " output for longer texts"
    )


def identity(model: Model) -> dict[str, Any]:
    """What a record says of the model that it is about."""
    return {"place": model.place, "step": model.step, "sha256": model.digest}


@command
def fill(
    model: ModelLike,
    text: Text,
    *,
    top: int = 5,
    json: bool = False,
    device: Device | None = None,
    watch: Watch,
) -> Filled:
    """Predict the words in the blanks of a text.

    Args:
        text: a text with [MASK] for every blank, or - for standard input
        top: predictions for each blank (5)
        json: print JSON
    """
    from clozelab.models.fill import fill

    whole = read_text(text, "the text")
    whole = whole.rstrip("\n") if text == "-" else whole
    filled = fill(predicting(model, watch), whole, top=top, device=device)
    if filled.left_only:
        watch.warn(
            "this model reads left to right; a blank is predicted only from the text before it"
        )
    return filled


@command
def generate(
    model: ModelLike,
    *,
    length: int = 32,
    steps: int | None = None,
    prompt: Text = "",
    temperature: float = 1.0,
    top_k: int | None = None,
    remasking: Literal["confidence", "random"] = "confidence",
    seed: int = 0,
    json: bool = False,
    device: Device | None = None,
    watch: Watch,
) -> Generated:
    """Generate a text with a masked language model, which unmasks some tokens in each step.

    Args:
        length: tokens to generate (32)
        steps: steps, each of which unmasks an equal part of the tokens (one token per step)
        prompt: the text to continue, or - for standard input
        temperature: softmax temperature; 0 takes the most probable token (1)
        top_k: sample from this many of the most probable tokens (all)
        remasking: which tokens a step keeps: the most probable, or random ones (confidence)
        seed: seed of the sampling; the same seed gives the same text (0)
        json: print JSON, with all steps
    """
    from clozelab.models.generate import Sampling, generate

    sampling = Sampling(temperature, top_k, remasking, seed)
    before = read_text(prompt, "--prompt")
    before = before.rstrip("\n") if prompt == "-" else before
    steps = length if steps is None else steps
    predictor = predicting(model, watch)
    return generate(
        predictor, length=length, steps=steps, prompt=before, sampling=sampling, device=device
    )


@command
def embed(
    model: ModelLike,
    text: Texts = (),
    *,
    file: Place | None = None,
    out: Place | None = None,
    overwrite: Overwrite = False,
    layer: Any = "last",
    words: Literal["first", "mean", "none"] | None = None,
    pool: Literal["cls", "mean", "mean_all", "none"] | None = None,
    dimensions: int | None = None,
    near: Text | None = None,
    top: int = 5,
    device: Device | None = None,
    watch: Watch,
) -> Vectors | Neighbours:
    """Compute the vectors of texts and write them to a numpy file, or find the nearest texts.

    Args:
        text: texts, or - for standard input, one per line
        file: a file with one text per line
        out (FILE.npz): where to write the vectors
        layer: a number (0 is the embedding, -1 the last layer), last or all (last)
        words: one vector per word, from its first piece or the mean of its pieces; with none, one
            per token (mean)
        pool: one vector per text: its [CLS], the mean of its tokens, or the mean with special
            tokens (none; for --near what the model was trained for, else mean)
        dimensions: keep this many elements at the start of each vector (all)
        near (TEXT): find the texts nearest to this one, by the cosine of their vectors
        top: how many of the nearest texts to show (5)
    """
    if out is not None and not out.endswith(".npz"):
        raise UserError(f"--out {out}: must end in .npz; rename it")
    refuse_existing(out, overwrite=overwrite)
    if near is not None:
        _check_near(near, pool=pool, words=words, layer=layer, top=top)
    if pool not in (None, "none") and words is not None:
        raise UserError("--pool gives one vector per text; leave --words out")
    number = layer_of(layer)
    if list(text) == ["-"]:
        text, file = (), "-"
    if file is None and not text:
        raise UserError("embed needs texts; give them, or --file FILE with one per line, or -")
    if file is not None and text:
        raise UserError("--file and texts cannot be combined; give one of them")
    if file is None:
        texts = [sound(each, "the text") for each in text]
        refuse_empty(texts, "the text")
    else:
        texts = lines_of(file)
        count_empty(texts, file, watch)
    for name in filter(os.path.isfile, text):
        watch.warn(f"{name}: its name is taken as a text; to embed its lines, give --file {name}")

    from clozelab.models.embed import check_dimensions, follow, nearest, save

    loaded, per_word = opened(model, watch), words or "mean"
    check_dimensions(loaded, dimensions)
    pool = pool or ("none" if near is None else loaded.pooling or "mean")
    settings: dict[str, Any] = {"layer": number, "words": per_word, "pool": pool, "device": device}
    settings["dimensions"] = dimensions
    vectors: Vectors = watch.drain(follow(loaded, texts, **settings), "embedding", len(texts))
    if vectors.cut:
        watch.warn(f"texts truncated to the model's maximum length: {vectors.cut:,}")
    warn_of_length(loaded, vectors.longest, watch)
    if out is not None:
        if missing := " and ".join(save(Path(out), vectors, texts)):
            watch.warn(f"{out}: {missing} left out, because one long text makes it too large")
        shape = " × ".join(f"{size:,}" for size in vectors.vectors.shape)
        watch.say(f"{out}: {shape} numbers for {counted(len(texts), 'text')}")
    if near is None:
        return vectors
    query: Vectors = watch.drain(follow(loaded, [near], **settings), "embedding", 1)
    if query.cut:
        watch.warn("--near: the text exceeds the model's maximum length and was truncated")
    return nearest(near, texts, embedded=vectors, near=query.vectors[0], top=top)


def _check_near(near: str, *, pool: str | None, words: str | None, layer: Any, top: int) -> None:
    """Refuse what has not one vector for each text, or nothing to look for."""
    refuse_empty([near], "--near")
    if pool == "none" or words is not None or layer == "all":
        raise UserError(
            "--near compares whole texts; leave out --words, --pool none and --layer all"
        )
    if top < 1:
        raise UserError(f"--top {top}: must be at least 1")


def layer_of(word: Any) -> Layer:
    """A layer as it is spelled: a number, last or all."""
    if word == "all":
        return "all"
    if word == "last":
        return -1
    try:
        number = int(word)
    except (TypeError, ValueError):
        number = None
    if number is None or isinstance(word, bool) or str(number) != str(word):
        raise UserError(f"--layer {word}: must be a whole number, last or all")
    return number


@command
def export(
    model: ModelPlace,
    out: Place,
    *,
    all: bool = False,
    onnx: bool = False,
    family: str | None = None,
    pool: Literal["cls", "mean_all"] | None = None,
    watch: Watch,
) -> Path | str:
    """Write a model as a Hugging Face directory, or as an ONNX graph.

    If the model has one vector for a text, sentence-transformers opens the directory, too.

    Args:
        out: the folder to make, or an empty place at a URL
        all: export every checkpoint of a run, each to its own folder step-…
        onnx: write model.onnx and tokenizer.json
        family: family of transformers' classes, such as bert (the one that fits)
        pool: the vector of a text for sentence-transformers: its [CLS], or the mean of its tokens
            with the special ones (what the model was trained for)
    """
    from clozelab.models.exchange import export, export_all, export_graph

    if out.startswith("hf:"):
        raise UserError(
            f"{out}: export writes a folder; name one, and upload it with hf upload OWNER/NAME DIR"
        )
    if onnx and (family is not None or pool is not None):
        raise UserError("--family and --pool have no effect on ONNX; leave them out with --onnx")
    if all and (onnx or is_url(out)):
        raise UserError(
            "--all writes Hugging Face directories on this machine; leave out --onnx and URLs"
        )
    if all:
        written = export_all(model, Path(out), family=family, pool=pool)
    else:
        written = export_graph(model, out) if onnx else export(model, out, family=family, pool=pool)
    _tell(out, written, watch)
    return out if is_url(out) else Path(out)


@command
def import_model(model: Place, out: LocalFolder, *, watch: Watch) -> Run:
    """Import a Hugging Face model as a run, which every command accepts.

    Args:
        model: a Hugging Face directory, its URL or a hub name
        out: the run's folder
    """
    from clozelab.models.exchange import import_model

    _tell(out, import_model(model, Path(out)), watch)
    return Run(Path(out))


def _tell(place: str, exchanged: Exchanged, watch: Watch) -> None:
    watch.warn(*exchanged.notes)
    watch.say(f"{place}: {exchanged.what}")
