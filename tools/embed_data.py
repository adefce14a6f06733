"""Makes the data embedded in clozelab from Debian packages and ``tools/chinese.txt``.

The same packages give the same bytes: every choice and order comes from hashes, not from a clock
or a random generator. Run ``python tools/embed_data.py`` on a Debian machine.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import re
import shutil
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from embed.order import Document, Item, Row, shuffled
from embed.packages import PACKAGES, download_packages, make_folder, unpack
from embed.prose import DEVIL_LEFT_OUT, SHORTEST_DOCUMENT, english_corpus
from embed.tasks import (
    CATEGORIES,
    TAGS,
    Splits,
    choices_task,
    definitions_task,
    pairs_task,
    spans_task,
    squad,
    tags_task,
)
from embed.wordnet import WordNet, uses

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "src" / "clozelab" / "data"
CHINESE_SOURCE = ROOT / "tools" / "chinese.txt"


def chinese_corpus() -> tuple[list[Document], list[str]]:
    """The Chinese documents and the names bracketed in them, in the order of their text."""
    source = CHINESE_SOURCE.read_text("utf-8").strip()
    documents = [
        {"id": f"zh-{number:03d}", "text": re.sub(r"[\[\]]", "", text)}
        for number, text in enumerate(source.split("\n\n"), start=1)
    ]
    entities = sorted(set(re.findall(r"\[([^\]]+)\]", source)))
    return shuffled(documents, key=lambda document: document["id"], salt="chinese"), entities


def write(path: Path, text: str) -> None:
    """Write text as it is, on every system."""
    make_folder(path.parent)
    path.write_text(text, "utf-8", newline="\n")


def write_gzip(path: Path, documents: Iterable[Document]) -> None:
    """JSON lines, packed without name or time."""
    buffer = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, buffer, mtime=0) as packed:
        packed.write(json_lines(documents).encode("utf-8"))
    make_folder(path.parent)
    path.write_bytes(buffer.getvalue())


def json_lines(rows: Iterable[object]) -> str:
    """One JSON value on each line."""
    return "".join(
        json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows
    )


def table(header: Row, rows: Iterable[Row]) -> str:
    """Tab-separated values; no field holds a tab or a line end."""
    return "".join("\t".join(row) + "\n" for row in [header, *rows])


def write_tasks(wordnet: WordNet) -> dict[str, int]:
    """Write every task; return the number of rows of each file."""
    pool = uses(wordnet)
    rows: dict[str, int] = {}

    def save(task: str, ending: str, splits: Splits[Item], text: Callable[[str], str]) -> None:
        for split, part in splits.items():
            write(DATA / "tasks" / task / f"{split}.{ending}", text(split))
            rows[f"tasks/{task}/{split}.{ending}"] = len(part)

    definitions = definitions_task(wordnet)
    save("definitions", "tsv", definitions, lambda s: table(("sentence", "label"), definitions[s]))
    pairs = pairs_task(pool)
    pair_header = ("sentence1", "sentence2", "label")
    save("pairs", "tsv", pairs, lambda s: table(pair_header, pairs[s]))
    choices = choices_task(wordnet, pool)
    save("choices", "jsonl", choices, lambda s: json_lines(choices[s]))
    tags = tags_task(wordnet)
    save("tags", "conll", tags, lambda s: "\n".join(table(r[0], r[1:]) for r in tags[s]))
    spans = spans_task(wordnet, pool)
    save("spans", "json", spans, lambda s: json_lines([squad(s, spans[s])]))
    return rows


def write_licences(unpacked: Path) -> None:
    """The copyright file of each package that text was taken from, and CC0 for the Chinese."""
    for name in PACKAGES:
        if name != "base-files":
            text = (unpacked / name / f"usr/share/doc/{name}/copyright").read_text("utf-8")
            write(DATA / "licences" / f"{name}.txt", text.rstrip() + "\n")
    cc0 = (unpacked / "base-files/usr/share/common-licenses/CC0-1.0").read_text("utf-8")
    note = "The Chinese documents and names were written for clozelab and are given under CC0 1.0."
    write(DATA / "licences" / "chinese.txt", f"{note}\n\n{cc0.strip()}\n")


SOURCES = {
    "corpus.jsonl.gz": "bible-kjv-text, dict-devil, dict-jargon, r-cran-janeaustenr",
    "chinese.jsonl.gz": "written for clozelab",
    "chinese_entities.txt": "written for clozelab",
}
README_WIDTH = 100
README = """\
# Embedded data

`python tools/embed_data.py` makes these files from Debian packages and from `tools/chinese.txt`.
The same packages give the same bytes (with the same zlib). Do not edit the files by hand. The data
keep their own licences, given below and in full under `licences/`; they are not under the licence
of the code. `python tools/embed_tokenizers.py` trained the small tokenizers under `tokenizers/` on
this text. `python tools/recorded_runs.py` makes `recorded.json`, the results of recorded runs, from
`results/`.

## Sources

| Package | Version | What is taken | Licence | Text of the licence |
|---|---|---|---|---|
{packages}

The packaging of some of these packages is under the GPL; only the texts are used.
Please cite the Jargon File as "Jargon File 4.4.7". WordNet 3.0 is copyright 2006 by Princeton
University. The Chinese documents are invented or retold from common knowledge: they are language
to train on, not a source of facts.

## Files

| File | Rows | Bytes | Source |
|---|---:|---:|---|
{files}

## How each is made

**corpus.jsonl.gz**: English documents, one JSON object `{{"id", "text"}}` on a line, {raw} bytes
unpacked: {per_source}.
Paragraphs are joined by `\\n`. A document is a chapter of a novel or of the Bible, or an entry of a
dictionary. Verse numbers, headings, pronunciations, usage labels, bare
cross-references, verse in The Devil's Dictionary and tables and code in the Jargon File are left
out; so are documents under {shortest} characters and {left_out} entries that
are racial slurs or contempt. The Bible text marks no paragraphs: about four verses make one. The
order is a fixed shuffle, so any prefix is a fair sample.

**chinese.jsonl.gz**: short documents in modern simplified Chinese, same layout, {raw_zh} bytes
unpacked, also shuffled. **chinese_entities.txt**: people, places, organisations and peoples named
in these documents, one on a line; each of them occurs in the text.

**tasks/**: all from WordNet. A fifth of the headwords, chosen by hash, is for dev. The train and
dev sets of a task share no headword, no right definition and no example sentence. Definitions that
contain their own headword or a word derived from it are not used, except in the task definitions,
which does not ask for the headword. Offensive definitions are not used.

- **definitions** (`sentence`, `label`): the lexicographer category of a definition, out of ten:
  {categories}.
  Each category has the same number of examples.
- **pairs** (`sentence1`, `sentence2`, `label`): a word with an example of its use, and a
  definition; `yes` if it is the definition of that word, `no` if it is of another word of the same
  part of speech. Each example and each definition occurs once with each label.
- **choices** (`question`, `choices`, `answer`): which of four definitions a word has in its
  example. Wrong ones are the word's other meanings of the same part of speech, filled up with
  definitions of other words where there are fewer than three. `answer` counts from 0.
- **tags** (word, tag; IOB2): example sentences in which every noun of one of these fields is
  tagged: {tags}.
  The headword has the field of its own synset. Any other word has its dominant field (at least 80 %
  of its counted uses, or all its meanings). A sentence with a word of uncertain field is not used.
  So the tags are silver, but they depend on the sentence alone, and the task can be learnt.
  Compounds known to WordNet get `I-`. Some sentences have no tag.
- **spans** (SQuAD 1.1): the question is a definition, the context an example sentence, the answer
  the headword as it occurs there.
"""


def count_lines(path: Path) -> int:
    """Lines of a plain or packed text file."""
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).count(b"\n")


def write_readme(versions: dict[str, str], rows: dict[str, int], corpus: list[Document]) -> None:
    """Describe the files as they lie there now."""
    packages = [
        f"| {name} | {versions[name]} | {what} | {licence} | "
        f"`licences/{'chinese' if name == 'base-files' else name}.txt` |"
        for name, (what, licence) in PACKAGES.items()
    ]
    rows = {name: count_lines(DATA / name) for name in SOURCES} | rows
    files = [
        f"| {name} | {count} | {(DATA / name).stat().st_size} | "
        f"{SOURCES.get(name, 'wordnet-base')} |"
        for name, count in rows.items()
    ]
    kinds = Counter(kind_of(document) for document in corpus)
    text = README.format(
        packages="\n".join(packages),
        files="\n".join(files),
        raw=len(json_lines(corpus).encode("utf-8")),
        raw_zh=len(gzip.decompress((DATA / "chinese.jsonl.gz").read_bytes())),
        per_source=", ".join(f"{count} from {kind}" for kind, count in sorted(kinds.items())),
        shortest=SHORTEST_DOCUMENT,
        left_out=len(DEVIL_LEFT_OUT),
        categories=", ".join(CATEGORIES),
        tags=", ".join(sorted(TAGS.values())),
    )
    write(DATA / "README.md", "\n".join(wrapped(line) for line in text.split("\n")))


def wrapped(line: str) -> str:
    """A line of the README, broken where names and numbers made it too long; tables stay."""
    if line.startswith("|") or len(line) <= README_WIDTH:
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.fill(line, README_WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def kind_of(document: Document) -> str:
    """The source a document of the corpus comes from."""
    names = {"bible": "the Bible", "devil": "The Devil's Dictionary", "jargon": "the Jargon File"}
    return names.get(document["id"].split("-")[0], "Jane Austen")


def embed(packages: Path, work: Path) -> None:
    """Make every file anew."""
    versions = unpack(packages, work)
    corpus = english_corpus(work)
    write_gzip(DATA / "corpus.jsonl.gz", corpus)
    chinese, entities = chinese_corpus()
    write_gzip(DATA / "chinese.jsonl.gz", chinese)
    write(DATA / "chinese_entities.txt", "".join(f"{entity}\n" for entity in entities))
    shutil.rmtree(DATA / "tasks", ignore_errors=True)
    rows = write_tasks(WordNet(work / "wordnet-base"))
    shutil.rmtree(DATA / "licences", ignore_errors=True)
    write_licences(work)
    write_readme(versions, rows, corpus)


def main() -> None:
    """Read the command line and make the data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=Path, help="folder of packages already downloaded")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder: Path | None = options.packages
        if folder is None:
            folder = make_folder(Path(scratch) / "packages")
            download_packages(folder)
        embed(folder, Path(scratch) / "unpacked")


if __name__ == "__main__":
    main()
