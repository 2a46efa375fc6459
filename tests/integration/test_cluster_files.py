"""The image, the KubeRay job and the Slurm script agree with the checkout: names, versions, commands that load."""

import math
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import yaml

from temper.orchestrator.cluster.ray_jobs import STOP_S, STOP_WAIT
from temper.orchestrator.pipeline.config import load_unresolved_config

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "docs" / "clusters"
INSTRUCTIONS = {"FROM", "ARG", "RUN", "WORKDIR", "COPY", "ENV", "CMD", "USER"}


def pinned(package: str, lock: str) -> str:
    """The version of a package in a lock file."""
    found = re.search(rf"^{package}==(\S+)", (ROOT / "requirements" / lock).read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def gpus_of(recipe: str) -> int:
    """The number of GPUs in a recipe's badge, as in 2x8xH100-80G."""
    found = re.search(r"^# badge: planned for ((?:\d+x)+)", (ROOT / recipe).read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return math.prod(int(number) for number in found[1].split("x")[:-1])


def copied_by(rest: str) -> list[str]:
    """Return the sources of a COPY instruction."""
    return [word for word in rest.split()[:-1] if not word.startswith("--")]


def test_the_image_is_made_of_what_the_checkout_has() -> None:
    text = re.sub(r"\\\n\s*", " ", (PLACE / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    assert {word for word, _ in lines} <= INSTRUCTIONS
    assert [word for word, _ in lines][:2] == ["FROM", "ARG"]
    for sources in (copied_by(rest) for word, rest in lines if word == "COPY"):
        assert all((ROOT / source).exists() for source in sources), sources
    setup = next(rest for word, rest in lines if "make setup" in rest)
    assert "STACK=${STACK}" in setup
    copied = {
        source for word, rest in lines[: lines.index(["RUN", setup])] if word == "COPY" for source in copied_by(rest)
    }
    read = re.findall(r"requirements/", (ROOT / "requirements" / "install.sh").read_text(encoding="utf-8"))
    assert {one.rstrip("/") for one in read} | {"pyproject.toml", "setup.py", "__init__.py"} <= copied


def test_an_image_for_each_stack_has_a_user_of_its_own_and_no_secret() -> None:
    text = (PLACE / "Dockerfile").read_text(encoding="utf-8")
    stacks = re.findall(r"^#   docker build -f (\S+) --build-arg STACK=(\w+) -t temper:(\w+) \.$", text, re.MULTILINE)
    locks = {path.stem for path in (ROOT / "requirements").glob("[cg]pu.txt")}
    assert {stack for _, stack, _ in stacks} == {tag for _, _, tag in stacks} == locks
    assert all((ROOT / file).is_file() for file, _, _ in stacks)
    users = re.findall(r"^USER (\S+)$", text, re.MULTILINE)
    assert users == ["temper"]
    assert text.index("\nUSER ") < text.index("make setup\n")
    (uid,) = re.findall(r"useradd .*--uid (\d+) temper", text)
    job = (PLACE / "rayjob.yaml").read_text(encoding="utf-8")
    assert re.findall(r"runAsNonRoot: true, runAsUser: (\d+), fsGroup: (\d+)", job) == [(uid, uid)] * 2
    told = re.findall(r"^(?:ENV|ARG) (.+)$", text, re.MULTILINE)
    assert [line for line in told if re.search(r"TOKEN|KEY|SECRET|PASSWORD", line)] == []
    assert "HF_TOKEN" not in re.sub(r"#.*", "", job)  # it comes from the secret that the job names
    assert re.search(r"^ENV STACK=\$\{STACK\} ", text, re.MULTILINE)  # `make` in a container installs no other one
    linked = re.findall(r"/temper/(\.venv/bin/\w+)", text)
    assert linked == [".venv/bin/temper", ".venv/bin/ray"]


def test_what_git_ignores_and_what_may_hold_secrets_stays_out_of_an_image() -> None:
    kept_out = {line.removeprefix("**/") for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()}
    ignored = {line for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines() if line}
    assert ignored | {".git", ".env*", "*.pem", "*.key"} <= kept_out


def test_the_job_of_kuberay_runs_a_recipe_on_pods_of_one_image() -> None:
    job: dict[str, Any] = yaml.safe_load((PLACE / "rayjob.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == pinned("ray", "gpu.txt")
    words = shlex.shlex(job["spec"]["entrypoint"], posix=True, punctuation_chars=True)
    words.whitespace_split = True
    program, stage, path, *overrides = words  # no `&&` or `;`: KubeRay writes it into a line of shell
    assert (program, stage) == ("temper", "run")
    assert not {"&&", ";", "|", ">"} & {path, *overrides}
    config = load_unresolved_config(ROOT / path, overrides)
    pods = [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]
    containers = [container for pod in pods for container in pod["spec"]["containers"]]
    assert len({container["image"] for container in containers}) == 1
    for pod in pods:
        mounts = {one["name"]: one["mountPath"] for one in pod["spec"]["containers"][0]["volumeMounts"]}
        assert mounts.keys() == {volume["name"] for volume in pod["spec"]["volumes"]}
        assert mounts["runs"] == config.runs_dir
    wanted = [
        group["replicas"] * group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        for group in cluster["workerGroupSpecs"]
    ]
    assert sum(wanted) == gpus_of(path)
    head = cluster["headGroupSpec"]["template"]["spec"]
    wait_s = int(next(one["value"] for one in head["containers"][0]["env"] if one["name"] == STOP_WAIT))
    assert STOP_S <= wait_s < head["terminationGracePeriodSeconds"]
    assert job["spec"]["jobId"] == head["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert cluster["authOptions"] == {"mode": "token"}


def test_the_script_of_slurm_is_a_shell_script_that_starts_ray_and_a_run() -> None:
    script = PLACE / "run.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=10)
    text = script.read_text(encoding="utf-8")
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)", text, re.MULTILINE))
    assert {"nodes", "gpus-per-node", "time", "signal"} <= options.keys()
    assert options["mem"] == "0"  # all of a node: --exclusive does not give it
    steps = re.findall(r"^ *(srun [^\\]+?)(?:\\\n *)?ray start", text, re.MULTILINE)
    assert len(steps) == 2
    assert all("--cpu-bind=none" in step for step in steps)  # else Ray and all that it starts may have one core
    for step in steps:  # else srun takes the tasks of the whole job, and a node has Ray twice
        assert re.findall(r"--nodes=(\S+)", step) == re.findall(r"--ntasks=(\S+)", step) != []
    assert "/" not in options["output"]  # Slurm makes no folder for it
    asked = re.findall(r"sbatch (?:--nodes=(\d+) )?docs/clusters/run.sbatch (\S+)", text)
    assert len(asked) == 2
    for nodes, recipe in asked:
        load_unresolved_config(ROOT / recipe, [])
        assert int(nodes or options["nodes"]) * int(options["gpus-per-node"]) == gpus_of(recipe)
    assert 0 < text.index("RAY_AUTH_MODE=token RAY_AUTH_TOKEN\n") < text.index("ray start --head")
    assert text.index("ray start --head") < text.index("ray start --address") < text.index("temper run")
