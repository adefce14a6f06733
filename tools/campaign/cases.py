"""The faults: each case disturbs one command at one moment and says what was not as promised."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from campaign.children import Child, Ended, at_write, file_size, kill, pause, run, spawned, start
from campaign.works import OUT, Work, snapshot
from clozelab.files import MARKER

WORKERS_END = 5.0  # seconds within which the workers of a killed command are gone

Check = Callable[[Path], str | None]  # in an empty folder; what was not as promised


@dataclass(frozen=True)
class Case:
    """One fault."""

    kind: str
    name: str
    check: Check


def planned(works: dict[str, Work], seed: int) -> list[Case]:
    """Every case, the kinds mixed by their numbers: wherever one stops, each had its share."""
    kinds = (kills, torn, flips, writers, signals, orphans, full_disks, full_files)
    order = []
    for kind in kinds:
        random = Random(f"{seed}/{kind.__name__}")
        cases = list(kind(works, random))
        random.shuffle(cases)
        order += [
            ((place + random.random()) / len(cases), case) for place, case in enumerate(cases)
        ]
    return [case for _, case in sorted(order, key=lambda pair: pair[0])]


def kills(works: dict[str, Work], random: Random) -> Iterator[Case]:
    """Killed just before each write, and gone on with."""
    for work in works.values():
        for number in range(1, work.writes + 1):

            def check(place: Path, work: Work = work, number: int = number) -> str | None:
                run(work.first, place, before=at_write(number, kill, place=place))
                return _goes_on(work, place)

            yield Case("kill", f"{work.name} at write {number}", check)


def torn(works: dict[str, Work], random: Random) -> Iterator[Case]:
    """Killed in the middle of a write, by a limit of a file's size."""
    for work in works.values():
        sizes = sorted({file.stat().st_size for file in work.whole.rglob("*") if file.is_file()})
        for _ in range(12):
            limit = random.randint(4096, max(sizes[-1], 8192))

            def check(place: Path, work: Work = work, limit: int = limit) -> str | None:
                run(work.first, place, before=file_size(limit, dies=True))
                return _goes_on(work, place)

            yield Case("torn write", f"{work.name} at byte {limit}", check)


def flips(works: dict[str, Work], random: Random) -> Iterator[Case]:
    """One bit of one file is another: whoever opens it sees the same, or says that it cannot."""
    text = "The old [MASK] went home."
    report = ("report", OUT, "--out", "page.md")
    opening = {
        "build": (("corpus", "check", OUT), ("blocks", "bert", "--corpus", OUT)),
        "pretrain": (("fill", OUT, text), ("pretrain", "--resume", OUT), report),
        "finetune": (("predict", OUT, "--text", text), report),
        "study": (report,),
        "export": (("fill", OUT, text), ("import", OUT, "back")),
    }
    for name, commands in opening.items():
        work = works[name]
        files = [file for file in sorted(work.whole.rglob("*")) if file.is_file()]
        for command in commands:
            place = work.whole.parent.parent / f"clean-{name}-{command[0]}" / "work"
            place.mkdir(parents=True)
            shutil.copytree(work.whole, place / OUT)
            clean = run(command, place)
            for file in (file for file in files if file.stat().st_size and file.name != MARKER):
                for _ in range(12 if file.suffix in (".json", ".toml", ".jsonl") else 3):
                    bit = random.randrange(8 * file.stat().st_size)
                    yield _flip(work, file.relative_to(work.whole), bit, command, clean)


def _flip(work: Work, file: Path, bit: int, command: Sequence[str], clean: Ended) -> Case:
    def check(place: Path) -> str | None:
        shutil.copytree(work.whole, place / OUT)
        broken = bytearray((place / OUT / file).read_bytes())
        broken[bit // 8] ^= 1 << bit % 8
        (place / OUT / file).write_bytes(broken)
        same = snapshot(place / OUT).get(file.as_posix()) == work.content.get(file.as_posix())
        ended = run(command, place)
        if ended.code not in (0, 2) or "Traceback" in ended.errors:
            return str(ended)
        if ended.code == 2 and not _sentence(ended):
            return f"no sentence: {ended}"
        if command[:2] == ("corpus", "check") and ended.code == 0 and not same:
            return "is said to be whole"
        sealed = work.name == "build" or "checkpoints" in file.parts
        silent = ended.code == 0 and "damaged" not in ended.errors
        if sealed and silent and ended.output != clean.output:
            return "another result, and nothing said"
        return None

    return Case("flipped bit", f"{work.name} {file}, bit {bit}, {command[0]}", check)


def writers(works: dict[str, Work], random: Random) -> Iterator[Case]:
    """A second writer comes while the first is at work, held at one of its writes."""
    for name in ("build", "pretrain", "finetune", "study"):
        work = works[name]
        for number in sorted(random.sample(range(1, work.writes + 1), min(24, work.writes))):

            def check(place: Path, work: Work = work, number: int = number) -> str | None:
                first = start(work.first, place, before=at_write(number, pause, place=place))
                held = first.stopped()
                has_lock = any((place / OUT).rglob(".lock.json"))
                second = run(work.first, place)
                if held:
                    os.killpg(first.pid, signal.SIGCONT)
                ended = first.wait()
                if has_lock and second.code != 2:
                    return f"the second was not refused: {second}"
                for process in (ended, second):
                    if process.crashed or (process.code == 2 and not _sentence(process)):
                        return str(process)
                if has_lock and ended.code:
                    return f"the first was harmed: {ended}"
                return work.compare(place)

            yield Case("two writers", f"{work.name} at write {number}", check)


def signals(works: dict[str, Work], random: Random) -> Iterator[Case]:
    """Ctrl-C or SIGTERM at any moment: a sentence, the shell's exit code, and it goes on."""
    for name in ("build", "pretrain", "finetune", "study"):
        work = works[name]
        for sign in (signal.SIGINT, signal.SIGTERM):
            for _ in range(12):
                share = random.random()

                def check(
                    place: Path,
                    work: Work = work,
                    sign: signal.Signals = sign,
                    share: float = share,
                ) -> str | None:
                    # A worker that is forked between two threads' locks may hear nothing at all.
                    child = start(work.first, place, before=spawned)
                    whole = work.seconds + (work.name == "build")  # its worker starts in a second
                    # Not before the command has begun: what comes sooner is Python's to answer.
                    if child.poll(limit=0.03 + share * whole) is None:
                        os.killpg(child.pid, signal.SIGSTOP)
                        begun = _runs(place)
                        os.killpg(child.pid, sign)
                        os.killpg(child.pid, signal.SIGCONT)
                        if fault := _stopped(child.wait(), sign, is_new=_runs(place) != begun):
                            return fault
                    return _goes_on(work, place)

                yield Case("signal", f"{work.name}, {sign.name} at {share:.0%}", check)


def orphans(works: dict[str, Work], random: Random) -> Iterator[Case]:
    """A command with worker processes is killed, or stopped alone: they end as well."""
    pools = {
        "build": ("--workers", "2"),
        "finetune": ("--at-once", "2"),
        "study": ("--at-once", "2"),
    }
    for name, more in pools.items():
        work = works[name]
        for sign in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            share = random.random()

            def check(
                place: Path,
                work: Work = work,
                command: Sequence[str] = (*work.first, *more),
                sign: signal.Signals = sign,
                share: float = share,
            ) -> str | None:
                child = start(command, place, before=spawned)
                while len(child.family()) < 2 and child.poll(limit=0.01) is None:
                    pass  # until it has workers
                if child.poll(limit=4 * share) is not None:
                    return work.compare(place)
                os.kill(child.pid, sign)
                ended = child.wait()
                if left := _left(child):
                    return f"{left} workers after {WORKERS_END:.0f} seconds"
                if sign != signal.SIGKILL and (fault := _stopped(ended, sign, is_new=False)):
                    return fault
                return _goes_on(work, place)

            yield Case("orphans", f"{name}, {sign.name} at {4 * share:.1f} s", check)


def full_disks(works: dict[str, Work], random: Random) -> Iterator[Case]:
    """A disk that is too small says so, nothing is lost, and with room it goes on."""
    for work in works.values():
        used = sum(file.stat().st_size for file in work.whole.rglob("*") if file.is_file())
        for _ in range(6):
            size = random.randint(4096, used) // 4096 * 4096

            def check(place: Path, work: Work = work, size: int = size) -> str | None:
                with _disk(place, size) as grow:
                    ended = run(work.first, place)
                    if ended.code != 2 or not _sentence(ended):
                        return f"of {size} bytes: {ended}" if ended.code else None
                    grow()
                    return _goes_on(work, place)

            yield Case("full disk", f"{work.name}, {size} bytes", check)


def full_files(works: dict[str, Work], random: Random) -> Iterator[Case]:
    """A file that may grow no further says so, and without that limit it goes on."""
    for work in works.values():
        sizes = sorted({file.stat().st_size for file in work.whole.rglob("*") if file.is_file()})
        for _ in range(4):
            limit = random.randint(4096, max(sizes[-1], 8192))

            def check(place: Path, work: Work = work, limit: int = limit) -> str | None:
                ended = run(work.first, place, before=file_size(limit, dies=False))
                if ended.code and (ended.code != 2 or not _sentence(ended)):
                    return f"{ended}"
                return _goes_on(work, place)

            yield Case("full file", f"{work.name}, {limit} bytes", check)


def _goes_on(work: Work, place: Path) -> str | None:
    """Go on with a command that was stopped; how what it makes differs, or it complains."""
    ended = work.go_on(place)
    if ended.crashed:
        return f"going on: {ended}"
    if fault := work.compare(place):
        return f"{fault} ({ended})" if ended.code else fault
    return None


def _runs(place: Path) -> set[Path]:
    """The runs that were begun below a folder."""
    return {file for file in place.rglob("recipe.toml") if "checkpoints" not in file.parts}


def _stopped(ended: Ended, sign: signal.Signals, *, is_new: bool) -> str | None:
    """How a command that was told to stop did not do so; it may just have ended.

    `is_new` says that it began another run after it was told.
    """
    if ended.code == 0 and "Traceback" not in ended.errors:
        return "began another run after it was told to stop" if is_new else None
    if ended.code != 128 + sign or "Traceback" in ended.errors:
        return str(ended)
    last = _sentence(ended)
    return None if last else f"not a word: {ended}"


def _sentence(ended: Ended) -> str:
    """The last line of what a command says, where it is ours."""
    lines = [line for line in ended.errors.splitlines() if line.strip()]
    sentences = [line for line in lines if line.startswith(("clozelab: ", "usage: "))]
    return sentences[-1] if sentences else ""


def _left(child: Child) -> int:
    """How many processes of a command's session are left after a while; they are ended."""
    until = time.monotonic() + WORKERS_END
    while (family := child.family()) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in family:
        os.kill(pid, signal.SIGKILL)
    return len(family)


class NoDiskError(Exception):
    """No disk can be mounted here."""


@contextmanager
def _disk(place: Path, size: int) -> Iterator[Callable[[], None]]:
    """A small disk over a folder, until it is made to grow; where that is allowed."""

    def mount(*options: str) -> None:
        try:
            subprocess.run(["mount", *options, str(place)], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            raise NoDiskError from None

    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs")
    try:
        yield lambda: mount("-o", "remount,size=64m")
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
