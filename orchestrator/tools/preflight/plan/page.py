"""A plan for people: a table of memory, lines for what is shared, the limits."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from textwrap import wrap

from temper.orchestrator.tools.preflight.plan.limits import Limit, size
from temper.orchestrator.tools.preflight.plan.memory.engine_memory import EngineMemory
from temper.orchestrator.tools.preflight.plan.memory.rank_memory import RankMemory
from temper.orchestrator.tools.preflight.plan.plan import Plan
from temper.orchestrator.tools.preflight.plan.seconds.rates import Slowdown
from temper.orchestrator.tools.preflight.plan.seconds.step_time import StepTime
from temper.rollout.weights.host_memory import SPARE

WIDTHS = (14, 36)
ROWS = (
    *(
        "weights",
        "gradients",
        "optimiser",
        "buckets",
        "gathered",
        "reference",
        "activations",
        "logits",
        "push",
        "overhead",
        "loading",
    ),
    *("cache", "sequences", "of one", "peak"),
)


def page(plan: Plan) -> list[str]:
    """Return the lines of a plan."""
    said = [f"{plan.run} on {plan.hardware}, {plan.placement}: {_processes(plan)}", *_model(plan), ""]
    said += _memory(plan)
    said += ["", *_shared(plan), *_time(plan), ""]
    said += limit_lines(plan.limits, plan.advised)
    said += ["", *_assumed(plan), ""]
    failing = sum(not one.holds for one in plan.limits)
    said.append(f"{failing} of {len(plan.limits)} limits would be hit" if failing else "no limit would be hit")
    return said


def _processes(plan: Plan) -> str:
    parts = [f"{plan.ranks} rank{'s' * (plan.ranks != 1)}"] * bool(plan.ranks)
    parts += [f"{plan.engines} engine{'s' * (plan.engines != 1)}"] * bool(plan.engines)
    if plan.engine is not None and plan.engine.processes > 1:
        parts[-1] += f" of {plan.engine.processes} processes"
    return ", ".join(parts) + (f" on {plan.gpus} GPU{'s' * (plan.gpus != 1)}" if plan.gpus else "")


def _model(plan: Plan) -> Iterator[str]:
    model = plan.model
    trained = "" if model.trained == model.parameters else f", {model.trained:,} trained"
    active = "" if "routed experts" not in model.parts else f", {model.active:,} for a token"
    yield f"model           {model.name} ({model.kind}): {model.parameters:,} parameters{active}{trained}"
    yield "                " + ", ".join(f"{name} {count:,}" for name, count in model.parts.items())


def _memory(plan: Plan) -> Iterator[str]:
    rank, engine = _rank_rows(plan), _engine_rows(plan)
    heads = (
        f"a rank of {plan.ranks}" if plan.rank is not None else "",
        f"an engine's process of {plan.engines * plan.engine.processes}" if plan.engine is not None else "",
    )
    yield _columns("memory", heads)
    for name in (name for name in ROWS if rank.get(name) or engine.get(name)):
        yield _columns(name, (rank.get(name, ""), engine.get(name, "")))


def _columns(name: str, cells: tuple[str, str]) -> str:
    return f"{name:{WIDTHS[0]}}  {cells[0]:{WIDTHS[1]}}  {cells[1]}".rstrip()


def _rank_rows(plan: Plan) -> dict[str, str]:
    rank = plan.rank
    if rank is None:
        return {}
    return _told(rank) | {"peak": _peak(rank.peak, plan.rank_room)}


def _told(rank: RankMemory) -> dict[str, str]:
    named: dict[str, int] = {
        "weights": rank.weights,
        "gradients": rank.gradients,
        "optimiser": rank.optimiser,
        "buckets": rank.buckets,
        "gathered": rank.gathered,
        "reference": rank.reference,
        "activations": rank.activations,
        "logits": rank.logits,
        "push": rank.push,
        "overhead": rank.overhead,
        "loading": rank.loading,
    }
    told = {name: size(nbytes) if nbytes else "" for name, nbytes in named.items()}
    told["activations"] += f" of {rank.pass_tokens:,} tokens"
    return told


def _engine_rows(plan: Plan) -> dict[str, str]:
    engine = plan.engine
    if engine is None:
        return {}
    longest, mean = plan.sequences
    rows = {"weights": size(engine.weights), "overhead": size(engine.overhead) if engine.overhead else ""}
    rows["cache"] = f"{size(max(0, engine.cache))} for keys, values and states"
    rows["sequences"] = f"{longest:,} of {plan.longest:,} tokens, {mean:,} of {plan.mean_length:,}"
    rows["of one"] = _of_one(engine)
    return rows | {"peak": _peak(engine.peak, engine.allowed)}


def _of_one(engine: EngineMemory) -> str:
    state = f"{size(engine.state_bytes)} of states, " if engine.state_bytes else ""
    return f"{state}{size(engine.token_bytes)} a token"


def _peak(nbytes: int, room: int) -> str:
    return f"{size(nbytes)} of {size(room)}" if room else size(nbytes)


def _shared(plan: Plan) -> Iterator[str]:
    host = plan.host
    parts = {"reading": host.reading, "held": host.held, "passes": host.passes, "push": host.push}
    told = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in parts.items() if nbytes)
    yield f"main memory     {size(host.peak)} of {size(plan.host_room)} a machine: {told}"
    if host.checkpoint:
        full = host.saving > (1 - SPARE) * plan.host_room
        waits = "; there is no room for it, so the loop waits while it is written" * full
        extra = size(host.checkpoint)
        yield f"                {size(host.saving)} while a checkpoint is written, of which its copy has {extra}{waits}"
    if plan.rank is not None and plan.engine is not None:
        shm = "" if plan.shm_bytes is None else f"; /dev/shm has {size(plan.shm_bytes)}"
        kept = f", {plan.push.copies} copies in main memory" if plan.push.copies else ""
        yield f"push            {plan.push.nbytes:,} bytes by {plan.push.transport} ({plan.push.why}){kept}{shm}"
    if plan.rank is not None:
        copy = plan.model.checkpoint_bytes
        of_it = f"{plan.model.saved_bytes:,} of the model, {plan.model.state_bytes:,} of the optimiser at most"
        yield f"checkpoint      {copy:,} bytes ({of_it}), {plan.checkpoint_s:,.0f} s to write"
        if plan.rank.on_disk:
            yield f"offloaded       {plan.ranks * plan.rank.on_disk:,} bytes on the disk of learner.offload_dir, of all ranks"


def _time(plan: Plan) -> Iterator[str]:
    time = plan.time
    if time is None:
        if not plan.looped:
            yield "seconds         not worked out: only those of steps of rl and distill are"
        elif plan.rank is not None and plan.engine is not None:
            yield "seconds         not known for this hardware: name its GPUs (--gpus), or measure it (--probe)"
        return
    rates, work = time.rates, time.work
    batches = f"batches {_s(time.batch_s)} | " if time.batch_s else ""
    yield (
        f"step of {work.stage:7} generate {_s(time.generate_s)} | {batches}learn {_s(time.learn_s)} | "
        f"publish {_s(time.publish_s)} | load {_s(time.load_s)}"
        f"{f' | shifts {_s(time.shift_s)}' if time.shift_s else ''} -> {_s(time.step_s)} at lag "
        f"{work.mean_lag:.2f} in the mean, limited by {time.limited_by}"
    )
    yield (
        f"                {work.sampled:,.0f} sampled tokens of {work.answers:,} answers, {work.trained:,.0f} trained; "
        f"{time.sampled_per_s:,.0f} tokens/s in all, {rates.sampled_per_s:,.0f} an engine, {rates.trained_per_s:,.0f} the "
        f"learner ({rates.source})"
    )
    if rates.flops_used:
        first = f"; the first push takes {_s(rates.first_push_s)} more" if rates.first_push_s else ""
        yield f"                hardware FLOPs utilisation of the learner {rates.flops_used:.0%}{first}"
    if rates.slowdown != Slowdown():
        yield (
            f"                at once the engines take {rates.slowdown.engines:.2f} times as long, the learner "
            f"{rates.slowdown.learner:.2f} times"
        )
    hours = f", {time.hours * plan.gpus:,.0f} GPU hours" if plan.gpus else ""
    cost = "" if plan.cost is None else f", {plan.cost:,.0f} at the price given"
    yield (
        f"all steps       {work.steps:,} steps of {work.stage}, {time.hours:,.1f} h{hours}{cost}; "
        f"{time.tokens:,.0f} sampled tokens; the longest answer takes {_s(time.longest_s)}"
    )
    if plan.left_out:
        yield f"                not in seconds, hours, price and deadlines: {', '.join(plan.left_out)}"
    if plan.uncached is not None:
        yield f"better          rollout.engine.prefix_caching=off: {_uncached(plan, time)}"
    if plan.split is not None:
        better = plan.split
        yield (
            f"better          learner.ranks={better.ranks} rollout.workers={better.engines}: {_s(better.step_s)} a step "
            f"({-better.gain:+.0%})"
        )


def _uncached(plan: Plan, time: StepTime) -> str:
    more, seconds = plan.uncached or (0, 0.0)
    return (
        f"{more:,} sequences of {plan.mean_length:,} tokens instead of {plan.sequences[1]:,}, generate {_s(seconds)} "
        f"instead of {_s(time.generate_s)}"
    )


def _s(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:,.2f} s"


def _assumed(plan: Plan) -> Iterator[str]:
    pairs = [f"{name}={value:g}" for name, value in asdict(plan.assumptions).items()]
    yield from wrap(f"assumed: {' '.join(pairs)}", width=110, subsequent_indent=" " * 9, break_on_hyphens=False)


def limit_lines(limits: Iterable[Limit], advised: Iterable[Limit]) -> list[str]:
    """Return the limits of a run and what is advised, each with what mends it where it is not kept."""
    return [_limit(one, "FAIL") for one in limits] + [_limit(one, "warn") for one in advised]


def _limit(limit: Limit, mark: str) -> str:
    has = f" of {limit.has}" if limit.has else ""
    told = f"{'ok  ' if limit.holds else mark}  {limit.what}: {limit.needed}{has}"
    return told if limit.holds else f"{told}: {limit.remedy}"
