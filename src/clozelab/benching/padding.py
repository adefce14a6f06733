"""Packed micro-batches as padded rows for transformers, one per block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad
from torch.nn.utils.rnn import pad_sequence

from clozelab.contracts import Batch, Targets
from clozelab.encoder.permutation import attention_masks, padding

_PAIRS = {"next_sentence": "next_sentence_label", "sentence_order": "sentence_order_label"}


def padded(batch: Batch, config: Mapping[str, Any], *, full: bool) -> dict[str, Tensor]:
    """The arguments of a model of that config; rows padded to the longest, or to full length."""
    inputs, lengths = batch.input, real_lengths(batch)
    two_streams = config["model_type"] == "xlnet"
    width = inputs.max_seqlen if full or two_streams else max(lengths)

    def rows(values: Tensor, fill: int) -> Tensor:
        padded = pad_sequence(list(torch.split(values[: sum(lengths)], lengths)), True, fill)
        return pad(padded, (0, width - padded.shape[1]), value=fill)

    ids = rows(inputs.ids, config.get("pad_token_id") or 0)
    arguments = {"input_ids": ids, "attention_mask": rows(torch.ones_like(inputs.ids), 0)}
    if two_streams or config.get("type_vocab_size", 0) > 1:
        arguments["token_type_ids"] = rows(inputs.segments, 0)
    if two_streams:
        return arguments | _permuted(batch, len(lengths))
    for name, label in _PAIRS.items():
        if name in batch.targets:
            arguments[label] = batch.targets[name]["labels"][: len(lengths)]
    return arguments | {"labels": rows(_labels(batch), Targets.IGNORED)}


def real_lengths(batch: Batch) -> list[int]:
    """The lengths of the blocks, without dummies."""
    starts = batch.input.cu_seqlens
    real = len(batch.input.ids) if batch.input.real is None else int(batch.input.real)
    lengths: list[int] = starts.diff()[starts[:-1] < real].tolist()
    return lengths


def whole_rows(batch: Batch) -> list[list[int]]:
    """The ids of each block before masking."""
    lengths, labels = real_lengths(batch), _labels(batch)
    ids = torch.where(labels == Targets.IGNORED, batch.input.ids, labels)
    return [row.tolist() for row in torch.split(ids[: sum(lengths)], lengths)]


def _labels(batch: Batch) -> Tensor:
    """[N] the label of each token."""
    inputs = batch.input
    if "causal_lm" in batch.targets:
        return inputs.ids  # transformers shifts them itself
    flat = torch.full_like(inputs.ids, Targets.IGNORED)
    targets = batch.targets["masked_lm"]
    labelled = targets["labels"] != Targets.IGNORED
    flat[targets["at"][labelled]] = targets["labels"][labelled]
    return flat


def _permuted(batch: Batch, blocks: int) -> dict[str, Tensor]:
    """XLNet's labels, permutation mask and target mapping."""
    inputs = batch.input
    assert inputs.queries is not None, "a permutation model has queries"
    labels = batch.targets["permutation_lm"]["labels"].view(blocks, -1)
    content, _ = attention_masks(inputs, padding(inputs), None)
    mapping = one_hot(inputs.position_ids[inputs.queries], inputs.max_seqlen)
    mapping = mapping * (labels != Targets.IGNORED)[..., None]
    return {
        "labels": labels,
        "perm_mask": (~content.visible[:, 0]).float(),
        "target_mapping": mapping.float(),
    }
