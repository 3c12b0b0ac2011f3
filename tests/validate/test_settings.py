"""ReFrame's configuration out of a site: what ReFrame's own schema accepts, and what checks select by."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.inputs.load import load
from hidl_cli.inputs.overlay import list_all
from hidl_cli.plan.devices import reason_not_runnable
from hidl_cli.site.checks import RULES
from hidl_cli.site.schema import Site
from hidl_cli.stack.installation import Installation
from hidl_cli.validate.bridge import CheckLocation
from hidl_cli.validate.settings import configuration, word

STACK = Installation(
    Path("/opt/stacks/frontera/mpi/0123456789ab"),
    {"lock": {"digest": "0" * 64}, "packages": {"mpi4py": "4.1", "backports.tarfile": "1"}},
)


def site(name: str) -> Site:
    return load(RULES, name)


def made(name: str, place: CheckLocation | None = None, **options: Any) -> dict[str, Any]:
    """The configuration of a shipped site with all its partitions."""
    found = site(name)
    account = "proj" if found.policies.account == "required" else None
    chosen = place or CheckLocation(site=name, account=account)
    return configuration(found, chosen, partitions=list(found.partitions), stacks=[STACK], **options)


def running() -> list[str]:
    """The shipped sites that jobs can be rendered for."""
    return [entry.name for entry in list_all("site") if not reason_not_runnable(site(entry.name))]


@pytest.mark.parametrize("name", running())
def test_every_site_has_a_valid_reframe_configuration(name: str) -> None:
    package = find_spec("reframe")
    assert package is not None
    assert package.origin is not None
    schema = json.loads((Path(package.origin).parent / "schemas" / "config.json").read_text())
    jsonschema.validate(made(name), schema)


def test_a_site_whose_scheduler_is_unknown_is_reported() -> None:
    unknown = site("local").model_copy(update={"scheduler": None})
    with pytest.raises(InvalidInput, match="unknown scheduler"):
        configuration(unknown, CheckLocation(), partitions=[], stacks=[])


def test_a_site_whose_partitions_are_unknown_has_one() -> None:
    bare = site("sierra").model_copy(update={"partitions": {}, "default_partition": None})
    (partition,) = configuration(bare, CheckLocation(), partitions=[], stacks=[])["systems"][0]["partitions"]
    assert (partition["name"], partition["launcher"]) == ("default", "hidl-jsrun")


def test_gpus_are_a_trait_and_a_device() -> None:
    (rtx,) = [p for p in made("frontera-rtx")["systems"][0]["partitions"] if p["name"] == "rtx"]
    assert "gpu" in rtx["features"]
    assert rtx["devices"][0]["num_devices"] == site("frontera-rtx").node_type("rtx").gpus


@pytest.mark.parametrize(("accounting", "scheduler"), [(True, "slurm"), (False, "squeue")])
def test_without_accounting_squeue_is_asked(accounting: bool, scheduler: str) -> None:
    partitions = made("test-cluster", accounting=accounting)["systems"][0]["partitions"]
    assert {each["scheduler"] for each in partitions} == {scheduler}


def test_the_account_is_among_the_options_of_access() -> None:
    (partition, *_) = made("test-cluster", CheckLocation(site="test-cluster", account="proj"))["systems"][0][
        "partitions"
    ]
    assert partition["access"] == ["--partition=debug", "--account=proj"]


def test_checks_get_back_what_was_asked() -> None:
    place = CheckLocation(site="test-cluster", partition="debug", account="proj", time_limit=90.0)
    assert CheckLocation.of(place.extras()) == place


def test_an_installed_stack_is_an_environment_that_is_activated() -> None:
    (environment,) = made("test-cluster")["environments"]
    assert (environment["name"], environment["features"]) == ("mpi", ["backports_tarfile", "mpi4py"])
    assert environment["prepare_cmds"] == ["source /opt/stacks/frontera/mpi/0123456789ab/activate.sh"]


@pytest.mark.parametrize(("name", "admitted"), [("mpi", "mpi"), ("2nd.x", "_2nd_x"), ("a-b", "a-b")])
def test_names_become_valid_in_reframe(name: str, admitted: str) -> None:
    assert word(name) == admitted
