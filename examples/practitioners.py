# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # What richness buys: a tour for practitioners
#
# An infinitely wide network is a kernel machine, and `richness` says how much its kernel adapts to the task. At 0 it is
# the kernel of random weights, as in every library of neural kernels. This tour asks when more of it pays, on tables of
# numbers, with scikit-learn's own tools.

# %%
import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import adakern as ak

# %% [markdown]
# ## A target that few features decide
#
# Twelve columns, one of which matters, and not linearly. A kernel that treats all columns alike has to learn the target
# everywhere; one that adapts finds the column.

# %%
rng = np.random.default_rng(0)
X = rng.standard_normal((400, 12))
y = np.abs(X[:, 0]) - 0.8 + 0.1 * rng.standard_normal(400)
X_train, X_test, y_train, y_test = train_test_split(X, y, train_size=60, random_state=0)


def regressor(**settings):
    """Small numbers, for a tour: leave `particles` and `tolerance` out for the defaults."""
    return ak.AdaptiveKernelRegressor(beta=100.0, particles=512, tolerance=0.2, random_state=0, **settings)


models = {richness: regressor(richness=richness).fit(X_train, y_train) for richness in (0.0, 0.3, 1.0)}
scores = {richness: model.score(X_test, y_test) for richness, model in models.items()}
for richness, score in scores.items():
    print(f"richness {richness:g}: R² {score:.2f}")

rbf = GridSearchCV(KernelRidge(kernel="rbf"), {"gamma": [0.01, 0.03, 0.1, 0.3], "alpha": [0.01, 0.1, 1.0]}, cv=5)
rbf_score = rbf.fit(X_train, y_train).score(X_test, y_test)
print(f"ridge with an RBF kernel, tuned: R² {rbf_score:.2f}")

# %% [markdown]
# The fitted estimator has the solution: kernels with their errors, a status, a residual. What the network made of its
# inputs shows in the kernel: how much of it is about the targets. What a status adds to its first words limits the last
# digits: here, with so few particles, a handful of large neurons carries a part of the kernel, and the audit, which draws
# neurons of its own, did not reach all of them.

# %%
targets = np.outer(y_train, y_train)
for richness, model in models.items():
    solution = model.solution_
    print(f"richness {richness:g}: {ak.alignment(solution.kernel, targets):.2f} aligned; {solution.status}")

# %% [markdown]
# Which column it uses: shuffle one at a time and see what is lost.

# %%
adaptive, losses = models[1.0], []
for column in range(X.shape[1]):
    shuffled = X_test.copy()
    shuffled[:, column] = rng.permutation(shuffled[:, column])
    losses.append(adaptive.score(X_test, y_test) - r2_score(y_test, adaptive.predict(shuffled)))
print("columns that matter, most first:", np.argsort(losses)[::-1][:3])

# %% [markdown]
# ## Choosing the richness
#
# It is a hyperparameter like any other, and `GridSearchCV` finds it. The columns here have one scale; where they have
# not, a `StandardScaler` goes in front, as for any kernel (below).

# %%
search = GridSearchCV(regressor(), {"richness": [0.0, 0.3, 1.0]}, cv=2).fit(X_train, y_train)
for setting, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
    print(f"richness {setting['richness']:g}: R² {score:.2f} in cross-validation")
best = search.best_params_["richness"]
print(f"chosen richness {best:g}, R² {search.score(X_test, y_test):.2f} on new points")

# %% [markdown]
# ## Handwritten digits
#
# A real table: 64 grey values, and the question whether a digit is above four. A hundred digits to learn from, 1697 new
# ones.

# %%
pixels, digit = load_digits(return_X_y=True)
D_train, D_test, d_train, d_test = train_test_split(
    pixels / 8 - 1, digit > 4, train_size=100, stratify=digit > 4, random_state=0
)
right = {}
for richness in (0.0, 0.3, 1.0):
    classifier = ak.AdaptiveKernelClassifier(richness=richness, beta=10.0, particles=512, tolerance=0.2, random_state=0)
    right[richness] = classifier.fit(D_train, d_train).score(D_test, d_test)
    print(f"richness {richness:g}: {100 * right[richness]:.1f} % right")

# %% [markdown]
# ## A table from a clinic
#
# Breast cancer, thirty columns, 80 patients to learn from. Here all columns say nearly the same, a lazy kernel is good
# already, and richness costs: it is worth trying, not worth assuming.

# %%
table, malignant = load_breast_cancer(return_X_y=True)
T_train, T_test, m_train, m_test = train_test_split(table, malignant, train_size=80, stratify=malignant, random_state=0)
accuracies = {}
for richness in (0.0, 0.5):
    classifier = ak.AdaptiveKernelClassifier(richness=richness, beta=10.0, particles=512, tolerance=0.2, random_state=0)
    accuracies[richness] = make_pipeline(StandardScaler(), classifier).fit(T_train, m_train).score(T_test, m_test)
    print(f"richness {richness:g}: {100 * accuracies[richness]:.1f} % right")

# %% [markdown]
# Next: `docs/quickstart.md` for the library itself, `adakern fit` and `adakern predict` for the same from the command line.
