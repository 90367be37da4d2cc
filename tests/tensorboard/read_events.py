"""read_events.py VENV WRITE_EVENTS: reads what write_events wrote with the tensorboard package, which is installed
into the virtual environment VENV if it is not there. Exit code 77, saying why, when it cannot be had."""

import os
import subprocess
import sys
import tempfile


def python_with_tensorboard(venv):
    python = os.path.join(venv, "bin", "python")
    try:
        if not os.path.exists(python):
            subprocess.run([sys.executable, "-m", "venv", venv], check=True, capture_output=True)
        if subprocess.run([python, "-c", "import tensorboard"], capture_output=True).returncode != 0:
            subprocess.run(
                [python, "-m", "pip", "install", "-q", "--retries", "0", "--timeout", "10", "tensorboard"],
                check=True, capture_output=True, timeout=240)
    except (subprocess.SubprocessError, OSError) as error:
        print("not tried: the package tensorboard cannot be installed here:", error)
        sys.exit(77)
    return python


def check(directory):
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.plugins.hparams import metadata
    from tensorboard.util import tensor_util

    # TensorBoard turns values of older kinds into tensors before it shows them; so does this.
    events = event_accumulator.EventAccumulator(
        directory, size_guidance={"scalars": 0, "histograms": 0, "tensors": 0}, purge_orphaned_data=True)
    events.Reload()

    loss = events.Scalars("learner/loss")
    assert [e.step for e in loss] == list(range(100)), [e.step for e in loss]
    assert [e.value for e in loss] == [1.0] * 60 + [2.0] * 40

    (histogram,) = events.Histograms("replay/priorities")
    value = histogram.histogram_value
    assert (histogram.step, value.num, value.min, value.max, value.sum) == (10, 4, 0.5, 4.0, 7.0), value
    assert sum(value.bucket) == 4 and len(value.bucket) == len(value.bucket_limit)

    (text,) = events.Tensors("options")
    assert tensor_util.make_ndarray(text.tensor_proto).item() == b"seed = 7"
    assert "options" in events.PluginTagToContent("text")

    hparams = events.PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(hparams["_hparams_/session_start_info"])
    assert start.hparams["alpha"].number_value == 0.6
    assert start.hparams["optimizer"].string_value == "adam"
    experiment = metadata.parse_experiment_plugin_data(hparams["_hparams_/experiment"])
    assert [m.name.tag for m in experiment.metric_infos] == ["learner/loss"]
    print("read by tensorboard: scalars, histogram, text, hparams, a run that went on")


def main():
    if sys.argv[1] == "--check":
        return check(sys.argv[2])
    venv, write_events = sys.argv[1:]
    python = python_with_tensorboard(venv)
    with tempfile.TemporaryDirectory() as directory:
        run = os.path.join(directory, "run")
        subprocess.run([write_events, run], check=True)
        sys.exit(subprocess.run([python, __file__, "--check", run]).returncode)


main()
