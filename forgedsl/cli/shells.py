"""`forgec --install-completion`: completion scripts of bash, zsh and fish, which ask `forgec`.

The scripts call `forgec` with the line in the environment; completion.py answers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

BASH = r"""
_forgec_completion() {
    local IFS=$'\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \
        _FORGEC_COMPLETE=complete_bash $1 ) )
    return 0
}
complete -o default -F _forgec_completion forgec
"""
ZSH = r"""
#compdef forgec
_forgec_completion() {
    eval $(env _FORGEC_ARGUMENTS="${words[1,$CURRENT]}" _FORGEC_COMPLETE=complete_zsh forgec)
}
compdef _forgec_completion forgec
"""
FISH = """
function __forgec_complete
    env _FORGEC_COMPLETE=complete_fish _FORGEC_FISH=$argv[1] \\
        _FORGEC_ARGUMENTS=(commandline -cp | string collect) forgec
end
complete --command forgec --no-files --arguments '(__forgec_complete get-args)' \\
    --condition '__forgec_complete is-args'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def show(shell: str = "") -> int:
    """Print the script of this shell; the result is the exit code."""
    shell = _known(shell)
    print(SCRIPTS[shell].strip() if shell else _unknown(), file=sys.stdout if shell else sys.stderr)
    return 0 if shell else 2


def install(shell: str = "") -> int:
    """Write the script of this shell where the shell reads it; the result is the exit code."""
    from forgedsl.errors import writing

    shell = _known(shell)
    if not shell:
        print(_unknown(), file=sys.stderr)
        return 2
    path, rc, line = _places(shell)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SCRIPTS[shell].lstrip(), encoding="utf-8")
    if rc is not None:
        written = rc.read_text(encoding="utf-8") if rc.exists() else ""
        if line not in written:
            with writing(rc):
                rc.write_text(f"{written}\n{line}\n", encoding="utf-8")
    print(f"installed {shell} completion in {path}; it works in new shells")
    return 0


def _places(shell: str) -> tuple[Path, Path | None, str]:
    """Return the path of the script, and of the shell's start file that must source it."""
    home = Path.home()
    if shell == "bash":
        path = home / ".bash_completions/forgec.sh"
        return path, home / ".bashrc", f"source '{path}'"
    if shell == "zsh":
        return home / ".zfunc/_forgec", home / ".zshrc", (
            "fpath+=~/.zfunc; autoload -Uz compinit; compinit"
        )  # fmt: skip
    return home / ".config/fish/completions/forgec.fish", None, ""


def _known(shell: str) -> str:
    """Return the named shell, else the user's; "" if it is not supported."""
    name = shell or Path(os.environ.get("SHELL", "")).name
    return name if name in SCRIPTS else ""


def _unknown() -> str:
    return f"forgec: name a shell after the option: {', '.join(SCRIPTS)}"
