"""Compare the world that a framework forms with the launched ranks, in each Python process of a user's program.

``own_program`` puts this directory first on ``PYTHONPATH``: Python imports this file when it starts.
The functions with which frameworks form their world are replaced, when their modules are imported, by functions that
then compare its size with the number of launched ranks. A world of another size, or a second world beside the first,
ends the process with ``WRONG_WORLD``: N ranks would otherwise be N separate trainings that all succeed.

A process that a rank has started may form a larger world, of as many processes for each rank. Nothing is checked in a
run of one rank, and after ``hidl_workloads.world.hide_launcher()``.

The program's own Python executes this file, so it uses neither other modules of hidl nor recent syntax.
"""

import os
import sys
import time

WRONG_WORLD = 86
_GATHERING_SECONDS = 2.0  # a launcher ends all ranks when the first has failed
_checked = set()
"""The frameworks whose world is the launched one."""


def compare(framework, size, rank, fix, starts_processes=False):
    """End this process if the world of a framework is not that of the launched ranks.

    Args:
        framework: Name of the framework.
        size: Size of the framework's world.
        rank: Rank of this process in that world.
        fix: What to do about it.
        starts_processes: Whether this process will start those of the world.
    """
    launched, process = os.environ.get("HIDL_RANK", ""), os.environ.get("HIDL_RANK_PROCESS", "")
    expected = os.environ.get("HIDL_EXPECTED_WORLD", "")
    if not launched.isdigit() or not expected.isdigit() or int(expected) < 2:
        return
    size, expected = int(size), int(expected)
    is_rank = process == str(os.getpid()) and not starts_processes
    if size != expected and (is_rank or size < expected or size % expected):
        seen = f"its world has {size} process(es), but {expected} were launched"
    else:
        other = None if rank else _first_rank_0(framework, launched)
        if other in (None, launched):
            _checked.add(framework)
            return
        seen = f"launched ranks {other} and {launched} are both rank 0 of a world of {size}"
    if _is_first("wrong-world", launched):
        sys.stdout.flush()
        sys.stderr.write(
            f"hidl: wrong world: {framework}: {seen}. Each part would train alone and succeed.\n"
            f"next: {fix}; --separate-ranks accepts ranks that work separately\n"
        )
    time.sleep(_GATHERING_SECONDS)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass
    os._exit(WRONG_WORLD)


def _first_rank_0(framework, launched):
    """Return the launched rank whose process was the first rank 0 of a world of ``framework``; None if unknown."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0" or _is_first("world-" + framework, launched):
        return None
    for _ in range(20):
        try:
            with open(_place("world-" + framework)) as file:
                text = file.read().strip()
        except OSError:
            return None
        if text:
            return text
        time.sleep(0.05)  # it is being written
    return None


def _is_first(name, text):
    """Create a file beside the metrics of this step with ``text``; return False if it exists."""
    try:
        descriptor = os.open(_place(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    except (KeyError, OSError):
        return True
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    return True


def _place(name):
    return os.path.join(os.path.dirname(os.environ["HIDL_METRICS"]), f".{name}")


def _after(owner, name, look):
    """Call ``look`` with the arguments and the result of a function or method after each call of it."""
    function = getattr(owner, name)

    def wrapper(*args, **kwargs):
        result = function(*args, **kwargs)
        look(*args)
        return result

    _resemble(wrapper, function)
    setattr(owner, name, wrapper)


def _resemble(wrapper, function):
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        if hasattr(function, attribute):
            setattr(wrapper, attribute, getattr(function, attribute))
    wrapper.__wrapped__ = function


def _before(owner, name, look):
    """Call ``look`` with the object before each call of a method."""
    method = getattr(owner, name)

    def wrapper(self, *args, **kwargs):
        look(self)
        return method(self, *args, **kwargs)

    _resemble(wrapper, method)
    setattr(owner, name, wrapper)


_RENDEZVOUS = "take rank and size from RANK and WORLD_SIZE (init_process_group without rank and world_size does)"


def _torch(module):
    def look(*_):
        if module.is_initialized():
            compare("torch.distributed", module.get_world_size(), module.get_rank(), _RENDEZVOUS)

    _after(module, "init_process_group", look)


def _jax(module):
    fix = "call jax.distributed.initialize() without arguments"
    own = module.initialize

    def initialize(*args, **kwargs):
        if not args and not any(kwargs.get(name) for name in ("coordinator_address", "num_processes")):
            kwargs = _found_by_jax(kwargs)
        return own(*args, **kwargs)

    initialize.__doc__ = own.__doc__
    module.initialize = initialize
    _after(module, "initialize", lambda *_: compare("JAX", *_world_of_jax(module), fix=fix))


def _found_by_jax(kwargs):
    """Return the arguments with this rank's, where JAX knows no variables of the launcher."""
    from jax._src import clusters

    kinds = clusters.ClusterEnv._cluster_types
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "HIDL_RANK")
    if kwargs.get("cluster_detection_method") or not all(name in os.environ for name in names):
        return kwargs
    if any(kind.is_env_present() for kind in kinds if not getattr(kind, "opt_in_only_method", False)):
        return kwargs
    return dict(
        kwargs,
        coordinator_address=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        num_processes=int(os.environ["WORLD_SIZE"]),
        process_id=int(os.environ["RANK"]),
    )


def _world_of_jax(module):
    return module.global_state.num_processes, module.global_state.process_id


def _tensorflow(module):
    fix = "leave TF_CONFIG as hidl sets it, and give the strategy no cluster_resolver"

    def look(strategy, *_):
        resolver = strategy._cluster_resolver
        compare("TensorFlow", strategy._num_workers, getattr(resolver, "task_id", 0) or 0, fix)

    _after(module.CollectiveAllReduceExtended, "__init__", look)


def _lightning(module):
    local, size = "int(os.environ.get('LOCAL_WORLD_SIZE', 1))", "int(os.environ['WORLD_SIZE'])"
    fix = f"Trainer(devices={local}, num_nodes={size} // {local}, strategy='ddp')"

    def look(trainer):
        # With the number of a launcher's tasks as its world, Lightning would wait for ranks that it did not count.
        distributed = sys.modules.get("torch.distributed")
        is_joined = distributed is not None and distributed.is_available() and distributed.is_initialized()
        strategy = getattr(trainer, "strategy", None)  # versions before 1.6 have none
        if strategy is None or is_joined or "Horovod" in _checked or not _counts_devices(strategy):
            return
        starts_processes = getattr(strategy, "launcher", None) is not None
        compare("Lightning", trainer.num_nodes * trainer.num_devices, trainer.global_rank, fix, starts_processes)

    for name in ("fit", "validate", "test", "predict"):
        _before(module.Trainer, name, look)


def _counts_devices(strategy):
    """Return whether the world of a strategy of Lightning has ``num_nodes`` times ``devices`` processes.

    Strategies with a world of their own (Horovod, XLA, Hivemind) define its size.
    """
    owner = next((each for each in type(strategy).__mro__ if "world_size" in vars(each)), None)
    return owner is None or owner.__name__ in ("ParallelStrategy", "ParallelPlugin")


def _accelerate(module):
    fix = "on CPUs, Accelerator(cpu=True) or TrainingArguments(use_cpu=True)"
    _after(
        module.PartialState,
        "__init__",
        lambda state, *_: compare("accelerate", state.num_processes, state.process_index, fix),
    )


def _horovod(module):
    fix = "run on a stack whose Horovod is built for its MPI library (hidl install horovod)"
    _after(module.HorovodBasics, "init", lambda basics, *_: compare("Horovod", basics.size(), basics.rank(), fix))


def _mpi4py(module):
    """In an image, another MPI library than the launcher's leaves each rank alone; the check before may not see it."""
    if "HIDL_CHECKS_MPI" not in os.environ:
        return
    fix = "use an MPI library that the launcher can start, or mount one of the site's with --mpi NAME"

    def look(*_):
        # Processes that this one starts are no ranks, so they do not inherit the variable.
        if module.Is_initialized() and os.environ.pop("HIDL_CHECKS_MPI", None):
            compare("mpi4py", module.COMM_WORLD.Get_size(), module.COMM_WORLD.Get_rank(), fix)

    for name in ("Init", "Init_thread"):
        _after(module, name, look)
    look()


_MODULES = {
    "mpi4py.MPI": _mpi4py,
    "torch.distributed.distributed_c10d": _torch,
    "jax._src.distributed": _jax,
    "tensorflow.python.distribute.collective_all_reduce_strategy": _tensorflow,
    "lightning.pytorch.trainer.trainer": _lightning,
    "pytorch_lightning.trainer.trainer": _lightning,
    "accelerate.state": _accelerate,
    "horovod.common.basics": _horovod,
}


class _Finder:
    """Finds the modules of ``_MODULES`` as Python does, and changes them once they are executed."""

    def find_spec(self, name, path=None, target=None):
        """Return the spec of a module to change; None for any other."""
        if name not in _MODULES:
            return None
        others = (each for each in sys.meta_path if each is not self and hasattr(each, "find_spec"))
        spec = next((found for found in (each.find_spec(name, path, target) for each in others) if found), None)
        execute = getattr(getattr(spec, "loader", None), "exec_module", None)
        if execute is None:
            return spec

        def execute_and_change(module):
            execute(module)
            try:
                _MODULES[name](module)
            except AttributeError:  # other versions of the framework have other functions
                pass

        try:
            spec.loader.exec_module = execute_and_change
        except AttributeError:
            pass
        return spec


def _start():
    """Install the finder, and import the ``sitecustomize`` that this file hides."""
    if os.environ.get("HIDL_RANK"):
        sys.meta_path.insert(0, _Finder())
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if own is not None:
            sys.modules["sitecustomize"] = own


if __name__ == "sitecustomize":
    _start()
