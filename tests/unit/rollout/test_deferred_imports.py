"""Libraries that transformers imports for functions that no run calls."""

import subprocess
import sys

CHECK = """
import sys
import temper.rollout.deferred_imports
from transformers import AutoModelForCausalLM
from transformers.generation import candidate_generator
from transformers.loss import loss_for_object_detection
AutoModelForCausalLM.from_config
assert not {"scipy", "sklearn", "pandas"} & sys.modules.keys()
assert list(loss_for_object_detection.linear_sum_assignment([[4, 1], [2, 3]])[1]) == [1, 0]
assert list(candidate_generator.roc_curve([0, 1], [0.1, 0.9])[1]) == [0, 1, 1]
import scipy.optimize, sklearn.metrics
assert scipy.optimize.minimize and sklearn.metrics.accuracy_score([1], [1]) == 1
"""


def test_a_deferred_function_imports_its_library_when_it_is_called() -> None:
    found = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
