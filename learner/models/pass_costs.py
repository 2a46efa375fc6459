"""Measures the cost of passes on the device, so that plans of batches fit it (`learner/batches/packing.py`).

Suffix: `_BT` row and token.
"""

import math
import time
from collections.abc import Callable

import numpy as np
import torch

from temper.learner.batches.micro_batches import Prompts
from temper.learner.batches.packing import PassCosts
from temper.learner.models.scorer import Scores

ROW, PROMPT, ANSWERS, ANSWER = 256, 512, 16, 64
"""Tokens of a row. Tokens of a shared prompt, its answers, and the tokens of each."""
MOST_ROWS = 32
MOST_TOKENS = PROMPT + ANSWERS * ANSWER
"""Tokens of the pass with a shared prompt."""
REPEATS = 2
MOST_PASS_TOKENS, LEAST_MARGIN = 8192, 0.3


def measure_pass_costs(scorer: Callable[..., Scores], *, device: torch.device, budget: int) -> PassCosts:
    """Return the costs from three forward passes of up to `budget` tokens, each run three times. Collective.

    A backward pass launches and computes about twice as much, so the ratio of the two holds for it too.
    """
    rows = min(budget // ROW, MOST_ROWS)
    prompts = Prompts.pad([[1] * PROMPT], rows_P=[ANSWERS], pad_id=0)
    shapes: list[tuple[int, int, Prompts | None]] = [(1, ROW, None), (rows, ROW, None), (ANSWERS, ANSWER, prompts)]
    with torch.no_grad():
        short_s, long_s, shared_s = (
            _seconds(scorer, torch.ones(count, tokens, dtype=torch.long, device=device), behind)
            for count, tokens, behind in shapes
        )
    return costs_from(short_s, long_s, shared_s, rows=rows)


def _seconds(scorer: Callable[..., Scores], ids_BT: torch.Tensor, prompts: Prompts | None) -> float:
    """Return the seconds of a pass: the least of several after a first one."""
    wanted_BT, taken = torch.ones_like(ids_BT, dtype=torch.bool), []
    for _ in range(1 + REPEATS):
        began = time.perf_counter()
        float(scorer(ids_BT, wanted_BT, prompts).logprobs_BT.sum())  # waits for the device
        taken.append(time.perf_counter() - began)
    return min(taken[1:])


def costs_from(short_s: float, long_s: float, shared_s: float, *, rows: int) -> PassCosts:
    """Return the costs that explain the seconds of one row, of `rows` rows, and of answers behind a shared prompt.

    They are rounded to a power of 2 and to tenths, so that a resumed run most likely plans the same batches.
    """
    a_token = (long_s - short_s) / ((rows - 1) * ROW)
    if a_token <= 0:  # the launches of kernels hide all computation
        return PassCosts(pass_tokens=MOST_PASS_TOKENS)
    fixed = min(max(short_s / a_token - ROW, 1.0), MOST_PASS_TOKENS)
    planned = (MOST_TOKENS + 3 * fixed) * a_token
    margin = PassCosts().margin * planned / shared_s
    return PassCosts(
        pass_tokens=2 ** round(math.log2(fixed)),
        margin=float(np.clip(math.floor(10 * margin) / 10, LEAST_MARGIN, PassCosts().margin)),
    )
