"""``Run``: one run of a workload at one scale. ReFrame submits and waits; hidl plans and judges."""

import math
from functools import cache
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
import reframe.utility.typecheck as typ
from reframe.core.backends import getlauncher
from reframe.core.builtins import parameter, run_after, run_before, sanity_function, variable
from reframe.core.exceptions import PerformanceError, ReframeError, SanityError
from reframe.core.runtime import runtime

from hidl_cli.errors import ExitCode, HidlError
from hidl_cli.plan.checks import load_workload
from hidl_cli.plan.launch_plan import plan_of
from hidl_cli.plan.parameters import resolve
from hidl_cli.plan.prepare import stack_for
from hidl_cli.quoting import sh
from hidl_cli.record import Run as Record
from hidl_cli.site.load import load_site
from hidl_cli.validate import bridge
from hidl_cli.validate.reframe import allowed_scales

_load_site, _load_workload = cache(load_site), cache(load_workload)


class Run(rfm.RunOnlyRegressionTest, special=True):
    """One run. A check names its ``workload``, its scales and its tags; ``assignments`` are as for ``hidl run --set``.

    It holds where the job ended well by its own record and the scheduler's word, every metric that the workload
    promises is there, and the verdict is not ``fail`` or ``inconclusive``.
    """

    #: Which workload, and at which of hidl's scales.
    workload = variable(str)
    scale = parameter()
    #: Words ``NAME=VALUE`` for the workload's parameters.
    assignments = variable(typ.List[str], value=[])
    #: What a partition must have: features of the generated configuration (``gpu``, ``multi-node``, ...).
    traits = variable(typ.List[str], value=["mpi"])
    #: As many ranks on each of several nodes as on one full node.
    fill_nodes = variable(bool, value=False)
    #: So many ranks on each node; 0: as the scale has it.
    ranks_per_node = variable(int, value=0)

    #: What is left for ``hidl validate``, in ReFrame's report.
    hidl_run = variable(str, value="", loggable=True)
    hidl_directory = variable(str, value="", loggable=True)
    hidl_exit = variable(int, value=int(ExitCode.UNEXPECTED), loggable=True)
    hidl_verdict = variable(str, value="", loggable=True)
    hidl_reason = variable(str, value="", loggable=True)
    hidl_hint = variable(str, value="", loggable=True)

    executable = "bash"
    require_reference = True

    def wish(self):
        """What is to be run."""
        return bridge.CheckRequest(
            workload=self.workload,
            scale=self.scale,
            assignments=tuple(self.assignments),
            fill_nodes=self.fill_nodes,
            ranks_per_node=self.ranks_per_node or None,
        )

    @run_after("init", always_last=True)
    def choose_systems_and_environments(self):
        """By traits, the scale among them, and by the stack that the workload wants."""
        if runtime().system.name == "generic":  # plain `reframe`, without any configuration
            self.valid_systems = ["*"] if self.scale in allowed_scales(_load_site(None)) else []
            self.valid_prog_environs = ["*"]
            return
        self.valid_systems = [" ".join(f"+{trait}" for trait in (*self.traits, f"scale-{self.scale}"))]
        workload = _load_workload(self.workload)
        self.valid_prog_environs = [stack_for(workload, resolve(workload, self.assignments))]

    def place(self):
        """Where it runs."""
        return bridge.CheckLocation.of(self.current_partition.extras)

    def placement(self):
        """The placement of the largest step."""
        return self._told(lambda: bridge.plan(self.place(), self.wish())).steps[-1].placement

    @run_after("setup", always_last=True)
    def plan_the_run(self):
        """Make the run's directory, and ask for the allocation in hidl's words."""
        self.skip_if(
            self.current_system.name == "generic" and _load_site(None).scheduler != "local",
            "ReFrame has no configuration of this site; use hidl validate, or -C reframe_checks/settings.py",
        )
        plan = self._told(lambda: bridge.plan(self.place(), self.wish()))
        self.job.launcher = getlauncher("local")()
        self.job.options += bridge.directives(plan)
        self.num_tasks = self.num_tasks_per_node = self.num_cpus_per_task = None
        self.time_limit = plan.allocation.time_limit
        if self.is_dry_run():
            return
        run = self._told(lambda: bridge.begin(plan))
        self.hidl_run, self.hidl_directory = run.id, str(run.directory)
        self.executable_opts = [sh(str(run.script)), ">>", sh(str(run.stdout)), "2>>", sh(str(run.stderr))]
        self.prerun_cmds = [f"echo {sh(f'hidl run {run.id} in {run.directory}')}"]

    def run(self):
        """Submit. ``hidl status``, ``logs`` and ``cancel`` know the run from now on: hooks after this stage come when
        the job has ended."""
        super().run()
        if not self.is_dry_run():
            record = Record(self._directory)
            bridge.submitted(record, plan_of(record).scheduler, str(self.job.jobid), self.job.workdir)

    @sanity_function
    def ended_well_with_every_metric(self):
        """By the job's own record and the scheduler's word, never by an exit code alone; the metrics are all there."""
        conclusion = self._told(lambda: bridge.judge(Record(self._directory)), SanityError)
        state = str(self.job.state or "")
        if any(word in state for word in ("TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")):
            self._fail(ExitCode.JOB_FAILED, f"the job's state is {state}", SanityError)
        self.hidl_verdict = conclusion.verdict or "pass"
        self.hidl_reason, self.hidl_hint = conclusion.reason, conclusion.hint or ""
        self.hidl_exit = int(conclusion.exit_code)
        return True

    @run_before("performance")
    def name_the_figures(self):
        """Log every figure; the references tell what is wanted, and the verdict below judges."""
        conclusion = bridge.judge(Record(self._directory))
        figures = bridge.numbers(conclusion)
        wanted = {} if conclusion.study is None else {"efficiency": conclusion.study.target}
        self.reference = {"*": {name: (wanted.get(name, 0), None, None, unit) for name, (_, unit) in figures.items()}}
        self.perf_variables = {
            name: sn.make_performance_function(_constant, unit, value) for name, (value, unit) in figures.items()
        }

    @run_after("performance")
    def hold_the_verdict(self):
        """Every figure was taken by ReFrame, and hidl's verdict is a pass."""
        taken = {key.rpartition(":")[2]: values[0] for key, values in self.perfvalues.items()}
        for name in self.perf_variables:
            if not isinstance(taken.get(name), (int, float)) or not math.isfinite(taken[name]):
                self._fail(ExitCode.METRIC_MISSING, f"metric {name} was not extracted", PerformanceError)
        if self.hidl_verdict != "pass":
            raise PerformanceError(f"{self.hidl_verdict}: {self.hidl_reason}")

    @property
    def _directory(self):
        return Path(self.hidl_directory)

    def _told(self, action, kind=ReframeError):
        """What ``action`` returns; an error of hidl's becomes one of ReFrame's, and is kept for ``hidl validate``."""
        try:
            return action()
        except HidlError as error:
            self.hidl_hint = error.hint or ""
            self._fail(error.exit_code, error.message, kind)

    def _fail(self, code, message, kind):
        self.hidl_exit, self.hidl_reason, self.hidl_verdict = int(code), message, "fail"
        raise kind(message) from None


def _constant(value):
    return value
