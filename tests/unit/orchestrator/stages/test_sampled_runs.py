"""Every stage that samples, in a real run with its own sampling settings."""

import json
from pathlib import Path

import pytest
from support import tiny_models
from support.fault_job import SYNCHRONOUS, rows, runs
from support.healing import audited

SETTINGS = [
    "stages=[init,rft,dpo,rl,distill]",
    *("rft.tasks=48", "rft.steps=2", "rft.batch_size=8", "rft.sampling.top_p=0.9"),
    *("dpo.tasks=128", "dpo.steps=2", "dpo.batch_size=4", "dpo.sampling.top_k=50", "dpo.sampling.temperature=0.8"),
    *("rl.steps=2", "rl.sampling.temperature=0.7", *SYNCHRONOUS),
    *("distill.steps=2", "distill.groups_per_step=4", "distill.group_size=2", "distill.max_lag=0"),
    "distill.sampling.temperature=1.5",
]
TEMPERATURES = {"rl": 0.7, "distill": 1.5}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_stages_train_on_what_was_sampled_as_they_say(tmp_path: Path) -> None:
    teacher = tiny_models.nemotron_h(tmp_path / "teacher")
    with runs() as found:
        job = found.start("sampled", *SETTINGS, f"distill.teacher.path={teacher}")
        assert job.end() == 0, job.output
        audited(job.run)
        assert len(rows(job.run, "rft")) == len(rows(job.run, "dpo")) == 2
        for stage, temperature in TEMPERATURES.items():
            (file,) = (job.run / "trajectories").glob(f"{stage}-2.jsonl")
            answers = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
            assert {answer["sampling"]["temperature"] for answer in answers} == {temperature}
            measured = rows(job.run, stage)
            assert len(measured) == 2
            gaps = [row.values["train/mismatch_abs"] for row in measured]
            assert max(gaps) < 1e-3, gaps  # learner and engine use the same temperature
            print(stage, "gaps", gaps, "kl", [row.values.get("train/kl") for row in measured])
