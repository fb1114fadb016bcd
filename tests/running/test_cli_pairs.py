"""Recipe x net, recipe x link, recipe x data: every pair runs for one round or says why not."""

import pytest

from tests.support import pairs


@pytest.fixture(scope="module")
def folder():
    with pairs.files() as found:
        yield found


@pytest.mark.parametrize("recipe", pairs.recipes())
def test_every_recipe_runs_on_classes(recipe, folder):
    assert pairs.attempt(recipe, "data", "classes.csv", folder).found == pairs.RAN


@pytest.mark.parametrize(
    "recipe", ["fed_avg", "d_turbo_vbi", "fed_rlr", "hetero_fl", "fed_paq", "robust"]
)
@pytest.mark.parametrize("link", list(pairs.LINKS))
def test_links(recipe, link, folder):
    found = pairs.attempt(recipe, "link", link, folder)
    refused = {"hetero_fl": "equal shapes", "robust": "one by one"}.get(recipe)
    if refused and link != "Digital":
        assert refused in found.found
    else:
        assert found.found == pairs.RAN
    assert not found.hole


@pytest.mark.parametrize(
    ("recipe", "net", "told"),
    [
        ("fed_avg", "cnn", pairs.RAN),
        ("fed_avg", "resnet18", "running statistics"),
        ("fed_lora", "mlp", "adapters"),
        ("fed_lora", "lora(mlp)", pairs.RAN),
        (
            "fed_l1",
            "lora(mlp)",
            (
                "fed_l1, where: expected parameters that are trained, found 2 frozen ones: "
                "1.base.weight, 3.base.weight; try in Python"
            ),
        ),
        (
            "fed_mid",
            "lora(mlp)",
            'a network without adapters, merged(net), which is { kind = "merged", ... } in a file',
        ),
        ("fed_prune", "lora(mlp)", "fed_prune, where: expected parameters that are trained"),
        ("d_turbo_vbi", "cnn", pairs.RAN),
        ("split_mix", "cnn", pairs.RAN),
    ],
)
def test_nets(recipe, net, told, folder):
    found = pairs.attempt(recipe, "net", net, folder)
    assert told in found.found
    assert not found.hole


@pytest.mark.slow
@pytest.mark.parametrize("axis", pairs.AXES)
def test_no_pair_has_a_hole(axis):
    said = []
    assert pairs.show(axis, said.append), "\n".join(said)
    assert all(recipe in said[0] for recipe in pairs.recipes())
