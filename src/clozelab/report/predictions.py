"""What a fine-tuned model said, as lines that other programs read, and answers for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from clozelab.tasks.predictions import Class, Clusters, Number, Picked, Span, Tags


def lines(examples: Sequence[Any], found: Sequence[Any], *, as_json: bool) -> Iterator[str]:
    """A line a prediction: fields with tabs between them, or JSON with every probability."""
    for example, said in zip(examples, found, strict=True):
        if as_json:
            yield json.dumps({"id": example.id, **said._asdict()}, ensure_ascii=False)
        else:
            yield "\t".join(_plain(part) for part in _fields(example, said))


def answered(said: Span, passage: str, *, top: int) -> Group:
    """The answer, its place in the passage, and its rivals."""
    if not said.text:
        first = Text("the passage does not say", style="yellow")
    else:
        first = Text(said.text, style="bold green")
    shown = Text(passage, style="dim")
    if said.text and said.best:
        begin = said.best[0].start
        shown.stylize("bold green not dim", begin, begin + len(said.text))
    rivals = [Text(f"{one.probability:6.1%}  {one.text}") for one in said.best[:top]]
    return Group(first, Text(""), shown, Text(""), *rivals)


def _fields(example: Any, said: Any) -> list[str]:
    """What a reader of columns wants, the prediction first."""
    if isinstance(said, Class):
        text = example.first if example.second is None else f"{example.first} | {example.second}"
        return [said.label, f"{said.probabilities[said.label]:.4f}", text]
    if isinstance(said, Number):
        text = example.first if example.second is None else f"{example.first} | {example.second}"
        return [f"{said.value:.4f}", text]
    if isinstance(said, Tags):
        return [" ".join(f"{w}/{t}" for w, t in zip(example.words, said.tags, strict=True))]
    if isinstance(said, Picked):
        return [str(said.label), f"{max(said.probabilities):.4f}", example.seconds[said.label]]
    if isinstance(said, Span):
        return [example.id, said.text]
    assert isinstance(said, Clusters)
    words = [word for sentence in example.sentences for word in sentence]
    return [
        " = ".join(" ".join(words[one.first : one.last + 1]) for one in cluster)
        for cluster in said.clusters
    ]


def _plain(text: str) -> str:
    """A field without the characters that end one."""
    return text.replace("\t", " ").replace("\n", " ")
