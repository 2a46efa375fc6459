"""The list of stages. It is light, since `temper --help` reads it and importing the stages takes 10 s.

To add a stage, write `orchestrator/stages/NAME.py` with a value `STAGE` (see `orchestrator/stages/stage.py`) and add a line
here. Its command, `make NAME`, its section of the configuration and its checks follow.
"""

HELP = {
    "init": "use the model of model.path, or create a fresh one",
    "sft": "supervised fine-tuning",
    "rft": "supervised fine-tuning on the model's own right answers",
    "dpo": "direct preference optimisation on pairs of answers",
    "rl": "reinforcement learning",
    "distill": "on-policy distillation from a teacher",
    "eval": "evaluate a run's newest model, or any model, on held-out tasks",
    "report": "write report.html and report.json",
}
"""Help text of each stage by name. The module in this folder has the same name."""
