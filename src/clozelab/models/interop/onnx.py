"""An encoder, and its head over the vocabulary or for a task, as a graph of ONNX."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clozelab.config import slots
from clozelab.contracts import Encoded, Input
from clozelab.encoder import Encoder
from clozelab.errors import UserError
from clozelab.layers import activate
from clozelab.models.interop.families import TASKS
from clozelab.models.interop.heads import TaskHead, label_config

_ABSENT = -1e9  # the logit of padding
_LARGE = 1_500_000_000  # bytes; a single file may not reach two gigabytes


def require(place: str) -> None:
    """Refuse to write a graph to a place without the packages that make one."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise UserError(f"{place}: ONNX needs {missing[0]}; pip install 'clozelab[onnx]'")


def export_onnx(
    path: Path,
    encoder: nn.Module,
    *,
    shape: Encoder,
    head: nn.Module | None = None,
    shift: int = 0,
    task: TaskHead | None = None,
) -> tuple[str, ...]:
    """Write a graph with dynamic batch size and length, and return the names of its outputs.

    It takes input_ids, attention_mask and, if the encoder has segments, token_type_ids. Weights of
    more than one and a half gigabytes are in a second file. With the head of a task the outputs are
    its logits alone, as `TaskGraph` says, and config.json names the labels. If a head predicts
    tokens `shift` positions earlier, the logits are moved to the position of their token.
    """
    if shape.recurrent:
        name = slots.use("encoder", shape)
        raise UserError(f"encoder {name}: its steps are not a graph of ONNX; use `clozelab embed`")
    require(str(path))
    model = EncoderGraph(encoder, head, shift)
    if task is not None:
        model = TaskGraph(encoder, head, task, last=shape.layout.summary == "last")
    names = ["input_ids", "attention_mask"]
    if shape.segment_types not in (0, 1):
        names.append("token_type_ids")
    path.parent.mkdir(parents=True, exist_ok=True)
    _export(model.float().cpu().eval(), path, names=names, shape=shape)
    if task is not None:
        text = json.dumps({"task": task.kind, **label_config(task)}, indent=2, ensure_ascii=False)
        path.with_name("config.json").write_text(f"{text}\n", encoding="utf-8")
    return model.outputs


def _export(model: EncoderGraph, path: Path, *, names: list[str], shape: Encoder) -> None:
    """Trace the model on a few rows, with dynamic batch size and length."""
    most = shape.max_positions
    ids = torch.zeros(3, min(7, most or 7), dtype=torch.long)
    mask = torch.ones_like(ids)
    # Cloned, since the same tensor twice would become one input.
    example = (ids, mask, ids.clone())[: len(names)]
    dimensions = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=most)}
    total_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    with _quiet(), torch.no_grad():  # with gradients attention would choose another kernel
        torch.onnx.export(
            model,
            example,
            path,
            dynamo=True,
            verbose=False,
            input_names=names,
            output_names=list(model.outputs),
            dynamic_shapes=tuple(dimensions for _ in names),
            external_data=total_bytes > _LARGE,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings of optional packages."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


class EncoderGraph(nn.Module):
    """The states and, with a head, the logits of every token."""

    def __init__(self, encoder: nn.Module, head: Any, shift: int = 0) -> None:
        super().__init__()
        self.encoder, self.head, self.shift = encoder, head, shift
        self.outputs = ("last_hidden_state", "logits")[: 1 if head is None else 2]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Run the encoder and the head on [B, L] padded rows."""
        rows, length = input_ids.shape
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        batch = Input(
            ids=input_ids.flatten(),
            position_ids=(attention_mask.cumsum(1) - 1).clamp(min=0).flatten(),
            segments=types.flatten(),
            cu_seqlens=torch.arange(rows + 1, dtype=torch.int32, device=input_ids.device) * length,
            max_seqlen=length,
            dense=True,
            attention_mask=attention_mask > 0,
        )
        return self.read_out(self.encoder(batch), attention_mask)

    def read_out(self, encoded: Encoded, mask: Tensor) -> tuple[Tensor, ...]:
        """[B, L, W] states and, with a head, [B, L, V] logits."""
        states = encoded.hidden_states.view(*mask.shape, -1)
        if self.head is None:
            return (states,)
        logits: Tensor = self.head.all_logits(encoded).view(*mask.shape, -1)
        if self.shift:  # nothing predicts the first token: it gets the logits of the second
            logits = torch.cat([logits[:, : self.shift], logits[:, : -self.shift]], dim=1)
        return states, logits


class TaskGraph(EncoderGraph):
    """The logits of a task: [B, C] of classify and regress (one), [B, L, T] of tag.

    Of choose a row is one choice: [B · C, L] ids → [B · C, 1]. Of answer, [B, L] each for the first
    and the last token.
    """

    def __init__(self, encoder: nn.Module, head: Any, task: TaskHead, *, last: bool) -> None:
        super().__init__(encoder, head)
        beam = ' with head = "beam"' if task.is_beam else ""
        other = beam if task.vectors == "last" else f' with "{task.vectors}" vectors'
        if other or task.kind not in TASKS:
            raise UserError(
                f"task {task.kind}{other}: not available as a graph of ONNX; use the run as it is"
                " (`clozelab predict`)"
            )
        self.task, self.last = task, last
        answers = task.kind == "answer"
        self.outputs = ("start_logits", "end_logits") if answers else ("logits",)

    def read_out(self, encoded: Encoded, mask: Tensor) -> tuple[Tensor, ...]:
        """The logits."""
        head, states = self.head, encoded.hidden_states.view(*mask.shape, -1)
        if self.task.kind == "tag":
            return (head.classifier(head.transform(states)),)
        if self.task.kind == "answer":
            scores = head.scores(head.transform(states)).masked_fill(mask[..., None] == 0, _ABSENT)
            return scores[..., 0], scores[..., 1]
        vector = self._pooled(states, mask)
        activation = self.task.summary.activation
        if activation != "none":
            vector = activate(head.dense(vector), activation)
        return (head.classifier(head.transform(vector)),)

    def _pooled(self, states: Tensor, mask: Tensor) -> Tensor:
        """[B, L, W] → [B, W]: the first or the last token, or the mean of all."""
        selected = mask.to(states.dtype)
        if self.task.pool == "mark":
            positions = mask.cumsum(1) * mask
            wanted = positions.amax(1, keepdim=True) if self.last else 1
            selected = (positions == wanted).to(states.dtype)
        weights = selected / selected.sum(1, keepdim=True).clamp(min=1)
        return (weights[:, None] @ states).squeeze(1)
