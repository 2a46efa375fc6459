"""tau-bench's test tasks of retail."""

from temper.envs.data.config import DataConfig
from temper.envs.presets.preset import Preset

TAU_RETAIL = Preset(
    name="tau_retail",
    title="tau-bench retail, test",
    env="retail",
    data=DataConfig(path="tau_retail/tasks_test.jsonl", format="tau"),
    rows=115,
    options={"idle": "keep", "outputs": "part"},
    prompt="the domain's policy (wiki.md) as the system text, its tools, and as the first message the customer's whole "
    "instruction, which tau-bench gives to the customer's model",
    rule="the database at the end equals the one after the reference actions, and every output was stated",
    tokens=2048,
    samples="1 to 4, temperature 0; pass^k over the answers to a task",
    source="Yao et al., tau-bench, 2024, arXiv 2406.12045; data of github.com/sierra-research/tau-bench at 59a200c, MIT: "
    "clone it, then `python -m temper.envs.retail.published tau-bench/tau_bench/envs/retail tau_retail`",
    differs="without options.customer the customer is no model, states everything at once and agrees to all, so a score is "
    "not comparable with published ones; the tools are written anew after the published ones; numbers are equal by value",
)
