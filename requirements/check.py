"""What `setup.sh` asks of its environment; standard library only.

`install` installs requirement files with uv, which takes a tenth of pip's time. It fails if uv is
not there or cannot reach a package; `setup.sh` then uses pip.
`repair` removes packages that an interrupted install left half-written (a file of their RECORD is
missing or has another size), so that pip installs them again instead of calling them satisfied.
`cuda` prints the CUDA libraries torch asks for, one requirement per line; nothing for a CPU build.
`bytecode` imports what a run imports, so that its processes find byte code, also where
PYTHONDONTWRITEBYTECODE is set: each of them then starts in half the time.
"""

from __future__ import annotations

import ast
import compileall
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib import import_module, metadata
from pathlib import Path
from urllib.parse import urlsplit

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


SCOPES = ("global", "install", ":env:")
"""sections of pip's settings that hold for an installation; later ones win"""


def install(files: list[str]) -> None:
    """Install the pins of requirement files with uv, under pip's settings; exit with its status."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.is_file():
        sys.exit("setup: uv is not installed")
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    arguments, variables = uv_settings(listed)
    # A cache of its own, on the disk of the environment: files are linked, not copied. It is kept
    # only if this is interrupted, so that the next call goes on.
    cache = Path(sys.prefix) / "uv-cache"
    command = [str(uv), "pip", "install", "--python", sys.executable, "--no-deps",
               "--cache-dir", str(cache), *arguments]  # fmt: skip
    for file in files:
        command += ["-r", file]
    status = subprocess.run(command, env={**os.environ, **variables}, check=False).returncode
    shutil.rmtree(cache, ignore_errors=True)
    sys.exit(status)


def uv_settings(listed: str) -> tuple[list[str], dict[str, str]]:
    """Return arguments and environment variables with which uv finds packages as pip does.
    `listed`: the output of `pip config list`, such as `global.index-url='https://...'`."""
    found: dict[str, tuple[int, list[str]]] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        scope, _, key = name.rpartition(".")
        rank = SCOPES.index(scope) if scope in SCOPES else -1
        if rank >= found.get(key, (0, []))[0]:
            found[key] = rank, str(ast.literal_eval(value)).split()
    settings = {key: values for key, (_, values) in found.items()}
    arguments = ["--index-strategy", "unsafe-best-match"]  # the newest of all indexes, as pip does
    for key, option in (("index-url", "--default-index"), ("extra-index-url", "--index"),
                        ("find-links", "--find-links"),
                        ("trusted-host", "--allow-insecure-host")):  # fmt: skip
        for value in settings.get(key, ()):
            if key == "trusted-host" or _is_there(value):
                arguments += [option, value]
    if settings.get("no-index") == ["true"]:
        arguments.append("--no-index")
    variables = {"UV_HTTP_TIMEOUT": max(["60", *settings.get("default-timeout", ())], key=float)}
    if settings.get("cert"):
        variables["SSL_CERT_FILE"] = settings["cert"][0]
    return arguments, variables


def _is_there(place: str) -> bool:
    """False for a file or folder that does not exist; pip leaves such an index out."""
    url = urlsplit(place)
    return url.scheme not in ("", "file") or Path(url.path).exists()


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
    if sys.argv[1] == "install":
        install(sys.argv[2:])
    else:
        {"repair": repair, "cuda": cuda, "bytecode": bytecode}[sys.argv[1]]()
