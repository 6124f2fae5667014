"""Compiling from the sources as they are on disk, also where this process has older ones, or was forked in a compile.

A process that imported device code before it was edited would compile the old code, and the store would hold it as
the new. Such a compile runs in an interpreter of its own: not a multiprocessing child, which would run the user's main
module again.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback

from kreg import config
from kreg.artifact import Artifact
from kreg.build import compile_artifact
from kreg.errors import CompileError, KregError
from kreg.sources import changed_since_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kreg.kernel import Kernel
    from kreg.spec import CompileSpec

_CHILD = """
import os, pickle, sys
answer = os.dup(1)
os.dup2(2, 1)
sys.path[:] = pickle.load(sys.stdin.buffer)
from kreg.apart import answer_compile
answer_compile(answer)
"""


_compiling: list[None] = []
"""An item for each compile that is going on in this process."""
_is_forked = False
"""Whether this process was forked during a compile, whose locks and threads it will never get."""


def _note_fork() -> None:
    global _is_forked
    _is_forked = _is_forked or bool(_compiling)


os.register_at_fork(after_in_child=_note_fork)


def compile_current(kernel: Kernel, spec: CompileSpec) -> Artifact:
    """Compile ``spec`` from the sources as they are now. Raises as ``compile_artifact`` does."""
    if _is_forked or changed_since_start(kernel.source_paths()):
        return compile_apart(kernel, spec)
    _compiling.append(None)
    try:
        return compile_artifact(kernel, spec)
    finally:
        _compiling.pop()


def compile_apart(kernel: Kernel, spec: CompileSpec) -> Artifact:
    """Compile ``spec`` in an interpreter of its own, with this one's ``sys.path``. Raises as ``compile_artifact``."""
    if not sys.executable:
        raise CompileError(f"cannot compile {spec}: its sources changed, and this process has no interpreter to start")
    done = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", _CHILD],
        input=pickle.dumps(sys.path) + pickle.dumps((kernel, spec)),
        capture_output=True,
        check=False,
    )
    said = done.stderr.decode("utf-8", "replace")
    if done.returncode != 0:
        raise CompileError(f"cannot compile {spec}: the compiler killed its process", said)
    sys.stderr.write(said)
    result: Artifact | KregError = pickle.loads(done.stdout)  # noqa: S301 - the child's, see above
    if isinstance(result, KregError):
        raise result
    return result


def answer_compile(descriptor: int) -> None:
    """Compile what standard input asks for, and write the artifact or the error to ``descriptor``. The child's part."""
    kernel, spec = pickle.load(sys.stdin.buffer)  # noqa: S301 - the parent's, see above
    result: Artifact | KregError
    try:
        result = compile_artifact(kernel, spec)
    except KregError as error:
        result = error
    except Exception as error:  # noqa: BLE001 - a bug of a backend is told as such
        result = backend_bug(spec, error)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pickle.dumps(result))


def worker_died(spec: CompileSpec) -> str:
    """Return the message for a compile whose process ended: it crashed, or the limit ended it."""
    seconds = config.compile_seconds()
    limit = f", or it took more than {seconds:g} s (KREG_COMPILE_LIMIT)" if seconds else ""
    return f"cannot compile {spec}: the compiler killed its process{limit}"


def backend_bug(spec: CompileSpec, error: Exception) -> CompileError:
    """Return the error for a backend that raised something else than one of kreg's."""
    what = f"cannot compile {spec}: its backend raised {type(error).__name__}: {error}"
    return CompileError(what, "".join(traceback.format_exception(error)))
