r"""Convolutional networks: lazy kernels, the aNBK, training over time and its end against networks of finite width; test losses beside the published ones; memory.

A case is a handful of settings; a setting, run, gives rows (`flow_rows.Row`).
"""

from __future__ import annotations

from adakern.benchmarks import cnn_bayes, cnn_flow, cnn_lazy, cnn_learning, cnn_memory
from adakern.benchmarks.flow_rows import Case

CASES: dict[str, Case] = {
    "lazy": Case(
        "Kernels of wide random networks at the start, CIFAR-10 in colour at 6 × 6, beside NNGPK and NTK; errors from the scatter of independent networks. Entries above and on the diagonal count. "
        "And the NTK's cost: the paper's network, 8 × 8 windows side by side.",
        cnn_lazy.settings() | {"cost": cnn_memory.settings()["NTK"]},
    ),
    "anbk": Case(
        "The aNBK against networks sampled by `ak.finite.langevin`, CIFAR-10 animate/inanimate in colour: the paper's network of 8 × 8 windows side by side, and two layers, 3 × 3 windows and then 2 × 2 ones with stride 2, on 12 images of 6 × 6.",
        cnn_bayes.settings(),
    ),
    "dynamics": Case(
        "`dynamics` against centred networks, the paper's network, decay 0.01: losses at twelve times, both with standard errors over independent replicas.",
        cnn_flow.dynamics_settings(),
    ),
    "antk": Case(
        "Where training ends: networks trained by `ak.finite.gradient_flow`, the paper's network, and two layers on small images. With `--runs` networks may have been trained on another machine than the one that is named, and their seconds are of that.",
        cnn_flow.rest_settings(),
    ),
    "published": Case(
        "The paper's task, 1000 images, 500 to test on, richness 1, decay 0.01, outputs that start at 0: both in colour. Their images are those of the published program, in the order of TensorFlow Datasets; the others are the first of the data set. The mean over patterns is the sum with decay 10 for a time of 0.2. Test losses are means of Δ². The published MLP took steps of 0.001 of the sum, which are no flow; a network that takes them is beside it. At rest, theory is solved to 1 % of the value (with 1000 images the CNN to 2 %, the MLP to 5 %), and a network of finite width trained by momentum is beside it.",
        cnn_learning.published_settings(),
    ),
    "points": Case(
        "Test losses of CNN and MLP over the number of training points, decay 0.01, mean over patterns for a time of 200.",
        cnn_learning.points_settings(),
    ),
    "memory": Case(
        "The paper's network on 1000 images, each in a process of its own, every option at its default: NTK, aNBK (richness 1, beta 50), and the dynamics (accuracy 1e-4), on a processor to t = 0.001, elsewhere to 0.01. The bar is for a processor; a GPU's libraries take memory of their own.",
        cnn_memory.settings(),
    ),
}
