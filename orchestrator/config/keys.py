"""Hints for an unknown key: the nearest key, or our name of another project's setting."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from temper.envs.core.bounds import SettingError
from temper.envs.core.setting import field_hints, part_of
from temper.orchestrator.run.redaction import redact

PEER_KEYS = {
    # TRL
    "num_generations": "rl.group_size",
    "per_device_train_batch_size": "learner.micro_batch_tokens",
    "gradient_accumulation_steps": "rl.groups_per_step",
    "max_completion_length": "rollout.limits.turn_tokens",
    "max_steps": "rl.steps",
    "num_train_epochs": "rl.steps",
    "num_iterations": "rl.epochs",
    "steps_per_generation": "rl.updates_per_step",
    "max_staleness": "rl.max_lag",
    "reward_funcs": "envs.NAME.reward",
    "beta": "rl.loss.kl_coefficient",
    "epsilon": "rl.loss.clip_low",
    "epsilon_high": "rl.loss.clip_high",
    "delta": "rl.loss.dual_clip",
    "entropy_coef": "rl.loss.entropy_bonus",
    "loss_type": "rl.loss.aggregation",
    "importance_sampling_level": "rl.loss.surrogate",
    "scale_rewards": "rl.loss.advantage",
    "mask_truncated_completions": "rl.loss.mask_truncated",
    "off_policy_mask_threshold": "rl.loss.negative_guard",
    "vllm_importance_sampling_clip_max": "rl.loss.importance_cap",
    "gradient_checkpointing": "learner.recompute",
    "max_grad_norm": "rl.optim.grad_clip",
    "peft_config": "learner.lora",
    "lora_r": "learner.lora.rank",
    "lora_alpha": "learner.lora.alpha",
    "model_name_or_path": "model.path",
    "dataset_name": "envs.NAME.data",
    "output_dir": "runs_dir",
    "run_name": "name",
    "save_steps": "rl.checkpoint_every",
    "save_total_limit": "checkpoints.keep",
    "eval_steps": "rl.eval_every",
    "report_to": "tracking.also",
    "vllm_mode": "placement",
    "vllm_max_model_length": "rollout.limits.total_tokens",
    "vllm_gpu_memory_utilization": "rollout.engine.gpu_memory_utilization",
    "vllm_tensor_parallel_size": "rollout.engine.tensor_parallel",
    # NeMo-RL
    "grpo.num_prompts_per_step": "rl.groups_per_step",
    "grpo.num_generations_per_prompt": "rl.group_size",
    "grpo.max_num_steps": "rl.steps",
    "grpo.val_period": "rl.eval_every",
    "grpo.normalize_rewards": "rl.loss.advantage",
    "grpo.use_leave_one_out_baseline": "rl.loss.advantage",
    "grpo.use_dynamic_sampling": "rl.max_replaced_groups",
    "grpo.overlong_filtering": "rl.loss.mask_truncated",
    "grpo.reward_shaping": "rl.shaping.overlong_buffer",
    "grpo.async_grpo.max_trajectory_age_steps": "rl.max_lag",
    "policy.model_name": "model.path",
    "policy.max_total_sequence_length": "rollout.limits.total_tokens",
    "policy.train_global_batch_size": "rl.updates_per_step",
    "policy.train_micro_batch_size": "learner.micro_batch_tokens",
    "policy.dtensor_cfg.lora_cfg": "learner.lora",
    "policy.generation.temperature": "rl.sampling.temperature",
    "policy.generation.max_new_tokens": "rollout.limits.turn_tokens",
    "policy.generation.colocated": "placement",
    "policy.generation.vllm_cfg.tensor_parallel_size": "rollout.engine.tensor_parallel",
    "checkpointing.save_period": "rl.checkpoint_every",
    "checkpointing.keep_top_k": "checkpoints.keep",
    "loss_fn.token_level_loss": "rl.loss.aggregation",
    "loss_fn.sequence_level_importance_ratios": "rl.loss.surrogate",
    "loss_fn.truncated_importance_sampling_ratio": "rl.loss.importance_cap",
    "loss_fn.ratio_clip_c": "rl.loss.dual_clip",
    "loss_fn.reference_policy_kl_type": "rl.loss.kl",
    "loss_fn.reference_policy_kl_penalty": "rl.loss.kl_coefficient",
    "loss_fn.ratio_clip_min": "rl.loss.clip_low",
    "loss_fn.ratio_clip_max": "rl.loss.clip_high",
    # verl; `lr` also of NeMo-RL and prime-rl
    "lr": "rl.optim.learning_rate",
    "actor_rollout_ref.model.path": "model.path",
    "actor_rollout_ref.model.lora_rank": "learner.lora.rank",
    "actor_rollout_ref.rollout.n": "rl.group_size",
    "actor_rollout_ref.rollout.temperature": "rl.sampling.temperature",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "rollout.engine.tensor_parallel",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "rollout.engine.gpu_memory_utilization",
    "actor_rollout_ref.actor.grad_clip": "rl.optim.grad_clip",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "rl.updates_per_step",
    "actor_rollout_ref.actor.ppo_epochs": "rl.epochs",
    "actor_rollout_ref.actor.loss_agg_mode": "rl.loss.aggregation",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "rl.loss.surrogate",
    "actor_rollout_ref.actor.clip_ratio_low": "rl.loss.clip_low",
    "actor_rollout_ref.actor.clip_ratio_high": "rl.loss.clip_high",
    "actor_rollout_ref.actor.clip_ratio_c": "rl.loss.dual_clip",
    "actor_rollout_ref.actor.entropy_coeff": "rl.loss.entropy_bonus",
    "actor_rollout_ref.actor.use_kl_loss": "rl.loss.kl_coefficient",
    "actor_rollout_ref.actor.kl_loss_coef": "rl.loss.kl_coefficient",
    "actor_rollout_ref.actor.kl_loss_type": "rl.loss.kl",
    "actor_rollout_ref.actor.router_replay": "learner.router_replay",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "learner.micro_batch_tokens",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": "learner.sequence_parallel",
    "algorithm.adv_estimator": "rl.loss.advantage",
    "algorithm.norm_adv_by_std_in_grpo": "rl.loss.advantage",
    "algorithm.filter_groups": "rl.max_replaced_groups",
    "algorithm.rollout_correction.rollout_is_threshold": "rl.loss.importance_cap",
    "custom_reward_function": "envs.NAME.reward",
    "data.train_batch_size": "rl.groups_per_step",
    "data.max_response_length": "rollout.limits.turn_tokens",
    "data.train_files": "envs.NAME.data",
    "data.val_files": "envs.NAME.eval_data",
    "trainer.experiment_name": "name",
    "trainer.logger": "tracking.also",
    "trainer.total_epochs": "rl.steps",
    "trainer.max_actor_ckpt_to_keep": "checkpoints.keep",
    "trainer.total_training_steps": "rl.steps",
    "trainer.save_freq": "rl.checkpoint_every",
    "trainer.test_freq": "rl.eval_every",
}
"""Settings of other projects with our nearest ones. A key without a section matches in any section."""


def require_known_keys(known: Mapping[str, Any], given: Mapping[str, Any], *, under: str = "") -> None:
    """Raise `SettingError`, with a hint, for the first unknown key. `known` has the type of each setting by its name."""
    for key, value, names in _unknown(known, given, under):
        shown = "..." if isinstance(value, Mapping) else redact({key: value})[key]
        hint = _hint(key, value, names, dotted_keys(known, under))
        raise SettingError(key, shown, f"unknown key {key.rpartition('.')[2]!r}; {hint}")


def _unknown(
    known: Mapping[str, Any], given: Mapping[str, Any], under: str
) -> Iterator[tuple[str, Any, Sequence[str]]]:
    """Yield each unknown key with its value and the keys of its section."""
    for name, value in given.items():
        key = f"{under}{name}"
        if name not in known:
            yield key, value, list(known)
            continue
        part, shape = part_of(known[name])
        if part is not None and isinstance(value, Mapping):
            inner = dict.fromkeys(value, part) if shape == "each" else field_hints(part)
            yield from _unknown(inner, value, f"{key}.")


def _hint(key: str, value: Any, names: Sequence[str], there: Sequence[str]) -> str:
    """Return a hint for a key that its section lacks. `names` are the keys of the section, `there` all keys."""
    if new := peer_key(key, value, there):
        return f"use {new}"
    section, _, word = key.rpartition(".")
    same = sorted((one for one in there if one.rpartition(".")[2] == word), key=len)
    below = [one for one in same if section and one.startswith(f"{section.partition('.')[0]}.")]
    nearer, near = (get_close_matches(word, names, n=1, cutoff=least) for least in (0.8, 0.6))
    found = below[:1] or _whole(section, nearer) or same[:3] or _whole(section, near)
    return f"did you mean {' or '.join(found)}?" if found else f"known keys are {', '.join(names)}"


def _whole(section: str, words: list[str]) -> list[str]:
    return [f"{section}.{word}".removeprefix(".") for word in words]


def peer_key(key: str, value: Any = None, there: Sequence[str] = ()) -> str | None:
    """Return our name of another project's setting, or of one below it, None for any other key.

    It is in the section of the key if that has such a setting, so if it is in `there`.
    """
    keys = [key]
    while isinstance(value, Mapping) and value:
        word, value = next(iter(value.items()))
        keys.append(f"{keys[-1]}.{word}")
    found = [PEER_KEYS[name] for one in keys for name in (one, one.rpartition(".")[2]) if name in PEER_KEYS]
    if not found:
        return None
    own = f"{key.partition('.')[0]}.{found[0].partition('.')[2]}"  # of the stage that has the key
    return own if own in there else found[0]


def dotted_keys(known: Mapping[str, Any], under: str = "") -> list[str]:
    """Return the dotted keys of all values and sections. `*` is a key of the user."""
    found = [f"{under}{name}" for name in known]
    for name, hint in known.items():
        part, shape = part_of(hint)
        if part is not None:
            found += dotted_keys(field_hints(part), f"{under}{name}.*." if shape == "each" else f"{under}{name}.")
    return found
