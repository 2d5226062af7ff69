# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # From lazy to rich: a tour for theorists
#
# Kernels, densities and dynamics of infinitely wide networks that learn features, each beside a network of finite width.
# Symbols are those of `docs/notation.md`.

# %%
import matplotlib.pyplot as plt
import numpy as np

import adakern as ak

X, y, X_test, y_test = ak.datasets.mnist(classes=(0, 1), n_train=20, n_test=200)
labels = np.outer(y, y)

# %% [markdown]
# ## A limit is a problem
#
# One description of the network serves every limit. The lazy ones are in closed form.

# %%
net = ak.MLP(depth=2, activation="tanh")
nngp = ak.solve(ak.NNGP(net, beta=50.0), X, y)
ntk = ak.solve(ak.NTK(net), X, y)
print("residuals", nngp.residual, ntk.residual)

# %% [markdown]
# ## The posterior of a network that learns features: aNBK
#
# $\gamma_0=0$ is lazy. Kernels turn towards the labels layer by layer as it grows.

# %%
rich = ak.solve(ak.ANBK(net, richness=1.0, beta=50.0), X, y, particles=512, tolerance=0.1)
print(rich.status)
for layer, (lazy_kernel, kernel) in enumerate(zip(nngp.kernels, rich.kernels, strict=True), 1):
    print(f"layer {layer}: alignment {ak.alignment(lazy_kernel, labels):.2f} → {ak.alignment(kernel, labels):.2f}")

# %% [markdown]
# The same network at finite width, sampled by Langevin dynamics: no kernel recursion, no limit, another program.

# %%
run = ak.finite.langevin(net, X, y, richness=1.0, beta=50.0, width=256, time=10.0, seed=0, throw=False)
agreement = [ak.alignment(ours, theirs) for ours, theirs in zip(rich.kernels, run.kernels, strict=True)]
print("theory and network align to", [f"{a:.4f}" for a in agreement])

# %% [markdown]
# ## Where gradient flow with weight decay ends: aNTK
#
# One hidden layer of ReLU is convex over neurons, and the answer comes with a duality gap. Below a threshold of the
# richness everything dies.

# %%
relu = ak.MLP(depth=1, activation="relu")
flow = ak.ANTK(relu, richness=1.0, decay=1.0)
end = ak.solve(flow, X, y)
print(end.status, "| neurons left:", len(end.draws[0]), "| threshold:", f"{ak.collapse_threshold(flow, X, y):.3f}")
kappa = sum(flow.decays)
print("K Δ / κ is the output to", f"{np.abs(end.kernel @ end.errors / kappa - end.fitted).max():.1e}")

# %% [markdown]
# ## The way there
#
# `dynamics` follows the infinitely wide network in time, with standard errors over independent populations.

# %%
way = ak.dynamics(flow, X, y, times=[0.1, 1.0, 10.0], neurons=512, accuracy=1e-4, X_test=X_test, y_test=y_test)
for t, train, test in zip(way.times, way.train_loss, way.test_loss, strict=True):
    print(f"t = {t:g}: train {train:.4f}, test {test:.4f}")
arrived = np.abs(way.fitted[-1] - end.fitted).max()
print(f"outputs at t = 10 and at rest differ by {arrived:.1e}")

# %% [markdown]
# ## Deep linear networks, exactly
#
# On whitened data one number a layer, $c_\ell=y^\top\Phi^\ell y$, says everything.

# %%
print("overlaps of 8 layers at γ0 = 4:", np.round(ak.linear.overlaps(8, 4.0, beta=50.0), 2))

# %% [markdown]
# ## Pictures
#
# Lazy, rich and a network of 256 neurons: the learned kernel sorted by class, the density of a preactivation, how far
# each layer's kernel is aligned with the labels, and how the solver converged.

# %%
figure, (left, middle, right, last) = plt.subplots(1, 4, figsize=(12, 3.2), layout="constrained")
ak.plot.kernel(left, rich)
ak.plot.density(middle, nngp, rich, run, layer=2, point=0)
ak.plot.alignment(right, nngp, rich, run)
ak.plot.trace(last, rich)
