"""An encoder, and its head over the vocabulary, as an ONNX graph over rows with padding."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from os import getpid
from pathlib import Path
from shutil import rmtree
from typing import Protocol

import torch
from torch import Tensor, nn

from clozelab.contracts import Encoded, Input, UserError
from clozelab.encoder import Encoder, Lstm, Relative, Transformer

_LARGE = 1_500_000_000  # bytes; a single file may not reach two gigabytes


class Predicts(Protocol):
    """A head over the vocabulary."""

    def logits(self, states: Tensor, table: Tensor | None) -> Tensor:
        """[K, W] → [K, V]."""
        ...


class Rows(nn.Module):
    """An encoder for rows of one length: padding, on either side, is where the mask is 0."""

    def __init__(self, encoder: nn.Module, head: Predicts | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head if isinstance(head, nn.Module) else None

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """[B, L] ids → [B, L, W] states and, with a head, [B, L, V] logits."""
        rows, length = input_ids.shape
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        batch = Input(
            ids=input_ids.flatten(),
            places=(attention_mask.cumsum(1) - 1).clamp(min=0).flatten(),
            segments=types.flatten(),
            starts=torch.arange(rows + 1, dtype=torch.int32, device=input_ids.device) * length,
            longest=length,
            dense=True,
            seen=attention_mask > 0,
        )
        encoded: Encoded = self.encoder(batch)
        states = encoded.states.view(rows, length, -1)
        if self.head is None:
            return (states,)
        logits: Tensor = self.head.logits(encoded.states, encoded.table)
        return states, logits.view(rows, length, -1)


def export_onnx(
    path: Path, encoder: nn.Module, *, shape: Encoder, head: Predicts | None = None
) -> tuple[str, ...]:
    """Write a graph with free batch and length; the names of its outputs.

    It takes input_ids, attention_mask and, where the encoder tells segments apart, token_type_ids.
    Weights of more than one and a half gigabytes lie in a second file beside it.
    """
    if isinstance(shape, Lstm):
        raise UserError("encoder lstm: its steps are not a graph of ONNX; use `clozelab embed`")
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise UserError(f"{path}: ONNX needs {missing[0]}; pip install 'clozelab[onnx]'")
    model = Rows(encoder, head).float().cpu().eval()
    names = ["input_ids", "attention_mask"]
    if isinstance(shape, Relative) or shape.types > 1:
        names.append("token_type_ids")
    outputs = ("last_hidden_state", "logits") if model.head is not None else ("last_hidden_state",)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{getpid()}")
    try:
        beside.mkdir()
        _export(model, beside / path.name, names=names, outputs=outputs, shape=shape)
        for file in beside.iterdir():
            file.replace(path.with_name(file.name))
    finally:
        rmtree(beside, ignore_errors=True)
    return outputs


def _export(
    model: Rows, path: Path, *, names: list[str], outputs: tuple[str, ...], shape: Encoder
) -> None:
    """Trace the model on a few rows, of which neither number nor length is then fixed."""
    most = shape.positions if isinstance(shape, Transformer) else None
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
