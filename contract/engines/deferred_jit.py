"""`triton.jit`, put off until the first launch: a kernel file is listed without Triton, and where it is not installed.

    from __future__ import annotations

    if TYPE_CHECKING:
        import triton.language as tl
    else:
        tl = lazy("triton.language")

    @jit
    def copied(x_ptr: Any, out_ptr: Any, n: Any, BLOCK: tl.constexpr) -> None: ...

`copied[grid](...)` imports Triton, puts it and the compiled kernels in place of the stand-ins among the globals of the
function (Triton reads a kernel's globals itself, and knows its own objects only), and launches. Annotations must be
texts, which the first line makes them: else `tl.constexpr` would import Triton where the function is defined.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from contract.errors import DeclarationError
from contract.lazy import is_lazy


class DeferredKernel:
    """A function that is a Triton kernel from its first launch on.

    Attributes:
        fn: the function.
        options: of triton.jit.
        layers: decorators around it, from the inside: (name of the decorator in triton, its arguments).
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        options: Mapping[str, Any],
        layers: tuple[tuple[str, Mapping[str, Any]], ...] = (),
    ) -> None:
        if any(not isinstance(a, str) for a in fn.__annotations__.values()):
            raise DeclarationError(
                f"{fn.__module__}.{fn.__qualname__}: annotations of a kernel must be texts;"
                " start the file with `from __future__ import annotations`"
            )
        self.fn, self.options, self.layers = fn, options, layers
        self.__doc__, self.__name__ = fn.__doc__, fn.__name__
        self.__qualname__, self.__module__ = fn.__qualname__, fn.__module__
        self._kernel: Any = None

    @property
    def configs(self) -> Sequence[Any]:
        """What `autotune` was given, as keywords of triton.Config; none without it."""
        return next((x["configs"] for name, x in self.layers if name == "autotune"), ())

    @property
    def kernel(self) -> Any:
        """What triton.jit, and the decorators around it, make of the function; imports Triton."""
        if self._kernel is None:
            triton = importlib.import_module("triton")
            kernel = triton.jit(self.fn, **self.options) if self.options else triton.jit(self.fn)
            kernel.run = _unfused(kernel)
            for name, keywords in self.layers:
                if name == "autotune":
                    configs = [triton.Config(**config) for config in keywords["configs"]]
                    keywords = {**keywords, "configs": configs}
                kernel = getattr(triton, name)(**keywords)(kernel)
            # before its globals: a helper may be used by one that it uses
            self._kernel = kernel
            _put_in_place(self.fn.__globals__)
        return self._kernel

    def __getitem__(self, grid: Any) -> Any:
        return self.kernel[grid]

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Raises what Triton raises: a kernel is launched on a grid."""
        return self.kernel(*args, **keywords)

    def __repr__(self) -> str:
        return f"DeferredKernel({self.__module__}:{self.__qualname__})"


def _unfused(kernel: Any) -> Callable[..., Any]:
    """`kernel.run` whose compiler may not contract multiplications and additions, unless the launch says that it may."""

    def run(*args: Any, **options: Any) -> Any:
        return type(kernel).run(kernel, *args, **{"enable_fp_fusion": False, **options})

    return run


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`triton.jit` at the first launch; the same options.

    Unlike there a multiplication and an addition are two roundings, on every device: write tl.math.fma for one, or launch
    with enable_fp_fusion=True.
    """
    if fn is None:
        return lambda inner: DeferredKernel(inner, options)
    return DeferredKernel(fn, options)


def autotune(configs: Sequence[Mapping[str, Any]], key: Sequence[str], **more: Any) -> Any:
    """`triton.autotune` around a deferred kernel; each configuration is the keywords of a triton.Config."""
    return _layer("autotune", {"configs": list(configs), "key": list(key), **more})


def heuristics(values: Mapping[str, Callable[[Mapping[str, Any]], Any]]) -> Any:
    """`triton.heuristics` around a deferred kernel."""
    return _layer("heuristics", {"values": dict(values)})


def _layer(name: str, keywords: Mapping[str, Any]) -> Callable[[DeferredKernel], DeferredKernel]:
    return lambda kernel: DeferredKernel(
        kernel.fn, kernel.options, (*kernel.layers, (name, keywords))
    )


def _put_in_place(space: dict[str, Any]) -> None:
    """Real modules and kernels for the stand-ins of a module."""
    for name, value in list(space.items()):
        if isinstance(value, DeferredKernel):
            space[name] = value.kernel
        elif is_lazy(value) and value.__name__.partition(".")[0] == "triton":
            space[name] = importlib.import_module(value.__name__)
