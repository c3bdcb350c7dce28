"""Compiles a model with several processes, and saves it beside the rest of the engine's start.

    engine     trace -> lower -> code of kernels ----------> first pass, graphs, ...
    processes  start ------------------`-> compile kernels
    child                                           `-fork-> pickle -> file for the next start

Inductor compiles kernels in other processes if these are ready when it has the first kernel;
otherwise one by one. vLLM has none started, so we start them when tracing begins. It also pickles a
compiled model before it uses it, so that the next start can load it: five seconds for 28 layers.
The child does this in a copy of all memory, without GPU work.
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

from forgedsl_runtime.upstream.inductor import start_compilers

LIMIT_S = 120
"""seconds until a child that has not saved the model is killed"""
COMPILE, SAVE = "aot_compile", "save_aot_compiled_function"
"""methods that vLLM gives to the classes of models that it compiles"""

log = logging.getLogger(__name__)


def compile_with_processes(model: nn.Module) -> None:
    """Let other processes compile the kernels of `model`, and save it, if vLLM compiles it."""
    for part in model.modules():
        if hasattr(part, SAVE):
            setattr(part, COMPILE, functools.partial(_compile, getattr(part, COMPILE)))
            setattr(part, SAVE, functools.partial(save_in_child, getattr(part, SAVE)))


def _compile(compile: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Start Inductor's processes, and compile meanwhile."""
    start_compilers()
    return compile(*args, **kwargs)


def save_in_child(save: Callable[[], Any]) -> None:
    """Call `save` in a child process, and return at once. If it fails there, a warning is logged:
    the next start will compile again."""
    child = os.fork()
    if child == 0:
        _save_and_exit(save)
    threading.Thread(target=_wait, args=(child,), name="save compiled", daemon=True).start()


def _save_and_exit(save: Callable[[], Any]) -> None:
    """Save, and end this process, without the cleanup of the process that it was copied from."""
    status = 1
    try:
        # Open files and sockets would tell others that the engine is alive, and keep its memory on
        # the GPU, if it is killed meanwhile.
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
    """Wait for the end of a child; kill it if it takes too long."""
    limit = threading.Timer(LIMIT_S, os.kill, (child, signal.SIGKILL))
    limit.daemon = True
    limit.start()
    _, status = os.waitpid(child, 0)
    limit.cancel()
    if status:
        code = os.waitstatus_to_exitcode(status)
        log.warning(
            "the compiled model was not saved (exit status %d): the next start compiles it again",
            code,
        )
