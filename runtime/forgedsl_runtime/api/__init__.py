"""The runtime's Python API: a program that declares models, services, nodes and edges as code.

    program = Program("name", folder=HERE, functions=functions, ...)
    policy  = program.model("policy", local("forgedsl:models/tiny_math"), ...)
    trainer = program.titan("trainer", policy, ...)          # a service: one mesh of processes
    prompt  = dataset.draw("prompt", 32)                     # a node; its result is an edge
    rollout = generator.sample("rollout", prompt, n=8)
    main(program)                                            # from forgedsl.cli.program: trains

`forgec build --emit python` writes such a program from a .forge file; it may also be written by
hand. `Program.job()` is the same `Job` that `forgec run` executes, so there is one executor. `at`
is the place of a declaration or node in the .forge file: errors name it.
"""

from forgedsl.lower.job import (
    AgentProgram,
    Arch,
    BatchShape,
    Lora,
    Mesh,
    Optimizer,
    Place,
    Sampling,
    TitanParallel,
    VllmParallel,
    Wandb,
)
from forgedsl_runtime.api.handles import Dataset, Edge, Generator, Model, Titan
from forgedsl_runtime.api.program import Program
from forgedsl_runtime.api.sources import (
    csv,
    disk,
    hf,
    json,
    jsonl,
    local,
    mixture,
    parquet,
    random,
    reasoning_gym,
)

__all__ = [
    "AgentProgram", "Arch", "BatchShape", "Dataset", "Edge", "Generator", "Lora", "Mesh",
    "Model", "Optimizer", "Place", "Program", "Sampling", "Titan", "TitanParallel",
    "VllmParallel", "Wandb", "csv", "disk", "hf", "json", "jsonl", "local", "mixture",
    "parquet", "random", "reasoning_gym",
]  # fmt: skip
