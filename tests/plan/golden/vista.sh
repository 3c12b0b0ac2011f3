#!/usr/bin/env bash
#SBATCH --job-name=hidl-mpi-sanity
#SBATCH --partition=gh
#SBATCH --time=01:00:00
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=1
#SBATCH --output=stdout.log
#SBATCH --error=stderr.log
#SBATCH --open-mode=append
# hidl run RUN: mpi-sanity on vista, stack mpi
# Runs 1 step(s), one after another, in this one allocation.
#@ start
[[ -e $directory/plan.json ]] || directory=${SLURM_SUBMIT_DIR:-$directory}
#@ findings
export HIDL_CORES_PER_RANK=72
export HIDL_NODE_MEMORY=124554051584
#@ status
        "$job" "$1" "$2" "$started" "$3" "$step" 1 "${hosts#,}"
#@ end
#@ step
}

#@ slurm
#@ hosts
#@ modules
set +u; load_module nvidia/24.5; set -u
set +u; load_module ompi/5.0; set -u

# The MPI library of the site, openmpi (openmpi), takes the place of the stack's own: they share one ABI.
# Not the stack's own, which whoever submitted this may have activated.
own=/apps/hidl/vista/mpi/current/bin
#@ mpi-prefix
export HIDL_SITE_MPI=openmpi

#@ stack
source /apps/hidl/vista/mpi/current/activate.sh
#@ mpi-first
export OMP_NUM_THREADS=72
export MKL_NUM_THREADS=72
export OPENBLAS_NUM_THREADS=72
export NUMEXPR_NUM_THREADS=72
export TF_NUM_INTRAOP_THREADS=72
export TF_NUM_INTEROP_THREADS=1
export MPI4PY_MPIABI=openmpi
export HIDL_DEVICE=gpu
export HIDL_GPUS_PER_RANK=1
use_system_programs

begin_step '64 ranks on 64 nodes, repetition 1' 64 '{host}'
MY_OPENMPI_OPTIONS='--map-by ppr:1:node --bind-to none' launch 64 ibrun -n 64 -o 0 /apps/hidl/vista/mpi/current/bin/python -m hidl_workloads.world hidl_workloads.mpi_sanity --cores=0 --ranks_per_node=0

finish COMPLETED 0
