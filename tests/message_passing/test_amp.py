"""AMP against state evolution, Donoho and Tanner's curve, the LASSO, and itself one problem at a
time.
"""

import itertools
import math

import pytest
import torch
from sklearn.linear_model import Lasso

from bayesfed.errors import ArgumentError
from bayesfed.federated.links.compressed_sensing import Compressed
from bayesfed.inference.amp.iteration import amp
from bayesfed.inference.amp.thresholds import minimax_alpha, soft_threshold
from bayesfed.keys import Key

DENSITY, DELTA, NOISE, STEPS = 0.1, 0.5, 0.1, 12
SOFT = 1.25


def risk(alpha, density, deviation, variance=1.0):
    """Mean squared error of an entry that is zero, or with probability `density` N(0, variance)."""
    total = 0.0
    for weight, part in ((density, variance), (1 - density, 0.0)):
        scale = math.sqrt(part + deviation**2)
        grid = torch.linspace(0, math.asinh(12 * scale / deviation), 4001, dtype=torch.float64)
        points, pull = deviation * grid.sinh(), part / scale**2
        estimate = soft_threshold(points, torch.tensor([alpha * deviation], dtype=torch.float64))
        law = 2 * (-(points / scale).square() / 2).exp() / (scale * math.sqrt(2 * math.pi))
        errors = (estimate - pull * points).square() * law * deviation * grid.cosh()
        total += weight * (float(torch.trapezoid(errors, grid)) + pull * deviation**2)
    return total


def state_evolution(alpha, iterations):
    """Variances of the noise at the threshold, iteration by iteration (DMM, eq. 3)."""
    variances = [NOISE**2 + DENSITY / DELTA]
    for _ in range(iterations):
        variances.append(NOISE**2 + risk(alpha, DENSITY, math.sqrt(variances[-1])) / DELTA)
    return variances


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Products this small only wait for each other on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def problem(n, m, batch, active, noise, name="problem", dtype=torch.float64):
    """Signals and noise of exactly the energy of their laws, so that what is left to chance is the
    mixing.
    """
    generator = Key(0, name).generator()
    matrix = torch.randn(m, n, generator=generator, dtype=dtype) / math.sqrt(m)
    values = torch.randn(batch, active, generator=generator, dtype=dtype)
    signal = torch.nn.functional.pad(values / values.square().mean().sqrt(), (0, n - active))
    w = torch.randn(batch, m, generator=generator, dtype=dtype)
    return matrix, signal, signal @ matrix.T + noise * w / w.square().mean().sqrt()


@pytest.fixture(scope="module")
def large():
    return problem(2000, 1000, 32, 200, NOISE)


def relative_error(found, signal):
    return (found - signal).norm(dim=-1) / signal.norm(dim=-1)


def test_every_iteration_is_what_state_evolution_says(large):
    matrix, signal, measured = large
    runs = [
        amp(matrix, measured, SOFT, max_iterations=steps, tol=0.0) for steps in range(1, STEPS + 1)
    ]
    found = runs[-1]
    expected = torch.tensor(state_evolution(SOFT, STEPS), dtype=torch.float64)
    assert found.residual_sd.shape == (STEPS + 1, 32)
    assert float((found.residual_sd.square().mean(dim=1) / expected - 1).abs().max()) < 0.1
    errors = torch.stack([(run.estimate - signal).square().mean() for run in runs])
    assert float((errors / (DELTA * (expected[1:] - NOISE**2)) - 1).abs().max()) < 0.15


def test_without_onsagers_term_state_evolution_is_far_off(large):
    matrix, signal, measured = large
    expected = state_evolution(SOFT, 6)
    x, z = torch.zeros_like(signal), measured
    for _ in range(6):
        sd = z.norm(dim=-1, keepdim=True) / math.sqrt(len(matrix))
        x = soft_threshold(x + z @ matrix, SOFT * sd)
        z = measured - x @ matrix.T
    assert float((x - signal).square().mean()) > 5 * DELTA * (expected[-1] - NOISE**2)


# Published to two or three places: DMM fig. 1; Donoho and Tanner 2009.
@pytest.mark.parametrize(("delta", "share"), [(0.1, 0.189), (0.25, 0.267), (0.5, 0.386)])
def test_the_minimax_threshold_is_that_of_donoho_and_tanners_curve(delta, share):
    # The slope of the recursion at zero noise, for non-zero entries out of reach, is one at the
    # transition and the best threshold.
    def slope(alpha):
        return risk(alpha, share * delta, 1.0, 1e16) / delta

    alpha = minimax_alpha(delta)
    assert slope(alpha) == pytest.approx(1, abs=5e-3)
    assert slope(alpha) < min(slope(alpha + 0.1), slope(alpha - 0.1))
    assert minimax_alpha(1.0) == minimax_alpha(0.9) > 0.3


@pytest.mark.parametrize(("share", "recovers"), [(0.2, True), (0.3, True), (0.5, False)])
def test_recovery_is_exact_below_the_transition_and_fails_above(share, recovers):
    matrix, signal, measured = problem(600, 300, 3, int(share * 300), 0.0)
    found = amp(matrix, measured, max_iterations=400, tol=1e-8)
    error = relative_error(found.estimate, signal)
    assert float(error.max()) < 1e-6 if recovers else float(error.min()) > 0.1
    assert bool(found.settled.all()) == recovers
    if recovers:
        assert float(found.residual_sd[-1].max()) < 1e-6


def test_error_falls_in_step_with_noise():
    errors = []
    for noise in (1e-1, 1e-2, 1e-3, 1e-4):
        matrix, signal, measured = problem(600, 300, 4, 30, noise)
        errors.append(
            float(relative_error(amp(matrix, measured, 1.4, tol=1e-8).estimate, signal).mean())
        )
    assert [
        math.log10(left / right) for left, right in itertools.pairwise(errors)
    ] == pytest.approx([1, 1, 1], abs=0.15)


def test_a_batch_is_its_problems_one_by_one():
    matrix, _, measured = problem(300, 150, 6, 15, 0.05)
    together = amp(matrix, measured, 1.5)
    assert together.settled.shape == together.diverged.shape == (6,)
    lengths = set[int]()
    for index in range(6):
        alone = amp(matrix, measured[index : index + 1], 1.5)
        assert torch.allclose(alone.estimate[0], together.estimate[index], atol=1e-12)
        lengths.add(len(alone.residual_sd))
        history = together.residual_sd[:, index]
        assert torch.allclose(alone.residual_sd[:, 0], history[: len(alone.residual_sd)])
        assert torch.equal(history[len(alone.residual_sd) - 1 :].unique(), history[-1:])
    assert len(lengths) > 1


def test_scale_of_the_matrix_does_not_matter_and_float32_is_kept():
    matrix, signal, measured = problem(300, 150, 2, 15, 0.0)
    plain = amp(matrix, measured, 1.5)
    normal = amp(matrix * 16, measured * 16, 1.5)
    assert torch.allclose(plain.estimate, normal.estimate, atol=1e-12)
    assert torch.allclose(plain.residual_sd, normal.residual_sd)
    single = amp(matrix.float(), measured.float(), 1.5)
    assert single.estimate.dtype == single.residual_sd.dtype == torch.float32
    assert bool(single.settled.all())
    assert float(relative_error(single.estimate, signal).max()) < 1e-5


def penalties(matrix, found, alpha):
    """Penalties of the LASSO that settled estimates minimise (Bayati and Montanari, eq. 1.9)."""
    active = (found.estimate.abs() > 1e-9).double().mean(-1)
    scale = matrix.square().sum() / matrix.shape[1]
    slope = 1 - active * matrix.shape[1] / len(matrix)
    return alpha * found.residual_sd[-1] * slope * scale


@pytest.mark.parametrize("damping", [0.0, 0.4])
def test_a_settled_estimate_is_the_lasso_of_its_penalty(damping):
    matrix, _, measured = problem(500, 250, 2, 30, 0.05)
    found = amp(matrix, measured, 1.3, tol=1e-12, max_iterations=2000, damping=damping)
    assert bool(found.settled.all())
    for index, penalty in enumerate(penalties(matrix, found, 1.3).tolist()):
        twin = Lasso(
            alpha=penalty / 250,
            fit_intercept=False,
            tol=1e-12,
            max_iter=100_000,
        )
        coefficients = torch.from_numpy(twin.fit(matrix.numpy(), measured[index].numpy()).coef_)
        assert 0 < int((coefficients != 0).sum()) < 250
        assert float((coefficients - found.estimate[index]).abs().max()) < 1e-9


@pytest.mark.parametrize("rotated", [False, True])
def test_an_orthogonal_matrix_is_one_soft_threshold(rotated):
    generator = Key(0, "orthogonal").generator()
    matrix = torch.eye(400, dtype=torch.float64)
    if rotated:
        matrix = torch.linalg.qr(torch.randn(400, 400, generator=generator, dtype=torch.float64))[0]
    signal = (
        5
        * torch.randn(3, 400, generator=generator, dtype=torch.float64)
        * (torch.rand(3, 400, generator=generator) < 0.05)
    )
    measured = signal @ matrix.T + torch.randn(3, 400, generator=generator, dtype=torch.float64)
    found = amp(matrix, measured, 1.5, tol=1e-12)
    assert bool(found.settled.all())
    backprojected, penalty = measured @ matrix, penalties(matrix, found, 1.5)[:, None]
    shrunk = backprojected.sign() * (backprojected.abs() - penalty).clamp_min(0)
    assert float((found.estimate - shrunk).abs().max()) < 1e-10


def test_zero_measured_is_zero_estimated():
    matrix, _, measured = problem(60, 30, 2, 3, 0.0)
    both = torch.stack([measured[0], torch.zeros(30, dtype=torch.float64)])
    found = amp(matrix, both, damping=0.3)
    assert not bool(found.estimate[1].any())
    assert bool(found.settled[1])
    assert bool(found.estimate.isfinite().all())
    assert amp(matrix, measured[:0]).estimate.shape == (0, 60)


def test_one_that_diverges_says_so_and_returns_its_best():
    generator = Key(0, "hopeless").generator()
    # Columns nearly equal: as far from independent as a matrix can be.
    matrix = torch.ones(40, 100, dtype=torch.float64) + 0.01 * torch.randn(
        40, 100, generator=generator, dtype=torch.float64
    )
    measured = torch.randn(3, 40, generator=generator, dtype=torch.float64) + 1
    found = amp(matrix, measured)
    assert bool(found.diverged.all())
    assert not bool(found.settled.any())
    assert bool((found.residual_sd[-1] > found.residual_sd[0]).all())
    assert bool(found.estimate.isfinite().all())
    assert not bool(found.estimate.any())
    out_of_iterations = amp(*problem(60, 30, 2, 3, 0.1)[::2], 1.5, max_iterations=2)
    assert not bool((out_of_iterations.diverged | out_of_iterations.settled).any())


def test_every_leaf_has_its_matrix_and_is_cut_into_blocks():
    sensing = Compressed(200)
    vector = torch.randn(600, generator=Key(0, "vector").generator(), dtype=torch.float64)
    sent = sensing.forward(vector, "a")
    assert sent.shape == (3 * 200,)
    assert torch.equal(sent, Compressed(200).forward(vector, "a"))
    assert not torch.equal(sent, sensing.forward(vector, "b"))
    assert torch.allclose(sensing.forward(vector.float(), "a").double(), sent, atol=1e-5)
    assert torch.allclose(sent + sensing.forward(2 * vector, "a"), sensing.forward(3 * vector, "a"))
    # The energy is kept.
    long = torch.randn(256 * 50, generator=Key(0, "long").generator(), dtype=torch.float64)
    assert float(sensing.forward(long, "a").norm() / long.norm()) == pytest.approx(1, abs=0.02)
    # A bias is sent as it is.
    assert torch.equal(sensing.back(sensing.forward(vector[:256], "a"), 256, "a"), vector[:256])


def test_sums_of_sparse_vectors_come_back_from_sums_of_projections():
    sensing = Compressed(200)
    generator = Key(0, "updates").generator()
    support = torch.rand(2500, generator=generator) < 1 / 32
    vectors = [torch.randn(2500, generator=generator) * support for _ in range(4)]
    recovered = sensing.back(sum(sensing.forward(vector, "a") for vector in vectors), 2500, "a")
    assert recovered.shape == (2500,)
    assert float(relative_error(recovered, sum(vectors))) < 1e-3
    # 8 x 256 is far above the transition: nothing to recover.
    few = Compressed(8)
    hopeless = few.back(few.forward(vectors[0], "a"), 2500, "a")
    assert float(relative_error(hopeless, vectors[0])) > 0.5


def test_what_is_refused_and_why():
    with pytest.raises(ArgumentError, match="rows: expected a whole number >= 1, found 0"):
        Compressed(0)
