"""Looking at a run: tables, pictures and the ArviZ export. Matplotlib and ArviZ are imported where they are used."""

from bayesfed.inspect.devices import plot_client_costs, plot_device_costs, plot_plans
from bayesfed.inspect.export import to_arviz
from bayesfed.inspect.maps import plot_support_maps, plot_unit_maps
from bayesfed.inspect.partitions import partition_table, plot_partition
from bayesfed.inspect.pictures import plot_accuracy_against_bits, plot_against_bits, plot_forest, plot_series, save
from bayesfed.inspect.psis import k_hat
from bayesfed.inspect.reliability import plot_reliability
from bayesfed.inspect.tables import round_table, score_table, table

__all__ = [
    "k_hat",
    "partition_table",
    "plot_accuracy_against_bits",
    "plot_against_bits",
    "plot_client_costs",
    "plot_device_costs",
    "plot_forest",
    "plot_partition",
    "plot_plans",
    "plot_reliability",
    "plot_series",
    "plot_support_maps",
    "plot_unit_maps",
    "round_table",
    "save",
    "score_table",
    "table",
    "to_arviz",
]
