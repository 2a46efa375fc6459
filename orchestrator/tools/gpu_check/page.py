"""The page that the check writes: the machine, and a table for each part, with the tracebacks of those that faulted."""

from collections.abc import Sequence

from temper.orchestrator.tools.gpu_check.part import Outcome, Part

NOT_RUN = (
    "**Not run on a GPU yet.** The figures below are of the small form, on CPUs: they show that the parts run, but for the one "
    "that needs Triton, and nothing of a GPU."
)
HEAD = """# GPU check

`make gpu-check` writes this page: on a machine with a GPU it verifies and measures the facts that only a GPU can show, part
by part. It takes at most 15 minutes, without the time to start and to compile. Each part runs in a separate process with a
deadline, and a fault in one does not stop the others. If a part ran out of time, its figures are unknown: run it again,
since compiled kernels are kept, or make all deadlines longer (`--patience 5`). Without a GPU, or with `--small`, the parts
run in a small form. `second_runner` needs Triton, so that without a GPU nothing of it runs. On a machine without vLLM, with
torch 2.11 or later and transformers, `... --without-vllm` runs the parts that need no more, and
`learning` if DeepSpeed is there. `--only kernels` runs one part and prints its findings, and this page stays as it is.
"""


def page(parts: Sequence[Part], outcomes: Sequence[Outcome], *, machine: str, gpu: bool) -> str:
    """Return the page in Markdown: every part of `parts`, those without an outcome as not run."""
    found = {outcome.name: outcome for outcome in outcomes}
    texts = [HEAD, "" if gpu else f"{NOT_RUN}\n", f"Machine: {machine}.\n"]
    texts += [section(part, found.get(part.name)) for part in parts]
    return "\n".join(text for text in texts if text)


def section(part: Part, outcome: Outcome | None) -> str:
    """Return what the page says of a part."""
    if outcome is None:
        return f"## {part.title}\n\nNot run.\n"
    lines = [f"## {part.title}", "", f"`{part.name}`, {outcome.seconds:.0f} s: {said(outcome)}.", ""]
    lines += [f"- {note}" for note in outcome.notes]
    if outcome.figures:
        lines += ["", "| figure | value | wanted | |", "|---|---|---|---|"]
    for figure in outcome.figures:
        verdict = "" if not figure.wanted else "holds" if figure.holds else "**does not hold**"
        lines.append(
            f"| {figure.name} | {f'{figure.value:,.4g} {figure.unit}'.rstrip()} | {figure.wanted} | {verdict} |"
        )
    if text := outcome.fault or outcome.late:
        lines += ["", "```", text.rstrip(), "```"]
    return "\n".join([*lines, ""])


def said(outcome: Outcome) -> str:
    """Return in a word or two how a part ended."""
    if outcome.fault:
        return "faulted"
    if outcome.late:
        return "ran out of time"
    if not outcome.figures:
        return "nothing measured"
    wrong = sum(not figure.holds for figure in outcome.figures)
    return f"{wrong} figures do not hold" if wrong else "all holds"
