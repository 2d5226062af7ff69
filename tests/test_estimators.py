"""The scikit-learn estimators: scikit-learn's own checks, and the compositions that users build."""

import os
import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import adakern as ak
from adakern.estimators import _simplex

# Few particles and a wide tolerance: the checks ask for contracts, not for accurate kernels.
QUICK = {"particles": 256, "tolerance": 1.0, "steps": 150}


@parametrize_with_checks(
    [
        ak.AdaptiveKernelRegressor(**QUICK),
        ak.AdaptiveKernelClassifier(**QUICK),
        ak.AdaptiveKernelRegressor(limit="ntk", ridge=1e-3),
        ak.AdaptiveKernelClassifier(limit="nngp"),
    ]
)
def test_scikit_learn_checks(estimator, check):
    if estimator.limit == "anbk" and not os.environ.get("ADAKERN_LONG"):
        pytest.skip("make test-long runs it: every shape is compiled anew")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check(estimator)


@pytest.fixture(scope="module")
def digits():
    return ak.datasets.mnist(n_train=40, n_test=100)


def test_regressor_is_solve(digits):
    X, y, X_test, _ = digits
    model = ak.AdaptiveKernelRegressor(limit="nngpk", depth=2, beta=20.0, decay=[1.0, 2.0, 0.5]).fit(X, y)
    limit = ak.NNGPK(ak.MLP(2, "relu"), beta=20.0, decay=[1.0, 2.0, 0.5])
    np.testing.assert_array_equal(model.predict(X_test), ak.solve(limit, X, y).predict(X_test))
    assert model.solution_.limit == limit


@pytest.mark.long
def test_anbk_regressor_is_solve_with_the_same_seed(digits):
    X, y, X_test, _ = digits
    model = ak.AdaptiveKernelRegressor(richness=0.5, particles=512, tolerance=0.1).fit(X, y)
    solution = ak.solve(ak.ANBK(ak.MLP(1), richness=0.5), X, y, seed=0, particles=512, tolerance=0.1)
    f = model.predict(X_test)
    np.testing.assert_array_equal(f, solution.predict(X_test))
    # What of scikit-learn's checks sees the samples: refitting, pickling, and points in other company.
    np.testing.assert_array_equal(model.fit(X, y).predict(X_test), f)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X_test), f)
    apart = [model.predict(X_test[:1]), model.predict(X_test[1:])]
    np.testing.assert_allclose(np.concatenate(apart), f, atol=1e-7)


@pytest.fixture(scope="module")
def few():
    """Points on which gradient flow is over in seconds."""
    X = np.random.default_rng(2).standard_normal((8, 3))
    return X[:6], np.sign(X[:6, 0]), X[6:]


def test_antk_regressor_is_solve_with_the_same_seed(few):
    X, y, X_new = few
    numbers = {"richness": 2.0, "decay": (0.3, 0.2)}
    model = ak.AdaptiveKernelRegressor("antk", particles=64, **numbers).fit(X, y)
    solution = ak.solve(ak.ANTK(ak.MLP(1), **numbers), X, y, seed=0, particles=64)
    np.testing.assert_array_equal(model.predict(X_new), solution.predict(X_new))
    assert (
        model.solution_.limit == solution.limit and model.solution_.converged and np.abs(model.predict(X)).max() > 0.1
    )
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X_new), model.predict(X_new))
    np.testing.assert_allclose(model.predict(X_new[:1]), model.predict(X_new)[:1], atol=1e-12)
    with pytest.raises(ValueError, match="return_std needs limit='nngp'.*'antk'"):
        model.predict(X_new, return_std=True)


def test_antk_classifier_gives_the_likelihood(few):
    X, y, X_new = few
    names = np.where(y > 0, "up", "down")
    model = ak.AdaptiveKernelClassifier(
        "antk", richness=3.0, decay=(0.3, 0.2), loss="logistic", particles=64, random_state=1
    ).fit(X, names)
    assert model.solution_.converged and model.solution_.limit.loss == "logistic"
    assert list(model.classes_) == ["down", "up"] and (model.predict(X) == names).all()
    s = model.solution_.cross_kernel(X_new) @ model.solution_.coefficients
    np.testing.assert_allclose(model.predict_proba(X_new)[:, 1], 1 / (1 + np.exp(-s)), atol=1e-3)
    np.testing.assert_array_equal(model.predict(X_new), model.classes_[(model.predict_proba(X_new)[:, 1] > 0.5) * 1])
    with pytest.raises(ValueError, match="decay must be positive at every layer"):
        ak.AdaptiveKernelClassifier("antk", decay=0.0).fit(X, names)


def test_regressor_variance_needs_nngp(digits):
    X, y, X_test, _ = digits
    mean, deviation = ak.AdaptiveKernelRegressor(limit="nngp").fit(X, y).predict(X_test, return_std=True)
    solution = ak.solve(ak.NNGP(ak.MLP(1)), X, y)
    np.testing.assert_allclose(deviation**2, solution.variance(X_test), rtol=1e-12)
    assert mean.shape == deviation.shape == (100,)
    with pytest.raises(ValueError, match="return_std needs limit='nngp'"):
        ak.AdaptiveKernelRegressor(limit="ntk").fit(X, y).predict(X_test, return_std=True)


def test_grid_search_in_a_pipeline(digits):
    X, y, X_test, y_test = digits
    pipeline = make_pipeline(StandardScaler(), ak.AdaptiveKernelClassifier(particles=128, tolerance=0.5))
    grid = {"adaptivekernelclassifier__richness": [0.0, 0.5], "adaptivekernelclassifier__beta": [50.0]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, y)
    assert len(search.cv_results_["params"]) == 2
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.score(X_test, y_test) > 0.9


def test_clone_and_parameters():
    model = ak.AdaptiveKernelRegressor(limit="ntk", depth=3, ridge=0.5, random_state=7)
    copy = clone(model)
    assert copy is not model and copy.get_params() == model.get_params()
    assert copy.set_params(depth=2).depth == 2 and model.depth == 3


def test_scaled_targets(digits):
    X, y, X_test, y_test = digits
    model = TransformedTargetRegressor(ak.AdaptiveKernelRegressor(limit="nngpk"), transformer=StandardScaler())
    shifted = model.fit(X, 30 + 5 * y).predict(X_test)
    assert np.mean((shifted - 30 - 5 * y_test) ** 2) < 0.3 * 25


def test_classifier_with_words_and_three_classes():
    X, targets, X_test, truth = ak.datasets.mnist(classes=(0, 1, 2), n_train=90, n_test=150)
    names = np.array(["zero", "one", "two"])
    model = ak.AdaptiveKernelClassifier(limit="nngpk").fit(X, names[targets.argmax(axis=1)])
    assert list(model.classes_) == ["one", "two", "zero"]
    guesses, probabilities = model.predict(X_test), model.predict_proba(X_test)
    assert np.mean(guesses == names[truth.argmax(axis=1)]) > 0.9
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-12)
    assert (probabilities >= 0).all()
    np.testing.assert_array_equal(model.classes_[probabilities.argmax(axis=1)], guesses)
    assert model.decision_function(X_test).shape == (150, 3)


def test_two_class_probabilities_are_clipped_means(digits):
    X, y, X_test, _ = digits
    model = ak.AdaptiveKernelClassifier(limit="nngpk").fit(X, y)
    f = model.decision_function(X_test)
    np.testing.assert_allclose(model.predict_proba(X_test)[:, 1], np.clip((1 + f) / 2, 0, 1), atol=1e-14)
    np.testing.assert_array_equal(model.predict(X_test), np.where(f > 0, 1.0, -1.0))


def test_one_class_is_always_predicted(digits):
    X, _, X_test, _ = digits
    model = ak.AdaptiveKernelClassifier(limit="nngpk").fit(X, ["only"] * 40)
    assert set(model.predict(X_test)) == {"only"}
    np.testing.assert_array_equal(model.predict_proba(X_test), 1.0)


def test_simplex_projection_is_the_nearest_probability_vector():
    rng = np.random.default_rng(0)
    for _ in range(20):
        point = rng.normal(size=4)
        nearest = _simplex(point[None])[0]
        assert nearest.min() >= 0 and abs(nearest.sum() - 1) < 1e-12
        others = rng.dirichlet(np.ones(4), size=500)
        assert np.linalg.norm(point - nearest) <= np.linalg.norm(point - others, axis=1).min() + 1e-12


def test_several_outputs(digits):
    X, y, X_test, _ = digits
    both = ak.AdaptiveKernelRegressor(limit="ntk").fit(X, np.column_stack([y, 2 * y])).predict(X_test)
    np.testing.assert_allclose(both[:, 1], 2 * both[:, 0], rtol=1e-9)


def test_an_unconverged_fit_warns(digits):
    X, y, _, _ = digits
    with pytest.warns(ConvergenceWarning, match="did not converge: .* give more steps"):
        model = ak.AdaptiveKernelRegressor(particles=16, tolerance=1e-6, steps=50).fit(X, y)
    assert not model.solution_.converged


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"limit": "ntkk"}, "limit must be one of 'anbk', 'nngp', 'nngpk', 'ntk'"),
        ({"depth": 0}, "depth must be at least 1"),
        ({"activation": "swish"}, "activation must be one of"),
        ({"beta": -1.0}, "beta must be greater than 0"),
        ({"decay": (1.0, 1.0, 1.0)}, "decay must be one number or 2 of them"),
        ({"richness": -0.1}, "richness must be 0 or greater"),
        ({"precision": "float16"}, "precision must be one of"),
    ],
)
def test_bad_parameters_are_named(digits, parameters, message):
    X, y, _, _ = digits
    with pytest.raises(ValueError, match=message):
        ak.AdaptiveKernelRegressor(**parameters).fit(X, y)


def test_not_fitted():
    for model in (ak.AdaptiveKernelRegressor(), ak.AdaptiveKernelClassifier()):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            model.predict([[0.0]])


def test_cross_validation(digits):
    X, y, _, _ = digits
    scores = cross_val_score(ak.AdaptiveKernelRegressor(limit="nngpk"), X, y, cv=3)
    assert (scores > 0.5).all()
