"""Engines of several GPUs, without a GPU: vLLM's executor inside a placement group."""

from pathlib import Path

import pytest
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from temper.rollout.engines import vllm_settings

TESTS = Path(__file__).parents[3]


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize(("processes", "backend"), [(1, "uni"), (2, "mp")])
def test_the_processes_of_an_engine_are_its_own(
    processes: int, backend: str, on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_settings, "ON_CPU", on_cpu)
    assert vllm_settings.engine_arguments(processes=processes)["distributed_executor_backend"] == backend


def backends(processes: int) -> tuple[str, str]:
    """The executor of an engine on GPUs with these arguments, and vLLM's default here."""
    from temper.rollout.engines import vllm_settings

    vllm_settings.ON_CPU = False
    vllm_settings.prepare_environment()
    from vllm.config import ParallelConfig

    given = vllm_settings.engine_arguments(processes=processes)["distributed_executor_backend"]
    ours, theirs = (
        ParallelConfig(tensor_parallel_size=processes, distributed_executor_backend=one) for one in (given, None)
    )
    return str(ours.distributed_executor_backend), str(theirs.distributed_executor_backend)


@pytest.mark.slow
def test_an_engine_of_two_gpus_in_one_bundle_is_not_left_to_ray() -> None:
    """vLLM's default would be Ray, which refuses a bundle of two GPUs."""
    environment = {"env_vars": {"PYTHONPATH": str(TESTS)}}
    ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    try:
        strategy = PlacementGroupSchedulingStrategy(placement_group([{"GPU": 2.0, "CPU": 1.0}]))
        asked = ray.remote(num_gpus=2, num_cpus=1, scheduling_strategy=strategy)(backends)
        assert ray.get(asked.remote(2), timeout=120) == ("mp", "ray")
    finally:
        ray.shutdown()
