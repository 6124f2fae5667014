"""What GPU figures are measured against: the least a launch, an exchange or an argument list can cost.

CUDA C++ compiled by NVRTC where the benchmark runs, as kernels of a backend of their own; nothing else uses it.
"""

from __future__ import annotations

import time

from kreg.backends.protocol import Compiled
from kreg.errors import CompileError
from kreg.kernel import Kernel, Param
from kreg.manifest import Launch
from kreg.spec import CompileSpec
from kreg.toolchain import Toolchain, installed_versions

ARGUMENTS = 42
"""Arguments of ``many``, of which the first 6 are taken to change."""

_SOURCE = """
typedef unsigned int u32;
extern "C" __global__ void empty() {}
extern "C" __global__ void many(PARAMETERS) {}
extern "C" __global__ void swap(u32* mine, u32* theirs, u32* epoch) {
  // One slot: a peer may be an epoch ahead before a slow rank looks, so the distance is compared, signed.
  u32 next = *epoch + 1, seen;
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" :: "l"(theirs), "r"(next) : "memory");
  do asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(mine) : "memory");
  while ((int)(seen - next) < 0);
  *epoch = next;
}
""".replace("PARAMETERS", ", ".join(f"void* p{i}" for i in range(ARGUMENTS)))


class _Nvrtc:
    """Compiles the source above for a target; the parameter ``entry`` names the kernel."""

    def toolchain(self) -> Toolchain | None:
        return Toolchain(backend="floors", distributions=installed_versions(["cuda-core", "cuda-bindings"]))

    def missing(self) -> str:
        return "pip install cuda-core"

    def compile(self, kernel: Kernel, spec: CompileSpec) -> Compiled:
        from cuda.core import Program, ProgramOptions

        start = time.perf_counter()
        entry = str(kernel.arguments(spec)["entry"])
        try:
            options = ProgramOptions(arch=spec.target)
            cubin = bytes(Program(_SOURCE, "c++", options).compile("cubin").code)
        except Exception as error:
            raise CompileError(f"cannot compile {spec} with NVRTC: {error}", str(error)) from error
        launch = Launch(block=(1, 1, 1), grid=(1, 1, 1), shared_bytes=0)
        milliseconds = round(1000 * (time.perf_counter() - start))
        return Compiled(cubin=cubin, symbol=entry, launch=launch, milliseconds=milliseconds)


BACKEND = _Nvrtc()

FLOOR = Kernel(
    name="floor",
    version=1,
    summary="the least a launch can do",
    backend="kreg.cache_tools.floors:BACKEND",
    build="",
    params=(Param("entry", str, allowed=("empty", "many", "swap")),),
    targets=("sm_90a", "sm_100a", "sm_120a"),
    file=__file__,
    sources=("floors.py",),
)
