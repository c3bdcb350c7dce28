"""Compile generated kernels for sm_90 without a GPU and report what the machine code holds.

    python sass.py JOBS.json

prints one JSON object a job: registers, stack, spills and the instructions that matter. Runs in a
process of its own, with whatever Triton is first on its path.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

POINTERS = {
    "logits": "*bf16", "gradient": "*bf16", "labels": "*i64", "mask": "*i1", "active": "*i1",
    "seq_ids": "*i64", "starts": "*i32", "done": "*i32", "taken": "*i32",
    "turns": "*i32", "mail": "*i64", "far": "*i32", "far_rows": "*i1", "words": "*i64",
}  # fmt: skip
INTEGERS = ("ignore_index", "num_rows", "row_stride", "gradient_stride", "seq_len", "count",
            "num_columns", "num_sequences")  # fmt: skip
UNALIGNED = ("ignore_index", "num_rows", "num_columns", "num_sequences", "seq_len")
COUNTED = (
    "MUFU.EX2", "UTMALDG.3D", "LDS.128", "LDG.E.128", "LDG.E.EF.128", "STG.E.128", "LDL", "STL",
    "BAR.SYNC", "HGMMA", "UTMALDG.2D", "HMNMX2.BF16_V2.NAN",
)  # fmt: skip
MEMORY = r"\b((?:LD|ST|LDG|STG|ATOM|ATOMG|RED|UTMALDG|UBLKCP|LDGSTS)(?:\.[\w.]+)?) "
"""Instructions that may reach the memory of the device."""
WORDS = (
    "tensordesc<i32[1, {rows}, {inner}],"
    "NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=3)>"
)


def inspect(
    module: object,
    name: str,
    constants: dict[str, object],
    options: dict[str, int],
    booleans: set[str],
) -> dict[str, object]:
    """What the machine code of one kernel holds."""
    kernel = getattr(module, name)
    signature, attributes = {}, {}
    for index, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument] = "constexpr"
            continue
        kind = "*i1" if argument in booleans else POINTERS.get(argument, "*fp32")
        signature[argument] = "i32" if argument in INTEGERS else kind
        if name == "product" and argument in ("hidden", "weight", "out"):
            signature[argument] = tiles_of(argument, constants)
        elif argument == "words_of":
            inner = int(str(constants["INNER"]))
            rows = int(str(constants["BLOCK"])) // 2 // inner
            signature[argument] = WORDS.format(rows=rows, inner=inner)
        elif argument not in UNALIGNED:
            attributes[(index,)] = [["tt.divisibility", 16]]
    values = {(kernel.arg_names.index(k),): v for k, v in constants.items()}
    source_type = ASTSource
    if kernel.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        source_type = GluonASTSource
    compiled = triton.compile(
        source_type(kernel, signature, values, attributes),
        target=GPUTarget("cuda", 90, 32),
        options=options,
    )
    return {"shared": compiled.metadata.shared, **machine_code(compiled.asm["cubin"])}


def tiles_of(argument: str, constants: dict[str, object]) -> str:
    """The tiles in which the copy engine sees a matrix of `product`."""
    rows, columns, depth = (int(str(constants[k])) for k in ("ROWS", "COLUMNS", "DEPTH"))
    sizes = {"hidden": (rows, depth), "weight": (columns, depth), "out": (rows, columns // 2)}
    return f"tensordesc<bf16[{sizes[argument][0]}, {sizes[argument][1]}]>"


def machine_code(cubin: bytes) -> dict[str, object]:
    """Registers, stack and instruction counts of a cubin."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)

        def run(option: str) -> str:
            done = subprocess.run(
                [tool, option, file.name], capture_output=True, text=True, check=True
            )
            return done.stdout

        usage, code = run("-res-usage"), run("-sass")
    count = {name: len(re.findall(rf"\b{re.escape(name)}\b", code)) for name in COUNTED}
    waits = code.find("ACQBULK")
    return {
        "waits": waits >= 0,
        "early": re.findall(MEMORY, code[:waits]),
        "releases": "PREEXIT" in code,
        "registers": int(re.findall(r"REG:(\d+)", usage)[-1]),
        "stack": int(re.findall(r"STACK:(\d+)", usage)[-1]),
        **count,
    }


def load(path: str) -> object:
    spec = importlib.util.spec_from_file_location("kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(jobs: list[dict[str, object]]) -> None:
    """One line of JSON for each job."""
    import triton.language as tl

    for job in jobs:
        module = load(str(job["path"]))
        kernel = getattr(module, str(job["kernel"]))
        given = {"OVERLAP": True, **dict(job["constants"])}  # type: ignore[call-overload]
        given |= {"ACC": tl.float32, "PADDED": False, "NARROW": False}
        constants = {k: v for k, v in given.items() if k in kernel.arg_names}
        booleans = set(job.get("booleans", ()))  # type: ignore[call-overload]
        found = inspect(module, str(job["kernel"]), constants, dict(job["options"]), booleans)  # type: ignore[call-overload]
        print(json.dumps({"triton": triton.__version__, **found}), flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
