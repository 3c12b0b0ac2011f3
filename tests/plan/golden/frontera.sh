#!/usr/bin/env bash
#SBATCH --job-name=hidl-resnet50
#SBATCH --partition=normal
#SBATCH --time=01:00:00
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=1
#SBATCH --output=stdout.log
#SBATCH --error=stderr.log
#SBATCH --open-mode=append
# hidl run RUN: resnet50 on frontera, stack pytorch
# Runs 1 step(s), one after another, in this one allocation.
#@ start
[[ -e $directory/plan.json ]] || directory=${SLURM_SUBMIT_DIR:-$directory}
#@ findings
export HIDL_CORES_PER_RANK=56
export HIDL_NODE_MEMORY=206158430208
#@ status
        "$job" "$1" "$2" "$started" "$3" "$step" 1 "${hosts#,}"
#@ end
#@ step
}

#@ slurm
#@ hosts
#@ modules
set +u; load_module mvapich2; set -u

# The MPI library of the site, mvapich2 (mvapich2), takes the place of the stack's own: they share one ABI.
# Not the stack's own, which whoever submitted this may have activated.
own=/apps/hidl/frontera/pytorch/current/bin
#@ mpi-prefix
export HIDL_SITE_MPI=mvapich2

#@ stack
source /apps/hidl/frontera/pytorch/current/activate.sh
#@ mpi-first
export OMP_NUM_THREADS=56
export MKL_NUM_THREADS=56
export OPENBLAS_NUM_THREADS=56
export NUMEXPR_NUM_THREADS=56
export TF_NUM_INTRAOP_THREADS=56
export TF_NUM_INTEROP_THREADS=1
export MPI4PY_MPIABI=mpich
export HIDL_DEVICE=cpu
use_system_programs

begin_step '64 ranks on 64 nodes, repetition 1' 64 '{host}'
MV2_CPU_BINDING_POLICY=hybrid MV2_THREADS_PER_PROCESS=56 launch 64 ibrun -n 64 -o 0 /apps/hidl/frontera/pytorch/current/bin/python -m hidl_workloads.world hidl_workloads.resnet50 --framework=torch --backend=mpi4py --batch=8 --steps=12 --warmup=2 --batches=0 --data= --readers=1 --precision=float32 --optimizer=sgd --learning_rate=0.01 --bucket_mib=25 --gpu_buffers=auto --compression=none --cycle_time_ms=1 --fusion_mib=128 --timeline=false --memory_limit=0 --seed=0 --note= --image_size=224

finish COMPLETED 0
