"""Held-out losses of several models under the masks of all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from clozelab.api.watching import Watch
from clozelab.errors import UserError
from clozelab.options import Place, Places, command
from clozelab.runs.options import Device

if TYPE_CHECKING:
    from clozelab.pretraining.matrix import MaskMatrix


@command
def matrix(
    model: Places,
    *,
    data: Place,
    masks: Places = (),
    blocks: int = 8192,
    pairs: int = 16_384,
    out: Place | None = None,
    picture: Place | None = None,
    overwrite: bool = False,
    device: Device | None = None,
    watch: Watch,
) -> MaskMatrix:
    """Measure held-out losses of models under every masking strategy, in the same blocks.

    Models that learned to predict hidden tokens are asked under all strategies; those with a pair
    objective are also asked about next sentences and about the order of sentences.

    Args:
        model: pretrained runs, or Hugging Face directories
        data (CORPUS): its held-out text is read
        masks (NAME,…): strategies (token, whole_word, span, …) or recipes (those of the models)
        blocks: how many at most (8,192)
        pairs: how many at most, for models with a pair objective; 0 for none (16,384)
        out (FILE.json): record the losses, the corpus's fingerprint, the commit
        picture (FILE.svg): draw the matrix
        overwrite: replace the files if they are there
        device: where to compute (a GPU, if there is one)
    """
    from clozelab.files import check_output, write_text
    from clozelab.text.store.corpus import open_stores

    if picture is not None and Path(picture).suffix != ".svg":
        raise UserError(f"--picture {picture}: is drawn as .svg; name it so")
    ((corpus, _),) = open_stores([data])  # before torch, which takes seconds to load
    for place in (out, picture):
        if place is not None:
            check_output(Path(place), overwrite=overwrite)

    from clozelab.pretraining.matrix import follow
    from clozelab.runs.directory import machine_facts

    words = [word for given in masks for word in given.split(",") if word]
    work = follow(model, corpus, masks=words, blocks=blocks, pairs=pairs, device=device)
    result = watch.drain(work, "cells", 1)
    if result.blocks and result.blocks < blocks:
        watch.say(f"{data}: its held-out text has {result.blocks:,} blocks, all of them read")
    if out is not None:
        store = {"path": data, "fingerprint": corpus.manifest["fingerprint"]}
        record = {"machine": machine_facts(), "paths": model, "data": store, **result.as_json()}
        write_text(Path(out), json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    if picture is not None:
        write_text(Path(picture), _drawn(result))
    return result


def _drawn(result: MaskMatrix) -> str:
    """The losses as a heat map: models down, strategies across."""
    from clozelab.reporting import figures

    losses = [[None if cell is None else cell.loss for cell in row] for row in result.cells]
    across = f"held-out loss in nats under the masks of a column, blocks of {result.length} tokens"
    return figures.as_file(figures.heat_map(result.models, result.masks, losses, across=across))
