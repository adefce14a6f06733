"""Where there is no GPU, Triton is told, before it is first imported, to interpret its kernels."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
