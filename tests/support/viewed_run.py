"""A run's folder with answers that are known to the last token, in the stages' format."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from temper.envs.core.errors import Failure, FailureKind
from temper.envs.core.task import EnvRef, Task
from temper.envs.core.thinking_mode import up_to
from temper.orchestrator.run.folder import RunDir, RunState
from temper.rewards.score import Outcome, Score
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import Closed, Group, Stop, ThinkingStats, Ticket, Times, Trajectory, Turn, WeightVersion
from temper.rollout.trajectory_json import write_groups

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\"> <!-- &lt;b&gt; \u2028"
SPLIT = "\u4e16\U0001f600"
"""Characters that need several tokens each in a byte-level vocabulary without merges."""
TOOL_SAYS = "<b>80</b>"
CLOSING = "~!"
"""The forced end of a thought."""
BYTES_OF_A_TOKEN = 50
"""A lower bound on the bytes of a token in a file of answers."""


def tokenizer() -> Tokenizer:
    """One token a byte, and one that ends a turn."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<end>")])
    return made


def turn(prompt: str, text: str, **changes: Any) -> Turn:
    """A turn whose n-th token has the log-probability -n/100, the first two by version 3 and the others by 4."""
    made = tokenizer()
    context, sampled = made.encode(prompt).ids, made.encode(text).ids
    count = len(sampled)
    plain = Turn(
        context_ids=as_ids(context),
        sampled_ids=as_ids(sampled),
        logprobs_T=as_floats([-place / 100 for place in range(count)]),
        versions_T=as_ids([3 if place < 2 else 4 for place in range(count)]),
        injected_T=as_marks([False] * count),
        text=text,
        answer=text,
        thinking=ThinkingStats(tokens=0, answer_tokens=count, closed=Closed.NONE),
        times=Times(generate_s=0.5, step_s=0.25),
    )
    return replace(plain, **changes)


def answer(task: Task, turns: Sequence[Turn], reward: float | None, **changes: Any) -> Trajectory:
    score = Score(
        outcome=Outcome.OK if reward else Outcome.WRONG, parts={"correct": reward or 0.0}, detail=f"got {reward}"
    )
    failure = Failure(kind=FailureKind.TIMEOUT, message="too slow") if reward is None else None
    plain = Trajectory(
        task=task,
        turns=tuple(turns),
        stop=Stop.ENV if reward is not None else Stop.FAILURE,
        reward=reward,
        score=score,
        failure=failure,
        seconds=1.0,
    )
    return replace(plain, **changes)


def forced_answer(whole: Trajectory, budget: int, said: tuple[str, float] | None) -> Trajectory:
    """The text and the reward that follow the first tokens of an answer and `CLOSING`. None for a failure."""
    asked = replace(whole.task, thinking=up_to(budget))
    if said is None:
        return answer(asked, [], None)
    text, reward = said
    made = turn(str(asked.messages[0]["content"]), whole.turns[0].text[:budget] + CLOSING + text, answer=text)
    injected = [budget <= place < budget + len(CLOSING) for place in range(len(made.sampled_ids))]
    logprobs = [math.nan if mark else value for mark, value in zip(injected, made.logprobs_T.tolist(), strict=True)]
    stats = ThinkingStats(tokens=budget, answer_tokens=len(text), closed=Closed.ABRUPT)
    made = replace(made, injected_T=as_marks(injected), logprobs_T=as_floats(logprobs), thinking=stats)
    return answer(asked, [made], reward)


def nested_group() -> Group:
    """An answer with forced answers at 2 and 4 tokens, and a failed one at 6, before an answer without."""
    made = group(9, task("math", "sum-9", "2+3?"), [("2+3=5 so 5<end>", 1.0), ("5<end>", 1.0)])
    whole, plain = made.trajectories
    said = {2: ("7<end>", 0.0), 4: ("5<end>", 1.0), 6: None}
    forced = tuple(forced_answer(whole, budget, each) for budget, each in said.items())
    return replace(made, trajectories=(replace(whole, forced_answers=forced), plain))


def task(env: str, key: str, prompt: str) -> Task:
    return Task(env=EnvRef(name=env), key=key, messages=({"role": "user", "content": prompt},), spec={})


def group(number: int, asked: Task, answers: Sequence[tuple[str, float | None]]) -> Group:
    ticket = Ticket(number=number, task=asked, admitted=WeightVersion(step=3))
    prompt = str(asked.messages[0]["content"])
    return Group.of(ticket, [answer(asked, [turn(prompt, text)] if text else [], reward) for text, reward in answers])


def training(count: int, *, version: int = 5, **changes: Any) -> dict[str, Any]:
    """The learner's figures of so many tokens: each is 0.02 less likely to it than to the engine."""
    logprobs = [round(-place / 100 - 0.02, 5) for place in range(count)]
    return {"version": version, "logprobs": logprobs, "advantage": 0.5, "factor": 1.0, "left_out": {}} | changes


def step_groups() -> tuple[list[Group], list[dict[str, Any] | None]]:
    """A group of sums with hostile text, one with a tool, a forced token and a guard, and the training figures of both."""
    sums = task("math", "sum-1", f"2+3? {HOSTILE}")
    first = group(7, sums, [("5<end>", 1.0), (f"51 {SPLIT}{HOSTILE}<end>", 0.0), ("", None)])
    asked = task("shop", "get-1", "get h")
    count = len(turn("", "get(h)").sampled_ids)
    forced = [False] * (count - 1) + [True]
    logprobs = [-0.5] * (count - 1) + [float("nan")]
    calls = turn(
        "get h",
        "get(h)",
        injected_T=as_marks(forced),
        logprobs_T=as_floats(logprobs),
        observation=({"role": "tool", "content": TOOL_SAYS},),
    )
    says = turn(TOOL_SAYS, "80<end>")
    tools = [
        answer(asked, [calls, says], 1.0),
        answer(asked, [calls, turn(TOOL_SAYS, "8<end>")], 0.0, stop=Stop.LENGTH),
    ]
    second = Group.of(Ticket(number=8, task=asked, admitted=WeightVersion(step=4)), tools)
    lengths = [t.model_tokens for t in (*first.trajectories, *tools)]
    rows: list[dict[str, Any] | None] = [training(length) for length in lengths]
    rows[1] = training(lengths[1], advantage=-0.5)
    rows[2] = training(
        lengths[2], left_out={"token_range": [[1, 2]]}, factor=[1.0, 0.0, 0.0] + [1.0] * (lengths[2] - 3)
    )
    rows[3] = {"version": 5, "untrained": "truncated"}
    return [first, second], rows


def write_large_run(folder: Path, *, megabytes: float) -> RunDir:
    """A run with one step whose file has at least so many megabytes: groups of 8 random answers of 500 tokens."""
    run, draw = RunDir(folder), random.Random(0)
    run.trajectories.mkdir(parents=True)
    (folder / "model").mkdir()
    tokenizer().save(str(folder / "model" / "tokenizer.json"))
    run.store(RunState(model="model", stages={"rl": "rl"}))
    count, each = 500, 8
    groups, rows = [], []
    for number in range(math.ceil(megabytes * 1e6 / (count * BYTES_OF_A_TOKEN * each))):
        asked = task("math", f"sum-{number}", f"{number}+1?")
        answers = []
        for place in range(each):
            letters = [draw.randrange(50, 100) for _ in range(count)]
            logprobs = [-draw.expovariate(1.0) for _ in range(count)]
            sampled = Turn(
                context_ids=as_ids(letters[:20]),
                sampled_ids=as_ids(letters),
                logprobs_T=as_floats(logprobs),
                versions_T=as_ids([4] * count),
                injected_T=as_marks([False] * count),
                text="".join(map(chr, letters)),
            )
            answers.append(answer(asked, [sampled], float(place % 2)))
            ours = [round(value + draw.gauss(0, 0.01), 5) for value in logprobs]
            factors = [round(1 + draw.gauss(0, 0.01), 3) for _ in range(count)]
            rows.append(training(count, logprobs=ours, factor=factors))
        groups.append(Group.of(Ticket(number=number, task=asked, admitted=WeightVersion(step=4)), answers))
    write_groups(run.trajectory_file("rl", 10), groups, training=rows)
    return run


def write_viewed_run(folder: Path) -> RunDir:
    """A run with the answers of step 10 of `rl`, and of two evaluations of the same three tasks."""
    run = RunDir(folder)
    run.trajectories.mkdir(parents=True)
    (folder / "model").mkdir()
    tokenizer().save(str(folder / "model" / "tokenizer.json"))
    run.store(RunState(model="model", stages={"rl": "rl", "eval-rl": "eval"}))
    groups, rows = step_groups()
    write_groups(run.trajectory_file("rl", 10), groups, training=rows)
    for name, rewards in (("eval-sft", (0.0, 0.0, 1.0)), ("eval-rl", (1.0, 0.0, 1.0))):
        answered = [
            group(10**9 + place, task("math", f"sum-{place}", f"{place}+1?"), [(f"{name} {reward}<end>", reward)] * 2)
            for place, reward in enumerate(rewards)
        ]
        write_groups(run.trajectories / f"{name}.jsonl", answered)
    (folder / "config.yaml").write_text(json.dumps({"name": folder.name}), encoding="utf-8")
    return run
