"""The rows of the table of faults: what is promised of each, and where users of other projects met it.

`seen` and `held_by` (a file of `tests/` and its test) are given where a fast test of `make test` holds the row; of all others
`make test-faults` writes down what it saw.
"""

from support.fault_row import Row, threads

HEALS = "a new one takes its place on the current weights, its groups are issued again with their tickets and seeds"
LEARNER_HEALS = "the ranks are made again, the stage goes on from its newest checkpoint in the same process"
SAME = "the same command goes on; no group is trained twice or lost"

ROWS = (
    Row(
        name="worker-killed",
        fault="kill -9 of a rollout worker while it generates",
        promised=HEALS,
        threads=threads("NeMo-RL #3488", "SkyRL #1350", "SkyRL PR #1691"),
    ),
    Row(
        name="engine-killed",
        fault="kill -9 of an engine's process",
        promised=HEALS,
        threads=threads("SkyRL #1350", "SkyRL PR #1691"),
    ),
    Row(
        name="worker-stopped",
        fault="SIGSTOP of a rollout worker",
        promised=f"diagnosed and killed after supervision.silent_s; {HEALS}",
        threads=threads("SkyRL #1173", "verl #7180", "verl #3873"),
    ),
    Row(
        name="engine-stopped",
        fault="SIGSTOP of an engine's process",
        promised=f"diagnosed and killed after supervision.silent_s, also in a push, since its worker answers for it; {HEALS}",
        threads=threads("SkyRL #1173", "verl #7180"),
    ),
    Row(
        name="engine-killed-asleep",
        fault="kill -9 of an engine's process while the learner has the device that they share (`placement: shared`)",
        promised=f"when the engines have their shift again {HEALS}",
    ),
    Row(
        name="rank-killed",
        fault="kill -9 of a rank of the learner",
        promised=LEARNER_HEALS,
        threads=threads("prime-rl #834", "NeMo-RL PR #3403"),
    ),
    Row(
        name="rank-stopped",
        fault="SIGSTOP of a rank of the learner",
        promised=f"diagnosed and killed after supervision.silent_s; {LEARNER_HEALS}",
        threads=threads("verl #7180", "verl #3873"),
    ),
    Row(
        name="driver-killed",
        fault="kill -9 of the driver at 10 seeded moments (20 in `make test-long`): first stage, checkpoint, evaluation, push, "
        "step",
        promised="each time the same command goes on; in the end tickets, tokens, rewards and order are those of an "
        "undisturbed run (lag 0, one worker), and nothing is left behind",
        threads=threads("OpenRLHF #1322", "NeMo-RL PR #3599", "NeMo-RL PR #3480", "TRL PR #5911"),
    ),
    Row(
        name="all-terminated",
        fault="SIGTERM to all processes of a run",
        promised=f"the run ends and leaves no process; {SAME}",
        threads=threads("prime-rl PR #3050", "prime-rl #1360"),
    ),
    Row(
        name="interrupted-twice",
        fault="two SIGINTs",
        promised=f"the second one ends the run at once; {SAME}",
        threads=threads("prime-rl #1360"),
    ),
    Row(
        name="head-gone",
        fault="the head of the cluster gone (kill -9 of its GCS)",
        promised=f"the run ends by itself; {SAME}",
        threads=threads("prime-rl PR #3050"),
    ),
    Row(
        name="node-gone",
        fault="a rollout worker on another node stopped, then that node gone",
        promised="looked at on its own node, killed and replaced; the run goes on on the other node",
        threads=threads("NeMo-RL #3488"),
    ),
    Row(
        name="host-gone",
        fault="a host gone that has a rank of the learner and an engine",
        promised="the ranks are made again once the cluster has room for all, within deadlines.start_s, and the stage goes on "
        "from its newest checkpoint in the same process; so do engines, without a deadline while others serve",
        threads=threads("NeMo-RL #3488"),
    ),
    Row(
        name="disk-checkpoint",
        fault="no space for a checkpoint (full tmpfs)",
        promised="known before an older one is touched; the run ends, named; with space the same command goes on",
    ),
    Row(
        name="disk-metrics",
        fault="no space for metrics.jsonl",
        promised="the run ends cleanly, named; with space the same command goes on, each row once",
    ),
    Row(name="disk-trajectories", fault="no space for trajectory files", promised="said; the run goes on"),
    Row(
        name="disk-tracker",
        fault="no space for the tracker's database",
        promised="said; the run goes on",
    ),
    Row(
        name="checkpoint-corrupted",
        fault="a checkpoint with one byte changed",
        promised="named, the one before is taken; the steps in between are made again",
        threads=threads("rllm #59"),
        held_by="test_orchestrator_run_checkpoint.py::test_a_damaged_checkpoint_is_named_and_the_one_before_is_used",
        seen="named in a warning, the one before is taken",
    ),
    Row(
        name="checkpoint-truncated",
        fault="a checkpoint whose largest file is cut in half",
        promised="named, the one before is taken; the steps in between are made again",
        held_by="test_orchestrator_run_checkpoint.py::test_a_damaged_checkpoint_is_named_and_the_one_before_is_used",
        seen="named in a warning, the one before is taken",
    ),
    Row(
        name="push-damaged",
        fault="weights damaged on their way to the engines",
        promised="noticed before generation pauses and after loading; the engine keeps or gets whole weights",
        threads=threads("SkyRL PR #1345", "verl #7495"),
        held_by="test_rollout_weights_push.py::test_whole_weights_that_were_damaged_on_the_way_are_refused",
        seen="refused by the checksum, by every transport; damaged deltas and an overwritten segment are refused too",
    ),
    Row(
        name="push-receiver-dies",
        fault="an engine that dies, or fails twice, while it takes a push",
        promised="it is replaced, the others confirm the push; no newcomer serves older weights",
        threads=threads("verl PR #7987", "NeMo-RL PR #3403", "NeMo-RL PR #3296"),
        held_by="test_rollout_pool_healing.py::test_those_that_die_in_a_push_are_replaced_and_the_others_confirm_it",
        seen="so by plain workers; those that lacked a damaged push get it once more",
    ),
    Row(
        name="too-many-deaths",
        fault="workers that die again and again",
        promised="after supervision.restarts of one worker within window_s the run ends with status 3, the deaths named",
        threads=threads("NeMo-RL #3488"),
        held_by="test_rollout_pool_healing.py::test_too_many_deaths_end_what_waits_and_are_named",
        seen="what waits ends, the deaths are named; each of eight workers may die once where one may",
    ),
    Row(
        name="poison",
        fault="a task that every rollout worker dies of",
        promised="after three deaths it is given up: failed answers, counted and named; those of other workers are answered",
        held_by="test_rollout_pool_deaths.py::"
        "test_a_task_that_kills_every_worker_fails_and_is_named_and_the_others_are_answered",
        seen="so by plain workers: one ticket of ten fails, the restart limit holds",
    ),
    Row(
        name="scaled",
        fault="workers added and removed while the run goes on",
        promised="newcomers serve on the current weights, those that go finish their groups first",
    ),
    Row(
        name="killed-anywhere",
        fault="a stage killed at each place where it waits",
        promised="it goes on exactly: tickets, groups, episodes, sums",
        threads=threads("OpenRLHF #1322", "TRL PR #5911"),
        held_by="test_orchestrator_resume.py::test_a_stage_that_is_killed_at_an_await_goes_on_exactly",
        seen="equal to an undisturbed stage; a hundred places in `make test-faults`",
    ),
    Row(
        name="in-flight",
        fault="SIGTERM, and later kill -9, of a run that samples while it learns (max_lag 1)",
        promised="its episodes in flight go on from the tokens that they had at the checkpoint",
    ),
    Row(
        name="left-over",
        fault="the same of a run that leaves slow groups to later steps (max_lag 3, over_sampling 1)",
        promised="the same; no group is trained more than max_lag versions behind, none is lost",
    ),
    Row(
        name="nan-gradient",
        fault="a loss that is NaN at one step",
        promised="the update is skipped on all ranks and counted, the weights stay, the run goes on",
        threads=threads("NeMo-RL PR #1838", "open-instruct #1473"),
    ),
    Row(
        name="nan-for-ever",
        fault="losses that are NaN from a step on",
        promised="the stage ends after learner.max_skipped steps in a row, with their trajectories on disk",
        threads=threads("NeMo-RL PR #1838"),
        held_by="test_orchestrator_loop.py::"
        "test_steps_that_are_skipped_one_after_the_other_end_the_stage_with_their_trajectories_on_disk",
        seen="the stage ends at the limit, the trajectories lie on disk",
    ),
    Row(
        name="env-raises",
        fault="an environment that raises",
        promised="a typed failure of its episode; groups of other environments are trained",
        threads=threads("prime-rl #3140", "prime-rl PR #1801"),
    ),
    Row(
        name="env-hangs",
        fault="an environment that hangs",
        promised="its episode ends at rollout.limits.timeout_s, nobody else waits",
        threads=threads("NeMo-RL #3238", "SkyRL #1173"),
    ),
    Row(
        name="env-rubbish",
        fault="an environment that returns rubbish",
        promised="a typed failure of its episode",
        threads=threads("prime-rl #3140"),
    ),
    Row(
        name="env-exits",
        fault="an environment that exits",
        promised="a typed failure of its episode; the worker lives",
        threads=threads("prime-rl #3140"),
    ),
    Row(
        name="grader-hangs",
        fault="answers that a grader hangs on",
        promised="killed from outside in two seconds, wrong; other answers are judged meanwhile",
        threads=threads("SvS #3"),
        held_by="test_envs_mathematics_hostile.py::test_hostile_answers_are_wrong_within_two_seconds",
        seen="towers of powers, factorials and sums are wrong within two seconds",
    ),
    Row(
        name="tracker-away",
        fault="the tracking server away",
        promised="nothing waits for it; what it missed is sent when it is back, by this process or a later one",
        held_by="test_orchestrator_run_tracking.py::"
        "test_a_server_that_is_away_delays_nothing_and_is_made_up_for_by_a_later_process",
        seen="calls return at once, a later process sends every row",
    ),
    Row(
        name="tracker-slow",
        fault="the tracking server takes connections and answers nothing",
        promised="no step waits for it",
    ),
    Row(
        name="tracker-dies",
        fault="the tracking server killed in mid-run and back later, then kill -9 of the driver",
        promised="said; what it missed is sent when it is back; in the end one run has each step once, as metrics.jsonl",
    ),
    Row(
        name="tracker-refuses",
        fault="a tracking server that refuses an artifact",
        promised="said at once and at the end; metrics and other files are sent all the same",
        held_by="test_orchestrator_run_tracking.py::"
        "test_files_that_can_not_be_stored_hold_up_no_metrics_and_are_said_at_once_and_at_the_end",
        seen="a line says so each time, all metrics arrive",
    ),
    Row(
        name="tracker-locked",
        fault="the tracker's database locked by another process",
        promised="no step and no end waits for it; said; what it missed is sent by the next process",
        held_by="test_orchestrator_run_tracking.py::"
        "test_a_store_that_is_locked_delays_neither_rows_nor_the_end_and_gets_all_later",
        seen="rows are written at once, the end comes in its time, each row arrives once",
    ),
    Row(
        name="rows-malformed",
        fault="malformed rows of data",
        promised="named by file and line, or left out and counted",
        held_by="test_envs_source.py::test_a_bad_row_is_named_by_file_and_line_or_skipped_and_counted",
        seen="every kind of bad row is named by its line, or counted",
    ),
    Row(
        name="rows-changed",
        fault="a data file that changed between two starts",
        promised="noticed by its content and refused, or the run is forked; one that moved is the same",
        held_by="test_envs_core_setting.py::test_data_that_changed_is_noticed_and_data_that_moved_is_the_same",
        seen="the file is named, the run refused",
    ),
    Row(
        name="rows-duplicate",
        fault="duplicate rows, separators of Unicode, a byte order mark, a line of 100 MB",
        promised="counted, or no trouble",
        held_by="test_orchestrator_data_chat_file.py::test_what_is_remarkable_about_rows_is_counted",
        seen="the counts are those that were planted",
    ),
    Row(
        name="clock-jumps",
        fault="the wall clock jumps a day ahead and two days back while the run goes on",
        promised="no deadline passes and none stands still: ages are taken from a clock that can't be set",
    ),
    Row(
        name="same-name",
        fault="two runs of one name",
        promised="the second one refuses at once, the first goes on",
    ),
)
