"""Installs agent frameworks and environments of others, each in an environment of its own.

test_frameworks.py, test_adapters.py and runtime/test_environments_of_others.py use them.

    python compiler_tests/deep/frameworks/install.py [NAME ...]     # all, if none is named

They go to .frameworks/NAME in the clone, or to $FORGE_FRAMEWORKS/NAME. ForgeDSL depends on none.
Two of them need Python 3.12: `python3.12`, or the interpreter that $FORGE_PYTHON312 names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FRAMEWORKS = {
    "langgraph": ("langgraph==1.2.22", "langchain-openai==1.7.3"),
    "openai-agents": ("openai-agents==0.24.0",),
    "smolagents": ("smolagents[openai]==1.26.0",),
    "mini-swe-agent": ("mini-swe-agent==2.4.6",),
    "verifiers": ("verifiers==0.4.0",),
    "reasoning-gym": ("reasoning-gym==0.1.25",),
    "textarena": ("TextArena==0.7.4",),
    "openenv": ("openenv-core==0.3.0",),
    "inspect": ("inspect-ai==0.3.285", "openai"),
    "harbor": ("harbor==0.26.0",),
    "nemo-gym": ("nemo-gym==0.4.0",),
}
OTHER_PYTHON = ("harbor", "nemo-gym")
NO_AGENTS = ("reasoning-gym", "textarena", "openenv", "inspect", "harbor", "nemo-gym")
"""those that test_frameworks.py does not run"""
LINE = "python compiler_tests/deep/frameworks/install.py"


def packages(name: str) -> Path:
    """Return the folder with the packages of a framework's environment."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder(name) / "lib" / version / "site-packages"


def is_installed(name: str) -> bool:
    return (folder(name) / "installed").exists()


def folder(name: str) -> Path:
    """Return the environment of a framework; it need not exist."""
    return Path(os.environ.get("FORGE_FRAMEWORKS", ROOT / ".frameworks")) / name


def main(names: list[str]) -> None:
    for name in names or FRAMEWORKS:
        made_by = sys.executable
        if name in OTHER_PYTHON:
            made_by = os.environ.get("FORGE_PYTHON312") or shutil.which("python3.12") or ""
            if not made_by:
                sys.exit(f"{name} needs Python 3.12: set FORGE_PYTHON312 to an interpreter")
        subprocess.run([made_by, "-m", "venv", folder(name)], check=True)
        python = str(folder(name) / "bin/python")
        subprocess.run([python, "-m", "pip", "install", "-q", *FRAMEWORKS[name]], check=True)
        (folder(name) / "installed").touch()


if __name__ == "__main__":
    main(sys.argv[1:])
