"""Saves a compiled model in a child process, while the engine goes on with its start.

    engine    compile --fork--> first pass, graphs, ...
    child                 `---> pickle --> file for the next start --> exit

vLLM pickles a compiled model before it uses it, so that the next start can load it. That takes five
seconds for 28 layers. The child has a copy of all memory, so it pickles what was there when it
began. It does no GPU work.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Any

from torch import nn

LIMIT_S = 120
"""seconds until a child that has not saved the model is ended"""
SAVE = "save_aot_compiled_function"
"""the method that vLLM gives to the classes of models that it compiles"""

log = logging.getLogger(__name__)


def save_aside(model: nn.Module) -> None:
    """Let the parts of `model` that vLLM compiles save themselves in child processes."""
    from vllm import envs

    for part in model.modules():
        if hasattr(part, SAVE) and not envs.VLLM_DISABLE_COMPILE_CACHE:
            setattr(part, SAVE, functools.partial(save_in_child, getattr(part, SAVE)))


def save_in_child(save: Callable[[], Any]) -> None:
    """Call `save` in a child process, and return at once. If it fails there, a warning is logged:
    the next start will compile again. If there can be no child, save here."""
    try:
        child = os.fork()
    except OSError as error:
        log.warning("the compiled model is saved without a child process: %s", error)
        save()
        return
    if child == 0:
        _save_and_exit(save)
    threading.Thread(target=_wait, args=(child,), name="save compiled", daemon=True).start()


def _save_and_exit(save: Callable[[], Any]) -> None:
    """Save, and end this process, without the cleanup of the process that it was copied from."""
    status = 1
    try:
        # The engine may end before its child, so the child limits its own time.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        # Open files and sockets would tell others that the engine is alive, and keep its memory on
        # the GPU, if it is killed meanwhile. Only the log stays open.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        status = 0 if _has_saved(save) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _has_saved(save: Callable[[], Any]) -> bool:
    """Save; return False if vLLM could not, in which case it has logged why."""
    from vllm.compilation.counter import compilation_counter

    before = compilation_counter.num_aot_artifacts_saved
    save()
    return compilation_counter.num_aot_artifacts_saved > before


def _wait(child: int) -> None:
    """Wait for the end of a child, and log if it has saved nothing."""
    try:
        _, status = os.waitpid(child, 0)
    except ChildProcessError:  # others have waited for it
        return
    if status:
        code = os.waitstatus_to_exitcode(status)
        text = "the compiled model was not saved (exit status %d); the next start compiles it again"
        log.warning(text, code)
