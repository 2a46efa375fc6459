"""The progress of a run on the screen: a live panel in a terminal, plain lines elsewhere."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from types import TracebackType
from typing import TextIO

from rich.console import Console, RenderableType
from rich.console import Group as Lines
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from temper.orchestrator.run.redaction import blank_text
from temper.orchestrator.run.screen import print_text
from temper.rollout.trajectory import Group

SHOWN_ENVS = 8
ACCURACY = "/avg_at_k"
"""Suffix of the name of an accuracy, after its environment."""
SHOWN_LOSSES = ("train/loss", "sft/loss", "loss")
DUE = 0.9
"""Share of the interval after which a line on sampling is due. Its timer ticks once a second."""
SHOWN_SPEEDS = ("rollout/tokens_per_s", "train/tokens_per_s", "tokens_per_s")


@dataclass(slots=True, kw_only=True)
class StageView:
    """Progress of a stage. Times in seconds on a monotonic clock."""

    name: str
    total: int
    began: float
    first: int | None = None
    """The first step shown, which is later than 1 in a resumed stage."""
    first_at: float = 0.0
    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    shown: int | None = None
    """The last step with a plain line."""

    def update(self, step: int, metrics: dict[str, float], now: float) -> None:
        if self.first is None:
            self.first, self.first_at = step, now
        self.step = step
        self.metrics.update(metrics)

    def seconds_left(self, now: float) -> float | None:
        if self.first is None or self.step <= self.first:
            return None
        return (self.total - self.step) * (now - self.first_at) / (self.step - self.first)

    def rewards(self) -> dict[str, float]:
        names = [name.split("/") for name in self.metrics]
        envs = [parts[1] for parts in names if len(parts) == 3 and parts[0] == "env" and parts[2] == "reward"]
        return {env: self.metrics[f"env/{env}/reward"] for env in sorted(envs)}

    def accuracies(self) -> dict[str, float]:
        return {
            name.removesuffix(ACCURACY): self.metrics[name] for name in sorted(self.metrics) if name.endswith(ACCURACY)
        }

    def first_of(self, names: tuple[str, ...]) -> float | None:
        return next((self.metrics[name] for name in names if name in self.metrics), None)


class _Screen(Console):
    """A console that turns quiet when its reader ends, as with `| head`. The run continues."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Progress:
    """Shows stages and steps. Use as a context manager. Every call returns at once.

    In a terminal a panel is redrawn four times a second. Elsewhere a line is printed at most every `every_s` seconds, plus
    one for the last step of each stage.
    """

    def __init__(
        self,
        title: str = "temper",
        *,
        stream: TextIO | None = None,
        every_s: float = 10.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._title = title
        self._stream = stream if stream is not None else sys.stdout
        self._every_s = every_s
        self._clock = clock
        self._console = _Screen(file=self._stream, highlight=False)
        self._stage: StageView | None = None
        self._began = clock()
        self._printed_at = self._stepped_at = self._began
        """Times of the last line, and of the last line of a step."""
        self._sampling = ""
        self._live = self._panel_of(alone=stream is None) if self._console.is_terminal else None

    def _panel_of(self, *, alone: bool) -> Live:
        """Return the panel. If it is `alone`, other output is shown above it."""
        console = self._console
        return Live(get_renderable=self._panel, console=console, redirect_stdout=alone, redirect_stderr=alone)

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_stage()
        if self._live is not None:
            self._live.stop()

    def stage(self, name: str, total_steps: int) -> None:
        """Begin a stage. `total_steps` is 0 for a stage without steps."""
        self.end_stage()
        self._printed_at = self._stepped_at = self._clock()
        self._stage = StageView(name=name, total=total_steps, began=self._printed_at)

    @property
    def current(self) -> StageView | None:
        return self._stage

    def update(self, step: int, metrics: dict[str, float]) -> None:
        assert self._stage is not None, "stage() comes before update()"
        now = self._clock()
        self._stage.update(step, metrics, now)
        if self._live is None and now - self._stepped_at >= self._every_s:  # lines on sampling do not delay it
            self._print_line(self._stage)

    def sampling(self, text: Callable[[], str | None] | None) -> None:
        """Show the progress of sampling after `every_s` seconds without output, in the panel or as a line. None ends it."""
        if text is None:
            self._sampling = ""
        elif self._clock() - self._printed_at >= DUE * self._every_s:
            line = text()
            if line is None:  # nothing is being sampled
                self._sampling = ""
                return
            self._printed_at = self._clock()
            if self._live is not None and self._live.is_started:
                self._sampling = line
            else:
                self.note(line)

    def note(self, text: str) -> None:
        """Print a permanent line. Secrets are redacted."""
        line = f"[{clock_text(self._clock() - self._began)}] {blank_text(text)}"
        print_text(self._console, line)
        if self._live is None:
            with suppress(BrokenPipeError):
                self._stream.flush()

    def end_stage(self) -> None:
        self._redraw()
        stage, self._stage = self._stage, None
        if stage is None:
            return
        self._redraw()
        if stage.first is not None and stage.shown != stage.step:
            self._print_line(stage)

    def _redraw(self) -> None:
        if self._live is not None and self._live.is_started:
            self._live.refresh()

    def _print_line(self, stage: StageView) -> None:
        now = self._clock()
        self.note(line_text(stage, now))
        stage.shown, self._printed_at, self._stepped_at = stage.step, now, now

    def _panel(self) -> RenderableType:
        stage = self._stage
        if stage is None:
            return Text(self._sampling)
        now = self._clock()
        left = stage.seconds_left(now)
        head = Table.grid(padding=(0, 2))
        step = f"{stage.step}/{stage.total}" if stage.total else "..."
        width = min(30, self._console.width // 6)
        bar = ProgressBar(total=stage.total or None, completed=stage.step, width=width, pulse=not stage.total)
        head.add_row(
            Text(f"{self._title} - {stage.name}", style="bold"),
            bar,
            Text(step),
            Text(f"{clock_text(now - stage.began)} gone" + ("" if left is None else f", {clock_text(left)} left")),
        )
        return Lines(head, self._numbers(stage), *([Text(f"  {self._sampling}")] if self._sampling else []))

    def _numbers(self, stage: StageView) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for env, reward in list(stage.rewards().items())[:SHOWN_ENVS]:
            bar = ProgressBar(total=1.0, completed=min(max(reward, 0.0), 1.0), width=20)
            table.add_row(Text(f"  {env}"), bar, Text(f"reward {reward:.3f}"))
        for env, accuracy in list(stage.accuracies().items())[:SHOWN_ENVS]:
            table.add_row(Text(f"  {env}"), Text(f"accuracy {accuracy:.3f}"))
        rest = [part for part in (_loss_text(stage), _speed_text(stage)) if part]
        if rest:
            table.add_row(Text(f"  {rest[0]}"), Text(rest[1] if len(rest) > 1 else ""))
        return table


def line_text(stage: StageView, now: float) -> str:
    """Format one plain line: stage, step, rewards or accuracies, loss, speed and time left, as far as known."""
    left = stage.seconds_left(now)
    parts = [
        f"{stage.name} {stage.step}/{stage.total}" if stage.total else stage.name,
        " ".join(f"{env} {reward:.3f}" for env, reward in stage.rewards().items()),
        " ".join(f"{env} {accuracy:.3f}" for env, accuracy in stage.accuracies().items()),
        _loss_text(stage),
        _speed_text(stage),
        "" if left is None or stage.step == stage.total else f"{clock_text(left)} left",
    ]
    return " | ".join(part for part in parts if part)


def clock_text(seconds: float) -> str:
    """Format seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _loss_text(stage: StageView) -> str:
    loss = stage.first_of(SHOWN_LOSSES)
    return "" if loss is None else f"loss {loss:.4f}"


def _speed_text(stage: StageView) -> str:
    speed = stage.first_of(SHOWN_SPEEDS)
    return "" if speed is None else f"{speed:,.0f} tokens/s"


TICK_S = 1.0


class SamplingCount:
    """Counts requested and finished answers, and tokens. Times in seconds on a monotonic clock."""

    def __init__(
        self, name: str, *, asked: int, tokens: Callable[[], int] | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        """`tokens` returns the sampled tokens so far. By default the tokens of finished answers count."""
        self._of_finished = 0
        self._read = tokens or (lambda: self._of_finished)
        self._clock = clock
        self.begin(name, asked=asked)

    def begin(self, name: str, *, asked: int) -> None:
        """Start a new count."""
        self.name, self.asked, self.finished = name, asked, 0
        self._began = self._looked = self._clock()
        self._seen = self._read()

    def add(self, group: Group) -> None:
        self.finished += len(group.trajectories) + len(group.failed)
        self._of_finished += sum(one.thinking_tokens + one.answer_tokens for one in group.trajectories)

    def text(self) -> str:
        """Return a line: answers, tokens per second since the last line, and the estimated time left."""
        now, tokens = self._clock(), self._read()
        rate = max(0, tokens - self._seen) / max(now - self._looked, 1e-9)
        self._looked, self._seen = now, tokens
        left = "time left unknown"
        if self.finished:
            seconds = (now - self._began) * (self.asked - self.finished) / self.finished
            left = f"{clock_text(seconds)} left"
        return f"{self.name}: {self.finished:,} of {self.asked:,} answers | {rate:,.0f} tokens/s | {left}"


@asynccontextmanager
async def sampling_shown(
    progress: Progress, count: SamplingCount, *, look: Callable[[], bool] = lambda: True
) -> AsyncIterator[SamplingCount]:
    """Show a count during the block whenever nothing was shown for ten seconds.

    `look` updates the count before each line and returns whether anything is being sampled.
    """

    async def show() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            progress.sampling(lambda: count.text() if look() else None)

    showing = asyncio.create_task(show())
    try:
        yield count
    finally:
        showing.cancel()
        progress.sampling(None)
