"""Launches of Triton kernels, captured from the client's own Python wrapper on CPU tensors.

Inside `capturing` a stand-in driver answers for a device of the target, `JITFunction.run` compiles as it does for a
warm-up, and what would have been launched goes to the sink. So signature, specialisation on alignment and on the value
1, meta-parameters and number of warps are those that Triton itself decides. Written for Triton 3.9.

An autotuned kernel is not timed: of its configurations, pruned as Triton prunes them, the one that the context names
runs; a judge runs the wrapper once for each. Where it asks for that, those after the first are launched once more before
that, where Triton would time them, at the first launch of a key: what a kernel adds to memory that neither `restore_value`
nor `reset_to_zero` names is there, then.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache as cached
from pathlib import Path
from typing import Any

from contract.engines.capture import (
    Capture,
    CapturedLaunch,
    LaunchError,
    MissingCompiler,
    NeedsLater,
    Sink,
    default_cache,
    extent,
    opened,
    pack_parameters,
    pointer,
)
from contract.engines.ptx_entries import entries
from contract.engines.tools import DIED, first_error, tool_version
from contract.engines.triton_arguments import flatten, scratch_for
from contract.engines.triton_cache import sealed
from contract.engines.triton_driver import stand_in

# What decides about the code behind a context's back.
_REFUSED = {
    "TRITON_INTERPRET": "Triton's interpreter rounds to bf16 by cutting off, so it says nothing of the compiled kernel",
    "TRITON_OVERRIDE_ARCH": "it compiles for another target than the one stated",
    "TRITON_FORCE_DISABLE_FP_FUSION": "whether multiply and add are fused is stated for each compile",
    "TRITON_MOCK_PTX_VERSION": "it hides the version of ptxas",
}
# ptxas: Instruction 'griddepcontrol' requires .target sm_90 or higher
_NEWER = re.compile(r"(\w+ '[^']+' requires \.target sm_\w+(?: or higher)?)")
#: Compute capabilities that a kernel may have been written for.
LATER = (90, 100)
# What Triton says of a ptxas that did not refuse and died
_DIED = re.compile(
    r"`ptxas` (?:raised SIGSEGV|failed with error code (?:-\d+|1(?:29|[3-9]\d)|2[0-4]\d))"
)
_OFF = ("", "0", "false", "off", "no", "n")


@dataclass(frozen=True)
class TritonSource:
    """What a captured launch can be compiled again from.

    Attributes:
        kernel: the JITFunction.
        compiled: what Triton made of it.
        run: JITFunction.run as it is outside any context.
        args, options: of the launch.
    """

    kernel: Any
    compiled: Any
    run: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any]

    def compiled_for(self, architecture: str, cache: Path) -> Any:
        """What Triton makes of the same launch on another architecture: sm_90, gfx942."""
        from triton.runtime.driver import driver

        state = dict(vars(driver))
        with _variable("TRITON_CACHE_DIR", str(cache / "triton")), sealed():
            try:
                driver.set_active(stand_in(architecture))
                # a warm-up reads no grid
                return self.run(self.kernel, *self.args, grid=(1,), warmup=True, **self.options)
            finally:
                vars(driver).clear()
                vars(driver).update(state)


@contextmanager
def capturing(
    sink: Sink,
    *,
    target: int = 80,
    fusion: bool | None = None,
    configuration: int = 0,
    cache: Path | None = None,
    native: bool = False,
    timing: bool = False,
) -> Iterator[Capture]:
    """Hand every launch inside to `sink` instead of to a device, those of CUDA C++ too.

    Args:
        sink: is called with a CapturedLaunch at once: where it runs it, what follows in the wrapper sees the results.
        target: compute capability to compile for.
        fusion: whether multiply and add may be contracted; None leaves it to each kernel's author.
        configuration: which configuration of every autotuned kernel runs.
        cache: folder of compiled code; $TRITON_CACHE_DIR for Triton's own where it is set, else the store's.
        native: launch on the device, whose compute capability `target` is, and hand over what was launched.
        timing: also hand over a launch as autotuners make it to time a configuration that is not the first.

    Raises:
        LaunchError: an environment variable that would make the launch another one; a context inside a context.
    """
    for name, why in _REFUSED.items():
        if os.environ.get(name, "").lower() not in _OFF:
            raise LaunchError(f"{name} is set: {why}; unset it")
    folder = cache or default_cache()
    with ExitStack() as stack:
        capture = stack.enter_context(
            opened(Capture(sink, target, fusion, configuration, folder, native))
        )
        if importlib.util.find_spec("triton") is not None:
            own = "" if cache else os.environ.get("TRITON_CACHE_DIR", "")
            stack.enter_context(_variable("TRITON_CACHE_DIR", own or str(folder / "triton")))
            stack.enter_context(sealed())
            stack.enter_context(_patched(capture, timing))
        if not native:
            stack.enter_context(_any_device())
        yield capture


def configurations(kernel: Any) -> int:
    """How many configurations a kernel was written with, whatever decorators lie around it; 1 without autotuning."""
    count = 1
    while kernel is not None:
        # a deferred kernel keeps its decorators until Triton is loaded
        count *= len(getattr(kernel, "configs", ())) or 1
        kernel = getattr(kernel, "fn", None)
    return count


@contextmanager
def _any_device() -> Iterator[None]:
    """`with torch.cuda.device(x.device)`, which launchers say around a launch, changes nothing and refuses nothing."""
    import torch

    real = torch.cuda.device
    torch.cuda.device = _Device  # type: ignore[assignment,misc]  # for the calls of a launcher
    try:
        yield
    finally:
        torch.cuda.device = real  # type: ignore[misc]


class _Device:
    """In place of torch.cuda.device where operands lie on the CPU."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


@contextmanager
def _patched(capture: Capture, timing: bool) -> Iterator[None]:
    """Triton that hands launches over, with a stand-in driver unless they are made; all as it was afterwards."""
    from triton.runtime import autotuner, jit
    from triton.runtime.driver import driver

    run, tune, state = jit.JITFunction.run, autotuner.Autotuner.run, dict(vars(driver))
    tuned: list[tuple[int, int]] = []
    # of each autotuner the keys that it has timed
    timed: dict[int, set[tuple[str, ...]]] = {}

    def run_one(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        options["enable_fp_fusion"] = _fusion(capture, options.get("enable_fp_fusion"))
        only = warmup or not capture.native
        source = TritonSource(self, None, run, args, options)
        with _refused(source, capture) if only else capture.making():
            compiled = run(self, *args, grid=grid, warmup=only, **options)
        if not warmup and compiled is not None:
            # an asynchronous compilation is waited for
            compiled = getattr(compiled, "result", lambda: compiled)()
            device = driver.active.get_current_device()
            bound, _, _ = self.device_caches[device][-1](*args, **options)
            place = tuned[-1] if tuned else (0, 1)
            source = replace(source, compiled=compiled)
            name = self.fn.__qualname__
            blocks = extent(name, "grid", grid(bound) if callable(grid) else grid)
            packed = _loaded(compiled) if capture.native else _packed(source, blocks, bound)
            capture.hand(_launch(source, blocks, place, packed))
        return compiled

    def run_configuration(self: Any, *args: Any, **options: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        # as Triton does, which prunes none where there is one
        found = self.prune_configs(options) if len(self.configs) > 1 else self.configs
        capture.configurations[self.base_fn.__qualname__] = len(found)
        place = capture.configuration % len(found)
        self.best_config = config = found[place]
        own = config.all_kwargs()
        capture.chosen[self.base_fn.__qualname__] = " ".join(f"{k}={v}" for k, v in own.items())
        chosen = {**options, **own}
        tuned.append((place, len(found)))
        try:
            if timing and place:
                key = _tuning_key(self, options)
                if key not in timed.setdefault(id(self), set()):
                    timed[id(self)].add(key)
                    _time(self, config, args, chosen)
                words = ", timed first as Triton's autotuner does"
                capture.chosen[self.base_fn.__qualname__] += words
            if config.pre_hook is not None:
                config.pre_hook({**self.nargs, **chosen})
            return self.fn.run(*args, **chosen)
        finally:
            tuned.pop()
            self.nargs = None

    jit.JITFunction.run, autotuner.Autotuner.run = run_one, run_configuration
    try:
        if not capture.native:
            driver.set_active(stand_in(f"sm_{capture.target}"))
        yield
    finally:
        jit.JITFunction.run, autotuner.Autotuner.run = run, tune
        if not capture.native:
            vars(driver).clear()
            vars(driver).update(state)


def _tuning_key(tuner: Any, options: Mapping[str, Any]) -> tuple[str, ...]:
    """What an autotuner remembers a configuration for: the arguments that it names, and all dtypes."""
    given = {**tuner.nargs, **options}
    named = [given[name] for name in tuner.keys if name in given]
    kinds = [given[name].dtype for name in tuner.arg_names if hasattr(given.get(name), "dtype")]
    return tuple(map(str, (*named, *kinds)))


def _time(tuner: Any, config: Any, args: tuple[Any, ...], chosen: Mapping[str, Any]) -> None:
    """A launch as an autotuner makes it to time a configuration, with its hooks, and the one after all of them."""
    every = {**tuner.nargs, **chosen}
    if config.pre_hook is not None:
        config.pre_hook(every)
    tuner.pre_hook(every)
    tuner.fn.run(*args, **chosen)
    tuner.post_hook(every, exception=None)
    tuner.pre_hook(every, reset_only=True)


@contextmanager
def _refused(source: TritonSource, capture: Capture) -> Iterator[None]:
    """A compile: what Triton refuses for the target, and takes for a later one, says nothing of the kernel."""
    try:
        yield
    except Exception as error:
        name, why = source.kernel.fn.__qualname__, _said(error)
        if _DIED.search(str(error)) or DIED.search(_assembler(error)):
            raise MissingCompiler(
                f"{name}: ptxas was ended by a signal, or by a fault of its own: {why}"
            ) from error
        later = next((f"sm_{x}" for x in LATER if _compiles(source, f"sm_{x}", capture.cache)), "")
        if later:
            raise NeedsLater(
                f"{name} compiles for {later} and not for sm_{capture.target}, which is what is executed: {why}"
            ) from error
        raise LaunchError(f"{name} does not compile: {why}") from error


def _compiles(source: TritonSource, architecture: str, cache: Path) -> bool:
    try:
        source.compiled_for(architecture, cache)
    except Exception:  # noqa: BLE001 - whatever a compiler says: this target is none
        return False
    return True


def _said(error: Exception) -> str:
    """What a compiler's error says, in a line: Triton's begin with the source, ptxas' end with how to repeat it."""
    if newer := _NEWER.findall(str(error)):
        return "; ".join(dict.fromkeys(newer))
    # the file is one that is gone
    said = first_error(_assembler(error), str(error))
    first = re.sub(r"\bptxas /\S+, line", "ptxas, line", said)
    return f"{type(error).__name__}: {first[:200]}"


def _assembler(error: Exception) -> str:
    """What ptxas said, where it is that which failed."""
    if type(error).__name__ != "PTXASError":
        return ""
    return str(error).partition("stderr:\n")[2].partition("Repro command:")[0]


def _fusion(capture: Capture, asked: bool | None) -> bool:
    """What the context states; without that what the author says; without that what this Triton does (3.9: fused)."""
    if capture.fusion is not None:
        return capture.fusion
    if asked is not None:
        return asked
    from triton import knobs

    return bool(getattr(knobs.language, "default_fp_fusion", True))


def _packed(
    source: TritonSource, blocks: tuple[int, int, int], bound: dict[str, Any]
) -> dict[str, Any]:
    """What the launch of a compiled kernel with its bound arguments would give to a device."""
    compiled = source.compiled
    metadata, name = compiled.metadata, source.kernel.fn.__qualname__
    if getattr(metadata, "tensordesc_meta", None):
        raise LaunchError(f"{name}: tensor descriptors of this target are not captured; use sm_80")
    _check_shared(metadata)
    values: list[tuple[str, bytes]] = []
    tensors: dict[str, Any] = {}
    for argument, kind in compiled.src.signature.items():
        flatten(name, argument, kind, bound[argument], values, tensors)
    places = entries(compiled.asm["ptx"])[metadata.name]
    scratch = {}
    for extra in ("global_scratch", "profile_scratch")[: len(places) - len(values)]:
        buffer = scratch_for(metadata, extra, blocks)
        if buffer is not None:
            scratch[extra] = buffer
        values.append((extra, pointer(0 if buffer is None else buffer.data_ptr())))
    parameters = pack_parameters(name, places, values)
    return {"parameters": parameters, "tensors": tensors, "scratch": scratch}


def _loaded(compiled: Any) -> dict[str, Any]:
    """What Triton's driver says of a kernel that it launched: it counts local memory in words, and calls it spills."""
    loaded = {"registers": int(compiled.n_regs), "local_bytes": 4 * int(compiled.n_spills)}
    return {"parameters": b"", "tensors": {}, "loaded": loaded}


def _launch(
    source: TritonSource,
    blocks: tuple[int, int, int],
    place: tuple[int, int],
    packed: Mapping[str, Any],
) -> CapturedLaunch:
    """The facts of one launch of a compiled kernel."""
    compiled = source.compiled
    metadata = compiled.metadata
    return CapturedLaunch(
        language="triton",
        function=source.kernel.fn.__qualname__,
        entry=metadata.name,
        ptx=compiled.asm["ptx"],
        grid=blocks,
        block=(32 * metadata.num_warps, 1, 1),
        shared=metadata.shared,
        target=f"sm_{metadata.target.arch}",
        fusion=bool(metadata.enable_fp_fusion),
        compiler=f"triton {metadata.triton_version}",
        ptxas=ptxas_version(metadata.target.arch),
        options=_options(metadata),
        configuration=place,
        source=source,
        **packed,
    )


def _options(metadata: Any) -> dict[str, Any]:
    """The compiler's options among the metadata, as plain values."""
    names = (
        "num_warps", "num_ctas", "num_stages", "maxnreg", "ptx_options", "enable_fp_fusion", "sched4reg",
        "enable_reflect_ftz", "default_dot_input_precision", "allowed_dot_input_precisions", "sanitize_overflow",
        "debug", "launch_cooperative_grid", "launch_pdl",
    )  # fmt: skip
    return {name: getattr(metadata, name) for name in names if hasattr(metadata, name)}


def _check_shared(metadata: Any) -> None:
    """Refuse what Triton refuses when it loads the kernel."""
    from triton.runtime.errors import OutOfResources

    from contract.compiled.architectures import cuda

    limit = cuda(metadata.target.arch).shared_opt_in
    if metadata.shared > limit:
        raise OutOfResources(metadata.shared, limit, "shared memory")


@cached
def ptxas_version(arch: int) -> str:
    """The version of the ptxas that this Triton uses for a compute capability: '12.9.86'."""
    from triton.backends.nvidia.compiler import get_ptxas

    return tool_version(Path(get_ptxas(arch).path))
