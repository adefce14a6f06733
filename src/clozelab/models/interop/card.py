"""The card of a model: what it is, what it was trained on and how, and how to use it.

Text of a user (names, titles, labels, recipes) is escaped, so that it is never read as Markdown,
HTML, or Python in the example code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from clozelab.markdown import fenced, plain, within
from clozelab.models.interop.families import MODEL_TYPES, TABLES
from clozelab.models.interop.heads import TaskHead
from clozelab.runs.adaptation import AdaptationRecord

_TEXTS = TABLES.find("card").tables()


def card(
    *,
    name: str,
    title: str,
    recipe_toml: str,
    data: Mapping[str, object],
    metrics: Mapping[str, object],
    family: str,
    predicts: bool = True,
    task: TaskHead | None = None,
    lineage: Sequence[str] = (),
    task_toml: str = "",
    adaptation: AdaptationRecord | None = None,
) -> str:
    """The text of README.md; `name` is how the model is opened, a place or a hub name.

    Of a fine-tuned model `lineage` is what it came from, the oldest first, and `task_toml` its
    settings; `metrics` are then its scores. `predicts` is whether a head predicts tokens.
    """
    tag, use = _usage(family, predicts, task, json.dumps(name, ensure_ascii=False))
    origin, recipe = "Pretrained", "The whole recipe"
    if task is not None:
        origin = f"Fine-tuned {'to' if task.called == task.kind else 'on'} {task.called}"
        recipe = "The recipe of the encoder"
    sections = [
        f"---\nlibrary_name: transformers\npipeline_tag: {tag}\nlicense: other\n"  # for the hub
        f"tags:\n- clozelab\n- {family}\n---",
        f"# {plain(name.rstrip('/').rpartition('/')[2])}",
        f"{plain(title)}. {within(origin)} with clozelab; a `{family}` model of transformers.",
        *([] if task is None else _task_section(task, lineage)),
        "Its licence is for whoever publishes it to choose: set `license` above.",
        f"## Use\n\n```python\n{use}\n```",
        f"## Data\n\n{_table('', data)}",
        f"## Results\n\n{_table('value', metrics)}",
        *([] if adaptation is None else [_adaptation_section(adaptation)]),
        f"## Training\n\n{recipe}:\n\n{fenced(recipe_toml, 'toml')}",
        *([f"The task, and its tuning:\n\n{fenced(task_toml, 'toml')}"] if task_toml else []),
        f"## Versions\n\n{_table('version', _versions())}",
    ]
    return "\n\n".join(sections) + "\n"


def _usage(family: str, predicts: bool, task: TaskHead | None, name: str) -> tuple[str, str]:
    """The hub's name of the task, and example code for it."""
    texts = ['"Where does it rise?"', '"The river rises in the hills, far from here."']
    if task is None and MODEL_TYPES[family].is_gpt:
        tag, use = "text-generation", "write"
    elif task is None:
        fills = predicts and family != "xlnet"
        tag, use = ("fill-mask", "fill") if fills else ("feature-extraction", "encode")
    else:
        tag, _ = _TEXTS["tasks"][task.kind]
        use = "beam" if task.is_beam else task.kind
        if task.kind not in ("choose", "answer"):
            use = "pair" if task.extra.get("pair") else "text"
    # XLNet has the passage first.
    texts = texts[::-1] if family == "xlnet" else texts
    code = _TEXTS["use"][use].format(name=name, task=tag, texts=f"[{', '.join(texts)}]")
    return tag, code.strip()


def _task_section(task: TaskHead, lineage: Sequence[str]) -> list[str]:
    """What a fine-tuned model does, and where it came from."""
    tag, words = _TEXTS["tasks"][task.kind]
    known = {True: "a pair of texts", False: "a text", None: "a text or a pair"}
    words = words.format(inputs=known.get(task.extra.get("pair"), known[None]))
    lines = [f"## Task\n\n{words[0].upper()}{words[1:]} ({tag})."]
    if task.labels:
        rows = {str(number): label for number, label in enumerate(task.labels)}
        lines.append(f"Labels:\n\n{_table('label', rows)}")
    if task.extra.get("impossible"):
        lines.append(_no_answer_note(task))
    if lineage:
        lines.append(f"Fine-tuned from: {' → '.join(map(within, lineage))}.")
    return lines


def _adaptation_section(record: AdaptationRecord) -> str:
    """What an adaptation gained and forgot, and how it was done."""
    rows = [["measure", "before", "after", "change"], ["---"] * 4]
    rows += [[within(cell) for cell in row.written()] for row in record.rows()]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    changes = "\n".join(record.changes)
    how = f"\n\nWhat it changed in the model's recipe:\n\n{fenced(changes)}" if changes else ""
    return f"## Adaptation\n\n{plain(record.verdict)}.\n\n{lines}{how}"


def _no_answer_note(task: TaskHead) -> str:
    """How to tell that a question has no answer."""
    over = f'`config.clozelab["threshold"]`, {task.extra.get("threshold", 0.0):.4g}'
    if task.head == "beam":
        return f"A question may have no answer: it has none where `cls_logits` are over {over}."
    return (
        "A question may have no answer: it has none where the start and end logits of the class"
        f" token, added, less those of the best answer are over {over}."
    )


def _table(heading: str, rows: Mapping[str, object]) -> str:
    """A table of two columns, or "Not recorded."."""
    if not rows:
        return "Not recorded."
    lines = [f"| {_cell(key)} | {_cell(value)} |" for key, value in rows.items()]
    return "\n".join([f"| | {heading} |", "|---|---|", *lines])


def _cell(value: object) -> str:
    """The text of a cell, numbers rounded and Markdown escaped."""
    return within(f"{value:.4g}" if isinstance(value, float) else str(value))


def _versions() -> dict[str, str]:
    """The versions of the installed packages that made the model."""
    versions = {}
    for package in ("clozelab", "torch", "tokenizers", "safetensors"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
