"""Makes the data embedded in clozelab from Debian packages and ``tools/chinese.txt``.

The same packages give the same bytes: every choice and order comes from hashes, not from a clock
or a random generator. Run ``python tools/embed_data.py`` on a Debian machine.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import re
import shutil
import struct
import subprocess
import tempfile
import textwrap
import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "src" / "clozelab" / "data"
CHINESE_SOURCE = ROOT / "tools" / "chinese.txt"

Item = TypeVar("Item")
Document = dict[str, str]
Row = Sequence[str]

# Package -> (what we take from it, its licence in short). Only these files are ever read.
PACKAGES = {
    "bible-kjv-text": ("King James Bible, narrative books", "public domain"),
    "dict-devil": ("The Devil's Dictionary, Ambrose Bierce", "public domain"),
    "dict-jargon": ("The Jargon File 4.4.7", "public domain"),
    "r-cran-janeaustenr": ("three novels of Jane Austen", "public domain text, MIT package"),
    "wordnet-base": ("WordNet 3.0", "WordNet 3.0 licence (permissive)"),
    "base-files": ("the text of CC0 1.0, for the Chinese sample", "CC0 1.0"),
}


# ---------------------------------------------------------------------------------------------
# Packages
# ---------------------------------------------------------------------------------------------


def download_packages(folder: Path) -> None:
    """Fetch every package we need into ``folder`` with apt."""
    subprocess.run(["apt-get", "update", "-q"], check=True)
    subprocess.run(["apt-get", "download", "-q", *PACKAGES], cwd=folder, check=True)


def find_package(folder: Path, name: str) -> Path:
    """The one downloaded file of the package ``name``."""
    found = sorted(folder.glob(f"{name}_*.deb"))
    if len(found) != 1:
        raise SystemExit(f"expected exactly one {name}_*.deb in {folder}, found {len(found)}")
    return found[0]


def unpack(packages: Path, target: Path) -> dict[str, str]:
    """Unpack every package into its own folder below ``target``; return the versions."""
    versions = {}
    for name in PACKAGES:
        deb = find_package(packages, name)
        subprocess.run(["dpkg-deb", "-x", str(deb), str(_made(target / name))], check=True)
        answer = subprocess.run(
            ["dpkg-deb", "-f", str(deb), "Version"], check=True, capture_output=True, text=True
        )
        versions[name] = answer.stdout.strip()
    return versions


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# ---------------------------------------------------------------------------------------------
# Order and text
# ---------------------------------------------------------------------------------------------


def shuffled(items: Iterable[Item], key: Callable[[Item], str], salt: str) -> list[Item]:
    """A fixed shuffle that no Python version can change: the order of the items' hashes."""
    return sorted(items, key=lambda item: (_digest(salt, key(item)), key(item)))


def chance(salt: str, text: str) -> float:
    """A number in [0, 1) that depends on ``text`` alone."""
    return int(_digest(salt, text)[:12], 16) / 16**12


def _digest(salt: str, text: str) -> str:
    return hashlib.sha256(f"{salt}\0{text}".encode()).hexdigest()


def tidy(text: str) -> str:
    """Plain quotes, long dashes, single spaces, no marks of emphasis."""
    text = unicodedata.normalize("NFC", text)
    text = re.sub("[\u201c\u201d]", '"', re.sub("[\u2018\u2019\u00b4]", "'", text))
    text = re.sub(r"(?<!\w)_([^_\n]+?)_(?!\w)", r"\1", text)
    text = re.sub(r"(?<!-)--+(?!\w*=)", "—", text)
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"(?<=\w) (?=[,;:](?: |$))", "", text)


def join_lines(lines: Iterable[str]) -> str:
    """Undo hard wrapping, also where it cut just inside a bracket, a quotation or an address."""
    text = ""
    for line in (line.strip() for line in lines):
        closes = re.match(r"[\u201d\u2019),;:?!}\]]+(?=[\s,.;:?!)\]]|$)|\.(?=\s|$)", line)
        opens = re.search(r"[\u201c\u2018({\[]$|https?://$|(?<=\w)[/-]$", text)
        glue = "" if not text or closes or opens else " "
        text += glue + line
    return text


def blocks(text: str) -> list[list[str]]:
    """The runs of lines between blank lines."""
    return [block.split("\n") for block in re.split(r"\n\s*\n", text.strip("\n")) if block.strip()]


# ---------------------------------------------------------------------------------------------
# English corpus
# ---------------------------------------------------------------------------------------------

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
            kept = [
                p for p in paragraphs if not re.fullmatch(r"(?i)finis|the end|volume \w+|[* ]+", p)
            ]
            yield {"id": f"{title.lower().replace(' ', '-')}-{number}", "text": "\n".join(kept)}


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
    kept: dict[str, Document] = {}
    names: Counter[str] = Counter()
    for package, documents in sources.items():
        for document in documents(unpacked / package):
            if len(document["text"]) >= SHORTEST_DOCUMENT and document["text"] not in kept:
                names[document["id"]] += 1
                if names[document["id"]] > 1:  # two headwords that differ only in signs
                    document["id"] += f"-{names[document['id']]}"
                kept[document["text"]] = document
    return shuffled(kept.values(), key=lambda document: document["id"], salt="corpus")


# ---------------------------------------------------------------------------------------------
# Chinese sample
# ---------------------------------------------------------------------------------------------


def chinese_corpus() -> tuple[list[Document], list[str]]:
    """The Chinese documents and the names bracketed in them, in the order of their text."""
    source = CHINESE_SOURCE.read_text("utf-8").strip()
    documents = [
        {"id": f"zh-{number:03d}", "text": re.sub(r"[\[\]]", "", text)}
        for number, text in enumerate(source.split("\n\n"), start=1)
    ]
    entities = sorted(set(re.findall(r"\[([^\]]+)\]", source)))
    return shuffled(documents, key=lambda document: document["id"], salt="chinese"), entities


# ---------------------------------------------------------------------------------------------
# WordNet
# ---------------------------------------------------------------------------------------------


def words_of(text: str) -> list[str]:
    """A list of words, easier to read without quotes."""
    return text.split()


PARTS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
LEXICOGRAPHER_FILES = words_of(
    "adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute "
    "noun.body noun.cognition noun.communication noun.event noun.feeling noun.food noun.group "
    "noun.location noun.motive noun.object noun.person noun.phenomenon noun.plant "
    "noun.possession noun.process noun.quantity noun.relation noun.shape noun.state "
    "noun.substance noun.time verb.body verb.change verb.cognition verb.communication "
    "verb.competition verb.consumption verb.contact verb.creation verb.emotion verb.motion "
    "verb.perception verb.possession verb.social verb.stative verb.weather adj.ppl"
)
ENDINGS = {
    "n": ("s>", "ses>s", "xes>x", "zes>z", "ches>ch", "shes>sh", "men>man", "ies>y"),
    "v": ("s>", "ies>y", "es>e", "es>", "ed>e", "ed>", "ing>e", "ing>"),
    "a": ("er>", "est>", "er>e", "est>e"),
    "r": (),
}
UNKIND = re.compile(
    r"(?i)offensive|slur|obscen|vulgar|derog|disparag|contempt|sexual|genital|\brap(?:e|ist)\b|"
    r"shit|fuck|piss|bitch|whore|prostitut"
)
WORD = re.compile(r"[A-Za-z]+(?:-[A-Za-z]+)*")
# Abbreviations, negations and the like stay whole; possessives and short verbs come apart.
TOKEN = re.compile(
    r"(?:[A-Za-z]\.){2,}|[A-Za-z]+n't\b|o'clock\b|"
    rf"{WORD.pattern}|'(?:s|re|ve|ll|d|m)\b|\d+(?:[.,:]\d+)*|[^\w\s]"
)


@dataclass(frozen=True)
class Synset:
    """One meaning: the words that share it, its definition and its example sentences."""

    part: str
    category: str
    lemmas: tuple[str, ...]
    definition: str
    examples: tuple[str, ...]
    is_instance: bool


@dataclass(frozen=True)
class Use:
    """A headword found in an example sentence of its own meaning."""

    lemma: str
    synset: Synset
    example: str
    start: int
    end: int

    @property
    def key(self) -> str:
        """What hashes of this use are taken of."""
        return f"{self.lemma}|{self.synset.definition}|{self.example}"


class WordNet:
    """The synsets of WordNet, with the word forms and the counts needed to read examples."""

    def __init__(self, root: Path) -> None:
        folder = root / "usr/share/wordnet"
        self.synsets = [s for part in PARTS for s in read_synsets(folder / f"data.{part}")]
        self.irregular = {code: read_irregular(folder, part) for part, code in PARTS.items()}
        self.senses: dict[tuple[str, str], list[Synset]] = defaultdict(list)
        for synset in self.synsets:
            for lemma in synset.lemmas:
                self.senses[lemma.lower(), synset.part].append(synset)
        self.counts = read_counts(folder / "cntlist.rev")

    def all_senses(self, word: str) -> list[Synset]:
        """The meanings of a base form in every part of speech."""
        return [s for part in PARTS.values() for s in self.senses.get((word, part), ())]

    def base_forms(self, word: str, part: str) -> set[str]:
        """Every known word of this part of speech that ``word`` may be a form of."""
        word = word.lower()
        guesses = {word, *self.irregular[part].get(word, ())}
        for rule in ENDINGS[part]:
            ending, replacement = rule.split(">")
            if word.endswith(ending) and len(word) > len(ending) + 1:
                stem = word.removesuffix(ending) + replacement
                guesses |= {stem, stem[:-1]} if doubled(stem) else {stem}
        return {guess for guess in guesses if (guess, part) in self.senses}

    def find(self, lemma: str, part: str, sentence: str) -> list[tuple[int, int]]:
        """Where ``lemma``, also inflected, stands in ``sentence``."""
        wanted = lemma.lower().split()
        words = list(WORD.finditer(sentence))
        found = []
        for at in range(len(words) - len(wanted) + 1):
            window = words[at : at + len(wanted)]
            if all(self.is_form(w[0], one, part) for w, one in zip(window, wanted, strict=True)):
                found.append((window[0].start(), window[-1].end()))
        return found

    def is_form(self, word: str, lemma: str, part: str) -> bool:
        """Whether ``word`` is ``lemma`` or an inflected form of it."""
        return word.lower() == lemma or lemma in self.base_forms(word, part)


def doubled(stem: str) -> bool:
    """Whether a stem ends as in ``stopp(ed)``."""
    return len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] in "bdgmnprt"


def read_synsets(path: Path) -> Iterator[Synset]:
    """Read one ``data.*`` file; its lines that start with a blank are the licence."""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith(" "):
            continue
        fields, _, gloss = line.partition(" | ")
        parts = fields.split()
        count = int(parts[3], 16)
        words = parts[4 : 4 + 2 * count : 2]
        definition, examples = split_gloss(gloss)
        yield Synset(
            part="a" if parts[2] == "s" else parts[2],
            category=LEXICOGRAPHER_FILES[int(parts[1])],
            lemmas=tuple(re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word in words),
            definition=definition,
            examples=examples,
            is_instance="@i" in parts[4 + 2 * count :],
        )


def split_gloss(gloss: str) -> tuple[str, tuple[str, ...]]:
    """The definition, without a leading field label, and the quoted examples of a gloss."""
    head, quote, _ = gloss.partition('"')
    definition = re.sub(r"^\s*\([^)]*\)\s*", "", head).strip(" ;:,")
    examples = re.findall(r'(?:^|[;:,] ?)"([^";]+)"(?=\s*(?:;|$))', quote and gloss)
    return tidy(definition), tuple(tidy(example).strip(" ;,") for example in examples)


def read_irregular(folder: Path, part: str) -> dict[str, list[str]]:
    """Irregular forms and their base forms."""
    lines = (folder / f"{part}.exc").read_text("utf-8").splitlines()
    return {line.split()[0]: line.split()[1:] for line in lines}


def read_counts(path: Path) -> dict[str, Counter[str]]:
    """How often each word was seen in each lexicographer category in WordNet's tagged texts."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for line in path.read_text("utf-8").splitlines():
        sense, _, count = line.split()
        lemma, _, rest = sense.rpartition("%")
        category = LEXICOGRAPHER_FILES[int(rest.split(":")[1])]
        counts[lemma.replace("_", " ")][category] += int(count)
    return counts


def gives_away(lemma: str, definition: str) -> bool:
    """Whether the definition contains the word it defines, or a word made from it."""
    stems = [w[: max(4, len(w) - 3)] for w in lemma.lower().split() if len(w) > 2]
    words = WORD.findall(definition.lower())
    pieces = words + [piece for word in words for piece in word.split("-")]
    return any(piece.startswith(stem) for stem in stems for piece in pieces)


def is_clean(text: str, shortest: int, longest: int) -> bool:
    """Of a fair length, whole, and fit to be shown to anybody."""
    in_bounds = shortest <= len(text) <= longest
    whole = text.count("(") == text.count(")") and not re.search(r"[\"`|\[\]{}<>]|\s-\s?$", text)
    return in_bounds and whole and not UNKIND.search(text)


def in_dev(word: str) -> bool:
    """Whether a headword belongs to the dev split; all that is made of it goes there too."""
    return chance("split", word.lower()) < 0.2


def uses(wordnet: WordNet) -> list[Use]:
    """One use for each meaning with a good example, shuffled; no definition comes twice."""
    found: dict[str, Use] = {}
    for synset in wordnet.synsets:
        if not is_clean(synset.definition, 15, 90) or synset.is_instance:
            continue
        use = first_use(wordnet, synset)
        if use and not gives_away(use.lemma, synset.definition):
            found.setdefault(synset.definition.lower(), use)
    return shuffled(found.values(), key=lambda use: use.key, salt="uses")


def first_use(wordnet: WordNet, synset: Synset) -> Use | None:
    """The first example in which exactly one place is a word of the synset."""
    for example in synset.examples:
        if not is_clean(example, 20, 110) or len(example.split()) < 4:
            continue
        for lemma in synset.lemmas:
            places = wordnet.find(lemma, synset.part, example)
            if len(places) == 1 and len(lemma) > 2:
                return Use(lemma, synset, example, *places[0])
    return None


# ---------------------------------------------------------------------------------------------
# Tasks
# ---------------------------------------------------------------------------------------------

CATEGORIES = words_of(
    "noun.act noun.animal noun.artifact noun.body noun.communication "
    "noun.food noun.location noun.person noun.plant noun.substance"
)
TAGS = {
    "noun.animal": "ANIMAL",
    "noun.artifact": "ARTIFACT",
    "noun.body": "BODY",
    "noun.communication": "COMMUNICATION",
    "noun.food": "FOOD",
    "noun.group": "GROUP",
    "noun.location": "PLACE",
    "noun.person": "PERSON",
    "noun.plant": "PLANT",
    "noun.time": "TIME",
}
SURE = 0.8
Splits = dict[str, list[Item]]


def take(
    items: Iterable[Item], is_dev: Callable[[Item], bool], *, train: int, dev: int
) -> Splits[Item]:
    """The first ``train`` and ``dev`` items of the two splits."""
    splits: Splits[Item] = {"train": [], "dev": []}
    for item in items:
        name = "dev" if is_dev(item) else "train"
        if len(splits[name]) < (dev if name == "dev" else train):
            splits[name].append(item)
    return splits


def definitions_task(wordnet: WordNet) -> Splits[Row]:
    """Definitions with the name of their category, equally many of each."""
    pools: dict[str, dict[str, Synset]] = {category: {} for category in CATEGORIES}
    seen: Counter[str] = Counter(synset.definition.lower() for synset in wordnet.synsets)
    for synset in wordnet.synsets:
        dull = re.match(r"(?:a |the )?(?:type )?(?:genus|family|order|class)\b", synset.definition)
        common = synset.lemmas[0][0].islower() and not synset.is_instance and not dull
        unique = seen[synset.definition.lower()] == 1
        if synset.category in pools and common and unique and is_clean(synset.definition, 20, 120):
            pools[synset.category][synset.definition] = synset
    splits: Splits[Row] = {"train": [], "dev": []}
    for category, pool in pools.items():
        synsets = shuffled(pool.values(), key=lambda synset: synset.definition, salt="definitions")
        chosen = take(synsets, lambda synset: in_dev(synset.lemmas[0]), train=320, dev=60)
        for name, part in chosen.items():
            splits[name] += [(synset.definition, category) for synset in part]
    return {name: shuffled(rows, "\t".join, "rows") for name, rows in splits.items()}


def pairs_task(pool: list[Use]) -> Splits[Row]:
    """A word in its example with its own definition, or with that of another word.

    Every definition comes once with each label, so that neither half alone gives the label away.
    """
    chosen = take(one_per_word(pool), lambda use: in_dev(use.lemma), train=1200, dev=300)
    splits: Splits[Row] = {}
    for name, part in chosen.items():
        rows: list[Row] = []
        for code in PARTS.values():
            same = [use for use in part if use.synset.part == code]
            others = strangers(same)
            for use, other in zip(same, others, strict=True):
                framed = f'{use.lemma}, as in "{use.example}"'
                rows.append((framed, use.synset.definition, "yes"))
                rows.append((framed, other.synset.definition, "no"))
        splits[name] = shuffled(rows, "\t".join, "rows")
    return splits


def strangers(same: list[Use]) -> list[Use]:
    """The same uses, moved on until none stands beside a word that it also defines."""
    for shift in range(1, len(same)):
        moved = same[shift:] + same[:shift]
        if not any(is_meaning(other, use) for use, other in zip(same, moved, strict=True)):
            return moved
    raise SystemExit("too few words for pairs")


def is_meaning(other: Use, use: Use) -> bool:
    """Whether the definition of ``other`` is also one of the word of ``use``."""
    return use.lemma.lower() in (lemma.lower() for lemma in other.synset.lemmas)


def one_per_word(pool: Iterable[Use]) -> list[Use]:
    """The first use of each word."""
    found: dict[str, Use] = {}
    for use in pool:
        found.setdefault(use.lemma.lower(), use)
    return list(found.values())


def choices_task(wordnet: WordNet, pool: list[Use]) -> Splits[dict[str, object]]:
    """Which of four definitions a word has in its example; other meanings of it come first."""
    own = {id(use): own_distractors(wordnet, use) for use in pool}
    several = [use for use in pool if own[id(use)]]
    chosen = take(several, lambda use: in_dev(use.lemma), train=2000, dev=500)
    splits: Splits[dict[str, object]] = {}
    for name, part in chosen.items():
        splits[name] = []
        for at, use in enumerate(part):
            rest = (u for u in part[at + 1 :] + part[:at] if u.synset.part == use.synset.part)
            others = (u.synset.definition for u in rest if not is_meaning(u, use))
            wrong = own[id(use)][:3]
            wrong += islice(others, 3 - len(wrong))
            texts = shuffled([use.synset.definition, *wrong], key=str, salt=use.key)
            splits[name].append(
                {
                    "question": f'What does "{use.lemma}" mean in "{use.example}"?',
                    "choices": texts,
                    "answer": texts.index(use.synset.definition),
                }
            )
    return splits


def own_distractors(wordnet: WordNet, use: Use) -> list[str]:
    """Definitions of the word's other meanings."""
    others = wordnet.senses[use.lemma.lower(), use.synset.part]
    texts = {s.definition for s in others if is_clean(s.definition, 15, 90)}
    texts = {text for text in texts if not gives_away(use.lemma, text)}
    # Another salt than that of the final order, or the right answer would tend to come last.
    return shuffled(texts - {use.synset.definition}, key=str, salt=f"own {use.key}")


def tags_task(wordnet: WordNet) -> Splits[list[Row]]:
    """Example sentences in which each noun of a chosen field is tagged with that field."""
    sentences: dict[str, tuple[str, list[Row]]] = {}
    for synset in wordnet.synsets:
        for example in synset.examples:
            if is_clean(example, 20, 110) and example.lower() not in sentences:
                rows = tag_sentence(wordnet, synset, example)
                if rows:
                    sentences[example.lower()] = (synset.lemmas[0], rows)
    order = shuffled(sentences, key=str, salt="tags")
    # A few sentences without any tag keep a model from always finding one.
    kept = [
        text
        for text in order
        if any(tag != "O" for _, tag in sentences[text][1]) or chance("empty", text) < 0.1
    ]
    chosen = take(kept, lambda text: in_dev(sentences[text][0]), train=2500, dev=600)
    return {name: [sentences[text][1] for text in part] for name, part in chosen.items()}


def tag_sentence(wordnet: WordNet, synset: Synset, example: str) -> list[Row] | None:
    """Tokens with tags, or nothing if a word's field is unsure or the headword is not found."""
    spots = (s for lemma in synset.lemmas for s in wordnet.find(lemma, synset.part, example))
    head = next(spots, None)
    if head is None:
        return None
    tokens = list(TOKEN.finditer(example))
    rows: list[Row] = []
    at = 0
    while at < len(tokens):
        length, field = field_at(wordnet, tokens, at)
        if head[0] <= tokens[at].start() < head[1]:
            length = sum(head[0] <= token.start() < head[1] for token in tokens[at:])
            field = synset.category
        if field is None:
            return None
        tag = TAGS.get(field)
        for offset, token in enumerate(tokens[at : at + length]):
            prefix = "I-" if offset else "B-"
            rows.append((token[0], prefix + tag if tag else "O"))
        at += length
    return rows


def field_at(wordnet: WordNet, tokens: Sequence[re.Match[str]], at: int) -> tuple[int, str | None]:
    """How many tokens from ``at`` form one term, and its field; None where it is unsure."""
    for length in (3, 2):
        words = [token[0].lower() for token in tokens[at : at + length]]
        for last in wordnet.base_forms(words[-1], "n") | {words[-1]}:
            term = " ".join([*words[:-1], last])
            if len(words) == length and (term, "n") in wordnet.senses:
                return length, sure_field(wordnet, {term})
    word = tokens[at][0]
    if not word[0].isalpha() or word.lower() in CLOSED_CLASS or "'" in word:
        return 1, "other"
    bases = {base for part in PARTS.values() for base in wordnet.base_forms(word, part)}
    return 1, sure_field(wordnet, bases)


# Words that WordNet does not know, or knows only as something rare ("a" the letter, "he" helium).
CLOSED_CLASS = frozenset(
    words_of(
        "a an the this that these those i me my mine you your he him his she her hers it its "
        "we us our they them their who whom whose which what where when why how and or but "
        "nor so if then than as at by for from in into of off on onto out over to up with "
        "about after against before between down during through under until without be am is "
        "are was were been being do does did done have has had having can could may might "
        "must shall should will would not no there here all any both each few more most much "
        "many some such only own same other another very too also just one two three four "
        "five six seven eight nine ten because while once upon yet never ever always"
    )
)


def sure_field(wordnet: WordNet, bases: set[str]) -> str | None:
    """The category these base forms nearly always have, by counts or by having no other."""
    counts: Counter[str] = Counter()
    for base in bases:
        counts += wordnet.counts.get(base, Counter())
    if counts.total() >= 3:
        category, most = counts.most_common(1)[0]
        nouns = sum(n for name, n in counts.items() if TAGS.get(name))
        if most >= SURE * counts.total():
            return category
        return "other" if nouns == 0 else None  # no reading of it would be tagged
    fields = {s.category for base in bases for s in wordnet.all_senses(base)}
    if len(fields) == 1:
        return fields.pop()
    return "other" if fields and not fields & TAGS.keys() else None


def spans_task(wordnet: WordNet, pool: list[Use]) -> Splits[Use]:
    """Uses whose definition is the question and whose headword, in its example, is the answer."""
    alone = [use for use in pool if is_only_answer(wordnet, use)]
    return take(alone, lambda use: in_dev(use.lemma), train=2000, dev=500)


def is_only_answer(wordnet: WordNet, use: Use) -> bool:
    """No synonym stands beside the headword, so that there is one right answer."""
    others = (lemma for lemma in use.synset.lemmas if lemma != use.lemma)
    return not any(wordnet.find(lemma, use.synset.part, use.example) for lemma in others)


def squad(name: str, part: list[Use]) -> dict[str, object]:
    """The SQuAD 1.1 layout."""
    paragraphs = [
        {
            "context": use.example,
            "qas": [
                {
                    "id": f"{name}-{number}",
                    "question": use.synset.definition,
                    "answers": [
                        {"text": use.example[use.start : use.end], "answer_start": use.start}
                    ],
                }
            ],
        }
        for number, use in enumerate(part)
    ]
    return {"version": "1.1", "data": [{"title": "WordNet", "paragraphs": paragraphs}]}


# ---------------------------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    """Write text as it is, on every system."""
    _made(path.parent)
    path.write_text(text, "utf-8", newline="\n")


def write_gzip(path: Path, documents: Iterable[Document]) -> None:
    """JSON lines, packed without name or time."""
    buffer = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, buffer, mtime=0) as packed:
        packed.write(json_lines(documents).encode("utf-8"))
    _made(path.parent)
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

Everything here is made by `python tools/embed_data.py` from Debian packages and from
`tools/chinese.txt`; the same packages give the same bytes (with the same zlib). Do not edit the
files by hand. The data keep their own licences, given below and in full under `licences/`; they
are not under the licence of the code.

## Sources

| Package | Version | What is taken | Licence | Text of the licence |
|---|---|---|---|---|
{packages}

The packaging of some of these packages is under the GPL; nothing of it is taken, only the texts.
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
in them, one on a line; every one of them occurs in the text.

**tasks/**: all from WordNet. A fifth of the headwords, chosen by hash, is for dev; no
headword, no right definition and no example sentence of dev is one in train of the same task.
Definitions that contain their own headword or a word made from it are not used (in definitions,
where the headword is not asked for, they are), nor are offensive ones.

- **definitions** (`sentence`, `label`): the lexicographer category of a definition, out of ten:
  {categories}.
  Equally many of each.
- **pairs** (`sentence1`, `sentence2`, `label`): a word with an example of its use, and a
  definition; `yes` if it is the definition of that word, `no` if it is of another word of the same
  part of speech. Each example and each definition comes once with each label.
- **choices** (`question`, `choices`, `answer`): which of four definitions a word has in its
  example. Wrong ones are the word's other meanings of the same part of speech, filled up with
  definitions of other words where there are fewer than three. `answer` counts from 0.
- **tags** (word, tag; IOB2): example sentences in which every noun of one of these fields is
  tagged: {tags}.
  The headword has the field of its own synset. Any other word has the field it nearly always has
  (at least 80 % of its counted uses, or all its meanings), and a sentence with a word that is
  unsure is not used: the tags are silver, but they depend on the sentence alone, so the task can
  be learnt. Compounds known to
  WordNet get `I-`. Some sentences have no tag.
- **spans** (SQuAD 1.1): the question is a definition, the context an example sentence, the answer
  the headword as it stands there.
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
            folder = _made(Path(scratch) / "packages")
            download_packages(folder)
        embed(folder, Path(scratch) / "unpacked")


if __name__ == "__main__":
    main()
