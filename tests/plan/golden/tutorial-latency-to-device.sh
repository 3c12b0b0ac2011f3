#!/usr/bin/env bash
# ssh: --hosts=gpu11,gpu12
# hidl run RUN: osu-latency on ri2, stack omb
# Runs 1 step(s), one after another, in this one allocation.
#@ start
#@ findings
export HIDL_CORES_PER_RANK=28
#@ status
        "$job" "$1" "$2" "$started" "$3" "$step" 1 "${hosts#,}"
#@ end
#@ step
}

#@ keep-output

#@ forwarded
#@ status-from-stderr
#@ ssh
#@ hosts
# The MPI library of the site, mvapich2-gdr (mvapich2-gdr), takes the place of the stack's own: they share one ABI.
# Not the stack's own, which whoever submitted this may have activated.
own=/apps/hidl/ri2/omb/current/bin
#@ mpi-prefix
export HIDL_SITE_MPI=mvapich2-gdr

#@ stack
source /apps/hidl/ri2/omb/current/activate.sh
#@ mpi-first
#@ threads-28
export MPI4PY_MPIABI=mpich
export MV2_USE_CUDA=1 # preset of mvapich2-gdr (MVAPICH2-GDR 2.3.7 user guide, section 13.1)
export MV2_CPU_BINDING_POLICY=hybrid # preset of mvapich2-gdr (MVAPICH tutorial on deep learning, MUG 2022)
export MV2_HYBRID_BINDING_POLICY=spread # preset of mvapich2-gdr (MVAPICH tutorial on deep learning, MUG 2022)
export MV2_USE_RDMA_CM=0 # preset of mvapich2-gdr (MVAPICH tutorial on deep learning, MUG 2022)
export MV2_SUPPORT_DL=1 # preset of mvapich2-gdr (MVAPICH2-GDR 2.3.7 user guide, section 7.3)
export MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so # site ri2
export HIDL_DEVICE=gpu
export HIDL_GPUS_PER_RANK=1
use_system_programs

begin_step '2 ranks on 2 nodes, repetition 1' 2 '{host}:1'
forwarded 2 PATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV HIDL_STACK HIDL_RUN_ID HIDL_WORLD_SIZE HIDL_METRICS HIDL_FINDINGS HIDL_CORES_PER_RANK HIDL_NODE_MEMORY HIDL_SITE_MPI HIDL_CHECKPOINT HIDL_CHECKPOINT_INTERVAL HIDL_CHECKPOINT_KEEP HIDL_STOP HIDL_JOB_STARTED
launch 2 status_from_stderr mpirun_rsh -np 2 -hostfile steps/1/hosts MV2_THREADS_PER_PROCESS=28 OMP_NUM_THREADS=28 MKL_NUM_THREADS=28 OPENBLAS_NUM_THREADS=28 NUMEXPR_NUM_THREADS=28 TF_NUM_INTRAOP_THREADS=28 TF_NUM_INTEROP_THREADS=1 MPI4PY_MPIABI=mpich MV2_USE_CUDA=1 MV2_CPU_BINDING_POLICY=hybrid MV2_HYBRID_BINDING_POLICY=spread MV2_USE_RDMA_CM=0 MV2_SUPPORT_DL=1 MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so HIDL_DEVICE=gpu HIDL_GPUS_PER_RANK=1 ${forwarded[@]+"${forwarded[@]}"} /apps/hidl/ri2/omb/current/bin/python -m hidl_workloads.world --gpu-aware
forwarded 2 PATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV HIDL_STACK HIDL_RUN_ID HIDL_WORLD_SIZE HIDL_METRICS HIDL_FINDINGS HIDL_CORES_PER_RANK HIDL_NODE_MEMORY HIDL_SITE_MPI HIDL_CHECKPOINT HIDL_CHECKPOINT_INTERVAL HIDL_CHECKPOINT_KEEP HIDL_STOP HIDL_JOB_STARTED
launch_and_keep_output 2 status_from_stderr mpirun_rsh -np 2 -hostfile steps/1/hosts MV2_THREADS_PER_PROCESS=28 OMP_NUM_THREADS=28 MKL_NUM_THREADS=28 OPENBLAS_NUM_THREADS=28 NUMEXPR_NUM_THREADS=28 TF_NUM_INTRAOP_THREADS=28 TF_NUM_INTEROP_THREADS=1 MPI4PY_MPIABI=mpich MV2_USE_CUDA=1 MV2_CPU_BINDING_POLICY=hybrid MV2_HYBRID_BINDING_POLICY=spread MV2_USE_RDMA_CM=0 MV2_SUPPORT_DL=1 MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so HIDL_DEVICE=gpu HIDL_GPUS_PER_RANK=1 ${forwarded[@]+"${forwarded[@]}"} /apps/hidl/ri2/omb/current/bin/python -m hidl_workloads.local_rank osu_latency -m 1:4194304 -i 1000 -x 100 -d cuda D D

finish COMPLETED 0
