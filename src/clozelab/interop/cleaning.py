"""On the way in: the tensors of a file under the names of today, and which heads they make up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from clozelab.contracts import UserError
from clozelab.encoder import Transformer
from clozelab.interop.names import Names

# Buffers that old files hold beside the weights.
_BUFFERS = (".position_ids", ".token_type_ids", ".attn.bias", ".attn.masked_bias")


def cleaned(
    tensors: Mapping[str, Tensor], names: Names, known: Iterable[str]
) -> tuple[dict[str, Tensor], bool]:
    """The tensors under the names of today, each once, without buffers; and whether all are tied.

    A decoder that is not the table of words, or a bias that is not the head's, keeps its own name.
    """
    known = {*known, *names.twins}
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(_BUFFERS) or name in ("position_ids", "token_type_ids"):
            continue
        new = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        new = new.replace("LayerNorm.beta", "LayerNorm.bias")
        if new.startswith("ernie."):
            new = new.replace("ernie.", names.prefix, 1)
        if new not in known and names.prefix + new in known:
            new = names.prefix + new
        found[new] = tensor
    tied = True
    for second, first in names.twins.items():
        if second in found and _same(found.setdefault(first, found[second]), found[second]):
            del found[second]
        else:
            tied = tied and second not in found
    return found, tied


def _same(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are one, bit for bit."""
    return first.dtype == second.dtype and torch.equal(first, second)


def without_identity(encoder: Transformer, found: dict[str, Tensor]) -> None:
    """ALBERT always has a projection; where there is nothing to project, it must do nothing."""
    inside = "albert.encoder.embedding_hidden_mapping_in"
    if encoder.embedding != encoder.width or f"{inside}.weight" not in found:
        return
    weight, bias = found.pop(f"{inside}.weight"), found.pop(f"{inside}.bias", None)
    eye = torch.eye(encoder.width).to(weight)
    if not torch.equal(weight, eye) or (bias is not None and bias.any()):
        raise UserError(
            f"{inside}: projects a width onto itself, which no encoder here does; import a"
            " checkpoint whose embedding_size is below its hidden_size"
        )


def present(
    heads: Iterable[str], theirs: Mapping[str, tuple[str, ...]], found: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """The heads that are there whole: of half a head nothing is used."""
    groups = {
        head: [theirs[name] for name in theirs if name.startswith(f"heads.{head}.")]
        for head in heads
    }
    return tuple(
        head
        for head, names in groups.items()
        if all(each in found for group in names for each in group)
    )
