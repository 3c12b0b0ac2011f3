#!/usr/bin/env bash
#SBATCH --job-name=hidl-resnet50
#SBATCH --time=01:00:00
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=40
#SBATCH --output=stdout.log
#SBATCH --error=stderr.log
#SBATCH --open-mode=append
# hidl run RUN: resnet50 on pitzer, stack pytorch
# Runs 1 step(s), one after another, in this one allocation.
#@ start
[[ -e $directory/plan.json ]] || directory=${SLURM_SUBMIT_DIR:-$directory}
#@ findings
export HIDL_CORES_PER_RANK=40
export HIDL_NODE_MEMORY=191126044672
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
own=/apps/hidl/pitzer/pytorch/current/bin
#@ mpi-prefix
export HIDL_SITE_MPI=mvapich2-gdr

#@ stack
source /apps/hidl/pitzer/pytorch/current/activate.sh
#@ mpi-first
export OMP_NUM_THREADS=40
export MKL_NUM_THREADS=40
export OPENBLAS_NUM_THREADS=40
export NUMEXPR_NUM_THREADS=40
export TF_NUM_INTRAOP_THREADS=40
export TF_NUM_INTEROP_THREADS=1
export MPI4PY_MPIABI=mpich
export HIDL_DEVICE=cpu
use_system_programs

begin_step '8 ranks on 8 nodes, repetition 1' 8 '{host}:1'
forwarded 8 PATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV HIDL_STACK HIDL_RUN_ID HIDL_WORLD_SIZE HIDL_METRICS HIDL_FINDINGS HIDL_CORES_PER_RANK HIDL_NODE_MEMORY HIDL_SITE_MPI HIDL_CHECKPOINT HIDL_CHECKPOINT_INTERVAL HIDL_CHECKPOINT_KEEP HIDL_STOP HIDL_JOB_STARTED
launch 8 status_from_stderr mpirun_rsh -np 8 -hostfile steps/1/hosts MV2_CPU_BINDING_POLICY=hybrid MV2_THREADS_PER_PROCESS=40 OMP_NUM_THREADS=40 MKL_NUM_THREADS=40 OPENBLAS_NUM_THREADS=40 NUMEXPR_NUM_THREADS=40 TF_NUM_INTRAOP_THREADS=40 TF_NUM_INTEROP_THREADS=1 MPI4PY_MPIABI=mpich HIDL_DEVICE=cpu ${forwarded[@]+"${forwarded[@]}"} /apps/hidl/pitzer/pytorch/current/bin/python -m hidl_workloads.world hidl_workloads.resnet50 --framework=torch --backend=mpi4py --batch=8 --steps=12 --warmup=2 --batches=0 --data= --readers=1 --precision=float32 --optimizer=sgd --learning_rate=0.01 --bucket_mib=25 --gpu_buffers=auto --compression=none --cycle_time_ms=1 --fusion_mib=128 --timeline=false --memory_limit=0 --seed=0 --note= --image_size=224

finish COMPLETED 0
