"""Devices: a strategy from flags, and sums over its replicas."""

from __future__ import annotations

import functools

import tensorflow as tf
from official.common import distribute_utils
from official.core import config_definitions

from cmlm.errors import UserError
from cmlm.keras import keras

STRATEGIES = ("one_device", "mirrored", "multi_worker_mirrored", "tpu")


def build_strategy(runtime: config_definitions.RuntimeConfig) -> tf.distribute.Strategy:
    """Builds the strategy that `runtime.distribution_strategy` names.

    `mirrored` takes `runtime.num_gpus` GPUs; on a machine without one it takes
    every logical CPU device, which is how several replicas are tested.

    Raises:
        UserError: the strategy is unknown or the devices for it are not there.
    """
    name = (runtime.distribution_strategy or "").lower()
    if name not in STRATEGIES:
        raise UserError(
            f"runtime.distribution_strategy is {runtime.distribution_strategy!r}; "
            f"allowed: {', '.join(STRATEGIES)}"
        )
    gpus = len(tf.config.list_logical_devices("GPU"))
    if runtime.num_gpus > gpus:
        raise UserError(
            f"runtime.num_gpus is {runtime.num_gpus}; this machine has {gpus}"
        )
    if name == "mirrored" and not runtime.num_gpus:
        return _mirrored_cpus()
    if name == "tpu" and runtime.tpu is None:
        raise UserError("--distribution_strategy=tpu needs --tpu=NAME (or local)")
    distribute_utils.configure_cluster(runtime.worker_hosts, runtime.task_index)
    try:
        return distribute_utils.get_distribution_strategy(
            name,
            num_gpus=runtime.num_gpus,
            all_reduce_alg=runtime.all_reduce_alg,
            num_packs=runtime.num_packs,
            tpu_address=runtime.tpu,
        )
    except ValueError as error:
        raise UserError(f"--distribution_strategy={name}: {error}") from error


@functools.cache
def _mirrored_cpus() -> tf.distribute.MirroredStrategy:
    # One for the whole process: every strategy numbers its collective operations
    # from the same start, and two over the same devices take each other's.
    cpus = tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in cpus])


def set_precision(dtype: str | None) -> None:
    """Sets Keras' policy: `float32` (or None) or `bfloat16` for mixed precision.

    Raises:
        UserError: any other value. float16 would need loss scaling.
    """
    policies = {None: "float32", "float32": "float32", "bfloat16": "mixed_bfloat16"}
    if dtype not in policies:
        raise UserError(
            f"runtime.mixed_precision_dtype is {dtype!r}; allowed: float32, bfloat16"
        )
    keras.mixed_precision.set_global_policy(policies[dtype])


def sum_over_replicas(value):
    """Sums a structure of tensors over the replicas; call it in replica context."""
    replica = tf.distribute.get_replica_context()
    if replica.num_replicas_in_sync == 1:
        return value
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, value)


def is_static(strategy: tf.distribute.Strategy) -> bool:
    """Whether batches must keep one shape, as compiled TPU programs need."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


def gather_replicas(value: tf.Tensor) -> tf.Tensor:
    """Concatenates a tensor's rows over all replicas; call it in replica context.

    Gradients flow back to the replica that a row came from, summed over the replicas
    that used it.

    Args:
        value: [rows, ...], as many rows on every replica.

    Returns:
        [replicas * rows, ...]; this replica's begin at `replica_offset(rows)`.
    """
    replica = tf.distribute.get_replica_context()
    if replica.num_replicas_in_sync == 1:
        return value
    return replica.all_gather(value, axis=0)


def replica_offset(rows: int) -> tf.Tensor:
    """Where this replica's rows begin in what `gather_replicas` returns: int32."""
    replica = tf.distribute.get_replica_context()
    return tf.cast(replica.replica_id_in_sync_group, tf.int32) * rows
