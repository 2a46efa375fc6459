"""Mathematics benchmarks: one final answer each, compared exactly."""

from temper.envs.data.config import DataConfig
from temper.envs.presets.preset import Preset

BOXED = "{question}\nPlease reason step by step, and put your final answer within \\boxed{}."
BOXED_FROM = (
    "model cards of Qwen2.5-Math (Yang et al., 2024, arXiv 2409.12122) and DeepSeek-R1 (DeepSeek-AI, 2025, arXiv "
    "2501.12948)"
)
EXACT = "the last box equals the answer: numbers exactly, other expressions by math-verify"
STRICTER = "an unevaluated expression, an equation in place of a value, and an answer over the time limit are wrong"
A_NUMBER = "an unevaluated answer, such as 2*17, is wrong, and so is an equation, such as m+n=34"

GSM8K = Preset(
    name="gsm8k",
    title="GSM8K, test",
    env="math",
    data=DataConfig(
        path="openai/gsm8k", config="main", split="test", revision="e53f048856ff4f594e959d75785d2c2d37b678ee"
    ),
    rows=1319,
    options={"prompt": BOXED, "boxes": "last"},
    prompt=BOXED_FROM,
    rule="the number in the last box, otherwise the stated answer, equals the one after ####",
    source="Cobbe et al., Training Verifiers to Solve Math Word Problems, 2021, arXiv 2110.14168",
    differs="no examples before the question (many quote 8 with worked steps); "
    f"without a box an answer that contradicts itself is wrong; {A_NUMBER}",
)

MATH500 = Preset(
    name="math500",
    title="MATH-500",
    env="math",
    data=DataConfig(path="HuggingFaceH4/MATH-500", split="test", revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"),
    rows=500,
    options={"prompt": BOXED, "boxes": "last"},
    prompt=BOXED_FROM,
    rule=EXACT,
    tokens=8192,
    samples="1, greedy; or 4 at temperature 0.6",
    source=(
        "Hendrycks et al., Measuring Mathematical Problem Solving With the MATH Dataset, 2021, arXiv 2103.03874; its 500 rows "
        "are those of Lightman et al., Let's Verify Step by Step, 2023, arXiv 2305.20050"
    ),
    differs=STRICTER,
)


def _aime(year: int, path: str, split: str, revision: str) -> Preset:
    return Preset(
        name=f"aime{year % 100}",
        title=f"AIME {year}, I and II",
        env="math",
        data=DataConfig(path=path, split=split, revision=revision),
        rows=30,
        options={"prompt": BOXED, "boxes": "last"},
        prompt=BOXED_FROM,
        rule="the number in the last box equals the answer, a whole number from 0 to 999",
        tokens=8192,
        samples="16 to 64 at temperature 0.6, top_p 0.95",
        source=f"American Invitational Mathematics Examination {year}, Mathematical Association of America",
        differs=f"{A_NUMBER}; 30 rows say little: one answer each leaves a 95 % interval of +-0.18 at 0.5",
    )


AIME24 = _aime(2024, "HuggingFaceH4/aime_2024", "train", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a")
AIME25 = _aime(2025, "math-ai/aime25", "test", "563bb8404243c5f09de6ec262f2db674fe5bce9b")
