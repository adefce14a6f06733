"""On the way in: the tensors of a file under the names of today, and which heads they make up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from clozelab.encoder import Encoder
from clozelab.errors import UserError
from clozelab.models.interop.names import Names

# Buffers that old files hold beside the weights.
_BUFFERS = (".position_ids", ".token_type_ids", ".attn.bias", ".attn.masked_bias")


def normalised(
    tensors: Mapping[str, Tensor], names: Names, known: Iterable[str], *, tied: bool
) -> tuple[dict[str, Tensor], bool]:
    """The tensors under the names of today, each once, without buffers; and whether they are tied.

    `tied` is what the config says; a decoder that differs from the table of words is not tied,
    whatever it says, which is how transformers reads it.
    """
    known = {*known, f"{names.decoder}.weight", f"{names.decoder}.bias"}
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
    table = f"{names.decoder}.weight"
    if tied and table in found:
        tied = _same(found.setdefault(names.words, found[table]), found[table])
        if tied:
            del found[table]
    if names.bias:
        _one_bias(found, names.bias, f"{names.decoder}.bias")
    return found, tied


def _one_bias(found: dict[str, Tensor], bias: str, decoder: str) -> None:
    """The decoder's bias, which is added, under the name of the head's.

    Where the head's is another, it lies idle: it changes names with it.
    """
    if decoder not in found:
        return
    added, idle = found.pop(decoder), found.get(bias)
    found[bias] = added
    if idle is not None and not _same(added, idle):
        found[decoder] = idle


def _same(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are one, bit for bit."""
    return first.dtype == second.dtype and torch.equal(first, second)


def drop_identity(encoder: Encoder, found: dict[str, Tensor]) -> None:
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


def whole_heads(
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
