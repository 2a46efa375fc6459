"""Question benchmarks with exactly checkable answers."""

from temper.envs.data.config import DataConfig
from temper.envs.presets.preset import Preset

IFEVAL = Preset(
    name="ifeval",
    title="IFEval",
    env="instruction_following",
    data=DataConfig(
        path="google/IFEval", split="train", revision="966cd89545d6b6acfd7638bc708b98261ca58e84", on_error="skip"
    ),
    rows=541,
    prompt="the row's text, unchanged",
    rule=(
        "strict accuracy by prompt: the response follows every instruction; parts/loose, parts/instructions_strict and "
        "parts/instructions_loose over parts/instructions give the other three published figures"
    ),
    source="Zhou et al., Instruction-Following Evaluation for Large Language Models, 2023, arXiv 2311.07911",
    differs=(
        "510 of the 541 rows are used: the 31 that require a response in another language need a language detector and are "
        "skipped with a warning. English in capitals or in small letters is checked by its letters alone. If a single "
        "letter would follow all instructions, a response of fewer than 10 letters and digits, or 5 different ones, follows "
        "nothing"
    ),
)
