"""The table of commands."""

from __future__ import annotations

# name, module with `parser() -> Parser` and `main(arguments) -> exit code`, one line of help
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("init", "forgedsl.cli.init", "write a small working project"),
    ("doctor", "forgedsl.cli.doctor", "say what this machine has and lacks for a run"),
    ("lint", "forgedsl.cli.lint", "check .forge files"),
    (
        "plan",
        "forgedsl.cli.plan",
        "show meshes, memory, queues and cost of a run, without running it",
    ),
    ("build", "forgedsl.cli.build", "write what a file compiles to: program, kernels, manifests"),
    ("diff", "forgedsl.cli.diff", "list the differences between two files, runs or revisions"),
    ("fmt", "forgedsl.cli.fmt", "write .forge files in their canonical form"),
    ("lsp", "forgedsl.cli.lsp", "start the language server for editors"),
    ("lock", "forgedsl.cli.lock", "record what a run depends on, for run --locked"),
    ("explain", "forgedsl.cli.explain", "explain a code, a value of a file, or a loss"),
    ("graph", "forgedsl.cli.graph", "print the dataflow graph of a .forge file"),
    ("sim", "forgedsl.cli.sim", "predict step time, idle time and policy ages by simulation"),
    ("run", "forgedsl.cli.run", "train"),
    ("sweep", "forgedsl.cli.sweep", "run a file with each combination of values, and compare"),
    (
        "calibrate",
        "forgedsl.cli.calibrate",
        "correct the estimates of plans by the timings of a run",
    ),
    ("watch", "forgedsl.cli.watch", "show the progress of a run from another terminal or host"),
    ("runs", "forgedsl.cli.runs", "list runs with their status and best evaluation"),
    ("compare", "forgedsl.cli.compare", "compare runs; seeds of one setting form a group"),
    ("replay", "forgedsl.cli.replay", "repeat a recorded optimizer step"),
    (
        "whatif",
        "forgedsl.cli.whatif",
        "apply other rewards, filters or losses to recorded steps of a run",
    ),
    ("bisect", "forgedsl.cli.bisect", "find the first step in which two runs differ"),
    ("certify", "forgedsl.cli.certify", "compare a loss with a function in PyTorch"),
    ("report", "forgedsl.cli.report", "write the report of a run"),
    ("export", "forgedsl.cli.export", "write the weights of a run in Hugging Face format"),
    ("try", "forgedsl.cli.chat", "chat with the exported policy of a run"),
    ("doc", "forgedsl.cli.doc", "write reference documentation of a file or the library"),
)
