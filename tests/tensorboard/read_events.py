"""read_events.py VENV WRITE_EVENTS CART_POLE: reads with the tensorboard package what write_events wrote, and what a run
did that was killed and went on. The package is installed into the virtual environment VENV if it is not there. Exit
code 77, saying why, when it cannot be had."""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time


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


def check_run(directory, resumed_at):
    """The curves of a run that went on at a learner step: each goes up to it and beyond, no step is there twice, and
    nowhere is a hole."""
    from tensorboard.backend.event_processing import event_accumulator

    for folder, resumed_at in ((directory, resumed_at), (os.path.join(directory, "by_environment_steps"), None)):
        events = event_accumulator.EventAccumulator(folder, size_guidance={"scalars": 0}, purge_orphaned_data=True)
        events.Reload()
        tags = events.Tags()["scalars"]
        assert any(tag.startswith("evaluation/mean_return") for tag in tags), tags
        for tag in tags:
            steps = [e.step for e in events.Scalars(tag)]
            gaps = [b - a for a, b in zip(steps, steps[1:])]
            assert all(gap > 0 for gap in gaps), f"{tag}: a step is there twice: {steps}"
            if tag == "learner/loss":
                assert any(step < resumed_at for step in steps), f"{tag}: nothing before {resumed_at}: {steps}"
                assert sum(step > resumed_at for step in steps) >= 2, f"{tag}: nothing after {resumed_at}: {steps}"
                assert max(gaps) <= 10 * statistics.median(gaps), f"{tag}: a hole: {steps}"
    print(f"read by tensorboard: a run that was killed and went on at learner step {resumed_at}, without a hole")


def killed_and_resumed(cart_pole, directory):
    """Lets a run write events, kills it after some checkpoints, and goes on with it. Returns the learner step."""
    command = [cart_pole, "--run-dir", os.path.join(directory, "kept"), "--resume", "--output", "", "--target-return", "501",
               "--tensorboard", os.path.join(directory, "events"), "--checkpoint-every", "0.03",
               "--evaluation-interval", "500", "--evaluation-episodes", "5"]
    with subprocess.Popen([*command, "--max-seconds", "600"], stdout=subprocess.DEVNULL) as run:
        checkpoints = os.path.join(directory, "kept", "checkpoints")
        begin = time.monotonic()
        while run.poll() is None and (time.monotonic() - begin < 16 or not os.listdir(checkpoints)):
            assert time.monotonic() - begin < 120, "no checkpoint"
            time.sleep(0.1)
        run.send_signal(signal.SIGKILL)
    told = subprocess.run([*command, "--max-seconds", "34"], capture_output=True, text=True).stdout
    (line,) = [line for line in told.splitlines() if line.startswith("resumed ")]
    return int(line.split("learner step ")[1].split(",")[0])


def main():
    if sys.argv[1] == "--check":
        return check(sys.argv[2])
    if sys.argv[1] == "--check-run":
        return check_run(sys.argv[2], int(sys.argv[3]))
    venv, write_events, cart_pole = sys.argv[1:]
    python = python_with_tensorboard(venv)
    with tempfile.TemporaryDirectory() as directory:
        run = os.path.join(directory, "run")
        subprocess.run([write_events, run], check=True)
        subprocess.run([python, __file__, "--check", run], check=True)
        step = killed_and_resumed(cart_pole, directory)
        events = os.path.join(directory, "events")
        subprocess.run([python, __file__, "--check-run", events, str(step)], check=True)


main()
