"""Corpora built on a Ray cluster of several nodes: the same bytes, whatever dies meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support import ray_cluster
from support.corpora import build, digests, refused, run, start, texts, write
from support.processes import family

from clozelab import cluster
from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.text.building import BuildOptions
from clozelab.text.store import shards
from clozelab.text.store.build import build as begin
from clozelab.text.store.engines import RayEngine
from clozelab.text.tokenizers import ByteBpe

OPTIONS = ["--vocabulary", "600", "--tokenizer", "byte_bpe"]
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")


@pytest.mark.parametrize(
    ("address", "sentence"),
    [("host:1", "give ray://HOST:PORT, or local"), ("local", "pip install clozelab[ray]")],
)
def test_what_is_no_cluster_and_ray_that_is_missing_are_told_of_before_anything_is_made(
    address: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    file, out = write(tmp_path / "a.jsonl", texts(2)), tmp_path / "c"
    result = run("corpus", "build", file, "--out", str(out), "--on", address)
    assert sentence in refused(result)
    assert not out.exists()


@pytest.mark.slow
@needs_ray
def test_a_node_that_dies_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setenv("PYTHONPATH", ray_cluster.SOURCE)
    monkeypatch.setattr(shards, "SHARD", 4_000)
    monkeypatch.setattr(cluster, "known", lambda address: ray)  # here without Ray's client
    file = write(tmp_path / "a.jsonl", texts(60))
    build(file, tmp_path / "here")
    with ray_cluster.cluster(num_cpus=1) as nodes:
        dying = ray_cluster.add(nodes)
        building = _begun([file], tmp_path / "there", nodes.address)
        for _ in building:
            if dying and any((tmp_path / "there").glob("building/*.npz")):
                dying = nodes.remove_node(dying, allow_graceful=False)
    assert digests(tmp_path / "there") == digests(tmp_path / "here")


def _begun(files: list[str], out: Path, address: str, **options: Any) -> Any:
    chosen = BuildOptions(on=address, workers=None, **options)
    return begin(files, out, tokenizer=ByteBpe(600), options=chosen, counts=Counts())


@pytest.mark.slow
@needs_ray
def test_workers_and_readers_that_are_killed_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ray's client, as from another machine; what is at URLs is read by a node."""
    monkeypatch.setenv("PYTHONPATH", ray_cluster.SOURCE)
    urls = [f"file://{write(tmp_path / 'a.jsonl', 4 * texts(10_000))}"]  # of seven shards
    build(urls, tmp_path / "here")
    port = ray_cluster.free_port()
    broken = tmp_path / "broken.jsonl.gz"
    broken.write_bytes(b"no packed file")
    with ray_cluster.cluster(num_cpus=2, ray_client_server_port=port):
        with pytest.raises(UserError, match=r"broken.jsonl.gz is truncated or not a .gz file"):
            [*_begun([*urls, f"file://{broken}"], tmp_path / "c", f"ray://127.0.0.1:{port}")]
        killed, started = set[str](), Mock(wraps=RayEngine.reader)
        monkeypatch.setattr(RayEngine, "reader", lambda *arguments: started(*arguments))
        for _ in _begun(urls, tmp_path / "there", f"ray://127.0.0.1:{port}"):
            for name in {"ray::ShardReader", "ray::_run_on_node"} - killed:
                for process in _called(name):
                    os.kill(process, signal.SIGKILL)
                    killed.add(name)
    assert killed == {"ray::ShardReader", "ray::_run_on_node"}
    assert 2 <= started.call_count <= 3  # the file is read again for what was lost, and only then
    assert digests(tmp_path / "there") == digests(tmp_path / "here")


@pytest.mark.slow
@needs_ray
def test_a_driver_that_is_killed_leaves_nothing_behind_and_is_gone_on_with(tmp_path: Path) -> None:
    file, out = write(tmp_path / "a.jsonl", texts(120)), tmp_path / "there"
    build(file, tmp_path / "here")
    _, process = start(tmp_path, file, "--out", str(out), *OPTIONS, "--on", "local", shard=4000)
    while not any(out.glob("building/*.npz")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    process.communicate()
    shard_times = {shard.name: shard.stat().st_mtime_ns for shard in out.glob("building/*.npz")}
    assert shard_times and not (out / "manifest.json").exists()
    _, process = start(
        tmp_path, file, "--out", str(out), *OPTIONS, "--on", "local", shard=4000, whole=False
    )
    assert "interrupted; finished parts are kept" in process.communicate()[1]
    now = {shard.name: shard.stat().st_mtime_ns for shard in out.glob("building/*.npz")}
    assert shard_times.items() < now.items()
    _, process = start(tmp_path, file, "--out", str(out), *OPTIONS, "--on", "local", shard=4000)
    assert process.communicate()[0] and process.returncode == 0
    assert digests(out) == digests(tmp_path / "here")


@pytest.mark.slow
@needs_ray
def test_a_node_with_another_clozelab_or_none_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", ray_cluster.SOURCE)
    file = write(tmp_path / "a.jsonl", texts(2))
    port = ray_cluster.free_port()
    with ray_cluster.cluster(num_cpus=1, ray_client_server_port=port) as nodes:
        for version_text, line in {
            "no clozelab": "raise ModuleNotFoundError('there is none')",
            "clozelab 0.0.1": "__version__ = '0.0.1'",
        }.items():
            package = tmp_path / version_text.replace(" ", "-") / "clozelab"
            package.mkdir(parents=True)
            (package / "__init__.py").write_text(line, encoding="utf-8")
            node = ray_cluster.add(nodes, source=str(package.parent))
            with pytest.raises(UserError, match=rf"the node \S+ has {version_text}.*on every node"):
                [*_begun([file], tmp_path / "c", f"ray://127.0.0.1:{port}")]
            nodes.remove_node(node)
    assert not (tmp_path / "c").exists()
    with pytest.raises(UserError, match=r"cannot be reached.*check the address"):
        [*_begun([file], tmp_path / "c", f"ray://127.0.0.1:{port}")]


def _called(name: str) -> list[int]:
    """The processes of that name that this one started."""
    pids = []
    for process in family(os.getpid()):
        with suppress(OSError):
            line = Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8", errors="replace")
            if line.startswith(name):
                pids.append(process)
    return pids
