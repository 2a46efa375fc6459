"""The one list of stages. It is light: `temper --help` reads it, and importing the stages takes 10 s.

To add a stage, write `orchestrator/stages/NAME.py` with a value `STAGE` (`orchestrator/stages/stage.py` says what it
holds), and add a line here. Its command, `make NAME`, its section of the configuration and its checks follow.
"""

HELP = {
    "init": "make a fresh model, or take the one that model.path names",
    "sft": "supervised fine-tuning",
    "rft": "supervised fine-tuning on the model's own right answers",
    "dpo": "direct preference optimisation on pairs of answers",
    "rl": "reinforcement learning",
    "distill": "on-policy distillation from a teacher",
    "eval": "evaluate a run's newest model, or any model, on held-out tasks",
    "report": "write report.html and report.json",
}
"""What the command line says of each stage. Its name is that of its module in this folder, if `MODULES` names no other."""
MODULES = {"report": "temper.orchestrator.tools.inspect.report.stage"}
