r"""kreg: a versioned registry and on-disk cache for JIT-compiled GPU kernels.

>>> import kreg
>>> artifact = kreg.resolve("all_gather_pair", world_size=2, transport="pull", target="sm_90a")
>>> artifact.cubin[:4]
b'\x7fELF'

Names are imported when they are first used; ``import kreg`` itself imports no GPU library and nothing heavy.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kreg.artifact import Artifact as Artifact
    from kreg.errors import BundleError as BundleError
    from kreg.errors import CompileError as CompileError
    from kreg.errors import CubinError as CubinError
    from kreg.errors import DeclarationError as DeclarationError
    from kreg.errors import DriftError as DriftError
    from kreg.errors import KregError as KregError
    from kreg.errors import KregWarning as KregWarning
    from kreg.errors import LaunchError as LaunchError
    from kreg.errors import LoadError as LoadError
    from kreg.errors import LockfileError as LockfileError
    from kreg.errors import MissError as MissError
    from kreg.errors import PinError as PinError
    from kreg.errors import SpecError as SpecError
    from kreg.errors import StoreError as StoreError
    from kreg.errors import ToolchainError as ToolchainError
    from kreg.kernel import Kernel as Kernel
    from kreg.kernel import Param as Param
    from kreg.launch import prepare as prepare
    from kreg.lockfile import Receipt as Receipt
    from kreg.receipts import add_receipts as add_receipts
    from kreg.registry import REGISTRY as REGISTRY
    from kreg.registry import Registry as Registry
    from kreg.resolver import Resolver as Resolver
    from kreg.resolver import forget as forget
    from kreg.resolver import freeze as freeze
    from kreg.resolver import is_frozen as is_frozen
    from kreg.resolver import resolve as resolve
    from kreg.resolver import thaw as thaw
    from kreg.spec import CompileSpec as CompileSpec
    from kreg.store import Store as Store
    from kreg.warming import warm as warm

_HOMES = {
    "Artifact": "artifact",
    "BundleError": "errors",
    "CompileError": "errors",
    "CompileSpec": "spec",
    "CubinError": "errors",
    "DeclarationError": "errors",
    "DriftError": "errors",
    "Kernel": "kernel",
    "KregError": "errors",
    "KregWarning": "errors",
    "LaunchError": "errors",
    "LoadError": "errors",
    "LockfileError": "errors",
    "MissError": "errors",
    "Param": "kernel",
    "PinError": "errors",
    "REGISTRY": "registry",
    "Receipt": "lockfile",
    "Registry": "registry",
    "Resolver": "resolver",
    "SpecError": "errors",
    "Store": "store",
    "StoreError": "errors",
    "ToolchainError": "errors",
    "add_receipts": "receipts",
    "forget": "resolver",
    "freeze": "resolver",
    "is_frozen": "resolver",
    "prepare": "launch",
    "resolve": "resolver",
    "thaw": "resolver",
    "warm": "warming",
}

__version__ = "0.1.0"
__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'kreg' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"kreg.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
