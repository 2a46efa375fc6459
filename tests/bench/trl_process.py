"""TRL's GRPO on a model directory, on the CPU, for `trl_side.py`.

`python -m bench.trl_process WORK.json`

Each line on standard input is a number of steps. The process answers each with one line of JSON measurements.
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # read while torch is imported

import torch
from bench.trl_side import Part, TrlWork
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MOST_STEPS = 10**6


class Turns:
    """Runs steps on request and reports their measurements. Ends the process if its input closes."""

    def __init__(self, asked: TextIO, told: TextIO) -> None:
        self._asked = asked
        self._told = told
        self._left = 0
        self._since: tuple[float, float] | None = None
        self._answers = self._tokens = 0

    def count(self, completion_ids: list[list[int]]) -> None:
        """Count the sampled answers and their tokens."""
        self._answers += len(completion_ids)
        self._tokens += sum(map(len, completion_ids))

    def begin_step(self) -> None:
        """After the last step of a part, report its measurements and wait for the next part."""
        if self._left == 0:
            self._tell()
            line = self._asked.readline()
            if not line:
                sys.exit(0)
            self._left = int(line)
            self._since, self._answers, self._tokens = (time.monotonic(), time.process_time()), 0, 0
        self._left -= 1

    def _tell(self) -> None:
        if self._since is None:
            return
        began, used = self._since
        part = Part(
            seconds=time.monotonic() - began,
            cpu_s=time.process_time() - used,
            answers=self._answers,
            tokens=self._tokens,
        )
        print(json.dumps({name: getattr(part, name) for name in Part.__slots__}), file=self._told, flush=True)


class InTurns(GRPOTrainer):
    """TRL's trainer, which waits for a request before each step."""

    turns: Turns

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Sample and learn on request."""
        self.turns.begin_step()
        return super().training_step(model, inputs, num_items_in_batch)


def train(work: TrlWork, turns: Turns, folder: str) -> None:
    """Train until the requests end: one update from a step's answers, random rewards, nothing logged or saved.

    `temperature` and the rest of sampling are TRL's defaults: the model's distribution.
    """
    torch.set_num_threads(work.threads)
    draw = random.Random(0)

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        turns.count(completion_ids)
        return [draw.random() for _ in completion_ids]

    config = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=work.answers,
        num_generations=work.group_size,
        max_completion_length=work.answer_tokens,
        max_steps=MOST_STEPS,
        learning_rate=work.learning_rate,
        lr_scheduler_type="constant",
        beta=0.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=work.recompute,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = InTurns(
        model=AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(work.model, padding_side="left"),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in work.prompts]),
    )
    trainer.turns = turns
    trainer.train()


def main() -> None:
    """Run the process."""
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    with TemporaryDirectory(prefix="temper-bench-") as folder:
        train(TrlWork.read(Path(sys.argv[1])), Turns(sys.stdin, told), folder)


if __name__ == "__main__":
    main()
