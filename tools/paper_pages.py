"""Make the papers' pages, docs/papers/, from recipes, tools/papers.toml and recorded claims.

    python tools/paper_pages.py

For each recipe: the idea, what it changes as `clozelab diff` prints it, a picture of its masks, and
the verdicts of its studies, which are those of the table in docs/results.md.
"""

from __future__ import annotations

import io
import re
import tomllib
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console

import clozelab
from clozelab.cli.views.recipes import difference
from clozelab.config import recipe as recipes
from clozelab.contracts import Corrupted
from clozelab.studies import spec

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "papers"
ENTRIES = tomllib.loads((ROOT / "tools" / "papers.toml").read_text(encoding="utf-8"))
TEXT = (
    "The umbrella salesman remembered a rainy Wednesday in New York, when he sold forty umbrellas"
    " before breakfast."
)
CHINESE = "哈尔滨是黑龙江的省会，也是国际冰雪文化名城。"
SEQUENCE = "ATGGCCATTGTAATGGGCCGCTGAAAGGGTGCCCGATAGCTTACGGATCCTTAGCAATGGCATTACGGCTAAC"
COLOURS = {"mask": "#3b6ea8", "random": "#b4483c", "same": "#3f8f5b", "": "none"}
WIDTH, LINE, LETTER, GAP = 720, 26, 7.9, 7
DIFF_WIDTH = 100
INDEX = """\
# The papers

Each system of the family is a recipe, and a recipe is the few keys by which it differs from
another. A page has the idea, that difference, what is masked, and what studies here found of the
paper's claims. Not sure which one? [Which recipe should I use?](../questions/which-recipe.md)

| | recipe | the idea | keys it changes | claims recorded here |
|---|---|---|---|--:|
{rows}

Made by `python tools/paper_pages.py`.
"""
PAGE = """\
# {title}

*{paper}*

{idea}

{change}## What is masked

{picture}

## What studies found here

{verdicts}

Train it: `clozelab pretrain {name} --data CORPUS --size tiny --budget 20m --out RUN`
([how](../training.md)); all of it: `clozelab show {name}`.
"""
CHANGES = """\
## What it changes

`clozelab diff {base} {name}`:

```text
{diff}
```

"""
PICTURE = """\
![Masks of {title} in two epochs]({name}.svg)

{colours}: `clozelab mask {name} TEXT`."""
COLOURED = "Blue is hidden, red replaced by another token, green kept but predicted"
ORDER = "Blue is predicted, one token after another in a random order; nothing is hidden"
NO_PICTURE = "Nothing: no token of the input is hidden or replaced."
HEAD = "| study | claim | verdict | advantage, 95 % interval | p |\n|---|---|---|---|--:|"
WHERE = (
    "Mostly at 4 × 256, on one H200; [what the verdicts mean](../reading-results.md), [how they"
    " were run](../../results/README.md#studies)."
)


def main() -> None:
    """Write all pages and pictures; those of removed recipes are deleted."""
    FOLDER.mkdir(exist_ok=True)
    files = pages()
    for file in FOLDER.iterdir():
        if file.name not in files:
            file.unlink()
    for name, text in files.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """The texts of all files of the folder, by name."""
    claims = recorded()
    files = {"index.md": index(claims)}
    for name in recipes.names():
        picture = masks(name)
        if picture:
            files[f"{name}.svg"] = picture
        files[f"{name}.md"] = page(name, claims, bool(picture))
    return files


def entry(name: str) -> dict[str, Any]:
    """The entry of a recipe in papers.toml, or else one made of the comment in its file."""
    if name in ENTRIES:
        return {"papers": [], **ENTRIES[name]}
    lines = recipes.RECIPES.find(name).text.splitlines()
    comment = [line.lstrip("# ") for line in lines[: lines.index("")] if line.startswith("#")]
    return {"name": name, "papers": [], "idea": " ".join(comment) or recipes.read(name).title}


def index(claims: dict[str, list[str]]) -> str:
    """The index page: a table of all recipes."""
    rows = []
    for name in recipes.names():
        own, known = entry(name), [study for study in studies(name) if study in claims]
        count = sum(len(claims[study]) for study in known) or "–"
        base = against(name)
        change = f"{len(clozelab.diff(base, name))}, of `{base}`" if base else "–"
        idea = own["idea"].partition(". ")[0].rstrip(".")
        rows.append(f"| [{own['name']}]({name}.md) | `{name}` | {idea} | {change} | {count} |")
    return INDEX.format(rows="\n".join(rows))


def page(name: str, claims: dict[str, list[str]], has_picture: bool) -> str:
    """The page of one recipe."""
    own, base = entry(name), against(name)
    change = CHANGES.format(base=base, name=name, diff=diff(base, name)) if base else ""
    ordered = recipes.read(name).tables()["masking"]["use"] == "partial"
    colours = ORDER if ordered else COLOURED
    picture = PICTURE.format(name=name, title=own["name"], colours=colours)
    picture = picture if has_picture else NO_PICTURE
    return PAGE.format(
        name=name,
        title=own["name"],
        paper=recipes.read(name).title,
        idea=own["idea"],
        change=change,
        picture=picture,
        verdicts="\n".join(verdicts(name, claims)),
    )


def verdicts(name: str, claims: dict[str, list[str]]) -> list[str]:
    """The lines about a paper's recorded claims, and its studies that were not run yet."""
    own = studies(name)
    rows = [row for study in own for row in claims.get(study, [])]
    lines = [HEAD, *rows, "", WHERE] if rows else []
    known = {study_of_record()[folder] for folder in claims}
    not_run = [study for study in own if study not in {*known, *claims}]
    if not_run:
        commands = ", ".join(f"`clozelab study {study}`" for study in not_run)
        lines += [""] * bool(lines) + [f"Not run yet: {commands} ([studies](../studies.md))."]
    return lines or ["No study of it is recorded."]


def studies(name: str) -> list[str]:
    """The studies of a recipe's papers: those that come with clozelab, and their records."""
    papers = set(entry(name)["papers"])
    own = [study for study, paper in papers_of_studies().items() if paper in papers]
    return sorted({*own, *(folder for folder in recorded() if study_of_record()[folder] in own)})


@cache
def papers_of_studies() -> dict[str, str]:
    """The paper of each study that comes with clozelab."""
    return {study: spec.read(study).paper.name for study in spec.names()}


@cache
def study_of_record() -> dict[str, str]:
    """The study that each folder of results is a record of."""
    files = (ROOT / "results").glob("*/study.toml")
    return {file.parent.name: tomllib.loads(file.read_text("utf-8"))["name"] for file in files}


@cache
def recorded() -> dict[str, list[str]]:
    """The rows of the table in docs/results.md by study, with links from docs/papers."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    table = text.partition("<!-- claims -->")[2].partition("<!-- end of claims -->")[0]
    claims: dict[str, list[str]] = {}
    study = ""
    for line in table.splitlines():
        if not line.startswith("| ") or line.startswith("| study"):
            continue
        match = re.match(r"\| \[([\w-]+)\]", line)
        study = match[1] if match else study
        claims.setdefault(study, []).append(line.replace("](../results/", "](../../results/"))
    return claims


def against(name: str) -> str | None:
    """The recipe with which a recipe is compared on its page."""
    chain = recipes.chain(name)
    base = entry(name).get("against") or (Path(chain[1]).stem if len(chain) > 1 else None)
    return base if base != name else None


def diff(base: str, name: str) -> str:
    """The difference of two recipes, as `clozelab diff` prints it."""
    console = Console(file=io.StringIO(), width=DIFF_WIDTH, record=True, highlight=False)
    for part in difference(clozelab.diff(base, name), {"a": base, "b": name}):
        console.print(part)
    return "\n".join(line.rstrip() for line in console.export_text().rstrip().splitlines())


def masks(name: str) -> str:
    """The SVG of two epochs of masks; "" if a recipe masks nothing."""
    tokenizer = recipes.read(name).tables()["tokenizer"]["use"]
    text = SEQUENCE if tokenizer == "kmer" else TEXT
    text = CHINESE if name in ("bert_chinese", "roberta_wwm", "ernie") else text
    mask_records = [
        clozelab.mask(name, text, epoch=epoch, seed=1, progress=False) for epoch in (0, 1)
    ]
    if not any(len(each.epochs[0].hidden.positions) for each in mask_records):
        return ""
    top, parts = 18.0, list[str]()
    for each in mask_records:
        parts.append(f'<text x="4" y="{top:g}" class="n">epoch {each.epochs[0].epoch}</text>')
        tokens, top = _tokens(each, top + 10)
        parts += tokens
        top += 26
    style = (
        "text{font:13px ui-monospace,monospace;fill:#4a4a4a}.n{font-weight:bold}.h{fill:#fff}"
        "@media(prefers-color-scheme:dark){text{fill:#c8c8c8}.h{fill:#fff}}"
    )
    title = f"{escape(entry(name)['name'])}: what is masked in two epochs"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top - 14:g}" role="img">'
        f"<title>{title}</title><style>{style}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _tokens(mask_records: Any, top: float) -> tuple[list[str], float]:
    """The SVG elements of a text's tokens, line by line, and the height of their end."""
    masked, blocks = mask_records.epochs[0], mask_records.laid.blocks
    decisions = {}
    for number, at in enumerate(masked.hidden.positions.tolist()):
        ordered = masked.hidden.order is not None
        decision = Corrupted.MASK if ordered else int(masked.corrupted.decisions[number])
        decisions[at] = {Corrupted.MASK: "mask", Corrupted.RANDOM: "random"}.get(decision, "same")
    parts, left = list[str](), 4.0
    for at, number in enumerate(blocks.ids.tolist()):
        piece = _piece(mask_records.tokenizer, number)
        width = sum(13 if ord(letter) > 0x2E80 else LETTER for letter in piece)
        if left + width > WIDTH - 4:
            left, top = 4.0, top + LINE
        state = decisions.get(at, "")
        if state:
            box = f'x="{left - 3:.1f}" y="{top:g}" width="{width + 6:.1f}" height="20"'
            parts.append(f'<rect {box} rx="3" fill="{COLOURS[state]}"/>')
        mark = ' class="h"' if state else ""
        parts.append(f'<text x="{left:.1f}" y="{top + 15:g}"{mark}>{escape(piece)}</text>')
        left += width + GAP
    return parts, top + LINE


def _piece(tokenizer: Any, number: int) -> str:
    piece = tokenizer.id_to_token(number) or "?"
    if tokenizer.decoder is not None and not piece.startswith(("[", "<", "##")):
        decoded = tokenizer.decode([number], skip_special_tokens=False)
        piece = decoded if decoded.strip() and "�" not in decoded else piece
    return piece.removesuffix("</w>").replace("▁", "").strip() or "␣"


if __name__ == "__main__":
    main()
