"""Graphs of ONNX: the same numbers as ours for rows of unequal lengths, whatever their padding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from support.peer_models import SHAPE as SHAPES
from support.peer_models import Model, ours, padded, shaken

from clozelab.encoder import Encoder, Relative, Transformer
from clozelab.models.interop.onnx import export_onnx

torch.set_num_threads(1)

SHAPE = {**SHAPES, "layers": 2}
GPTS = {**SHAPE, "types": 0, "embedding_norm": False, "causal": True}
MODERN = {
    **SHAPE, "layers": 3, "types": 0, "norm": "pre", "first_norm": False, "bias": False,
    "gated": True, "position_embedding": "rotary", "normalisation": "rms", "value_residual": 0.5,
}  # fmt: skip
DISENTANGLED = {**SHAPE, "position_embedding": "disentangled", "position_norm": True}
STREAMS = {key: value for key, value in SHAPE.items() if key not in ("embedding_size", "positions")}
MODELS: dict[str, tuple[Encoder, str | None]] = {
    "bert": (Transformer(**SHAPE), "masked_lm"),
    "electra": (Transformer(**SHAPE | {"embedding_size": 8}), "replaced_token"),
    "roberta": (Transformer(**SHAPE, types=0, position_offset=2), None),
    "gpt, half shared": (Transformer(**GPTS, norm="pre", sharing="attention"), "causal_lm"),
    "modernbert": (Transformer(**MODERN, window=4, global_every=2), "masked_lm"),
    "alibi": (Transformer(**SHAPE, position_embedding="alibi", qk_norm=True), None),
    "deberta": (Transformer(**DISENTANGLED, position_buckets=4, types=0), "masked_lm"),
    "deberta's mask decoder": (
        Transformer(**DISENTANGLED, absolute_positions="decoder", position_projections="own"),
        "masked_lm",
    ),
    "xlnet": (Relative(**STREAMS), None),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != "bert")) for name in MODELS],
)
def test_a_graph_computes_the_same_on_rows_of_unequal_lengths(name: str, tmp_path: Path) -> None:
    encoder, head = MODELS[name]
    model = shaken(Model(encoder, (head,) if head else ()))
    assert isinstance(model, Model)
    types = getattr(encoder, "types", 2)
    batch = padded(types)
    wanted = ours(model, batch)
    model.float()
    path = tmp_path / "new" / "model.onnx"
    part = model.heads[head] if head else None
    names = export_onnx(path, model.encoder, shape=encoder, head=part)
    assert [file.name for file in path.parent.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == list(batch)
    assert [each.name for each in session.get_outputs()] == list(names)
    real = batch["attention_mask"].bool()
    for inputs in (batch, {key: turned(value, real) for key, value in batch.items()}):
        out = session.run(None, {key: value.numpy() for key, value in inputs.items()})
        there = inputs["attention_mask"].bool().numpy()
        states = wanted[f"layer {encoder.layers}"].numpy()
        assert np.abs(out[0][there] - states).max() < 1e-4
        if head:
            logits = wanted["words"] if "words" in wanted else wanted[head][:, None]
            assert np.abs(out[1][there] - logits.numpy()).max() < 1e-4


def turned(tensor: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """The same rows with their padding on the left."""
    rows = [torch.cat([row[~keep], row[keep]]) for row, keep in zip(tensor, real, strict=True)]
    return torch.stack(rows)
