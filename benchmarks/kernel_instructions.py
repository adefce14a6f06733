"""The instructions in the inner loops of the attention kernels, compiled for an H200 without one.

Nearly all of such a kernel's time goes into its loop over tiles, and by count more into issuing
instructions than into products or memory. So the instructions of a loop for each score, and the
registers of a thread, show whether a change may pay off; only a GPU shows whether it does.

    PYTHONPATH=src python benchmarks/kernel_instructions.py --out instructions.json

The kernels are those of base models: heads of 64, bf16, dropout; packed blocks of any length
(`attention`) and XLNet's streams (`relative`). Of the instructions, `integer` are those of the
integer and logic unit, which takes one of a warp every other cycle.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from clozelab.kernels import attention, relative
from clozelab.runs.directory import machine_facts

TARGET = GPUTarget("cuda", 90, 32)
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
CONSTANTS = {"HEADS": 12, "HEAD_DIM": 64, "QK_PARTS": 3, "HAS_DROPOUT": True}
SIZES = ("n_tokens", "n_blocks", "n_tiles", "R", "K", "P")  # most are multiples of 16
RANKS = ("query_rank", "shift", "query_segment", "key_rank", "key_segment")
TYPES = {
    **dict.fromkeys((*SIZES, "drop_threshold"), "i32"),
    **dict.fromkeys(("scale_log2", "softmax_scale", "inv_keep_prob"), "fp32"),
    **dict.fromkeys(("lse", "delta", "partials"), "*fp32"),
    **dict.fromkeys(("cu_seqlens", *RANKS, "pos_offs"), "*i32"),
    "seed_ptr": "*i64",
}  # all other arguments are tensors in bf16
INTEGER = {"ISETP", "LOP3", "SHF", "SEL", "FSEL", "PRMT", "FMNMX", "IADD3", "VIADD", "LEA", "P2R"}


class Entry(NamedTuple):
    """A kernel with its tile and its warps."""

    name: str
    kernel: Any
    options: Mapping[str, int]

    @property
    def scores(self) -> float:
        """How many scores of a tile a thread has."""
        rows, columns = (
            self.options.get(size, self.options.get("BLOCK_MN", 0))
            for size in ("BLOCK_M", "BLOCK_N")
        )
        return rows * columns / (32 * self.options["num_warps"])


def entries() -> Iterator[Entry]:
    """The kernels of both modules."""

    def kernels_of(module: ModuleType) -> Iterator[Entry]:
        limits: Mapping[str, int] = getattr(module, "MAX_REGISTERS", {})
        name = module.__name__.rpartition(".")[2]
        for kernel in ("forward", "backward_dq", "backward_dkdv"):
            limit = limits.get(kernel.removeprefix("backward_"))
            options = {**getattr(module, kernel.upper()), **({"maxnreg": limit} if limit else {})}
            yield Entry(f"{name} {kernel}", getattr(module, f"_{name}_{kernel}_kernel"), options)

    yield from kernels_of(attention)
    block = {"BLOCK_MN": attention.SHORT_SEQLEN, **attention.BACKWARD_BLOCK}
    yield Entry("attention backward_block", attention._attention_backward_block_kernel, block)
    yield from kernels_of(relative)


def machine_code(entry: Entry) -> bytes:
    """A kernel compiled for the target."""
    names = entry.kernel.arg_names
    tables = {name: None for name in names if "c2p" in name or "p2c" in name}
    constants = {**CONSTANTS, **attention._window_sizes(0, False), **tables, **entry.options}
    constants = {name: value for name, value in constants.items() if name in names}
    types = {name: "constexpr" if name in constants else TYPES.get(name, "*bf16") for name in names}
    divisible = {
        (number,): [["tt.divisibility", 16]]
        for number, name in enumerate(names)
        if types[name].startswith("*") or (name in SIZES and name not in ("n_blocks", "n_tiles"))
    }
    source = ASTSource(entry.kernel, signature=types, constexprs=constants, attrs=divisible)
    options = {name: value for name, value in entry.options.items() if not name.isupper()}
    code: bytes = triton.compile(source, target=TARGET, options=options).asm["cubin"]
    return code


def inner_loop(assembly: str) -> list[str]:
    """The operations of the loop over whole tiles, or of all if there is no loop with products."""
    operations: list[str] = []
    labels: dict[str, int] = {}
    loops: list[list[str]] = []
    for line in assembly.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(operations)
        elif operation := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)", line):
            operations.append(operation[1])
            jump = re.search(r"BRA.*?(\.L_x_\d+)", line)
            if jump and jump[1] in labels:
                loops.append(operations[labels[jump[1]] :])
    return min((loop for loop in loops if "HGMMA" in loop), key=len, default=operations)


def counts(entry: Entry) -> dict[str, float]:
    """The registers of a thread, and the instructions of the inner loop for each score."""

    def output(*command: str) -> str:
        run = [str(TOOLS / command[0]), *command[1:], file.name]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(machine_code(entry))
        file.flush()
        loop = inner_loop(output("nvdisasm", "-c"))
        usage = output("cuobjdump", "-res-usage")
    registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", usage)[0]
    integer = sum(operation in INTEGER for operation in loop)
    return {
        "registers": int(registers),
        "spilled_bytes": int(stack),
        "instructions": round(len(loop) / entry.scores, 1),
        "integer": round(integer / entry.scores, 1),
    }


def main() -> None:
    """Print the counts of every kernel, and write them with `--out`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="the record, JSON")
    out: Path | None = parser.parse_args().out
    rows = {}
    for entry in entries():
        rows[entry.name] = counts(entry)
        print(f"{entry.name}: {rows[entry.name]}", flush=True)
    if out is not None:
        record = {"machine": machine_facts(), "triton": triton.__version__, "kernels": rows}
        out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
