"""The type of a layer, by the names of its tensors."""

from orchestrator.replaying.layers import types_of


def test_a_gated_delta_net_is_linear_attention_and_a_mixer_with_the_same_tensors_mamba() -> None:
    delta = [f"model.layers.0.linear_attn.{part}" for part in ("in_proj_qkvz.weight", "conv1d.weight", "A_log")]
    mamba = [f"backbone.layers.1.mixer.{part}" for part in ("in_proj.weight", "conv1d.weight", "A_log")]
    assert set(types_of(delta).values()) == {"linear attention"}
    assert set(types_of(mamba).values()) == {"mamba"}
