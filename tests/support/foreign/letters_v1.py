"""A task set of verifiers: the share of the wanted letter in the reply, and a task whose reward raises."""

import verifiers.v1 as vf


class LetterData(vf.TaskData):
    wanted: str


class LetterTask(vf.Task[LetterData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def share(self, trace: vf.Trace) -> float:
        if self.data.wanted == "c":
            raise RuntimeError("no c here")
        reply = trace.last_reply or ""
        return reply.count(self.data.wanted) / max(1, len(reply))


class Letters(vf.Taskset[LetterTask, vf.TasksetConfig]):
    def load(self) -> list[LetterTask]:
        return [LetterTask(LetterData(prompt=f"Write {each}.", wanted=each), self.config.task) for each in "abc"]


__all__ = ["Letters"]
