"""The model: whether its files are whole, and whether it thinks, calls tools and ends turns as environments need."""

from collections.abc import Iterator

from temper.orchestrator.pipeline.data_files import is_complete
from temper.orchestrator.pipeline.finding import Finding, failure, ok, warning
from temper.orchestrator.pipeline.start_checks import check_format, check_model
from temper.orchestrator.tools.preflight.doctor.target import CheckTarget
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.weights.weight_files import tensor_names

HEAD = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"


def inspect_files(target: CheckTarget) -> Iterator[Finding]:
    if name := target.to_download:
        yield warning(f"{name} is not downloaded, so it is not checked", f"hf download {name}")
        return
    if file := target.to_convert:
        shape = target.plan.model.shape
        text = f"{file} would be converted, {shape.parameters:,} parameters, {shape.vocabulary:,} tokens"
        yield warning(
            f"{text}; the converted model is not checked", "start the run, or run `temper doctor --plan` for its memory"
        )
        return
    where = "a fresh hybrid" if target.model is None else str(target.model)
    yield ok(f"{where}, {target.start.parameters:,} parameters, {target.shape.vocabulary:,} tokens")


def inspect_tokenizer(target: CheckTarget) -> Iterator[Finding]:
    for judge in target.config.judges.values():
        if not judge.on_hub or is_complete(judge):
            load_tokenizer(judge.folder)
    yield ok(f"{len(target.start.tokenizer):,} tokens for {target.shape.vocabulary:,} rows of the embedding")


def check_thinking_tags(target: CheckTarget) -> Iterator[Finding]:
    """Check the thinking tags, and whether the stages' thinking modes work."""
    if target.model is not None:
        check_model(target.model, target.config)
    tags = target.start.renderer.format.tags
    yield ok("the model has no thinking tags" if tags is None else f"{tags.opening} to {tags.closing}")


def inspect_turns(target: CheckTarget) -> Iterator[Finding]:
    ends = target.start.renderer.format.ends
    pad = target.start.tokenizer.pad_token
    if pad in ends:
        yield warning(f"{pad} ends a turn and pads batches too", "set another model.end_of_turn, if the model has one")
    yield ok(f"a turn ends with {' or '.join(ends)}")


def inspect_template(target: CheckTarget) -> Iterator[Finding]:
    """Render a reference dialogue, read it, and render it again."""
    if target.data_is_here:
        form = target.start.renderer.format
        read = f"calls are written as {form.name}" if form.reads_calls else f"no tool calls ({form.no_calls})"
        yield from check_format(target.start)
        yield ok(f"a reference dialogue is read back correctly; {read}")


def inspect_output_layer(target: CheckTarget) -> Iterator[Finding]:
    """Compare the output layer of the configuration, which may be tied to the embedding, with the files."""
    if target.model is None:
        yield ok("a separate layer")
        return
    names = tensor_names(target.model)
    tied = bool(target.model_config.get_text_config(decoder=True).tie_word_embeddings)
    has_head = any(name.endswith(HEAD) for name in names)
    has_embedding = any(name.endswith(EMBEDDING) for name in names)
    if tied and has_head and has_embedding:
        yield warning(
            f"config.json ties the output layer to the embedding, so {HEAD} in the files is ignored",
            "set tie_word_embeddings in config.json to false, if the layer was trained separately",
        )
    elif not tied and has_embedding and not has_head:
        yield failure(
            f"config.json has a separate output layer, but the files have no {HEAD}: it would be random",
            "set tie_word_embeddings in config.json to true, or download the model again",
        )
    else:
        yield ok("it is the embedding (tied)" if tied else "a separate layer")
