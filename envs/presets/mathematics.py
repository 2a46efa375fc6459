"""Standard sets of mathematics: one final answer each, compared exactly."""

from envs.data.config import DataConfig
from envs.presets.preset import Preset

BOXED = "{question}\nPlease reason step by step, and put your final answer within \\boxed{}."
BOXED_FROM = (
    "model cards of Qwen2.5-Math (Yang et al., 2024, arXiv 2409.12122) and DeepSeek-R1 (DeepSeek-AI, 2025, arXiv "
    "2501.12948)"
)

GSM8K = Preset(
    name="gsm8k",
    title="GSM8K, test",
    env="math",
    data=DataConfig(
        path="openai/gsm8k", config="main", split="test", revision="e53f048856ff4f594e959d75785d2c2d37b678ee"
    ),
    rows=1319,
    options={"prompt": BOXED},
    prompt=BOXED_FROM,
    rule="the number in the last box, else the answer that the text states, equals the one after ####",
    samples="1, greedy",
    source="Cobbe et al., Training Verifiers to Solve Math Word Problems, 2021, arXiv 2110.14168",
    differs="no examples before the question (many quote 8 with worked steps); an answer that contradicts itself is wrong",
)
