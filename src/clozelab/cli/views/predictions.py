"""What a fine-tuned model said: lines that other programs read, tables and answers for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from clozelab.finetuning.examples import GOLD
from clozelab.finetuning.predictions import Class, Clusters, Number, Picked, Span, Tags

_ENDS = re.compile("[\t\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")  # of a field or of a line
_AROUND = 300  # characters of a passage on either side of its answer


def lines(examples: Sequence[Any], found: Sequence[Any], *, as_json: bool) -> Iterator[str]:
    """A line a prediction: fields with tabs between them, or JSON with text and probabilities."""
    for example, said in zip(examples, found, strict=True):
        if as_json:
            yield json.dumps({**_read(example), **_named(said)}, ensure_ascii=False)
        else:
            yield "\t".join(_ENDS.sub(" ", part) for part in _fields(example, said))


def shown(examples: Sequence[Any], found: Sequence[Any]) -> Table:
    """The same for people: a row a prediction, numbers below one another."""
    made = Table.grid(padding=(0, 2))
    for example, said in zip(examples, found, strict=True):
        if isinstance(said, Tags):
            made.add_row(_tagged(example.words, said))
            continue
        head, *rest = _fields(example, said)
        numeric = isinstance(said, Number)
        first = Text(head, style="bold", justify="right" if numeric else "left")
        made.add_row(first, *map(Text, rest))
    return made


def answered(said: Span, passage: str, *, top: int) -> Group:
    """The answer, its place in the passage, and its rivals."""
    first = Text(said.text, style="bold green")
    if not said.text:
        first = Text("the passage does not say", style="yellow")
    begin = said.best[0].start if said.best else 0
    end = begin + len(said.text)
    left, right = max(0, begin - _AROUND), min(len(passage), end + _AROUND)
    around = Text("… " if left else "", style="dim")
    around.append(passage[left:begin])
    around.append(passage[begin:end], style="bold green not dim")
    around.append(passage[end:right])
    around.append(" …" if right < len(passage) else "")
    rivals = Table.grid(padding=(0, 2))
    for one in said.best[:top]:
        rivals.add_row(Text(f"{one.probability:6.1%}"), Text(one.text))
    return Group(first, Text(""), around, Text(""), rivals)


def _read(example: Any) -> dict[str, Any]:
    """What the model was given: the example without its label, a text alone by that word."""
    known = {name: part for name, part in example._asdict().items() if name not in GOLD}
    if "second" in known and known["second"] is None:
        return {"id": known["id"], "text": known["first"]}
    return known


def _named(value: Any) -> Any:
    """A prediction with the names of its fields, as JSON has it."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _named(part) for name, part in value._asdict().items()}
    return [_named(part) for part in value] if isinstance(value, tuple) else value


def _tagged(words: Sequence[str], said: Tags) -> Text:
    """A sentence with its tags behind the words that have one."""
    made = Text()
    for number, (word, tag) in enumerate(zip(words, said.tags, strict=True)):
        made.append(" " if number else "")
        made.append(word, style="" if tag == "O" else "bold")
        made.append("" if tag == "O" else f"/{tag}", style="cyan")
    return made


def _fields(example: Any, said: Any) -> list[str]:
    """What a reader of columns wants, the prediction first."""
    if isinstance(said, Class | Number):
        text = example.first if example.second is None else f"{example.first} | {example.second}"
        if isinstance(said, Number):
            return [f"{said.value:.4f}", text]
        return [said.label, f"{said.probabilities[said.label]:.4f}", text]
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
