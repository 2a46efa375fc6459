"""A task set of verifiers: the more letters a, the better. Its tools and turns are of verifiers."""

import verifiers.v1 as vf


class LetterData(vf.TaskData):
    wanted: str


class LetterTask(vf.Task[LetterData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def share(self, trace: vf.Trace) -> float:
        reply = trace.last_reply or ""
        return reply.count(self.data.wanted) / max(1, len(reply))


class Letters(vf.Taskset[LetterTask, vf.TasksetConfig]):
    def load(self) -> list[LetterTask]:
        return [LetterTask(LetterData(prompt=f"Write {each}.", wanted=each), self.config.task) for each in "ab"]


__all__ = ["Letters"]
