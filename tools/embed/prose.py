"""The English corpus: novels, Bible chapters, and the entries of two dictionaries."""

from __future__ import annotations

import gzip
import re
import struct
import subprocess
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from embed.order import Document, blocks, join_lines, shuffled, tidy

NOVELS = ("PRIDE AND PREJUDICE", "NORTHANGER ABBEY", "PERSUASION")
# Books that tell a story; lists of laws and names, and verse, are left out.
BIBLE_BOOKS = ("Ge", "Ruth", "1Sm", "Est", "Jonah", "Mark", "Acts")
VERSES_PER_PARAGRAPH = 4
SHORTEST_DOCUMENT = 120
# Two entries of 1911 are nothing but a racial slur, and a third is contempt for a people.
DEVIL_LEFT_OUT = ("AFRICAN", "MINSTREL", "NEGRO")


def bible_documents(root: Path) -> Iterator[Document]:
    """One document for each chapter of the chosen books."""
    chapters: dict[str, list[str]] = defaultdict(list)
    for line in bible_text(root / "usr/lib/bible.data").splitlines():
        place = re.match(r"(\d?[A-Za-z]+)(\d+):\d+ (.*)", line)
        if place and place[1] in BIBLE_BOOKS:
            chapters[f"{place[1]}-{place[2]}"].append(place[3])
    for name, verses in chapters.items():
        yield {"id": f"bible-{name.lower()}", "text": "\n".join(verse_paragraphs(verses))}


def verse_paragraphs(verses: Sequence[str]) -> Iterator[str]:
    """Verses in groups, closed only after a sentence: the source marks no paragraphs."""
    group: list[str] = []
    for number, verse in enumerate(verses, start=1):
        group.append(verse)
        enough = len(group) >= VERSES_PER_PARAGRAPH and verse.endswith((".", "?", "!"))
        if enough or number == len(verses):
            yield tidy(" ".join(group))
            group = []


def bible_text(path: Path) -> str:
    """The packed Bible: a table of offsets, then blocks in Unix ``compress`` format."""
    raw = path.read_bytes()
    (count,) = struct.unpack_from(">I", raw, 0x58)
    offsets = [*struct.unpack_from(f">{count}I", raw, 0x5C), len(raw)]
    text = b""
    for start, end in pairwise(offsets):
        block = b"\x1f\x9d\x90" + raw[start:end]  # the blocks lack the magic bytes gzip asks for
        text += subprocess.run(["gzip", "-dc"], input=block, capture_output=True, check=True).stdout
    return text.decode("ascii")


def novel_documents(root: Path) -> Iterator[Document]:
    """One document for each chapter of the chosen novels."""
    path = root / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
    for lines in r_string_vectors(path.read_bytes()):
        title = lines[0].upper()
        if title not in NOVELS:
            continue
        text = "\n".join(lines).split("\nA NOTE ON THE TEXT")[0]
        for number, chapter in enumerate(re.split(r"(?im)^chapter \w+\.?$", text)[1:], start=1):
            paragraphs = [tidy(join_lines(block)) for block in blocks(chapter)]
            body = [
                p for p in paragraphs if not re.fullmatch(r"(?i)finis|the end|volume \w+|[* ]+", p)
            ]
            yield {"id": f"{title.lower().replace(' ', '-')}-{number}", "text": "\n".join(body)}


def r_string_vectors(raw: bytes) -> Iterator[list[str]]:
    """The character vectors of an R lazy-load file: a length, then zlib, again and again."""
    while raw:
        stream = zlib.decompressobj()
        data = stream.decompress(raw[4:])
        raw = stream.unused_data
        at = data.index(b"\x00\x00\x00\x10") + 4  # 16 is R's code of a character vector
        (count,) = struct.unpack_from(">I", data, at)
        at += 4
        lines = []
        for _ in range(count):
            (length,) = struct.unpack_from(">i", data, at + 4)
            at += 8 + length
            lines.append(data[at - length : at].decode("utf-8"))
        yield lines


def dictd_entries(root: Path, name: str) -> Iterator[str]:
    """The entries of a dictd database in the order of its text, without its own notices."""
    folder = root / "usr/share/dictd"
    text = gzip.decompress((folder / f"{name}.dict.dz").read_bytes())
    places = set()
    for line in (folder / f"{name}.index").read_text("utf-8").splitlines():
        headword, offset, size = line.split("\t")
        if not headword.startswith(("00-database", "00database")):
            places.add((dictd_number(offset), dictd_number(size)))
    for offset_, size_ in sorted(places):
        yield text[offset_ : offset_ + size_].decode("utf-8")


def dictd_number(digits: str) -> int:
    """dictd writes numbers in base 64."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    value = 0
    for digit in digits:
        value = value * 64 + alphabet.index(digit)
    return value


def slug(text: str) -> str:
    """A headword as part of an identifier."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "sign"


def devil_documents(root: Path) -> Iterator[Document]:
    """Entries of The Devil's Dictionary: prose only, its verses and signatures dropped."""
    for entry in dictd_entries(root, "devil"):
        head = re.match(r"([A-Z][A-Z' -]+?)[,.]\s*(?:[a-z. &]+\.(?=\s))? *", entry)
        if not head or head[1] in DEVIL_LEFT_OUT:
            continue
        paragraphs = [p for block in blocks(entry[head.end() :]) for p in devil_paragraphs(block)]
        paragraphs = [unbrace(re.sub(r"^\[from \{[^}]*\}\]\s*", "", p)) for p in paragraphs]
        text = f"{head[1].capitalize()}: " + "\n".join(tidy(p) for p in paragraphs if p)
        yield {"id": f"devil-{slug(head[1])}", "text": text}


def devil_paragraphs(block: list[str]) -> Iterator[str]:
    """Paragraphs of one block: an indented line opens one, but a wholly indented block is verse."""
    if all(line.startswith("   ") for line in block):
        return
    paragraph: list[str] = []
    for line in block:
        if re.match(r" {4,}[A-Z\"']", line) and paragraph:
            yield join_lines(paragraph)
            paragraph = []
        if not line.startswith(" " * 20):  # a signature at the right margin
            paragraph.append(line)
    yield join_lines(paragraph)


def jargon_documents(root: Path) -> Iterator[Document]:
    """Entries of the Jargon File without pronunciation, labels, cross-references and cartoons."""
    for entry in dictd_entries(root, "jargon"):
        first, _, rest = entry.strip("\n").partition("\n")
        _, _, body = rest.partition("\n\n")  # the rest of the head: pronunciation, part of speech
        paragraphs = [jargon_paragraph(block) for block in blocks(before_cartoon(body))]
        text = "\n".join(p for p in paragraphs if p)
        yield {"id": f"jargon-{slug(first)}", "text": f"{tidy(first)}: {text}" if text else ""}


def before_cartoon(body: str) -> str:
    """Captions of cartoons follow a date in brackets, at the end of an entry."""
    return re.split(r"(?m)^\s*\[\d\d-\d\d-\d\d", body)[0]


def jargon_paragraph(block: list[str]) -> str:
    """One paragraph of prose, or nothing where the block is code, a table or a heading."""
    if len(block) == 1 and re.fullmatch(r"\s*[A-Z]\s*", block[0]):
        return ""  # the letter under which the next entries stand
    if any(re.search(r"\S {3,}\S", line) for line in block):
        return ""
    text = join_lines(block)
    text = re.sub(r"^(?:[•*\u25a1]|\d+[a-z]?\.)\s+", "", text)
    for _ in range(2):  # labels come as "n. [Usenet]" and as "[Usenet] n."
        text = re.sub(r"^\[[^\]]*\]\s*", "", text)
        text = re.sub(r"^(?:(?:[vn]|vi|vt|adj|adv|obs|pl|interj|prep)\.[,;]?\s*)+", "", text)
    text = unbrace(without_addresses(without_references(text)))
    text = re.sub(
        r"\s/(?=[^/]*[@·\u00b4'`])[^/ ][^/]{1,40}/(?=[\s,;.)])", "", text
    )  # how it is spoken
    return tidy(text) if looks_like_prose(text) else ""


def without_references(text: str) -> str:
    """Drop the sentences that do nothing but point at other entries."""
    verb = r"(?:[Ss]ee also|[Ss]ee|[Cc]ompare|[Cc]ontrast|[Oo]ppose|[Cc]f\.|[Ss]yn\.?)"
    item = r"(?:\{[^{}]*\}s?|[\s,;:]|also|and|or|esp\.|" + verb + r"|\(sense \d\))"
    text = re.sub(rf"\(?(?<![\w,;:—-] ){verb}\b{item}++(?:\.\)?|\)\.?|$)", "", text)
    return re.sub(rf"\s*\({verb}\b{item}++\.?\)", "", text).strip()


def without_addresses(text: str) -> str:
    """Drop the sentences that send the reader to a page of the web of 2003."""
    address = r"https?://(?:\S+\.(?=\s|$)|\S+[^.!?]*[.!?]?)"
    return re.sub(rf"(?:^|(?<=[.!?)] ))[^.!?]*{address}", "", text).strip()


def unbrace(text: str) -> str:
    """``{see this}`` is a link to another entry; braces of program code stay."""
    return re.sub(r"\{+\s*([^{}();=]+?)\s*\}+", r"\1", text)


def looks_like_prose(text: str) -> bool:
    """Several words, mostly of letters, and no braces of code."""
    letters = sum(c.isalpha() or c.isspace() for c in text)
    few_signs = letters >= 0.86 * len(text) and not re.search(r"[{}]", text)
    return len(text.split()) >= 4 and few_signs


def english_corpus(unpacked: Path) -> list[Document]:
    """All English documents, long enough and unlike one another, in a fixed shuffled order."""
    sources = {
        "bible-kjv-text": bible_documents,
        "r-cran-janeaustenr": novel_documents,
        "dict-devil": devil_documents,
        "dict-jargon": jargon_documents,
    }
    documents_by_text: dict[str, Document] = {}
    names: Counter[str] = Counter()
    for package, documents in sources.items():
        for document in documents(unpacked / package):
            if (
                len(document["text"]) >= SHORTEST_DOCUMENT
                and document["text"] not in documents_by_text
            ):
                names[document["id"]] += 1
                if names[document["id"]] > 1:  # two headwords that differ only in signs
                    document["id"] += f"-{names[document['id']]}"
                documents_by_text[document["text"]] = document
    return shuffled(documents_by_text.values(), key=lambda document: document["id"], salt="corpus")
