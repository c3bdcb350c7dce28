"""What `setup.sh` asks of its environment; standard library only.

`repair` removes packages that an interrupted install left half-written (a file of their RECORD is
missing or has another size), so that pip installs them again instead of calling them satisfied.
`cuda` prints the CUDA libraries torch asks for, one requirement per line; nothing for a CPU build.
`bytecode` imports what a run imports, so that its processes find byte code, also where
PYTHONDONTWRITEBYTECODE is set: each of them then starts in half the time.
"""

from __future__ import annotations

import compileall
import shutil
import sys
import sysconfig
from importlib import import_module, metadata
from pathlib import Path

RUN = """
lark torch.distributed.checkpoint torch.distributed.fsdp transformers.models.qwen3.modeling_qwen3
torchtitan.models.qwen3 torchtitan.components.checkpoint torchtitan.components.optimizer
torchtitan.distributed.activation_checkpoint tensorboard.summary.writer.event_file_writer
vllm.v1.engine.llm_engine vllm.v1.executor.uniproc_executor vllm.model_executor.models.qwen3
vllm.v1.core.sched.scheduler vllm.renderers.hf
vllm.model_executor.layers.quantization.compressed_tensors.utils loguru
monarch.actor math_verify jinja2 pydantic rich.console wandb pyarrow.parquet pandas aiohttp
pytest hypothesis gymnasium cattrs pygls.lsp.server typeguard xdist execnet
"""
WORKER = {
    "cpu": ("vllm.v1.worker.cpu_worker", "vllm.v1.attention.backends.cpu_attn"),
    "gpu": ("vllm.v1.worker.gpu_worker",),
}


def is_whole(dist: metadata.Distribution) -> bool:
    """Whether every file of the distribution is there with its recorded size."""
    if not dist.files:
        return False
    for file in dist.files:
        path = Path(str(file.locate()))
        if path.suffix != ".pyc" and not path.is_file():
            return False
        if file.size is not None and path.stat().st_size != file.size:
            return False
    return True


def repair() -> None:
    """Forget the distributions that are not whole."""
    for info in Path(sysconfig.get_path("purelib")).glob("*.dist-info"):
        if not is_whole(metadata.Distribution.at(info)):
            print(f"setup: {info.stem} was left half-installed; installing it again", flush=True)
            shutil.rmtree(info)


def cuda() -> None:
    """Print the requirements of torch that are CUDA libraries."""
    for line in metadata.requires("torch") or []:
        requirement, _, marker = line.partition(";")
        if requirement.startswith(("nvidia", "cuda")) and "extra" not in marker:
            print(requirement.replace(" ", ""))


def bytecode() -> None:
    """Import for the sake of __pycache__; the project itself is compiled whole."""
    sys.dont_write_bytecode = False
    for folder in ("forgedsl", "runtime", "grammar"):
        compileall.compile_dir(folder, quiet=2)
    for module in (*RUN.split(), *WORKER[sys.argv[2]]):
        try:
            import_module(module)
        except Exception as error:  # whatever a GPU build raises on a host without a driver
            print(f"setup: {module} does not import here: {error}", file=sys.stderr)


if __name__ == "__main__":
    {"repair": repair, "cuda": cuda, "bytecode": bytecode}[sys.argv[1]]()
