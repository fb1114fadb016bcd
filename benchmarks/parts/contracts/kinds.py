"""Kinds of silent errors, and the tests that each of them stays closed by."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
METRICS, CLASSES, LENT, USERS, TERMS, SITES, COUNTS, LOCAL, HOSTILE, CALLING = (
    f"tests/{room}.py"
    for room in (
        "federated/test_metrics",
        "data/test_class_names",
        "federated/test_lent_networks",
        "algorithms/test_networks_of_users",
        "posteriors/test_model_terms",
        "posteriors/test_exported_sites",
        "posteriors/test_observations",
        "security/test_local_privacy",
        "security/test_hostile",
        "models/test_calling",
    )
)
KINDS = {
    "a metric of another shape": [
        f"{METRICS}::test_anything_but_one_figure_a_row_is_refused",
        f"{METRICS}::test_what_the_refused_test_set_says_to_try_works",
    ],
    "clients with other class names": [
        f"{CLASSES}::test_numbers_that_mean_other_classes_are_refused_before_the_first_round"
    ],
    "a number of rows that is not the pool's": [
        f"{COUNTS}::test_a_number_that_is_not_the_pools_is_refused_before_round_0",
        f"{COUNTS}::test_a_client_that_was_never_heard_is_named_with_its_share",
    ],
    "a likelihood counted wrongly": [
        f"{TERMS}::test_terms_are_the_rows_or_the_priors",
        f"{TERMS}::test_what_cannot_be_attributed_is_refused_at_the_declaration",
    ],
    "networks in evaluation mode": [
        f"{LENT}::test_parts_in_evaluation_mode_are_named_by_every_door",
        f"{LENT}::test_a_part_that_is_frozen_on_purpose_stays_as_it_is",
    ],
    "randomness that nobody declared": [f"{LENT}::test_every_method_seeds_it"],
    "a user's module that is written to": [
        f"{LENT}::test_a_run_leaves_the_network_as_it_was",
        f"{LENT}::test_a_saved_buffer_of_any_dtype_that_changes_is_named_or_follows_the_policy",
        f"{LENT}::test_runs_of_one_algorithm_in_threads_do_not_disturb_one_another",
    ],
    "callbacks with a memory": [
        f"{METRICS}::test_a_callback_shared_by_runs_begins_with_each",
        f"{METRICS}::test_a_figure_that_nobody_enters_is_refused_after_the_first_round",
    ],
    "frozen parameters": [f"{USERS}::test_frozen_parameters_are_constants"],
    "guides that are no posterior": [f"{TERMS}::test_guides_whose_draws_never_vary_are_refused"],
    "computed weights": [
        f"{CALLING}::test_weights_that_are_computed_are_refused_where_weights_are_read",
        f"{USERS}::test_density_is_of_all_matrices_that_are_sent",
    ],
    "privacy beside phases without noise": [
        f"{LOCAL}::test_phases_without_noise_are_refused",
        f"{LOCAL}::test_what_epsilon_would_not_count_is_refused",
    ],
    "values that no rows can say": [f"{HOSTILE}::test_every_phase_has_bounds_of_its_own"],
    "names of a user's sites": [
        f"{SITES}::test_every_observed_site_is_there_by_its_name",
        f"{SITES}::test_names_that_an_export_has_for_itself_are_kept_apart",
    ],
    "rows, labels, outputs and figures that are none": [
        f"{CLASSES}::test_rows_that_are_none_are_refused",
        f"{CLASSES}::test_labels_that_seem_to_be_codes_are_said",
        f"{CLASSES}::test_probabilities_are_no_logits",
        f"{METRICS}::test_a_series_that_was_never_entered_is_refused",
    ],
}


def still_open() -> list[str]:
    """Run the tests of every kind; return the kinds of which one fails, all if one is not there."""
    tests = [test for several in KINDS.values() for test in several]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "--no-header", "-rfE", *tests]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        print(done.stdout[-2000:], done.stderr[-2000:])
        return [*KINDS]
    lines = done.stdout.splitlines()
    failed = [line.split()[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return [
        kind
        for kind, several in KINDS.items()
        if any(one.startswith(test) for test in several for one in failed)
    ]
