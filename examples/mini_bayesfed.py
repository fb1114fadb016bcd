"""The whole idea in one file: a sparse Bayesian network, learned over devices that keep their rows,
with every bit counted.

python examples/mini_bayesfed.py [--rounds 22] [--out results/mini_bayesfed]

Nothing of the package is imported: torch and Pyro, and scikit-learn's handwritten digits to learn.
Read from top to bottom. In one round

    server:  posterior = prior x every device's factor; which weights are active: belief
             propagation; broadcast
    device:  cavity = posterior / own factor; a better factor, by variational inference; send what
             changed
    server:  add the changes up

so that the prior counts once and every row counts once, however many devices there are (partitioned
variational inference: Ashman et al., 2022).
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import TraceMeanField_ELBO
from sklearn.datasets import load_digits
from torch import Tensor

DEVICES, ALPHA = 6, 0.5  # Dirichlet(0.5): devices lack some digits and have plenty of others
HIDDEN, CLASSES, SIDE = 32, 10, 8
STEPS, RATE, DAMPING = (
    25,
    0.02,
    0.3,
)  # a round of a device; how much of its change it sends, since all learn the same things at once
WARM_UP = 8  # rounds before weights may be switched off: factors need some to grow

# -------------------------------------------------------------------------------------------------
# 1. What is believed. All weights are one vector w = s * v: v is Gaussian (the slab), s is 0 or 1
#    (the support). Biases are always active.
# -------------------------------------------------------------------------------------------------

SHAPES = {
    "in": (HIDDEN, SIDE, SIDE),
    "in_bias": (HIDDEN,),
    "out": (CLASSES, HIDDEN),
    "out_bias": (CLASSES,),
}
ENDS = np.cumsum([math.prod(shape) for shape in SHAPES.values()]).tolist()
PLACES = {
    name: slice(end - math.prod(SHAPES[name]), end) for name, end in zip(SHAPES, ENDS, strict=True)
}
WEIGHTS = ENDS[-1]

SLAB_SD = torch.ones(WEIGHTS)
SLAB_SD[PLACES["in"]], SLAB_SD[PLACES["out"]] = 0.6, 0.6
# Prior log-odds of s = 1 without neighbours, and how fast they fall to that, by round, so that the
# others can adapt.
FIELD, FALL = (-0.6, 0.1)
# How probable it is that neighbours are alike. Inputs of a hidden unit are neighbours in the
# picture; weights of the second layer have none. Beyond 2/3 belief propagation on such a grid would
# switch all of it on or off together (the ordering of an Ising model).
STAY = 0.6


def network(weights: Tensor, pixels: Tensor) -> Tensor:
    """Return logits ``(rows, 10)`` of pictures ``(rows, 64)`` from the vector of all weights."""
    parts = {name: weights[place].reshape(SHAPES[name]) for name, place in PLACES.items()}
    hidden = torch.tanh(pixels @ parts["in"].reshape(HIDDEN, -1).T + parts["in_bias"])
    return hidden @ parts["out"].T + parts["out_bias"]


# -------------------------------------------------------------------------------------------------
# 2. Which weights are active. Factors are Gaussian, N(w; precision, shift), so that what the rows
#    say of one s is in closed form, and what its neighbours say comes by belief propagation on the
#    grid of pixels.
# -------------------------------------------------------------------------------------------------


def bayes_factor(precision: Tensor, shift: Tensor) -> Tensor:
    """Return log p(rows | s = 1) / p(rows | s = 0) of factors exp(-precision w^2 / 2 + shift w),
    with a slab against exactly zero.
    """
    variance = SLAB_SD**2
    return 0.5 * shift**2 * variance / (1 + precision * variance) - 0.5 * torch.log1p(
        precision * variance
    )


def heard(belief: Tensor) -> Tensor:
    """Return the message that a neighbour of these log-odds sends: its belief, as far as neighbours
    are alike.
    """
    zero, alike, unlike = torch.zeros(()), math.log(STAY), math.log(1 - STAY)
    return torch.logaddexp(belief + alike, zero + unlike) - torch.logaddexp(
        belief + unlike, zero + alike
    )


def propagate(field: Tensor, sweeps: int = 20) -> Tensor:
    """Return log-odds of s on grids ``(..., rows, columns)``: their own field and four neighbours'
    messages, settled.
    """
    sides = [(dim, step) for dim in (-2, -1) for step in (1, -1)]
    inbox = {side: torch.zeros_like(field) for side in sides}
    for _ in range(sweeps):
        belief = field + sum(inbox.values())
        for (dim, step), old in list(inbox.items()):
            # What a neighbour says must leave out what it heard from here, or both would believe
            # their own echo.
            message = heard(belief - inbox[dim, -step]).roll(step, dim)
            message.select(dim, 0 if step == 1 else -1).zero_()  # nobody is beyond the border
            inbox[dim, step] = 0.5 * (old + message)
    return field + sum(inbox.values())


def active_weights(precision: Tensor, shift: Tensor, number: int) -> Tensor:
    """Return which weights are more probably active than not in a round, given the sum of all
    devices' factors.
    """
    if number < WARM_UP:
        return torch.ones(WEIGHTS, dtype=torch.bool)
    log_odds = bayes_factor(precision, shift) + max(FIELD, -FALL * (number - WARM_UP))
    log_odds[PLACES["in"]] = propagate(log_odds[PLACES["in"]].reshape(SHAPES["in"])).flatten()
    log_odds[PLACES["in_bias"]] = log_odds[PLACES["out_bias"]] = math.inf
    return log_odds > 0


# -------------------------------------------------------------------------------------------------
# 3. Bytes. A message is integers, each in Elias' gamma code: n takes 2 floor(log2 n) + 1 bits, so
#    small changes are cheap.
# -------------------------------------------------------------------------------------------------


def encode(numbers: Tensor) -> bytes:
    """Write integers of either sign: zigzag to 1, 2, 3, ..., then as many zeros as the binary
    number has further digits, then its digits.
    """
    zigzag = torch.where(numbers > 0, 2 * numbers, 1 - 2 * numbers).tolist()
    bits = "".join("0" * (n.bit_length() - 1) + f"{n:b}" for n in zigzag)
    return np.packbits(np.frombuffer(bits.encode(), np.uint8) - ord("0")).tobytes()


def decode(message: bytes, count: int) -> Tensor:
    """Read `count` integers back; the receiver knows how many."""
    bits = "".join(map(str, np.unpackbits(np.frombuffer(message, np.uint8))))
    numbers, at = [], 0
    for _ in range(count):
        one = bits.index("1", at)
        at, n = 2 * one - at + 1, int(bits[one : 2 * one - at + 1], 2)
        numbers.append(n // 2 if n % 2 == 0 else -(n // 2))
    return torch.tensor(numbers)


# -------------------------------------------------------------------------------------------------
# 4. A posterior on the wire: N(mean, precision) of the active weights on a grid that everybody
#    knows, as differences from the last broadcast.
# -------------------------------------------------------------------------------------------------

MEAN_STEP, LOG_STEP, CHANGE_STEP = 0.02, 0.1, 0.05


class Broadcast:
    """What all devices hold: which weights are active, and the posterior of these. The server keeps
    the same copy, so that both ends agree.
    """

    def __init__(self) -> None:
        self.active = torch.ones(WEIGHTS, dtype=torch.bool)
        self.grid = torch.zeros(
            2, WEIGHTS, dtype=torch.int64
        )  # of mean and log precision; zeros where nothing was sent yet

    @property
    def mean(self) -> Tensor:
        """Posterior means ``(WEIGHTS,)``; zero where not active."""
        return MEAN_STEP * self.grid[0] * self.active

    @property
    def precision(self) -> Tensor:
        """Posterior precisions ``(WEIGHTS,)``."""
        return torch.exp(LOG_STEP * self.grid[1])

    def pack(self, active: Tensor, mean: Tensor, precision: Tensor) -> list[bytes]:
        """Server: write what changed since the last broadcast."""
        wanted = torch.stack([mean / MEAN_STEP, precision.log() / LOG_STEP]).round().long()
        return [
            encode((active != self.active).long()),
            encode((wanted - self.grid)[:, active].flatten()),
        ]

    def receive(self, messages: list[bytes]) -> None:
        """Everybody: read it."""
        self.active = self.active ^ decode(messages[0], WEIGHTS).bool()
        self.grid[:, self.active] += decode(messages[1], 2 * int(self.active.sum())).reshape(2, -1)


# -------------------------------------------------------------------------------------------------
# 5. A device: rows of its own, and its factor of the posterior, exp(-precision w^2 / 2 + shift w),
#    the approximation of its likelihood.
# -------------------------------------------------------------------------------------------------


class Device:
    """Rows that stay here, and the factor that stands for them; the server knows only the sum of
    all devices' factors.
    """

    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self.pixels, self.labels = pixels, labels
        self.factor = torch.zeros(2, WEIGHTS)  # precision, shift

    def fit(self, held: Broadcast, start: Tensor) -> bytes:
        """Improve the factor against everybody else's, and return what changed."""
        on, old = (
            held.active,
            torch.stack([held.precision, held.precision * held.mean])[:, held.active],
        )
        # The cavity, everybody else's factors and the prior, is the prior of this device. Rounding
        # may have taken a little too much away.
        others = old - self.factor[:, on]
        others[0] = torch.maximum(others[0], SLAB_SD[on] ** -2)
        believed = dist.Normal(others[1] / others[0], others[0].rsqrt())

        mean = (start + held.mean)[on].requires_grad_()
        log_sd = (-0.5 * held.precision[on].log()).requires_grad_()

        def model() -> None:
            weights = torch.zeros(WEIGHTS).masked_scatter(
                on, pyro.sample("weights", believed.to_event(1))
            )
            with pyro.plate("rows", len(self.pixels)):
                pyro.sample(
                    "digits",
                    dist.Categorical(logits=network(weights, self.pixels)),
                    obs=self.labels,
                )

        def guide() -> None:
            pyro.sample("weights", dist.Normal(mean, log_sd.exp()).to_event(1))

        optimiser = torch.optim.Adam([mean, log_sd], RATE)
        for _ in range(STEPS):
            optimiser.zero_grad()
            TraceMeanField_ELBO().differentiable_loss(model, guide).backward()
            optimiser.step()

        precision = torch.exp(-2 * log_sd.detach())
        wanted = DAMPING * (torch.stack([precision, precision * mean.detach()]) - old)
        numbers = torch.floor(
            wanted / self.steps(held) + torch.rand(wanted.shape)
        ).long()  # at random up or down, right in the mean
        # No factor of a likelihood may have a negative precision, or the product might be no
        # Gaussian.
        numbers[0] = torch.maximum(
            numbers[0], torch.ceil(-self.factor[0, on] / self.steps(held)[0]).long()
        )
        self.factor[:, on] += numbers * self.steps(held)
        return encode(numbers.flatten())

    @staticmethod
    def steps(held: Broadcast) -> Tensor:
        """Return the grid of changes ``(2, active)``: shares of the posterior's precision, and
        shifts of its mean in sds.
        """
        precision = held.precision[held.active]
        return CHANGE_STEP * torch.stack([precision, precision.sqrt()])


# -------------------------------------------------------------------------------------------------
# 6. Scores of the mean prediction over draws: accuracy, and by how far confidence and accuracy are
#    apart (expected calibration error).
# -------------------------------------------------------------------------------------------------


def score(held: Broadcast, pixels: Tensor, labels: Tensor, draws: int = 50) -> tuple[float, float]:
    """Return accuracy and ECE in 10 bins of the model that was sent, with weights that are not
    active at zero.
    """
    sd = held.precision.rsqrt() * held.active
    probabilities = torch.stack(
        [network(held.mean + sd * torch.randn(WEIGHTS), pixels).softmax(-1) for _ in range(draws)]
    ).mean(0)
    confidence, guess = probabilities.max(-1)
    right = (guess == labels).float()
    bins = (confidence * 10).long().clamp(max=9)
    return float(right.mean()), float(
        sum((right - confidence)[bins == b].sum().abs() for b in range(10)) / len(labels)
    )


# -------------------------------------------------------------------------------------------------
# 7. Rounds.
# -------------------------------------------------------------------------------------------------


def dealt(labels: np.ndarray) -> list[np.ndarray]:
    """Deal rows out: of every digit, each device gets a share drawn from a Dirichlet."""
    random = np.random.default_rng(0)
    held: list[list[np.ndarray]] = [[] for _ in range(DEVICES)]
    for digit in range(CLASSES):
        cuts = np.cumsum(random.dirichlet(np.full(DEVICES, ALPHA)))[:-1]
        rows = random.permutation(np.flatnonzero(labels == digit))
        for device, part in zip(held, np.split(rows, (cuts * len(rows)).astype(int)), strict=True):
            device.append(part)
    return [np.concatenate(parts) for parts in held]


def main() -> None:
    """Run the rounds, print what each cost and what it brought, draw some of the supports, write
    the posterior.
    """
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=22)
    arguments.add_argument("--out", type=Path, default=Path("results/mini_bayesfed"))
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    pyro.set_rng_seed(0)
    pyro.enable_validation(
        False
    )  # checks of every distribution in every step would take half of the time

    raw = load_digits()
    order = np.random.default_rng(1).permutation(len(raw.data))
    pixels, labels = (
        torch.from_numpy(raw.data[order]).float() / 16,
        torch.from_numpy(raw.target[order]).long(),
    )
    train, test = slice(360, None), slice(0, 360)
    devices = [
        Device(pixels[train][rows], labels[train][rows]) for rows in dealt(labels[train].numpy())
    ]

    held, factors = Broadcast(), torch.zeros(2, WEIGHTS)  # the server's: the sum of all factors
    first = 0.3 * torch.randn(WEIGHTS)
    print("round  accuracy    ECE  active  kB down  kB up  bits a number up")
    for number in range(chosen.rounds + 1):
        # Server. Gaussians multiply by adding: prior and factors make the posterior of the slab.
        precision, shift = factors
        active = active_weights(precision, shift, number)
        whole = precision + SLAB_SD**-2
        messages = held.pack(active, shift / whole, whole)
        held.receive(messages)
        down = sum(map(len, messages)) * DEVICES
        accuracy, ece = score(held, pixels[test], labels[test])
        if number == chosen.rounds:  # the last broadcast is the result
            print(
                f"{number:5d}  {accuracy:8.3f}  {ece:.3f}  {int(active.sum()):6d}  "
                f"{down / 1e3:7.1f}"
            )
            break

        # Devices, one after the other here. All begin at the same random weights, or their hidden
        # units would have nothing in common.
        up = 0
        for device in devices:
            message = device.fit(held, first if number == 0 else torch.zeros(WEIGHTS))
            up += len(message)
            # Server. What arrives is bytes, and the sum is all that it keeps.
            factors[:, held.active] += decode(message, 2 * int(held.active.sum())).reshape(
                2, -1
            ) * Device.steps(held)
        each = 8 * up / (2 * DEVICES * int(active.sum()))
        print(
            f"{number:5d}  {accuracy:8.3f}  {ece:.3f}  {int(active.sum()):6d}  "
            f"{down / 1e3:7.1f}  {up / 1e3:5.1f}  {each:16.2f}"
        )
        print(
            f"\r{100 * (number + 1) // chosen.rounds}%",
            end="" if number + 1 < chosen.rounds else "\n",
            file=sys.stderr,
        )

    pictures = held.active[PLACES["in"]].reshape(SHAPES["in"])
    widest = pictures.sum((1, 2)).topk(6).indices.sort().values.tolist()
    print("\nwhere hidden units " + ", ".join(map(str, widest)) + " look:")
    for row in range(SIDE):
        print(
            "   ".join(
                "".join("#" if on else "." for on in pictures[unit, row].tolist())
                for unit in widest
            )
        )
    chosen.out.mkdir(parents=True, exist_ok=True)
    np.savez(
        chosen.out / "posterior.npz",
        active=held.active,
        mean=held.mean,
        sd=held.precision.rsqrt() * held.active,
    )
    print(f"\nposterior.npz in {chosen.out}/")


if __name__ == "__main__":
    main()
