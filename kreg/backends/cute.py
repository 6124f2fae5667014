"""The CuTe DSL backend: compiles for a named target without a GPU or a driver, always to the same bytes.

cutlass is imported inside functions only, at the first compile of a process. Every option is passed explicitly and
a ``CUTE_DSL_*`` variable that could change code is refused, so that nothing outside the spec decides. The DSL writes
its files to a scratch directory of this module's, not to the current one.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock

from kreg import config
from kreg.errors import CompileError, KregError
from kreg.imports import load_object
from kreg.toolchain import Toolchain, installed_versions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kreg.backends.protocol import Compiled
    from kreg.kernel import Kernel
    from kreg.spec import CompileSpec, Value

DISTRIBUTIONS = (
    "nvidia-cutlass-dsl",
    "nvidia-cutlass-dsl-libs-core",
    "nvidia-cutlass-dsl-libs-base",
    "nvidia-cutlass-dsl-libs-cu12",
    "nvidia-cutlass-dsl-libs-cu13",
)
"""The distributions that hold the DSL, its MLIR passes and the ptxas it links; those installed are fingerprinted."""

OPTIONS: dict[str, tuple[str, Value]] = {
    "opt_level": ("OptLevel", 3),
    "line_info": ("GenerateLineInfo", False),
    "assertions": ("EnableAssertions", False),
    "ptxas_options": ("PtxasOptions", ""),
}
"""Compile options a declaration may set: the DSL's option and the value it has otherwise."""

HARMLESS_VARIABLES = frozenset(
    f"CUTE_DSL_{name}"
    for name in (
        "ARCH", "CACHE_DIR", "DISABLE_FILE_CACHING", "DUMP_DIR", "FILTER_STACKTRACE", "JIT_CACHE_MAX_ELEMS",
        "JIT_TIME_PROFILING", "KEEP", "KEEP_CUBIN", "KEEP_IR", "KEEP_PTX", "KEEP_SASS", "LIBS", "LOG_LEVEL",
        "LOG_TO_CONSOLE", "LOG_TO_FILE", "NO_CACHE", "PRINT_AFTER_PREPROCESSOR", "PRINT_IR", "SHOW_STACKTRACE",
        "WARNINGS_IGNORE",
    )
)  # fmt: skip
"""DSL variables that say where and what to print, or that an explicit option overrides (``ARCH``)."""


_ONE_AT_A_TIME = allocate_lock()
"""The DSL keeps its state per process; two threads must not compile at once."""


class CuteBuild:
    """What a declaration's ``build`` function returns: what to compile, and how it will be launched.

    ``function`` is an object or function with a ``@cute.jit`` entry, ``arguments`` the fake pointers and scalars it
    is compiled for. ``block`` and ``grid`` are as in ``Launch``; ``shared_bytes`` is the dynamic shared memory.
    """

    __slots__ = ("arguments", "block", "function", "grid", "shared_bytes")

    def __init__(
        self,
        *,
        function: Callable[..., object],
        arguments: tuple[object, ...],
        block: tuple[int, int, int],
        grid: tuple[int | str, int | str, int | str],
        shared_bytes: int,
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.block = block
        self.grid = grid
        self.shared_bytes = shared_bytes


class CuteBackend:
    """Compiles kernels written in CuTe DSL."""

    def __init__(self) -> None:
        self._asked: tuple[tuple[str, ...], Toolchain | None] | None = None
        self._imported: Toolchain | None = None

    def toolchain(self) -> Toolchain | None:
        """Return the installed DSL distributions, or None without ``nvidia-cutlass-dsl``."""
        path = tuple(sys.path)
        if self._asked is None or self._asked[0] != path:
            # What is installed does not change under a process; where it looks may.
            versions = installed_versions(DISTRIBUTIONS)
            installed = DISTRIBUTIONS[0] in versions
            self._asked = path, Toolchain(backend="cute", distributions=versions) if installed else None
        return self._asked[1]

    def _require_one_compiler(self, spec: CompileSpec) -> None:
        """Refuse to compile with another compiler than the one that is installed: it was replaced meanwhile."""
        if self._imported is None:
            self._asked = None  # Asked long ago, perhaps; it is imported now.
            self._imported = self.toolchain()
        elif self._imported != self.toolchain():
            raise CompileError(
                f"cannot compile {spec}: the compiler was replaced after this process imported it; start a new one"
            )

    def missing(self) -> str:
        """Return the command that installs the DSL."""
        return "pip install 'kreg[cute]'"

    def compile(self, kernel: Kernel, spec: CompileSpec) -> Compiled:
        """Compile one variant. Raises ``CompileError`` that carries what the compiler said."""
        from tempfile import TemporaryDirectory

        from kreg.backends.protocol import Compiled
        from kreg.manifest import Launch
        from kreg.reach import package_files

        _refuse_variables(spec)
        self._require_one_compiler(spec)
        build_function = _find_build(kernel)
        try:
            with _ONE_AT_A_TIME, TemporaryDirectory(prefix="kreg-cute-", ignore_cleanup_errors=True) as folder:
                _refuse_folder(spec, folder)
                build = build_function(**kernel.arguments(spec))
                start = time.perf_counter()
                compiled = _options(spec, folder)(build.function, *build.arguments)
                milliseconds = round(1000 * (time.perf_counter() - start))
        except KregError:
            raise
        except Exception as error:  # The DSL raises what the kernel's Python raises, and many types of its own.
            raise _explain(spec, error) from error
        symbols = list(compiled.kernel_info)
        if len(symbols) != 1:
            raise CompileError(f"{spec} compiles to {len(symbols)} kernels, not one: {', '.join(symbols)}")
        launch = Launch(block=build.block, grid=build.grid, shared_bytes=build.shared_bytes)
        cubin = bytes(compiled.__cubin__)
        files = package_files(kernel.build.partition(":")[0], os.path.dirname(kernel.file))
        return Compiled(cubin=cubin, symbol=symbols[0], launch=launch, milliseconds=milliseconds, files=files)


def _refuse_folder(spec: CompileSpec, folder: str) -> None:
    """Refuse a scratch directory whose name the DSL cannot take."""
    if set(folder) & set("'\"\n") or folder != os.fsencode(folder).decode("utf-8", "replace"):
        raise CompileError(
            f"cannot compile {spec}: the compiler cannot use the temporary directory {folder!r}; set TMPDIR to a "
            f"directory with a plain name"
        )


def _explain(spec: CompileSpec, error: Exception) -> CompileError:
    """Return the error to raise for one of the compiler's: its first line, and all it said, without colours."""
    from re import sub
    from traceback import format_exception

    said = sub("\x1b\\[[0-9;]*m", "", str(error))
    first = next((line.strip() for line in said.splitlines() if line.strip()), "no message")
    log = sub("\x1b\\[[0-9;]*m", "", "".join(format_exception(error)))
    return CompileError(f"cannot compile {spec}: {type(error).__name__}: {first}", log)


def _refuse_variables(spec: CompileSpec) -> None:
    found = [name for name in config.environment_names("CUTE_DSL_") if name not in HARMLESS_VARIABLES]
    if found:
        raise CompileError(f"cannot compile {spec}: {', '.join(found)} would change the code unseen; unset it")


def _find_build(kernel: Kernel) -> Callable[..., CuteBuild]:
    what = f"{kernel.label}: cannot find its build function {kernel.build!r}"
    return load_object(kernel.build, what)  # type: ignore[return-value]


def _options(spec: CompileSpec, folder: str) -> Callable[..., Any]:
    from cutlass import cute
    from cutlass.base_dsl.compiler import DumpDir, EnableTVMFFI

    values = {name: default for name, (_, default) in OPTIONS.items()}
    for name, value in spec.options:
        if name not in OPTIONS or type(value) is not type(OPTIONS[name][1]):
            raise CompileError(f"{spec}: compile option {name}={value!r} is not one of {', '.join(OPTIONS)}")
        values[name] = value
    chosen = [getattr(cute, option)(values[name]) for name, (option, _) in OPTIONS.items()]
    # cute.compile[...] takes a tuple of options and returns a callable; cutlass does not type it.
    compiler: Any = cute.compile
    compile_with: Callable[..., Any] = compiler[
        cute.GPUArch(spec.target), *chosen, EnableTVMFFI(False), cute.KeepCUBIN(True), DumpDir(folder)
    ]
    return compile_with


BACKEND = CuteBackend()
