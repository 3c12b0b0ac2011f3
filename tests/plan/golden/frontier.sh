#!/usr/bin/env bash
#SBATCH --job-name=hidl-mpi-sanity
#SBATCH --partition=batch
#SBATCH --time=01:00:00
#SBATCH --account=ABC123
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=7
#SBATCH --threads-per-core=1
#SBATCH --output=stdout.log
#SBATCH --error=stderr.log
#SBATCH --open-mode=append
# hidl run RUN: mpi-sanity on frontier, stack mpi
# Runs 1 step(s), one after another, in this one allocation.
#@ start
[[ -e $directory/plan.json ]] || directory=${SLURM_SUBMIT_DIR:-$directory}
#@ findings
export HIDL_CORES_PER_RANK=7
export HIDL_NODE_MEMORY=549755813888
#@ status
        "$job" "$1" "$2" "$started" "$3" "$step" 1 "${hosts#,}"
#@ end
#@ step
}

#@ slurm
#@ hosts
# The MPI library of the site, cray-mpich (cray-mpich), takes the place of the stack's own: they share one ABI.
# Not the stack's own, which whoever submitted this may have activated.
own=/apps/hidl/frontier/mpi/current/bin
#@ mpi-prefix
export HIDL_SITE_MPI=cray-mpich

#@ stack
source /apps/hidl/frontier/mpi/current/activate.sh
#@ mpi-first
export OMP_NUM_THREADS=7
export MKL_NUM_THREADS=7
export OPENBLAS_NUM_THREADS=7
export NUMEXPR_NUM_THREADS=7
export TF_NUM_INTRAOP_THREADS=7
export TF_NUM_INTEROP_THREADS=1
export MPICH_GPU_SUPPORT_ENABLED=1
export MPI4PY_MPIABI=mpich
export HIDL_DEVICE=gpu
export HIDL_GPUS_PER_RANK=1
use_system_programs

begin_step '512 ranks on 64 nodes, repetition 1' 64 '{host}'
launch 512 srun --nodes=64 --ntasks=512 --ntasks-per-node=8 --cpus-per-task=7 --cpu-bind=cores --threads-per-core=1 --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/frontier/mpi/current/bin/python -m hidl_workloads.world hidl_workloads.mpi_sanity --cores=0 --ranks_per_node=0

finish COMPLETED 0
