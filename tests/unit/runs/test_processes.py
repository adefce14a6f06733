"""Processes that work beside ours: told once to stop, they save; they never outlive us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from support.processes import start_process

from clozelab import interrupts
from clozelab.errors import UserError
from clozelab.runs.processes import Workers, kept_workers, workers

JOBS = """
import os, time
from pathlib import Path
from clozelab.interrupts import stopping

def work(place, saves):
    with stopping() as stopped:
        Path(place).write_text(str(os.getpid()))
        while not (stopped() and saves):
            time.sleep(0.02)
        Path(f"{place}.saved").touch()
"""
SCRIPT = """
import sys
from clozelab.interrupts import terminable
from clozelab.runs.processes import workers
from jobs import work

with terminable(), workers() as processes:
    jobs = [processes.submit(work, place, sys.argv[1] == "saves") for place in sys.argv[2:]]
    for job in jobs:
        job.result()
"""


def begun(folder: Path, word: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A process whose two workers are at work, and their ids."""
    script, places = folder / "script.py", [folder / "a", folder / "b"]
    script.write_text(SCRIPT, encoding="utf-8")
    (folder / "jobs.py").write_text(JOBS, encoding="utf-8")
    process = start_process([sys.executable, str(script), word, *map(str, places)])
    until(lambda: all(place.exists() and place.read_text() for place in places))
    return process, [int(place.read_text()) for place in places]


def until(so: Callable[[], bool]) -> None:
    """Wait for something that happens at once, or never."""
    end = time.monotonic() + 60
    while not so():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, also one that nobody has asked about yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("send", "sign"),
    [
        (os.killpg, signal.SIGINT),  # as a terminal does
        (os.kill, signal.SIGINT),
        (os.kill, signal.SIGTERM),
        (os.kill, signal.SIGKILL),
    ],
)
def test_whoever_is_told_to_stop_the_workers_save_once_and_end(
    tmp_path: Path, send: Callable[[int, int], None], sign: signal.Signals
) -> None:
    process, pids = begun(tmp_path, "saves")
    send(process.pid, sign)
    _, stderr = process.communicate(timeout=60)
    assert stderr.count("Traceback") <= 1 and "Process" not in stderr, stderr  # ours alone
    until(lambda: all(map(is_gone, pids)))
    assert (tmp_path / "a.saved").exists() and (tmp_path / "b.saved").exists()


@pytest.mark.slow
def test_workers_that_do_not_stop_end_with_their_parent_all_the_same(tmp_path: Path) -> None:
    process, pids = begun(tmp_path, "goes on for ever")
    process.kill()
    process.communicate()
    until(lambda: all(map(is_gone, pids)))
    assert not (tmp_path / "a.saved").exists()


def test_interrupted_twice_the_workers_are_ended(tmp_path: Path) -> None:
    process, pids = begun(tmp_path, "goes on for ever")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)  # the first has been heard; were it not, the next would be the first
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    process.communicate()
    until(lambda: all(map(is_gone, pids)))


def test_a_worker_that_an_interrupt_met_while_it_began_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[BaseProcess] = []

    @contextmanager
    def held() -> Iterator[None]:
        yield
        begun.extend(active_children())
        raise KeyboardInterrupt

    monkeypatch.setattr(interrupts, "held", held)
    with workers() as processes, pytest.raises(KeyboardInterrupt):
        processes.submit(abs, 1)
    assert begun
    until(lambda: not any(process.is_alive() for process in begun))


def test_a_process_that_dies_is_told_in_a_sentence_and_takes_no_other_with_it() -> None:
    with workers() as processes:
        dead = processes.submit(signal.raise_signal, signal.SIGKILL)
        alive = [processes.submit(abs, -number) for number in (1, 2)]
        with pytest.raises(UserError, match=r"died \(SIGKILL; memory may have run out"):
            dead.result()
        assert [future.result() for future in alive] == [1, 2]
        with pytest.raises(ZeroDivisionError) as caught:
            processes.submit(divmod, 1, 0).result()
        assert "in _serve" in caught.value.__notes__[0]  # where it was raised
        pids = [processes.submit(os.getpid).result() for _ in range(2)]
        assert pids[0] == pids[1] != os.getpid()


def test_a_process_that_was_killed_while_it_was_idle_gets_no_job() -> None:
    with workers() as processes:
        pid = processes.submit(os.getpid).result()
        (idle,) = processes._idle
        os.kill(pid, signal.SIGKILL)
        until(lambda: not idle.process.is_alive())  # all its threads have ended
        assert processes.submit(os.getpid).result() != pid


def test_a_job_may_end_while_its_pool_looks_for_a_topic() -> None:
    pool = Workers()

    class Topics(set[str]):
        def __contains__(self, topic: object) -> bool:
            pool._busy.popitem()  # as the thread of another job does
            return False

    for _ in range(2):
        pool._busy[Thread()] = SimpleNamespace(topics=Topics())  # type: ignore[assignment]
    assert not pool.elsewhere("a")


def test_a_job_goes_to_the_process_that_had_one_of_its_topic() -> None:
    with workers() as processes:
        first = [processes.submit(os.getpid, topic=topic) for topic in ("a", "b")]
        pids = dict(zip("ab", (job.result() for job in first), strict=True))
        assert pids["a"] != pids["b"]
        for topic in "abba":
            assert processes.submit(os.getpid, topic=topic).result() == pids[topic]
        busy = processes.submit(time.sleep, 1.0, topic="a")
        assert processes.elsewhere("a") and not processes.elsewhere("b")
        assert not processes.elsewhere("new to all")
        busy.result()


def test_a_process_whose_job_failed_by_no_fault_of_the_user_has_no_other() -> None:
    with workers() as processes:
        pid = processes.submit(os.getpid).result()
        with pytest.raises(ZeroDivisionError):
            processes.submit(divmod, 1, 0).result()
        until(lambda: is_gone(pid))
        assert processes.submit(os.getpid).result() != pid
        pid = processes.submit(os.getpid).result()
        with pytest.raises(UserError):
            processes.submit(refused).result()
        assert processes.submit(os.getpid).result() == pid


def refused() -> None:
    raise UserError("the file is not there")


def test_processes_share_the_cores_unless_the_user_has_said_how(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")
    for name in shared:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    with workers(threads=3) as processes:
        futures = [processes.submit(os.getenv, name) for name in (*shared, "MKL_NUM_THREADS")]
        assert [future.result() for future in futures] == ["3", "3", "7"]
    assert not {*shared} & {*os.environ}


def test_processes_of_a_process_share_its_part_of_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")  # the user has said so
    with workers(threads=4) as processes:
        assert processes.submit(threads_of_its_own, 2).result() == (["2", "2", "7"], "4")


def threads_of_its_own(threads: int) -> tuple[list[str | None], str | None]:
    """The threads of a process that this one starts, and its own after that."""
    names = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "MKL_NUM_THREADS")
    with workers(threads=threads) as processes:
        futures = [processes.submit(os.getenv, name) for name in names]
        return [future.result() for future in futures], os.getenv(names[0])


def test_kept_processes_serve_later_jobs_and_end_with_the_process_that_keeps_them() -> None:
    with workers() as processes:
        first, second = (processes.submit(kept_pid).result() for _ in range(2))
        assert first == second and not is_gone(first)
    until(lambda: is_gone(first))


def kept_pid() -> int:
    """The process that this one keeps."""
    return kept_workers(threads=1).submit(os.getpid).result()


def test_a_pool_that_was_stopped_takes_other_jobs() -> None:
    with workers() as processes:
        busy, idle = processes.submit(time.sleep, 60), processes.submit(os.getpid).result()
        processes.stop()
        with pytest.raises(UserError, match="SIGTERM"):
            busy.result()
        until(lambda: is_gone(idle))
        assert processes.submit(abs, -1).result() == 1
