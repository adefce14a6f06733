"""The card of a model: what it is, what it was trained on and how, and how to use it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

_GENERATES = ("openai-gpt", "gpt2")
_FILL = """from transformers import pipeline

fill = pipeline("fill-mask", "{name}")
fill(f"Paris is the {{fill.tokenizer.mask_token}} of France.")"""
_WRITE = """from transformers import pipeline

write = pipeline("text-generation", "{name}")
write("Paris is the")"""
_ENCODE = """from transformers import AutoModel, AutoTokenizer

tokenizer, model = (kind.from_pretrained("{name}") for kind in (AutoTokenizer, AutoModel))
states = model(**tokenizer("Paris is the capital of France.", return_tensors="pt"))[0]"""


def card(
    *,
    name: str,
    title: str,
    recipe_toml: str,
    data: Mapping[str, object],
    metrics: Mapping[str, object],
    family: str,
) -> str:
    """The text of README.md; `name` is how the model is opened, a place or a hub name."""
    task, use = "fill-mask", _FILL
    if family in _GENERATES:
        task, use = "text-generation", _WRITE
    elif family == "xlnet":
        task, use = "feature-extraction", _ENCODE
    sections = [
        _front(task, family),
        f"# {name.rstrip('/').rpartition('/')[2]}",
        f"{title}. Pretrained with clozelab; a `{family}` model of transformers.",
        "Its licence is for whoever publishes it to choose: set `license` above.",
        f"## Use\n\n```python\n{use.format(name=name)}\n```",
        f"## Data\n\n{_table('', data)}",
        f"## Results\n\n{_table('value', metrics)}",
        f"## Training\n\nThe whole recipe:\n\n```toml\n{recipe_toml.strip()}\n```",
        f"## Versions\n\n{_table('version', _versions())}",
    ]
    return "\n\n".join(sections) + "\n"


def _front(task: str, family: str) -> str:
    """What the hub reads."""
    lines = ["library_name: transformers", f"pipeline_tag: {task}", "license: other"]
    lines += ["tags:", "- clozelab", f"- {family}"]
    return "\n".join(["---", *lines, "---"])


def _table(heading: str, rows: Mapping[str, object]) -> str:
    """Two columns, or that there is nothing to say."""
    if not rows:
        return "Not recorded."
    lines = [f"| {key} | {_cell(value)} |" for key, value in rows.items()]
    return "\n".join([f"| | {heading} |", "|---|---|", *lines])


def _cell(value: object) -> str:
    """Numbers at a readable length; nothing that would end the cell."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _versions() -> dict[str, str]:
    """Of what made the model, as far as it is installed."""
    found = {}
    for package in ("clozelab", "torch", "tokenizers", "safetensors"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
