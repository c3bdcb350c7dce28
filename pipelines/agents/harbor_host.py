"""For Harbor without containers: trial.py uses it with `--environment host` and `--agent once`.

`Host` runs the commands of a trial on this host, in a mount namespace in which /app, /logs, /tests
and /solution are folders of the trial. It is no sandbox, so trial.py refuses it for agents that
run what the policy writes. `Once` runs nothing: it asks the policy with the prompt of the row, and
writes the answer to /app/answer.txt.
"""

import asyncio
import json
import os
import shutil
import tempfile
from pathlib import Path

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment, ExecResult
from openai import AsyncOpenAI

FOLDERS = ("app", "logs", "tests", "solution")
ANSWER = "/app/answer.txt"
ROOT = """
set -e
own=$1 new=$2 cwd=$3
mount -t tmpfs tmpfs "$new"
for each in /*; do
  if [ -L "$each" ]; then cp -P "$each" "$new$each"
  elif [ -d "$each" ]; then mkdir "$new$each"; mount --rbind "$each" "$new$each"
  fi
done
for each in FOLDERS; do mkdir -p "$new/$each"; mount --bind "$own/$each" "$new/$each"; done
exec chroot "$new" bash -c 'cd "$1" && exec bash -c "$2"' bash "$cwd" "$4"
""".replace("FOLDERS", " ".join(FOLDERS))
"""gives its namespace a root folder with the entries of the host's, but other FOLDERS"""


class Host(BaseEnvironment):
    """An environment of Harbor on this host."""

    @staticmethod
    def type() -> str:
        return "host"

    def _validate_definition(self) -> None: ...

    async def start(self, force_build: bool) -> None:
        self.own = Path(tempfile.mkdtemp(prefix="harbor-"))
        for name in (*FOLDERS, "logs/agent", "logs/verifier", "logs/artifacts"):
            (self.own / name).mkdir()

    async def stop(self, delete: bool) -> None:
        shutil.rmtree(self.own, ignore_errors=True)

    def here(self, path: str) -> Path:
        """Return where a path of the environment is on this host."""
        inside = Path("/app", path).parts[1:]
        if inside[0] not in FOLDERS:
            raise ValueError(f"{path} is none of {', '.join(FOLDERS)}")
        return self.own.joinpath(*inside)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        self.here(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, self.here(target_path))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, self.here(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.here(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(self.here(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        words = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", ROOT, "bash"]
        new = tempfile.mkdtemp(prefix="root-", dir=self.own)
        process = await asyncio.create_subprocess_exec(
            *words, str(self.own), new, cwd or "/app", command,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, env={"PATH": os.environ["PATH"], **(env or {})},
        )  # fmt: skip
        try:
            async with asyncio.timeout(timeout_sec):
                out, error = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        code = process.returncode
        return ExecResult(
            stdout=out.decode("utf-8", "replace"),
            stderr=error.decode("utf-8", "replace"),
            return_code=1 if code is None else code,
        )


class Once(BaseAgent):
    """Asks the policy once, with the prompt of the row."""

    @staticmethod
    def name() -> str:
        return "once"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None: ...

    async def run(self, instruction: str, environment: BaseEnvironment, context: object) -> None:
        task = json.loads(Path(os.environ["FORGE_TASK"]).read_text("utf-8"))
        async with AsyncOpenAI() as client:  # OPENAI_BASE_URL, OPENAI_API_KEY
            answer = await client.chat.completions.create(
                model=os.environ["FORGE_MODEL"], messages=task["messages"]
            )
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(answer.choices[0].message.content or "")
            file.flush()
            await environment.upload_file(file.name, ANSWER)
