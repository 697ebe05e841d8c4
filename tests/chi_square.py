"""A chi-square test of draws against an enumerated law over all subsets of N items."""

import numpy as np
from kernels import N
from scipy import stats


def chi_square_p_value(law, draws):
    """p-value of the draws (s, n) under an enumerated law; cells that expect less than 5 draws are put together."""
    codes = draws @ (2 ** np.arange(N))
    observed = np.bincount(codes, minlength=2**N)
    expected = np.zeros(2**N)
    for subset, p in law.items():
        expected[sum(2**item for item in subset)] = p * len(draws)
    large = expected >= 5
    observed = np.append(observed[large], observed[~large].sum())
    expected = np.append(expected[large], expected[~large].sum())
    if expected[-1] < 1e-6:
        assert observed[-1] == 0  # a subset of probability zero was drawn
        observed, expected = observed[:-1], expected[:-1]
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue if len(observed) > 1 else 1.0
