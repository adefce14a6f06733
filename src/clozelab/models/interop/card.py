"""The card of a model: what it is, what it was trained on and how, and how to use it.

What comes from a user (names, titles, labels, recipes) is shown as it is: nothing in it is taken
for Markdown or HTML, or for Python in the lines to copy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from clozelab.markdown import fenced, plain
from clozelab.models.interop.heads import TaskHead

_GENERATES = ("openai-gpt", "gpt2")
_FILL = """from transformers import pipeline

fill = pipeline("fill-mask", {name})
fill(f"Paris is the {{fill.tokenizer.mask_token}} of France.")"""
_WRITE = """from transformers import pipeline

write = pipeline("text-generation", {name})
write("Paris is the")"""
_ENCODE = """from transformers import AutoModel, AutoTokenizer

tokenizer, model = (kind.from_pretrained({name}) for kind in (AutoTokenizer, AutoModel))
states = model(**tokenizer("Paris is the capital of France.", return_tensors="pt"))[0]"""


_JUDGE = """from transformers import pipeline

judge = pipeline("{task}", {name})
judge({given})"""
_TEXT = '"The river was wide, and slow."'
_PAIR = """{"text": "The river was wide, and slow.", "text_pair": "Nobody could cross it."}"""
_CHOOSE = """import torch
from transformers import AutoModelForMultipleChoice, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({name})
model = AutoModelForMultipleChoice.from_pretrained({name})
first, seconds = "It rained all night.", ["The street is wet.", "The street is blue."]
given = tokenizer([first] * len(seconds), seconds, padding=True, return_tensors="pt")
with torch.no_grad():
    scores = model(**{{name: rows[None] for name, rows in given.items()}}).logits[0]
print(seconds[scores.argmax()])"""
_ANSWER = """import torch
from transformers import {kind}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({name})
model = {kind}.from_pretrained({name})
texts = {texts}
given = tokenizer(*texts, return_tensors="pt")
with torch.no_grad():
    {take}
print(tokenizer.decode(given["input_ids"][0, first : last + 1]))"""
_QUESTION, _PASSAGE = '"Where does it rise?"', '"The river rises in the hills, far from here."'
_SPAN = """found = model(**given)
    scores = found.start_logits[0][:, None] + found.end_logits[0]  # by first and last token
    legal = torch.ones_like(scores).triu() > 0  # which is not before the first
    first, last = divmod(int(scores.where(legal, -1e9).argmax()), len(scores))"""
_BEAM = """found = model(**given)
    first, last = found.start_top_index[0, 0], found.end_top_index[0, 0]"""
# What each kind of task is called on the hub, and in words.
_TASKS = {
    "classify": ("text-classification", "one of several classes for {given}"),
    "regress": ("text-classification", "a number for {given}"),
    "choose": ("multiple-choice", "which of several continuations is right"),
    "tag": ("token-classification", "a tag for each word, at its first token"),
    "answer": ("question-answering", "the stretch of a passage that answers a question"),
}


def card(
    *,
    name: str,
    title: str,
    recipe_toml: str,
    data: Mapping[str, object],
    metrics: Mapping[str, object],
    family: str,
    task: TaskHead | None = None,
    lineage: Sequence[str] = (),
    task_toml: str = "",
) -> str:
    """The text of README.md; `name` is how the model is opened, a place or a hub name.

    Of a fine-tuned model `lineage` is what it came from, the oldest first, and `task_toml` its
    settings; `metrics` are then its scores.
    """
    tag, use = _use(family, task, json.dumps(name, ensure_ascii=False))
    made, recipe = "Pretrained", "The whole recipe"
    if task is not None:
        named = task.extra.get("task", task.kind)
        made = f"Fine-tuned {'to' if named == task.kind else 'on'} {named}"
        recipe = "The recipe of the encoder"
    sections = [
        _front(tag, family),
        f"# {plain(name.rstrip('/').rpartition('/')[2])}",
        f"{plain(title)}. {plain(made)} with clozelab; a `{family}` model of transformers.",
        *([] if task is None else _about(task, lineage)),
        "Its licence is for whoever publishes it to choose: set `license` above.",
        f"## Use\n\n```python\n{use}\n```",
        f"## Data\n\n{_table('', data)}",
        f"## Results\n\n{_table('value', metrics)}",
        f"## Training\n\n{recipe}:\n\n{fenced(recipe_toml, 'toml')}",
        *([f"The task, and its tuning:\n\n{fenced(task_toml, 'toml')}"] if task_toml else []),
        f"## Versions\n\n{_table('version', _versions())}",
    ]
    return "\n\n".join(sections) + "\n"


def _use(family: str, task: TaskHead | None, name: str) -> tuple[str, str]:
    """The task as the hub calls it, and a few lines that do it."""
    if task is None:
        if family in _GENERATES:
            return "text-generation", _WRITE.format(name=name)
        if family == "xlnet":
            return "feature-extraction", _ENCODE.format(name=name)
        return "fill-mask", _FILL.format(name=name)
    tag, _ = _TASKS[task.kind]
    if task.kind == "choose":
        return tag, _CHOOSE.format(name=name)
    if task.kind == "answer":
        texts = (_PASSAGE, _QUESTION) if family == "xlnet" else (_QUESTION, _PASSAGE)
        beam = task.head == "beam"  # the automatic class is the plain one
        return tag, _ANSWER.format(
            name=name,
            kind="XLNetForQuestionAnswering" if beam else "AutoModelForQuestionAnswering",
            texts=f"[{', '.join(texts)}]",
            take=_BEAM if beam else _SPAN,
        )
    given = _PAIR if task.extra.get("pair") else _TEXT
    return tag, _JUDGE.format(name=name, task=tag, given=given)


def _about(task: TaskHead, lineage: Sequence[str]) -> list[str]:
    """What a fine-tuned model does, and where it came from."""
    tag, words = _TASKS[task.kind]
    known = {None: "a text or a pair", True: "a pair of texts", False: "a text"}
    words = words.format(given=known.get(task.extra.get("pair"), known[None]))
    lines = [f"## Task\n\n{words[0].upper()}{words[1:]} ({tag})."]
    if task.labels:
        rows = {str(number): label for number, label in enumerate(task.labels)}
        lines.append(f"Labels:\n\n{_table('label', rows)}")
    if task.extra.get("impossible"):
        lines.append(_withdrawn(task))
    if lineage:
        lines.append(f"Fine-tuned from: {' → '.join(map(plain, lineage))}.")
    return lines


def _withdrawn(task: TaskHead) -> str:
    """When a question has no answer."""
    over = f'`config.clozelab["threshold"]`, {task.extra.get("threshold", 0.0):.4g}'
    if task.head == "beam":
        return f"A question may have no answer: it has none where `cls_logits` are over {over}."
    return (
        "A question may have no answer: it has none where the start and end logits of the class"
        f" token, added, less those of the best answer are over {over}."
    )


def _front(task: str, family: str) -> str:
    """What the hub reads."""
    lines = ["library_name: transformers", f"pipeline_tag: {task}", "license: other"]
    lines += ["tags:", "- clozelab", f"- {family}"]
    return "\n".join(["---", *lines, "---"])


def _table(heading: str, rows: Mapping[str, object]) -> str:
    """Two columns, or that there is nothing to say."""
    if not rows:
        return "Not recorded."
    lines = [f"| {_cell(key)} | {_cell(value)} |" for key, value in rows.items()]
    return "\n".join([f"| | {heading} |", "|---|---|", *lines])


def _cell(value: object) -> str:
    """Numbers at a readable length; nothing that would end the cell."""
    return plain(f"{value:.4g}" if isinstance(value, float) else str(value))


def _versions() -> dict[str, str]:
    """Of what made the model, as far as it is installed."""
    found = {}
    for package in ("clozelab", "torch", "tokenizers", "safetensors"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
