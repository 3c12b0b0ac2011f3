"""The parameters of the workloads, as their programs read them: types, defaults, limits, units, help.

Generated from recipes/workloads by tools/parameters.py; change the recipes, then run ``make parameters``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hidl_workloads.arguments import parameter


@dataclass(frozen=True)
class Dask:
    """Parameters of all recipes that extend _dask."""

    protocol: Literal["mpi", "tcp"] = parameter(
        "mpi",
        help="protocol between Dask's processes; tcp has no authentication: a process that reaches its ports runs code as you",
    )
    runs: int = parameter(3, min=1, help="timed runs")
    warmup: int = parameter(1, min=0, help="runs before the timed ones")
    ignore_size: str = parameter(
        "1MiB", help="size below which transfers between workers do not count in transfer_bandwidth"
    )
    worker_threads: int = parameter(0, min=0, help="threads per worker; 0: the number of threads per rank")
    interface: str = parameter("", help="network interface for sockets, such as ib0; empty: chosen by Dask")


@dataclass(frozen=True)
class DaskDataframeSum(Dask):
    """The sums of a data frame's columns with Dask over MPI."""

    chunk_size: int = parameter(8000000, min=1, unit="rows", help="rows for each worker")
    partitions: int = parameter(4, min=1, help="partitions for each worker")


@dataclass(frozen=True)
class DaskMerge(Dask):
    """The merge of two data frames with Dask over MPI."""

    chunk_size: int = parameter(1000000, min=1, unit="rows", help="rows of each frame for each worker")
    frac_match: float = parameter(0.3, min=0, max=1, help="fraction of rows that match")
    partitions: int = parameter(1, min=1, help="partitions of each frame for each worker")
    shuffle: Literal["tasks", "p2p"] = parameter("tasks", help="shuffle method")


@dataclass(frozen=True)
class DaskSvd(Dask):
    """The singular value decomposition of a tall array with Dask over MPI."""

    rows: int = parameter(200000, min=1, help="rows of the array of float64")
    columns: int = parameter(100, min=1, help="columns of the array")
    chunk_size: int = parameter(25000, min=1, help="rows of its blocks")


@dataclass(frozen=True)
class DaskTranspose(Dask):
    """The sum of an array and its transpose with Dask over MPI."""

    size: int = parameter(6000, min=2, help="rows and columns of the array of float64")
    chunk_size: int = parameter(1000, min=1, help="rows and columns of its blocks")


@dataclass(frozen=True)
class DaskXgboost(Dask):
    """Gradient boosting with XGBoost on Dask over MPI."""

    rows: int = parameter(200000, min=64, help="rows for each worker")
    columns: int = parameter(20, min=3, help="features of a row")
    partitions: int = parameter(2, min=1, help="partitions for each worker")
    rounds: int = parameter(20, min=1, help="trees")
    depth: int = parameter(6, min=1, help="largest depth of a tree")


@dataclass(frozen=True)
class Training:
    """Parameters of all recipes that extend _training."""

    framework: Literal["torch", "tensorflow"] = parameter("torch", help="framework")
    backend: Literal["mpi4py", "horovod", "gloo", "nccl", "mpi"] = parameter(
        "mpi4py", help="library that averages the gradients; mpi: torch.distributed over MPI; nccl: on GPUs"
    )
    batch: int = parameter(8, min=1, help="samples per rank and step")
    steps: int = parameter(12, min=1, help="timed steps")
    warmup: int = parameter(2, min=0, help="steps before the timed ones")
    batches: int = parameter(
        0,
        min=0,
        help="distinct batches of the synthetic data, each trained on once in an epoch; 0: one for each rank, the same in all steps",
    )
    data: str = parameter(
        "",
        help="absolute path of the data, a directory of archives or a file, each sample of which is trained on once in an epoch; empty: synthetic data",
    )
    readers: int = parameter(1, min=1, max=64, help="threads of a rank that read data ahead")
    precision: Literal["float32", "bfloat16"] = parameter("float32", help="arithmetic of the forward and backward pass")
    optimizer: Literal["sgd", "adam"] = parameter("sgd", help="optimizer")
    learning_rate: float = parameter(0.01, min=0, help="step size of the optimizer")
    bucket_mib: float = parameter(
        25.0, min=0.001, unit="MiB", help="mpi4py, mpi, gloo, nccl: size of a gradient bucket"
    )
    gpu_buffers: Literal["auto", "staged", "direct"] = parameter(
        "auto",
        help="mpi4py: pass gradients on GPUs to MPI through the host, or directly (CUDA-aware MPI); auto: directly if that is proved to work",
    )
    compression: Literal["none", "float16", "bfloat16"] = parameter(
        "none", help="type in which gradients are sent (Horovod: none or float16, DDP: none)"
    )
    cycle_time_ms: float = parameter(1.0, min=0.001, unit="ms", help="Horovod: interval between checks for gradients")
    fusion_mib: float = parameter(128.0, min=0, unit="MiB", help="Horovod: size of the fusion buffer")
    timeline: bool = parameter(False, help="Horovod: write timeline.json, for chrome://tracing, beside the metrics")
    memory_limit: int = parameter(
        0, min=0, unit="MiB", help="PyTorch: limit for the predicted memory of a training step on a rank; 0: none"
    )
    seed: int = parameter(0, min=0, help="random seed")
    note: str = parameter("", help="free text stored with the metrics")


@dataclass(frozen=True)
class Gpt(Training):
    """Training of a GPT-style decoder on synthetic text."""

    framework: Literal["torch"] = parameter("torch", help="framework")
    parallel: Literal["ddp", "fsdp", "hsdp", "tp", "pp"] = parameter(
        "ddp",
        help="ddp: every rank has all weights; fsdp: a shard (FSDP2); hsdp: shards within `partitions` ranks; tp: parts of every matrix; pp: stages (all but ddp: backends mpi, gloo, nccl)",
    )
    partitions: int = parameter(
        0,
        min=0,
        help="hsdp, tp, pp: number of ranks that share one copy of the weights and train on a joint batch; 0: the ranks of a node (pp: all)",
    )
    total_batch: int = parameter(
        0,
        min=0,
        unit="sequences",
        help="sequences per step on all ranks together, instead of `batch`; 0: `batch` for each rank",
    )
    micro_batches: int = parameter(
        0,
        min=0,
        help="parts of a batch whose gradients are accumulated (on the largest number of nodes, with --nodes 2-4); 0: one (pp: up to 4 for each stage)",
    )
    recompute: Literal["auto", "always", "never"] = parameter(
        "auto", help="recompute the activations of a block in the backward pass; auto: if memory_limit requires it"
    )
    batch: int = parameter(4, min=1, unit="sequences", help="sequences per rank and step")
    optimizer: Literal["sgd", "adam"] = parameter("adam", help="optimizer")
    learning_rate: float = parameter(0.0003, min=0, help="step size of the optimizer")
    layers: int = parameter(4, min=1, help="blocks of the decoder; 12 in GPT-2 small")
    width: int = parameter(256, min=1, help="elements of a token's vector; 768 in GPT-2 small")
    heads: int = parameter(4, min=1, help="attention heads, which divide the width; 12 in GPT-2 small")
    context: int = parameter(128, min=1, unit="tokens", help="length of a sequence; 1024 in GPT-2 small")
    vocabulary: int = parameter(50257, min=2, unit="tokens", help="number of different tokens")


@dataclass(frozen=True)
class Hyparflow:
    """Parameters of all recipes that extend _hyparflow."""

    mode: Literal["data", "model", "hybrid"] = parameter(
        "data",
        help="data: a replica on each rank; model: one replica in as many partitions as ranks; hybrid: replicas of `partitions` ranks",
    )
    partitions: int = parameter(2, min=1, help="hybrid: partitions of each replica")
    image_size: int = parameter(32, min=32, unit="pixels", help="height and width of an image")
    spatial: int = parameter(
        1,
        min=1,
        help="parts into which each replica's images are divided by rows, each on a rank of its own: for images that do not fit",
    )
    batch: int = parameter(64, min=1, unit="images", help="images per replica and step")
    micro_batches: int = parameter(
        0, min=0, help="micro-batches of a replica's batch; 0: the number with the shortest predicted step"
    )
    schedule: Literal["gpipe", "1f1b", "interleaved", "gems"] = parameter("1f1b", help="pipeline schedule")
    chunks: int = parameter(1, min=1, help="interleaved: stages of each partition")
    recompute: Literal["auto", "always", "never"] = parameter(
        "auto", help="recompute activations in the backward pass; auto: if memory_limit requires it"
    )
    memory_limit: int = parameter(
        0, min=0, unit="MiB", help="limit for weights, gradients and activations of a rank; 0: none"
    )
    costs: Literal["auto", "measured", "estimated"] = parameter(
        "auto",
        help="costs by which partitions are balanced; auto: measured on CPUs; on GPUs, estimated and refined once",
    )
    refinements: int = parameter(
        0,
        min=0,
        help="number of times that stages are compiled, timed on all ranks at once, and the model is divided again; the prediction then uses these times",
    )
    gpu_buffers: Literal["auto", "staged", "direct"] = parameter(
        "auto",
        help="pass messages between stages on GPUs to MPI through the host, or directly (CUDA-aware MPI); auto: directly if that is proved to work",
    )
    batch_norm: Literal["replica", "synchronised", "deferred"] = parameter(
        "replica", help="batch from which the moving statistics are computed"
    )
    steps: int = parameter(10, min=1, help="timed steps")
    warmup: int = parameter(2, min=0, help="steps before the timed ones; the first one compiles")
    precision: Literal["float32", "bfloat16", "float64"] = parameter(
        "float32", help="arithmetic of the forward and backward pass"
    )
    learning_rate: float = parameter(0.01, min=0, help="step size of the optimizer")
    seed: int = parameter(0, min=0, help="random seed")
    timeline: bool = parameter(
        False, help="write timeline.json, for chrome://tracing, and the plan's picture plan.svg beside the metrics"
    )
    note: str = parameter("", help="free text stored with the metrics")


@dataclass(frozen=True)
class HyparflowAmoebanet(Hyparflow):
    """Training of AmoebaNet-like networks for small images with hyparflow, in replicas and partitions."""

    depth: int = parameter(6, min=3, unit="cells", help="normal cells; a multiple of 3")
    filters: int = parameter(32, min=1, help="filters of each sum in the first of three stacks of cells")


@dataclass(frozen=True)
class HyparflowResnet(Hyparflow):
    """Training of ResNets for small images with hyparflow, in replicas and partitions."""

    depth: int = parameter(
        20, min=8, help="layers: 6n+2 in version 1 (20, 56, 110), 9n+2 in version 2 (20, 56, 110, 164, 1001)"
    )
    version: Literal["1", "2"] = parameter(
        "1", help="1: as first published; 2: normalisation and ReLU before each convolution"
    )


@dataclass(frozen=True)
class HyparflowVgg(Hyparflow):
    """Training of VGGs for small images with hyparflow, in replicas and partitions."""

    depth: Literal["11", "13", "16", "19"] = parameter("16", help="layers with weights")


@dataclass(frozen=True)
class Resnet50(Training):
    """Data-parallel ResNet-50 training on synthetic images."""

    batch: int = parameter(8, min=1, unit="images", help="images per rank and step")
    image_size: int = parameter(224, min=32, max=1024, unit="pixels", help="height and width of an image")


@dataclass(frozen=True)
class ImageTraining(Resnet50):
    """Data-parallel training of networks for images."""

    model: Literal["resnet50", "resnet101", "resnet152", "vgg16", "inception3", "mobilenet"] = parameter(
        "resnet50", help="network"
    )
    batch: int = parameter(8, min=1, unit="images", help="images per rank and step")
    image_size: int = parameter(
        0,
        min=0,
        max=1024,
        unit="pixels",
        help="height and width of an image; 0: as published, 299 for inception3, 224 for the others",
    )


@dataclass(frozen=True)
class MachineLearning:
    """Parameters of all recipes that extend _machine-learning."""

    steps: int = parameter(5, min=1, help="timed steps")
    warmup: int = parameter(1, min=0, help="untimed steps before them")
    seed: int = parameter(0, min=0, help="random seed")
    per_rank: bool = parameter(False, help="the size is per rank, not the total")
    gpu_buffers: Literal["staged", "direct"] = parameter(
        "staged", help="pass GPU arrays to MPI through the host, or directly (CUDA-aware MPI)"
    )
    result: str = parameter("", help="file (.npz) to which rank 0 writes the result; empty: none")


@dataclass(frozen=True)
class Clustering(MachineLearning):
    """Parameters of all recipes that extend _clustering."""

    per_rank: bool = parameter(False, help="points is the number per rank, not the total")
    data: str = parameter("", help="file (.npy) with one point per row; empty: synthetic points")
    points: int = parameter(500000, min=1, unit="points", help="number of synthetic points")
    columns: int = parameter(16, min=1, help="dimensions of a point")
    centers: int = parameter(16, min=1, help="clouds in the synthetic data")
    spread: float = parameter(2.0, min=0, help="standard deviation of a cloud; the centers are between -10 and 10")
    max_iterations: int = parameter(300, min=1, help="maximum number of iterations of a fit")
    tolerance: float = parameter(
        0.0001, min=0, help="a fit ends when centers move by less than this, relative to the variance"
    )
    block: int = parameter(1024, min=1, unit="points", help="points processed at once; the smallest share of a rank")


@dataclass(frozen=True)
class KmeansSweep(Clustering):
    """k-means for a range of numbers of clusters, distributed over groups of ranks."""

    steps: int = parameter(3, min=1, help="timed sweeps")
    warmup: int = parameter(1, min=0, help="sweeps before the timed ones")
    points: int = parameter(10000, min=1, unit="points", help="number of synthetic points")
    centers: int = parameter(12, min=1, help="clouds in the synthetic data")
    spread: float = parameter(1.0, min=0, help="standard deviation of a cloud; the centers are between -10 and 10")
    least_clusters: int = parameter(2, min=2, help="smallest number of clusters to try")
    most_clusters: int = parameter(20, min=2, help="largest number of clusters to try")
    starts: int = parameter(2, min=1, help="starts for each number of clusters")
    group: int = parameter(1, min=1, unit="ranks", help="ranks that share one fit")
    criterion: Literal["silhouette", "bic"] = parameter("silhouette", help="criterion that is maximised")
    sample: int = parameter(1000, min=2, unit="points", help="points whose silhouettes are computed")


@dataclass(frozen=True)
class Kmeans(Clustering):
    """k-means clustering by allreduced sums and counts."""

    steps: int = parameter(5, min=1, help="timed fits")
    warmup: int = parameter(1, min=0, help="fits before the timed ones")
    clusters: int = parameter(16, min=1, help="clusters to find")
    start: str = parameter("", help="file (.npy) with one initial center per row; empty: k-means++")


@dataclass(frozen=True)
class Knn(MachineLearning):
    """Classification by the k nearest neighbours, by brute force."""

    steps: int = parameter(5, min=1, help="timed searches")
    warmup: int = parameter(1, min=0, help="searches before the timed ones")
    per_rank: bool = parameter(False, help="queries is the number per rank, not the total")
    queries: int = parameter(4096, min=1, unit="points", help="points to classify")
    references: int = parameter(32768, min=1, unit="points", help="points whose classes are known")
    columns: int = parameter(16, min=1, help="dimensions of a point")
    classes: int = parameter(8, min=1, help="clouds in the synthetic data")
    spread: float = parameter(3.0, min=0, help="standard deviation of a cloud; the centers are between -10 and 10")
    neighbours: int = parameter(5, min=1, help="neighbours that vote")
    block: int = parameter(
        512, min=1, unit="points", help="queries and references compared at once; the smallest share of a rank"
    )


@dataclass(frozen=True)
class LinearRegression(MachineLearning):
    """Least squares by the normal equations or by a QR factorisation over all ranks."""

    steps: int = parameter(10, min=1, help="timed solutions")
    warmup: int = parameter(1, min=0, help="solutions before the timed ones")
    per_rank: bool = parameter(True, help="points is the number per rank, not the total")
    solver: Literal["normal", "tsqr"] = parameter(
        "normal", help="normal equations, or QR (TSQR) for ill-conditioned data"
    )
    points: int = parameter(200000, min=1, unit="points", help="rows of the data")
    columns: int = parameter(64, min=1, help="features")
    noise: float = parameter(0.1, min=0, help="standard deviation of the targets' noise")
    condition: float = parameter(1.0, min=1, help="condition number of the features")
    block: int = parameter(4096, min=1, unit="points", help="rows processed at once")


@dataclass(frozen=True)
class Matmul(MachineLearning):
    """Product of two dense matrices by SUMMA on a two-dimensional grid of ranks."""

    steps: int = parameter(5, min=1, help="timed products")
    warmup: int = parameter(1, min=0, help="products before the timed ones")
    per_rank: bool = parameter(False, help="rows is the number per rank, not the total")
    rows: int = parameter(2048, min=1, help="rows of the left matrix")
    inner: int = parameter(2048, min=1, help="columns of the left and rows of the right matrix")
    columns: int = parameter(2048, min=1, help="columns of the right matrix")
    panel: int = parameter(256, min=1, help="columns of the left matrix per broadcast")
    overlap: bool = parameter(True, help="broadcast the next panel during the multiplication")


@dataclass(frozen=True)
class MpiSanity:
    """MPI sanity check - world size, one library per process, exact sums, binding as in the placement, GPUs."""

    cores: int = parameter(0, min=0, unit="cores", help="exclusive cores that each rank must have; 0: any")
    ranks_per_node: int = parameter(0, min=0, unit="ranks", help="ranks that the fullest node must have; 0: any")


@dataclass(frozen=True)
class OmbPairs:
    """Latency and bandwidth between every two nodes, in rounds; finds slow nodes and slow links."""

    latency_size: int = parameter(8, min=1, unit="bytes", help="message size of the latency")
    latency_iterations: int = parameter(1000, min=1, help="timed round trips of one pair")
    bandwidth_size: int = parameter(1048576, min=1, unit="bytes", help="message size of the bandwidth")
    bandwidth_iterations: int = parameter(10, min=1, help="timed windows of 64 messages of one pair and direction")
    warmup: int = parameter(2, min=0, help="untimed windows before, and ten times as many round trips")
    repetitions: int = parameter(3, min=1, help="measurements per pair; the median is reported")


@dataclass(frozen=True)
class Tsvd(MachineLearning):
    """Truncated singular value decomposition of a tall matrix."""

    steps: int = parameter(10, min=1, help="timed decompositions")
    warmup: int = parameter(1, min=0, help="decompositions before the timed ones")
    per_rank: bool = parameter(True, help="points is the number per rank, not the total")
    solver: Literal["covariance", "randomized"] = parameter(
        "covariance", help="eigenvectors of X'X, or a randomized subspace iteration"
    )
    points: int = parameter(50000, min=1, unit="points", help="rows of the matrix")
    columns: int = parameter(128, min=1, help="columns of the matrix")
    components: int = parameter(8, min=1, help="singular vectors to find")
    decay: float = parameter(0.8, min=0, help="ratio of consecutive singular values of the data")
    oversampling: int = parameter(8, min=0, help="randomized: additional vectors (oversampling)")
    power_iterations: int = parameter(6, min=0, help="randomized: products with X'X before the last")
    residual_limit: float = parameter(0.001, min=0, help="randomized: largest residual of a valid result")
    block: int = parameter(4096, min=1, unit="points", help="rows processed at once")
