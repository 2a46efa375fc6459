"""The settings that can cause a gap, each with the form in which it causes none."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

from temper.orchestrator.tools.debug.parity.setup import Facts, Setup
from temper.rollout.sampling import PLAIN

Change = Callable[[Setup], Setup]
Side = Literal["engine", "learner", "sampling"]
Form = Literal["exact", "alike"]
LOW = ("bfloat16", "float16", "auto")
"""Precisions of an engine that are not float32; auto is mostly none either."""
EXACT_EXTRA = {"mamba_ssm_cache_dtype": "float32", "mamba_cache_dtype": "float32", "kv_cache_dtype": "auto"}
"""vLLM's settings of what it keeps between passes, and the value that follows the model: they act on decoding alone."""
WHAT = {
    "mamba_ssm_cache_dtype": "the states of Mamba layers",
    "mamba_cache_dtype": "the inputs of Mamba layers' convolutions",
    "kv_cache_dtype": "keys and values",
}
DRAWN = ("temperature", "top_p", "top_k", "min_p")
WIDE_PASS = 8
"""How many of the longest sequences one pass takes that is not cut into pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A setting that may cause the gap, and how it is changed.

    Afterwards it is in its `exact` form, or rounds `alike` on both sides. A cause of the `engine` needs one to be started.
    `decodes` says that it acts on decoding alone.
    """

    name: str
    setting: str
    side: Side
    change: Change
    form: Form = "exact"
    decodes: bool = False


def with_all(setup: Setup, causes: Iterable[Cause]) -> Setup:
    """Return a setup in which each of these is changed."""
    return reduce(lambda changed, cause: cause.change(changed), causes, setup)


def free_causes(setup: Setup) -> list[Cause]:
    """Return what can be tried in the trainer and in sampling, without another engine."""
    found = []
    learner = setup.learner
    if learner.bf16:
        found.append(_of_learner("learner computes in bfloat16", "bf16", False))
    elif setup.engine.dtype in LOW:
        found.append(_rounding_alike(max(1, learner.zero_stage)))
    if learner.shared_prompts:
        found.append(_of_learner("answers share the pass over their prompt", "shared_prompts", False))
    differing = [name for name in DRAWN if getattr(setup.sampling, name) != getattr(PLAIN, name)]
    if differing:
        found.append(
            Cause(
                name=f"sampling with {', '.join(f'{name}={getattr(setup.sampling, name)}' for name in differing)}",
                setting=" ".join(f"rl.sampling.{name}={getattr(PLAIN, name)}" for name in differing),
                side="sampling",
                change=lambda given: replace(given, sampling=PLAIN),
            )
        )
    return found


def engine_causes(setup: Setup, facts: Facts, *, decoding_alone: bool) -> list[Cause]:
    """Return what can be tried with another engine, the likeliest first.

    `decoding_alone` says that prefill agrees with the trainer: what acts on decoding then comes before the rest.
    """
    found = [*_numbers(setup), *_ways(setup, facts)]
    return sorted(found, key=lambda cause: cause.decodes != decoding_alone)


def _numbers(setup: Setup) -> Iterator[Cause]:
    """Yield what rounds: precisions of weights, of caches and states, and vLLM's own settings that were given."""
    engine = setup.engine
    if engine.dtype in LOW:
        yield _of_engine(f"engine computes in {engine.dtype}", "dtype", "float32")
    if setup.wire_is_lower:
        pushed = _of_learner(f"weights travel to the engine in {setup.learner.wire_dtype}", "wire_dtype", "float32")
        yield replace(pushed, side="engine")  # which has to be given others
    for name, value in engine.extra.items():
        exact = EXACT_EXTRA.get(name)
        if exact is not None and value != exact:
            yield Cause(
                name=f"engine keeps {WHAT[name]} in {value}",
                setting=f"rollout.engine.extra.{name}={exact}",
                side="engine",
                change=_extra(name, exact),
                decodes=True,
            )
        elif exact is None and name != "enforce_eager":
            yield Cause(
                name=f"engine has {name}={value}",
                setting=f"rollout.engine.extra without {name}",
                side="engine",
                change=_extra(name, None),
            )


def _ways(setup: Setup, facts: Facts) -> Iterator[Cause]:
    """Yield what computes in another order: drafts, experts, caches of prefixes, processes, graphs, runners, pieces."""
    engine = setup.engine
    if engine.speculation != "off":
        drafts = _of_engine(f"engine guesses tokens ahead ({engine.speculation})", "speculation", "off")
        yield replace(drafts, decodes=True)
    if facts.experts and not setup.learner.router_replay:
        routed = _of_learner("the routers of both sides choose on their own", "router_replay", True)
        yield replace(routed, side="engine")  # which has to record what it chooses
    if engine.prefix_caching == "on" or (engine.prefix_caching == "auto" and (facts.gpu or not facts.mamba)):
        yield replace(_of_engine("engine computes the prefixes of prompts once", "prefix_caching", "off"), decodes=True)
    if engine.tensor_parallel > 1:
        yield _of_engine(f"{engine.tensor_parallel} processes share each layer of the engine", "tensor_parallel", 1)
    if facts.gpu and not engine.extra.get("enforce_eager"):
        yield Cause(
            name="engine compiles its layers",
            setting="rollout.engine.extra.enforce_eager=true",
            side="engine",
            change=_extra("enforce_eager", True),
        )
    if facts.gpu and engine.runner != "v1":
        yield _of_engine("engine has vLLM's second runner", "runner", "v1")
    wide = WIDE_PASS * engine.max_model_len
    if facts.gpu and engine.batched_tokens < wide:
        yield _of_engine("engine computes prompts in pieces", "batched_tokens", wide)


def _of_engine(name: str, field: str, value: Any) -> Cause:
    def change(setup: Setup) -> Setup:
        return replace(setup, engine=replace(setup.engine, **{field: value}))

    return Cause(name=name, setting=f"rollout.engine.{field}={value}", side="engine", change=change)


def _of_learner(name: str, field: str, value: bool | str) -> Cause:
    fields: dict[str, Any] = {field: value}

    def change(setup: Setup) -> Setup:
        return replace(setup, learner=replace(setup.learner, **fields))

    return Cause(name=name, setting=f"learner.{field}={str(value).lower()}", side="learner", change=change)


def _rounding_alike(stage: int) -> Cause:
    """Let the learner compute in bfloat16, which takes a ZeRO stage above 0."""

    def change(setup: Setup) -> Setup:
        return replace(setup, learner=replace(setup.learner, bf16=True, zero_stage=stage))  # type: ignore[arg-type]

    return Cause(
        name="learner does not round as the engine does",
        setting=f"learner.bf16=true learner.zero_stage={stage}",
        side="learner",
        change=change,
        form="alike",
    )


def _extra(name: str, value: Any) -> Change:
    """Return the change of one of vLLM's own settings; None leaves it out."""

    def change(setup: Setup) -> Setup:
        rest = {key: other for key, other in setup.engine.extra.items() if key != name}
        extra = rest if value is None else {**rest, name: value}
        return replace(setup, engine=replace(setup.engine, extra=extra))

    return change
