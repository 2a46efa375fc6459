"""Whether the waits of a run end before their deadlines do."""

import math

from temper.orchestrator.tools.preflight.plan.limits import Limit
from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.orchestrator.tools.preflight.plan.seconds.step_time import StepTime

MARGIN = 1.5
"""A deadline has to be this many times what a wait is planned to take, and one above another that many times the other."""
EPISODE, STALLED, PUSH = "rollout.limits.timeout_s", "supervision.stalled_s", "rollout.engine.push_timeout_s"
FILES = "deadlines.files_s"


def deadline_limits(planner: Planner, time: StepTime) -> list[Limit]:
    """Return whether the waits of a step end before their deadlines do, with some to spare."""
    config = planner.config
    loop = next(one for one in config.instances if one.name == time.work.stage)
    step, step_s = f"{loop.name}.timeout_s", float(config.settings(loop).timeout_s)
    waits = {
        EPISODE: (time.longest_s, config.rollout.limits.timeout_s),
        step: (max(time.longest_s, time.learn_s), step_s),
        PUSH: (time.load_s + time.rates.first_push_s, config.rollout.engine.push_deadline_s(planner.push.nbytes)),
    }
    if planner.trains:
        nbytes = planner.model.checkpoint_bytes
        waits[FILES] = (nbytes / (planner.assumptions.disk_gbs * 1e9), config.deadlines.files(nbytes).seconds)
    least = {setting: math.ceil(MARGIN * wait) for setting, (wait, limit) in waits.items() if MARGIN * wait > limit}
    raised = _above(least, step=step, step_s=step_s, stalled_s=config.supervision.stalled_s)
    return [_limit(setting, *waits[setting], mends=_mends(setting, least, raised)) for setting in waits]


def _above(least: dict[str, int], *, step: str, step_s: float, stalled_s: float) -> dict[str, int]:
    """Return the deadlines that have to be raised with an episode's, which they have to be above, as what they have to be."""
    if stalled_s > least.get(EPISODE, 0):
        return {}
    stalled = math.ceil(MARGIN * least[EPISODE])
    above = {STALLED: stalled}
    return above | ({step: math.ceil(MARGIN * stalled)} if max(step_s, least.get(step, 0)) <= stalled else {})


def _mends(setting: str, least: dict[str, int], raised: dict[str, int]) -> dict[str, int]:
    """Return the settings that mend a deadline, none where it holds."""
    if setting not in least:
        return {}
    if setting == EPISODE:
        return {setting: least[setting]} | raised
    return {setting: raised.get(setting, least[setting])}


def _limit(setting: str, wait: float, limit: float, *, mends: dict[str, int]) -> Limit:
    remedy = " ".join(f"{key}={value}" for key, value in mends.items())
    what, needed = f"{setting}, {MARGIN:g} times the wait", f"{MARGIN * wait:,.1f} s"
    return Limit(what=what, needed=needed, has=f"{limit:,.0f} s", holds=not mends, remedy=remedy)
