"""The Debian packages that hold the sources: fetched, unpacked, their versions noted."""

from __future__ import annotations

import subprocess
from pathlib import Path

# Package -> (what we take from it, its licence in short). Only these files are ever read.
PACKAGES = {
    "bible-kjv-text": ("King James Bible, narrative books", "public domain"),
    "dict-devil": ("The Devil's Dictionary, Ambrose Bierce", "public domain"),
    "dict-jargon": ("The Jargon File 4.4.7", "public domain"),
    "r-cran-janeaustenr": ("three novels of Jane Austen", "public domain text, MIT package"),
    "wordnet-base": ("WordNet 3.0", "WordNet 3.0 licence (permissive)"),
    "base-files": ("the text of CC0 1.0, for the Chinese sample", "CC0 1.0"),
}


def download_packages(folder: Path) -> None:
    """Fetch every package we need into ``folder`` with apt."""
    subprocess.run(["apt-get", "update", "-q"], check=True)
    subprocess.run(["apt-get", "download", "-q", *PACKAGES], cwd=folder, check=True)


def find_package(folder: Path, name: str) -> Path:
    """The one downloaded file of the package ``name``."""
    files = sorted(folder.glob(f"{name}_*.deb"))
    if len(files) != 1:
        raise SystemExit(f"expected exactly one {name}_*.deb in {folder}, found {len(files)}")
    return files[0]


def unpack(packages: Path, target: Path) -> dict[str, str]:
    """Unpack every package into its own folder below ``target``; return the versions."""
    versions = {}
    for name in PACKAGES:
        deb = find_package(packages, name)
        subprocess.run(["dpkg-deb", "-x", str(deb), str(make_folder(target / name))], check=True)
        answer = subprocess.run(
            ["dpkg-deb", "-f", str(deb), "Version"], check=True, capture_output=True, text=True
        )
        versions[name] = answer.stdout.strip()
    return versions


def make_folder(folder: Path) -> Path:
    """The folder, made if it was not there."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder
