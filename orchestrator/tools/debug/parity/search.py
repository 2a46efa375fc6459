"""Which setting causes a gap: each that could is changed alone, those first that need no other engine.

as configured --> the trainer changed, sampling changed: no engine is started for these
              --> the engine changed, the likeliest first, until what is left is a tenth
              --> where none alone leaves so little: all in their exact form
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from temper.envs.core.errors import in_words
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.tools.debug.parity.answers import Answered, ScoredAnswer, ask
from temper.orchestrator.tools.debug.parity.causes import Cause, engine_causes, free_causes, with_all
from temper.orchestrator.tools.debug.parity.gap import Gap, between
from temper.orchestrator.tools.debug.parity.layers import LayerFindings, compare_layers
from temper.orchestrator.tools.debug.parity.pushed import as_pushed
from temper.orchestrator.tools.debug.parity.setup import Facts, Setup
from temper.orchestrator.tools.debug.parity.time_limit import OutOfTime, at_most
from temper.orchestrator.tools.debug.parity.trainer import Trainer

EXACT = 1e-5
"""Largest difference of a token, in nats, below which there is nothing to explain: float32 on a CPU stays below it."""
LEFT = 0.1
"""Share of the gap that a change leaves at the most where it explains the gap."""
TELLS = 0.5
"""Share of the gap that a change leaves at the most where it explains some of it: another engine samples other answers, whose
gap differs by a tenth or two where nothing has changed."""
DEADLINE_S = 1800.0
"""Seconds of a diagnosis where none are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The three differences of the same tokens: trainer less decoding, trainer less prefill, prefill less decoding.

    The first is at the sampling of the setup, the others are of plain samples, at temperature 1.
    """

    decoding: Gap
    prefill: Gap
    engine: Gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A change, and the gap that is left with it, of the kind that is searched; None and why where it could not be measured."""

    causes: tuple[Cause, ...]
    gap: Gap | None
    fault: str = ""

    @property
    def name(self) -> str:
        """What was changed, in words."""
        return "; ".join(cause.name for cause in self.causes)

    @property
    def setting(self) -> str:
        """What is to be written for it."""
        return " ".join(cause.setting for cause in self.causes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GapDiagnosis:
    """What was found: the gaps as configured, the layers, what was tried in its order, and what was left untried."""

    gaps: Gaps
    layers: LayerFindings | None
    why_no_layers: str
    tried: list[Tried]
    untried: list[Cause] = field(default_factory=list)
    starts: int = 0
    seconds: float = 0.0
    cut_short: bool = False
    """Whether the time was over before all was tried that was to be."""

    @property
    def nothing_to_explain(self) -> bool:
        """Whether the sides agree as float32 does."""
        return self.largest <= EXACT

    @property
    def way(self) -> str:
        """Which gap is searched: that to decoding, which is trained with, or where float32 explains it that to prefill."""
        prefill_alone = self.gaps.decoding.largest <= EXACT < self.gaps.prefill.largest
        return "prefill" if prefill_alone else "decoding"

    @property
    def gap(self) -> Gap:
        """The gap that is searched, as configured."""
        return self.gaps.prefill if self.way == "prefill" else self.gaps.decoding

    @property
    def largest(self) -> float:
        """By how much a token differs at the most, to decoding or to prefill."""
        return max(self.gaps.decoding.largest, self.gaps.prefill.largest)

    @property
    def cause(self) -> Tried | None:
        """The change that explains most of the gap, of as few settings as do; None where none explains half of it."""
        measured = [(one.gap.mean, one) for one in self.tried if one.gap is not None]
        telling = [(mean, one) for mean, one in measured if mean <= TELLS * self.gap.mean]
        if self.nothing_to_explain or not telling:
            return None
        enough = [pair for pair in telling if pair[0] <= LEFT * self.gap.mean] or telling
        return min(enough, key=lambda pair: (len(pair[1].causes), pair[0]))[1]

    @property
    def nearest(self) -> Tried | None:
        """The change that leaves least of the gap, however much that is; None where none could be measured."""
        measured = [(one.gap.mean, one) for one in self.tried if one.gap is not None]
        return min(measured, key=lambda pair: pair[0])[1] if measured else None


class EngineComparison:
    """A model whose engines and trainer are compared. Engines that were started alike are started once."""

    def __init__(
        self,
        model: Path,
        facts: Facts,
        prompts: Sequence[tuple[int, ...]],
        *,
        tokens: int,
        end: int,
        tell: Callable[[str], None] = lambda text: None,
        progress: Progress | None = None,
    ) -> None:
        """`tokens` is the most of an answer, which the id `end` ends. `tell` gets notes of the progress.

        `progress` shows how far sampling is.
        """
        self._model, self._facts, self._prompts = model, facts, prompts
        self._tokens, self._end, self._tell = tokens, end, tell
        self._progress = progress
        self._trainer = Trainer(model)
        self._answered: dict[tuple[str, str], Answered] = {}
        self._starts = 0

    @property
    def starts(self) -> int:
        """How many engines were started, those too that gave no answer."""
        return self._starts

    def diagnose(
        self, setup: Setup, *, starts: int = 8, bisect: bool = True, deadline_s: float = DEADLINE_S
    ) -> GapDiagnosis:
        """Compare a setup's sides and, with `bisect`, look for the setting that causes the gap by at most `starts` engines.

        Past the deadline its processes are ended, and what was found till then is told. Raise `TimeoutError` where that is
        nothing, and what the first engine raises; one that can't be started for a change is told of. For the main thread.
        """
        began, before = time.monotonic(), self.starts
        found: GapDiagnosis | None = None
        try:
            with at_most(deadline_s):
                for so_far in self._steps(setup, allowed=before + max(1, starts), bisect=bisect):
                    found = so_far
        except OutOfTime as error:
            if found is None:
                raise TimeoutError(
                    f"engine and trainer were not compared once in the {max(0, deadline_s):.0f} s that there were for it; "
                    "give more with --deadline"
                ) from error
            found = replace(found, cut_short=True)
        assert found is not None
        return replace(found, starts=self.starts - before, seconds=time.monotonic() - began)

    def _steps(self, setup: Setup, *, allowed: int, bisect: bool) -> Iterator[GapDiagnosis]:
        """Yield what is found, ever more of it."""
        base = self._ask(setup, "as configured")
        gaps = self._gaps(base, setup)
        layers, why_not = self._layers(base, setup)
        found = GapDiagnosis(gaps=gaps, layers=layers, why_no_layers=why_not, tried=[])
        yield found
        if bisect and not found.nothing_to_explain:
            yield from self._bisect(setup, base, found, allowed=allowed)

    def _bisect(self, setup: Setup, base: Answered, found: GapDiagnosis, *, allowed: int) -> Iterator[GapDiagnosis]:
        alone = found.gaps.prefill.mean <= LEFT * found.gaps.decoding.mean
        # prefill is compared on plain samples, however the setup samples
        free = [cause for cause in free_causes(setup) if found.way == "decoding" or cause.side != "sampling"]
        waiting = engine_causes(setup, self._facts, decoding_alone=alone and found.way == "decoding")
        yield (found := replace(found, untried=[*free, *waiting]))
        for place, cause in enumerate(free):
            self._tell(f"with {cause.setting}")
            answered = replace(base, answers=base.plain) if cause.side == "sampling" else base
            tried = self._tried((cause,), answered, cause.change(setup), found.way)
            found = _with(found, tried, [*free[place + 1 :], *waiting])
            yield found
        if _explained(found):
            yield replace(found, untried=[])
            return
        while waiting and self.starts < allowed and not _explained(found):
            tried = self._try(setup, (waiting[0],), found.way)
            waiting = waiting[1:]
            yield (found := _with(found, tried, waiting))
        exact = [one.causes[0] for one in found.tried if one.causes[0].form == "exact" and one.gap is not None]
        pairs, whole = _pairs(exact), tuple(exact)
        for pair in pairs:  # whose engines have answered
            if pair == whole or _explained(found):
                continue
            if _explains(both := self._try(setup, pair, found.way), found):
                yield (found := _with(found, both, waiting))
        if len(whole) > 1 and (whole in pairs or self.starts < allowed) and not _explained(found):
            yield _with(found, self._try(setup, whole, found.way), waiting)

    def _try(self, setup: Setup, causes: tuple[Cause, ...], way: str) -> Tried:
        """Measure the gap with changes that need an engine; what goes wrong there is found too."""
        changed = with_all(setup, causes)
        try:
            answered = self._ask(changed, " ".join(cause.setting for cause in causes))
        except Exception as error:  # whatever vLLM has against this setting
            return Tried(causes=causes, gap=None, fault=in_words(error))
        return self._tried(causes, answered, changed, way)

    def _tried(self, causes: tuple[Cause, ...], answered: Answered, changed: Setup, way: str) -> Tried:
        """Measure the gap of answers with changes; what goes wrong, such as too little memory or a NaN, is found too."""
        try:
            gap = self._prefill(answered, changed) if way == "prefill" else self._decoding(answered.answers, changed)
            return Tried(causes=causes, gap=gap)
        except Exception as error:
            return Tried(causes=causes, gap=None, fault=in_words(error))

    def _ask(self, setup: Setup, what: str) -> Answered:
        key = (setup.engine_key, str(setup.sampling))
        if key in self._answered:
            return self._answered[key]
        self._trainer.release()
        self._starts += 1
        self._tell(f"engine {self.starts}: {what}")
        with as_pushed(self._model, setup) as model:
            answered = ask(model, setup, self._prompts, tokens=self._tokens, end=self._end, progress=self._progress)
        self._answered[key] = answered
        self._tell(f"engine {self.starts}: {answered.seconds:.1f} s")
        return answered

    def _gaps(self, answered: Answered, setup: Setup) -> Gaps:
        decoded = [answer.decoded_T for answer in answered.plain]
        prefill = [answer.prefill_T for answer in answered.plain]
        return Gaps(
            decoding=self._decoding(answered.answers, setup),
            prefill=self._prefill(answered, setup),
            engine=between(prefill, decoded),
        )

    def _decoding(self, answers: Sequence[ScoredAnswer], setup: Setup) -> Gap:
        return between(self._trainer.scores(answers, setup.learner), [answer.decoded_T for answer in answers])

    def _prefill(self, answered: Answered, setup: Setup) -> Gap:
        prefill = [answer.prefill_T for answer in answered.plain]
        return between(self._trainer.scores(answered.plain, setup.learner), prefill)

    def _layers(self, answered: Answered, setup: Setup) -> tuple[LayerFindings | None, str]:
        if answered.watched is None:
            return None, answered.why_not
        self._tell("layer by layer")
        try:
            return compare_layers(self._trainer, answered.watched, bf16=setup.learner.bf16), ""
        except ValueError as error:
            return None, str(error)


def _with(found: GapDiagnosis, tried: Tried, untried: Sequence[Cause]) -> GapDiagnosis:
    return replace(found, tried=[*found.tried, tried], untried=list(untried))


def _pairs(causes: Sequence[Cause]) -> list[tuple[Cause, ...]]:
    """Return each cause of the learner beside each of the engine: where both round, either alone may change nothing."""
    return [(own, other) for other in causes if other.side == "engine" for own in causes if own.side == "learner"]


def _explains(one: Tried, found: GapDiagnosis) -> bool:
    """Return whether a change leaves a tenth of the gap."""
    return one.gap is not None and one.gap.mean <= LEFT * found.gap.mean


def _explained(found: GapDiagnosis) -> bool:
    """Return whether a change to an exact form explains the gap."""
    return any(_explains(one, found) and one.causes[0].form == "exact" for one in found.tried)
