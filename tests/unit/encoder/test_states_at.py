"""The last layer at chosen tokens alone: the same states as those of all tokens, gathered."""

from __future__ import annotations

import pytest
import torch
from support.peer_models import SHAPE, VOCABULARY, shaken

from clozelab.contracts import Input
from clozelab.encoder.transformer import Transformer


@pytest.mark.parametrize("shape", [{}, {"norm": "pre"}, {"sharing": "all", "embedding_size": 8}])
@torch.no_grad()
def test_the_last_layer_at_some_tokens(shape: dict[str, object]) -> None:
    encoder = shaken(Transformer(**{**SHAPE, **shape}).build(VOCABULARY))
    rows, length = 5, 7
    ids = torch.randint(0, VOCABULARY, (rows * length,), generator=torch.Generator().manual_seed(2))
    cells = torch.arange(rows * length)
    starts = torch.arange(0, rows * length + 1, length).int()
    batch = Input(ids, cells % length, cells * 0, starts, length, dense=True)
    at = torch.arange(rows) * length + torch.tensor([0, 6, 3, 3, 1])
    every, some = encoder(batch), encoder.states_at(batch, at)
    assert float((every.hidden_states[at] - some.hidden_states).abs().max()) < 1e-12
    assert some.table is every.table
