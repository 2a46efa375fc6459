"""Service benchmarks: tau-bench's test tasks of retail and airline."""

from temper.envs.data.config import DataConfig
from temper.envs.presets.preset import Preset


def _preset(domain: str, title: str, rows: int) -> Preset:
    return Preset(
        name=f"tau_{domain}",
        title=f"tau-bench {title}, test",
        env=domain,
        data=DataConfig(path=f"tau_{domain}/tasks_test.jsonl", format="tau"),
        rows=rows,
        options={"idle": "keep", "outputs": "part"},
        prompt="the domain's policy (wiki.md) as the system text, its tools, and as the first message the customer's whole "
        "instruction, which tau-bench gives to the customer's model",
        rule="the database at the end equals the one after the reference actions, and every output was stated",
        tokens=2048,
        samples="1 to 4, temperature 0; pass^k over the answers to a task",
        source="Yao et al., tau-bench, 2024, arXiv 2406.12045; data of github.com/sierra-research/tau-bench at 59a200c, MIT: "
        f"clone it, then `python -m temper.envs.service.published tau-bench/tau_bench/envs/{domain} tau_{domain}`",
        differs="without options.customer the customer is no model, states everything at once and agrees to all, so a score is "
        "not comparable with published ones; the tools are written anew after the published ones; numbers are equal by value",
    )


RETAIL = _preset("retail", "retail", 115)
AIRLINE = _preset("airline", "airline", 50)
