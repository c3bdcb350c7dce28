"""The server in real editors without a window; each test skips by name without its editor."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from json import loads
from pathlib import Path

import pytest

from forgedsl.docs import editors

pytest.importorskip("pygls")

HERE = Path(__file__).parent
EDITORS = Path(__file__).parents[2] / "grammar" / "editors"
TEXT = """\
forge 1
param twice : int = 2
param four : int = 2 * twice
model m { sourec = hf("a/b"), dtype = f32 }
"""
SECONDS = 240


@pytest.fixture
def wrong(tmp_path, monkeypatch):
    """A file with a misspelt setting; the environment says what starts the server."""
    path = tmp_path / "wrong.forge"
    path.write_text(TEXT)
    monkeypatch.setenv("FORGEC", f"{sys.executable} -m forgedsl lsp")
    monkeypatch.setenv("FORGE_FILE", str(path))
    monkeypatch.setenv("FORGE_MODE", str(EDITORS / "emacs" / "forge-mode.el"))
    return path


def ran(command, folder):
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, env=dict(os.environ)
    )
    return done.stdout + done.stderr


def values(text):
    """What the script said, by name."""
    return {name: loads(value) for name, value in re.findall(r"^(\w+)=(.*?)\r?$", text, re.M)}


def test_what_is_generated_is_up_to_date():
    assert (EDITORS / "vim/syntax/forge.vim").read_text() == editors.vim()
    assert (EDITORS / "emacs/forge-mode.el").read_text() == editors.emacs()


@pytest.mark.deep
def test_the_extension_for_vs_code_packs():
    if shutil.which("npm") is None:
        pytest.skip("no npm")
    done = subprocess.run(["sh", EDITORS / "vscode/pack.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(EDITORS.parents[1] / "build/forge-language.vsix") as packed:
        names = {*packed.namelist()}
    client = {"extension/out/extension.js", "extension/forge.tmLanguage.json"}
    assert client | {"extension/language-configuration.json"} <= names


def test_neovim(wrong):
    if shutil.which("nvim") is None:
        pytest.skip("no nvim")
    script = HERE / "neovim.lua"
    vim = EDITORS / "vim"
    command = ["nvim", "--headless", "-n", "-u", "NONE", "--cmd", f"set runtimepath^={vim}",
               "--cmd", "filetype plugin on", str(wrong), "-c", f"luafile {script}"]  # fmt: skip
    said = ran(command, wrong.parent)
    found = values(said)
    assert {"wrong", "renamed"} <= {*found}, said
    assert "F103" in found["wrong"]
    assert found["actions"][0].startswith("F103")
    assert found["fixed"] is True
    assert "as written" in found["hover"]
    assert {"bf16", "f32"} <= {*found["completion"]}
    assert found["definition"][0]["range"]["start"]["line"] == 1
    assert found["renamed"].startswith("param double")
    assert "quit with exit code" not in said


def test_emacs(wrong):
    if shutil.which("emacs") is None:
        pytest.skip("no emacs")
    said = ran(["emacs", "-Q", "--batch", "-l", str(HERE / "emacs.el")], wrong.parent)
    if "eglot" in said and "Cannot open load file" in said:
        pytest.skip("no eglot")
    assert "mode=forge-mode" in said, said
    assert re.search(r"wrong=4 .*has no setting `sourec`", said), said
    assert re.search(r"^gone=t", said, re.M), said
    assert "face=font-lock-keyword-face" in said


def test_vim_knows_the_words(wrong):
    if shutil.which("nvim") is None:
        pytest.skip("no nvim")
    show = "echo synIDattr(synID(2,1,1),'name') synIDattr(synID(4,12,1),'name') &ft &cms"
    command = ["nvim", "--headless", "-n", "-u", "NONE", "--cmd", f"set rtp^={EDITORS / 'vim'}",
               "--cmd", "filetype plugin on | syntax on", str(wrong),
               "-c", show, "-c", "qa!"]  # fmt: skip
    said = ran(command, wrong.parent)
    assert re.search(r"forgeKind forge\w* forge # %s", said), said


BLOCK = ["flow train {", "prompt = sums.draw(8)", "sync a -> b {", "every = 4", "}", "x = f(", "1,",
         ")", "}", "schedule sync { steps = 2 }"]  # fmt: skip
INDENTED = """\
flow train {
  prompt = sums.draw(8)
  sync a -> b {
    every = 4
  }
  x = f(
    1,
  )
}
schedule sync { steps = 2 }
"""


def test_neovim_indents_a_block(tmp_path):
    if shutil.which("nvim") is None:
        pytest.skip("no nvim")
    typed = "\\<CR>".join(BLOCK)
    command = ["nvim", "--headless", "-n", "-u", "NONE", "--cmd", f"set rtp^={EDITORS / 'vim'}",
               "--cmd", "filetype plugin indent on", "typed.forge",
               "-c", f'exe "normal! i{typed}"', "-c", "wq"]  # fmt: skip
    said = ran(command, tmp_path)
    assert (tmp_path / "typed.forge").read_text() == INDENTED, said


def test_emacs_indents_a_block(wrong):
    if shutil.which("emacs") is None:
        pytest.skip("no emacs")
    text = "\\n".join(BLOCK)
    script = (
        f'(progn (load "{EDITORS / "emacs/forge-mode.el"}") (find-file "typed.forge")'
        f' (insert "{text}\\n") (indent-region (point-min) (point-max)) (save-buffer))'
    )
    said = ran(["emacs", "-Q", "--batch", "--eval", script], wrong.parent)
    assert (wrong.parent / "typed.forge").read_text() == INDENTED, said
