"""Numerical floors: every constant that decides when a small number counts as zero, in one place.

What a floor did in a solve (a rank, a cut-off) is reported in `Solution.stats`.
"""

EIGENVALUES = 1.0  # × size × machine epsilon × largest eigenvalue: below, an eigenvalue is a rounding error of zero
PIVOTS = 10.0  # × size × machine epsilon: a Cholesky factor whose squared pivot ratio is below is not used
CORRELATION = 16.0  # × machine epsilon: how far from ±1 rounding of a covariance alone can move a correlation
JITTER = {"float64": 1e-9, "float32": 3e-5}  # × mean eigenvalue, added to the kernels that a sampler takes roots of
CONTROL_RIDGE = 1e-3  # × mean diagonal: regularises a control variate, not the answer
