#!/usr/bin/env bash
#SBATCH --job-name=hidl-mpi-sanity
#SBATCH --time=01:00:00
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=20
#SBATCH --gpus-per-node=2
#SBATCH --output=stdout.log
#SBATCH --error=stderr.log
#SBATCH --open-mode=append
# hidl run RUN: mpi-sanity on pitzer, stack mpi
# Runs 1 step(s), one after another, in this one allocation.
#@ start
[[ -e $directory/plan.json ]] || directory=${SLURM_SUBMIT_DIR:-$directory}
#@ findings
export HIDL_CORES_PER_RANK=20
export HIDL_NODE_MEMORY=389768282112
#@ status
        "$job" "$1" "$2" "$started" "$3" "$step" 1 "${hosts#,}"
#@ end
#@ step
}

#@ forwarded
#@ status-from-stderr
#@ slurm
#@ hosts
# The MPI library of the site, mvapich2-gdr (mvapich2-gdr), takes the place of the stack's own: they share one ABI.
# Not the stack's own, which whoever submitted this may have activated.
own=/apps/hidl/pitzer/mpi/current/bin
#@ mpi-prefix
export HIDL_SITE_MPI=mvapich2-gdr

#@ stack
source /apps/hidl/pitzer/mpi/current/activate.sh
#@ mpi-first
export OMP_NUM_THREADS=20
export MKL_NUM_THREADS=20
export OPENBLAS_NUM_THREADS=20
export NUMEXPR_NUM_THREADS=20
export TF_NUM_INTRAOP_THREADS=20
export TF_NUM_INTEROP_THREADS=1
export MPI4PY_MPIABI=mpich
export MV2_USE_CUDA=1 # preset of mvapich2-gdr (MVAPICH2-GDR 2.3.7 user guide, section 13.1)
export MV2_CPU_BINDING_POLICY=hybrid # preset of mvapich2-gdr (MVAPICH tutorial on deep learning, MUG 2022)
export MV2_HYBRID_BINDING_POLICY=spread # preset of mvapich2-gdr (MVAPICH tutorial on deep learning, MUG 2022)
export MV2_USE_RDMA_CM=0 # preset of mvapich2-gdr (MVAPICH tutorial on deep learning, MUG 2022)
export MV2_SUPPORT_DL=1 # preset of mvapich2-gdr (MVAPICH2-GDR 2.3.7 user guide, section 7.3)
export HIDL_DEVICE=gpu
export HIDL_GPUS_PER_RANK=1
use_system_programs

begin_step '16 ranks on 8 nodes, repetition 1' 8 '{host}:2'
forwarded 16 PATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV HIDL_STACK HIDL_RUN_ID HIDL_WORLD_SIZE HIDL_METRICS HIDL_FINDINGS HIDL_CORES_PER_RANK HIDL_NODE_MEMORY HIDL_SITE_MPI HIDL_CHECKPOINT HIDL_CHECKPOINT_INTERVAL HIDL_CHECKPOINT_KEEP HIDL_STOP HIDL_JOB_STARTED
launch 16 status_from_stderr mpirun_rsh -np 16 -hostfile steps/1/hosts MV2_THREADS_PER_PROCESS=20 OMP_NUM_THREADS=20 MKL_NUM_THREADS=20 OPENBLAS_NUM_THREADS=20 NUMEXPR_NUM_THREADS=20 TF_NUM_INTRAOP_THREADS=20 TF_NUM_INTEROP_THREADS=1 MPI4PY_MPIABI=mpich MV2_USE_CUDA=1 MV2_CPU_BINDING_POLICY=hybrid MV2_HYBRID_BINDING_POLICY=spread MV2_USE_RDMA_CM=0 MV2_SUPPORT_DL=1 HIDL_DEVICE=gpu HIDL_GPUS_PER_RANK=1 ${forwarded[@]+"${forwarded[@]}"} /apps/hidl/pitzer/mpi/current/bin/python -m hidl_workloads.world hidl_workloads.mpi_sanity --cores=0 --ranks_per_node=0

finish COMPLETED 0
