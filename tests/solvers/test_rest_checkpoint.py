"""A solve of the aNTK that is interrupted goes on from where it was."""

import numpy as np
import pytest

import adakern as ak
from adakern.checkpoints import Checkpoint
from adakern.solvers import rest, rest_task
from adakern.solvers.atoms import Atoms

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((6, 3)), np.sign(RNG.standard_normal(6))
DEEP = ak.ANTK(ak.MLP(2, "relu"), richness=3.0, decay=0.3)


def solve(limit=DEEP, **options):
    return ak.solve(limit, X, Y, particles=32, **options)


@pytest.fixture(scope="module")
def whole():
    return solve()


@pytest.fixture
def stop(monkeypatch):
    """Make the solver stop when it has begun a number of times to say what begins like this, as by Ctrl-C."""

    def when(text, count):
        left, before = [count], [""]
        made = rest_task.Meter

        def meter(most, advance):
            def told(message, amount):
                left[0] -= message.startswith(text) and not before[0].startswith(text)
                before[0] = message
                if left[0] < 0:
                    raise KeyboardInterrupt
                advance(message, amount)

            return made(most, told)

        monkeypatch.setattr(rest, "Meter", meter)

    yield when
    monkeypatch.undo()


@pytest.mark.parametrize(("text", "count", "again"), [("flow", 0, [0, 1]), ("stationary", 0, [1]), ("flow", 1, [1])])
def test_going_on(whole, stop, tmp_path, monkeypatch, text, count, again):
    """In the flow, in the descent, and in the second start: what is done is not done again."""
    file = tmp_path / "run.checkpoint"
    stop(text, count)
    with pytest.raises(KeyboardInterrupt):
        solve(checkpoint=file)
    assert file.exists()
    monkeypatch.undo()
    begun = []
    follow = rest.followed

    def followed(task, seed, start, *rest):
        begun.append((start, rest[-1].network is not None))
        return follow(task, seed, start, *rest)

    monkeypatch.setattr(rest, "followed", followed)
    resumed = solve(checkpoint=file)
    assert not file.exists() and resumed.converged
    assert [start for start, _ in begun] == again
    assert begun[0][1] == (text == "flow")
    assert len(resumed.stats["starts"]) == 2
    assert resumed.stats["objective"] == pytest.approx(whole.stats["objective"], rel=1e-5)
    np.testing.assert_allclose(resumed.fitted, whole.fitted, atol=1e-3)


@pytest.mark.parametrize("depth", [1, 2])
def test_more_steps_go_on(tmp_path, depth):
    file = tmp_path / "run.checkpoint"
    limit = ak.ANTK(ak.MLP(depth, "tanh"), richness=3.0, decay=0.3)
    first = solve(limit, steps=20, checkpoint=file, throw=False)
    assert not first.converged and file.exists()
    second = solve(limit, checkpoint=file)
    assert second.converged and second.stats["steps"] > first.stats["steps"] and not file.exists()
    assert second.stats["objective"] < first.stats["objective"]


def test_a_checkpoint_of_another_problem_is_refused(tmp_path, stop, monkeypatch):
    file = tmp_path / "run.checkpoint"
    stop("flow", 0)
    with pytest.raises(KeyboardInterrupt):
        solve(checkpoint=file)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="belongs to a run with another options"):
        solve(checkpoint=file, seed=1)
    assert file.exists()


IMAGES, LABELS = np.random.default_rng(2).standard_normal((4, 4, 4, 1)), np.array([1.0, -1.0, -1.0, 1.0])


def of_images(depth, **options):
    limit = ak.ANTK(ak.CNN(depth, window=2, stride=2, readout="mean"), richness=3.0, decay=0.2)
    return ak.solve(limit, IMAGES, LABELS, particles=32, **options)


@pytest.fixture(scope="module")
def whole_images():
    return of_images(2)


@pytest.mark.parametrize("text", ["flow", "stationary"])
def test_images_go_on(whole_images, stop, tmp_path, monkeypatch, text):
    """A CNN, in the flow and in the descent: from what the file has of it."""
    file = tmp_path / "run.checkpoint"
    stop(text, 0)
    with pytest.raises(KeyboardInterrupt):
        of_images(2, checkpoint=file)
    monkeypatch.undo()
    held = []

    class Journal(rest.Journal):
        def __init__(self, *rest):
            super().__init__(*rest)
            held.append("flow" if self.network is not None else "stationary" if self.atoms is not None else "nothing")

    monkeypatch.setattr(rest, "Journal", Journal)
    resumed = of_images(2, checkpoint=file)
    assert held == [text]
    assert not file.exists() and resumed.converged and len(resumed.stats["starts"]) == 2
    assert resumed.stats["objective"] == pytest.approx(whole_images.stats["objective"], rel=1e-5)
    np.testing.assert_allclose(resumed.fitted, whole_images.fitted, atol=1e-3)


def test_more_steps_of_images_go_on(tmp_path):
    """One hidden layer, by Newton's method."""
    file = tmp_path / "run.checkpoint"
    first = of_images(1, steps=2, checkpoint=file, throw=False)
    assert not first.converged and file.exists()
    second = of_images(1, checkpoint=file)
    assert second.converged and not file.exists() and len(second.stats["starts"]) == 2
    assert second.certificate < 1e-4 < first.certificate
    assert second.stats["objective"] < first.stats["objective"]


def test_a_start_from_a_smaller_richness_is_known_as_one_after_an_interruption(tmp_path):
    """Cut before it has ended, and ended without having come to rest."""
    atoms = Atoms((np.ones((1, 3)),), (np.ones(1),), 0.0)
    meter = rest_task.Meter(10, lambda message, amount: None)
    for number, end in enumerate((None, rest_task.End(atoms, 1.0, 0.5, 0.0, None, 1, raised=True))):
        file = Checkpoint(tmp_path / f"{number}.ckpt", {})
        journal = rest.Journal(file, meter, 1e-4)
        assert not journal.raised
        with journal.kept():
            journal.came_raised()
            meter.reach(atoms)
            if end is not None:
                journal.end(end)
        again = rest.Journal(file, meter, 1e-4)
        assert again.raised and again.atoms is not None and not again.ends
