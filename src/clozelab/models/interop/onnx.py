"""An encoder, and its head over the vocabulary or for a task, as a graph of ONNX."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from clozelab.config import slots
from clozelab.encoder import Encoder
from clozelab.errors import UserError
from clozelab.models.interop.heads import TaskHead
from clozelab.models.interop.labels import labelled
from clozelab.models.interop.rows import Judged, Predicts, Rows

_LARGE = 1_500_000_000  # bytes; a single file may not reach two gigabytes


def require(place: Path) -> None:
    """Refuse to write a graph to a place without the packages that make one."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise UserError(f"{place}: ONNX needs {missing[0]}; pip install 'clozelab[onnx]'")


def export_onnx(
    path: Path,
    encoder: nn.Module,
    *,
    shape: Encoder,
    head: Predicts | nn.Module | None = None,
    task: TaskHead | None = None,
) -> tuple[str, ...]:
    """Write a graph with free batch and length into a folder of its own; its outputs' names.

    It takes input_ids, attention_mask and, where the encoder tells segments apart, token_type_ids.
    Weights of more than one and a half gigabytes lie in a second file beside it. With the head of a
    task its logits alone come out, as `Judged` says, and config.json beside it names the labels.
    """
    if shape.recurrent:
        name = slots.use("encoder", shape)
        raise UserError(f"encoder {name}: its steps are not a graph of ONNX; use `clozelab embed`")
    require(path)
    model: Rows | Judged
    if task is None:
        model = Rows(encoder, head)
    else:
        assert isinstance(head, nn.Module)
        model = Judged(encoder, head, task, last=shape.layout.summary == "last")
    names = ["input_ids", "attention_mask"]
    if shape.segment_types not in (0, 1):
        names.append("token_type_ids")
    path.parent.mkdir(parents=True, exist_ok=True)
    ready = model.float().cpu().eval()
    _export(ready, path, names=names, outputs=model.outputs, shape=shape)
    if task is not None:
        text = json.dumps({"task": task.kind, **labelled(task)}, indent=2, ensure_ascii=False)
        path.with_name("config.json").write_text(f"{text}\n", encoding="utf-8")
    return model.outputs


def _export(
    model: nn.Module, path: Path, *, names: list[str], outputs: tuple[str, ...], shape: Encoder
) -> None:
    """Trace the model on a few rows, of which neither number nor length is then fixed."""
    most = shape.max_positions
    ids = torch.zeros(3, min(7, most or 7), dtype=torch.long)
    mask = torch.ones_like(ids)
    # Two inputs that are one tensor would be taken for one input.
    example = (ids, mask, ids.clone())[: len(names)]
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=most)}
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    with _quiet():
        torch.onnx.export(
            model,
            example,
            path,
            dynamo=True,
            verbose=False,
            input_names=names,
            output_names=list(outputs),
            dynamic_shapes=tuple(sizes for _ in names),
            external_data=size > _LARGE,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter speaks of what it lacks and does not need."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
