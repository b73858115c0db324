"""Devices: the strategy of a run, its precision, and sums over its replicas."""

from __future__ import annotations

import functools
import json
import logging
import os

import tensorflow as tf
from official.common import distribute_utils
from official.core import config_definitions

from cmlm.common import fields, machine, workers
from cmlm.common.choices import STRATEGIES
from cmlm.common.keras import keras
from cmlm.errors import UserError, one_line

logger = logging.getLogger(__name__)

# The value of `runtime.mixed_precision_dtype` that leaves the choice to the run.
AUTO = "auto"
# Without a size, TensorFlow joins all gradients into one tensor, sums it and splits it:
# three more copies of the gradients, and no sum begins before the last gradient.
_IN_PACKS = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=50 * 2**20)
_TF_CONFIG_FORM = (
    '{"cluster": {"worker": ["HOST:PORT", ...]}, '
    '"task": {"type": "worker", "index": 0}}'
)


def build_strategy(runtime: config_definitions.RuntimeConfig) -> tf.distribute.Strategy:
    """Builds the strategy that `runtime.distribution_strategy` names.

    `mirrored` uses `runtime.num_gpus` GPUs. Without GPUs it uses every logical CPU
    device, which lets tests run several replicas. `multi_worker_mirrored` uses every
    GPU of each worker, or one CPU device, and waits for all workers of TF_CONFIG.
    TensorFlow must find workers and TPUs before any operation runs, so call this
    function first.

    Raises:
        UserError: the strategy is unknown, or a device or a worker is missing.
    """
    name = runtime.distribution_strategy
    if name not in STRATEGIES:
        raise fields.refused(
            "runtime.distribution_strategy", name, ", ".join(STRATEGIES)
        )
    # Listing logical devices initialises TensorFlow; listing visible devices does not.
    starts_cold = name in ("multi_worker_mirrored", "tpu")
    if starts_cold:
        gpus = len(tf.config.get_visible_devices("GPU"))
    else:
        gpus = len(tf.config.list_logical_devices("GPU"))
    if runtime.num_gpus > gpus:
        raise fields.refused(
            "runtime.num_gpus",
            runtime.num_gpus,
            f"at most {gpus}, the GPUs that TensorFlow finds on this machine (it needs "
            "the libraries of `pip install 'tensorflow[and-cuda]'`)",
        )
    if gpus and not runtime.num_gpus and not starts_cold:
        logger.warning(
            "%s GPU(s) of this machine stay idle: runtime.num_gpus is 0; "
            "--params_override=runtime.num_gpus=1 trains on one",
            gpus,
        )
    if name == "mirrored" and not runtime.num_gpus:
        return _mirrored_cpus()
    if name == "multi_worker_mirrored":
        _configure_cluster(runtime)
        return _multi_worker(runtime.all_reduce_alg)
    if name == "tpu":
        return _tpu(runtime.tpu)
    try:
        return distribute_utils.get_distribution_strategy(
            name,
            num_gpus=runtime.num_gpus,
            all_reduce_alg=runtime.all_reduce_alg,
            num_packs=runtime.num_packs,
        )
    except (ValueError, tf.errors.OpError) as error:
        raise UserError(f"--distribution_strategy={name}: {error}") from error


def _tpu(address: str | None) -> tf.distribute.TPUStrategy:
    if address is None:
        raise UserError(
            "--tpu is not given; allowed with --distribution_strategy=tpu: the name of "
            "a TPU, or local"
        )
    try:
        return distribute_utils.get_distribution_strategy("tpu", tpu_address=address)
    # The search asks Google's services, whose clients raise errors of their own.
    except Exception as error:
        hint = ""
        if address == "local":
            hint = "; the package tensorflow has no TPU kernels: see docs/runs.md"
        raise UserError(f"--tpu={address}: {one_line(error)}{hint}") from error


@functools.cache
def _mirrored_cpus() -> tf.distribute.MirroredStrategy:
    # One strategy for the whole process: every strategy numbers its collective
    # operations from the same start, so two strategies on the same devices would mix up
    # their operations.
    cpus = tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in cpus])


def _configure_cluster(runtime: config_definitions.RuntimeConfig) -> None:
    """Checks TF_CONFIG, or sets it from `runtime.worker_hosts` and `.task_index`.

    Raises:
        UserError: both are missing, or do not have the form that TensorFlow expects.
            Otherwise each worker would train alone, and all in one model_dir.
    """
    if not os.environ.get("TF_CONFIG"):
        os.environ.pop("TF_CONFIG", None)
        if not runtime.worker_hosts:
            raise UserError(
                "--distribution_strategy=multi_worker_mirrored lacks the addresses of "
                f"the workers: set TF_CONFIG={_TF_CONFIG_FORM}, or "
                "runtime.worker_hosts and runtime.task_index"
            )
    try:
        distribute_utils.configure_cluster(runtime.worker_hosts, runtime.task_index)
        config = json.loads(os.environ["TF_CONFIG"])
        kind, index = config["task"]["type"], int(config["task"]["index"])
        if kind not in ("chief", "worker") or index < 0:
            raise KeyError(kind)
        config["cluster"][kind][index]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(
            f"TF_CONFIG={os.environ.get('TF_CONFIG')} with runtime.worker_hosts="
            f"{runtime.worker_hosts!r} and runtime.task_index={runtime.task_index} "
            f"does not name a worker of a cluster; allowed: {_TF_CONFIG_FORM}"
        ) from error


@functools.cache
def _multi_worker(all_reduce_alg: str | None) -> tf.distribute.Strategy:
    # One strategy for the whole process, as in `_mirrored_cpus`.
    with workers.interruptible():
        try:
            return distribute_utils.get_distribution_strategy(
                "multi_worker_mirrored", all_reduce_alg=all_reduce_alg
            )
        except (ValueError, RuntimeError, tf.errors.OpError) as error:
            raise UserError(
                f"--distribution_strategy=multi_worker_mirrored: {error}"
            ) from error


def fast_precision(runtime: config_definitions.RuntimeConfig) -> str:
    """Returns `bfloat16` for TPUs and for CPUs with its instructions, or `float32`.

    GPUs get `float32`: which of them are faster in bfloat16 was never measured here.
    """
    if runtime.distribution_strategy == "tpu":
        return "bfloat16"
    uses_gpus = runtime.num_gpus or (
        runtime.distribution_strategy == "multi_worker_mirrored"
        and tf.config.list_physical_devices("GPU")
    )
    if uses_gpus or not machine.has_bfloat16():
        return "float32"
    return "bfloat16"


def set_precision(dtype: str | None) -> None:
    """Sets Keras' policy: `float32` (or None) or `bfloat16` for mixed precision.

    Raises:
        UserError: `dtype` has another value. float16 would need loss scaling.
    """
    policies = {None: "float32", "float32": "float32", "bfloat16": "mixed_bfloat16"}
    if dtype not in policies:
        raise fields.refused(
            "runtime.mixed_precision_dtype", dtype, f"float32, bfloat16, {AUTO}"
        )
    keras.mixed_precision.set_global_policy(policies[dtype])


def _replica() -> tf.distribute.ReplicaContext:
    """The context of the replica whose step is running or being traced.

    Raises:
        RuntimeError: the caller is in `strategy.scope()` and not in `strategy.run`.
    """
    replica = tf.distribute.get_replica_context()
    if replica is None:
        raise RuntimeError(
            "replicas can be gathered only in a function that strategy.run calls"
        )
    return replica


def sum_over_replicas(value):
    """Sums a structure of tensors over the replicas; call it in replica context."""
    replica = _replica()
    if replica.num_replicas_in_sync == 1:
        return value
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, value, options=_IN_PACKS)


def num_hosts(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of workers, or of hosts of a TPU; each reads its own files."""
    return max(getattr(strategy.extended, "num_hosts", 1), workers.cluster(strategy)[1])


def is_tpu(strategy: tf.distribute.Strategy) -> bool:
    """Tells whether the replicas are TPUs, for which XLA compiles every step."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


def on_processors(strategy: tf.distribute.Strategy) -> bool:
    """Tells whether every replica is a processor, not a GPU or TPU."""
    devices = strategy.extended.worker_devices
    return all("CPU" in device.upper() for device in devices)


def gather_replicas(value: tf.Tensor) -> tf.Tensor:
    """Concatenates a tensor's rows over all replicas; call it in replica context.

    The gradient of a row, summed over all replicas, flows back to the row's own
    replica.

    Args:
        value: [rows, ...], for TPUs not of 64 bits; in the last batch of a validation,
            replicas may have different numbers of rows.

    Returns:
        [rows of all replicas, ...]; this replica's rows begin at
        `replica_offset(rows)`.
    """
    replica = _replica()
    if replica.num_replicas_in_sync == 1:
        return value
    return replica.all_gather(value, axis=0)


def replica_offset(rows: tf.Tensor) -> tf.Tensor:
    """Returns the first row of this replica in a result of `gather_replicas`, int32 [].

    Args:
        rows: this replica's number of rows, int32 [].
    """
    replica = _replica()
    counts = gather_replicas(tf.reshape(rows, [1]))
    # A slice up to the replica's number has no static shape, which TPUs need.
    is_before = tf.range(tf.size(counts)) < replica.replica_id_in_sync_group
    return tf.reduce_sum(tf.where(is_before, counts, 0))
