#!/usr/bin/env bash
# ssh: --hosts=gpu11,gpu12,gpu13,gpu14
# hidl run RUN: dask-dataframe-sum on ri2, stack mpi4dask
# Runs 1 step(s), one after another, in this one allocation.
#@ start
#@ findings
export HIDL_CORES_PER_RANK=28
#@ status
        "$job" "$1" "$2" "$started" "$3" "$step" 1 "${hosts#,}"
#@ end
#@ step
}

#@ forwarded
#@ status-from-stderr
#@ ssh
#@ hosts
# The MPI library of the site, mvapich2-gdr (mvapich2-gdr), takes the place of the stack's own: they share one ABI.
# Not the stack's own, which whoever submitted this may have activated.
own=/apps/hidl/ri2/mpi4dask/current/bin
#@ mpi-prefix
export HIDL_SITE_MPI=mvapich2-gdr

#@ stack
source /apps/hidl/ri2/mpi4dask/current/activate.sh
#@ mpi-first
#@ threads-28
export MPI4PY_MPIABI=mpich
export MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so # site ri2
export MV2_CPU_BINDING_LEVEL=socket # --tune
export MV2_CPU_BINDING_POLICY=scatter # --tune
export HIDL_DEVICE=cpu
use_system_programs

begin_step '4 ranks on 4 nodes, repetition 1' 4 '{host}:1'
forwarded 4 PATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV HIDL_STACK HIDL_RUN_ID HIDL_WORLD_SIZE HIDL_METRICS HIDL_FINDINGS HIDL_CORES_PER_RANK HIDL_NODE_MEMORY HIDL_SITE_MPI HIDL_CHECKPOINT HIDL_CHECKPOINT_INTERVAL HIDL_CHECKPOINT_KEEP HIDL_STOP HIDL_JOB_STARTED
launch 4 status_from_stderr mpirun_rsh -np 4 -hostfile steps/1/hosts OMP_NUM_THREADS=28 MKL_NUM_THREADS=28 OPENBLAS_NUM_THREADS=28 NUMEXPR_NUM_THREADS=28 TF_NUM_INTRAOP_THREADS=28 TF_NUM_INTEROP_THREADS=1 MPI4PY_MPIABI=mpich MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so MV2_CPU_BINDING_LEVEL=socket MV2_CPU_BINDING_POLICY=scatter HIDL_DEVICE=cpu ${forwarded[@]+"${forwarded[@]}"} /apps/hidl/ri2/mpi4dask/current/bin/python -m hidl_workloads.world hidl_workloads.dask_apps.dataframe_sum --protocol=mpi --runs=3 --warmup=1 --ignore_size=1MiB --worker_threads=0 --interface= --chunk_size=8000000 --partitions=4

finish COMPLETED 0
