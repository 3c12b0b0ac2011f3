#!/usr/bin/env bash
#SBATCH --job-name=hidl-train
#SBATCH --partition=rtx
#SBATCH --time=01:00:00
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --output=stdout.log
#SBATCH --error=stderr.log
#SBATCH --open-mode=append
# hidl run RUN: train on frontera-rtx, stack mpi
# Runs 6 step(s), one after another, in this one allocation.
#@ start
[[ -e $directory/plan.json ]] || directory=${SLURM_SUBMIT_DIR:-$directory}
#@ findings
export HIDL_NODE_MEMORY=137438953472
#@ status
        "$job" "$1" "$2" "$started" "$3" "$step" 6 "${hosts#,}"
#@ end
    printf '# step %d of %d: %s\n' "$step" 6 "$1"
#@ step
    # Where ranks meet that do so without MPI: a port of the first host that this step of this run has for itself.
    read -r MASTER_ADDR < "steps/$step/hosts"
    MASTER_ADDR=${MASTER_ADDR%%[: ]*}
    local host=${MASTER_ADDR%%.*}
    MASTER_ADDR=$host${HIDL_ADDRESS_SUFFIX-}${MASTER_ADDR#"$host"}
    if (($(wc -l < "steps/$step/hosts") == 1)); then
        MASTER_ADDR=127.0.0.1
    fi
    MASTER_PORT=$(cksum <<< "$HIDL_RUN_ID $step")
    MASTER_PORT=$((20000 + ${MASTER_PORT%% *} % 12000))
    export MASTER_ADDR MASTER_PORT
}

# Measures a launch from its begin to the end of the launcher, which waits for all ranks and for what still holds their
# output. The clock may be set meanwhile: then the time since boot counts, which is less exact.
timed() { # launch number-of-ranks command...
    local began up=0 now=0
    { read -r up _ < /proc/uptime || true; } 2> /dev/null
    began=$(date +%s.%N)
    "$@"
    { read -r now _ < /proc/uptime || true; } 2> /dev/null
    LC_ALL=C awk -v began="$began" -v ended="$(date +%s.%N)" -v ranks="$2" -v up="$up" -v now="$now" 'BEGIN {
        seconds = ended - began
        since_boot = now - up
        difference = seconds - since_boot
        if (since_boot > 0 && difference * difference > (0.5 + since_boot / 1000) ^ 2)
            seconds = since_boot
        line = "{\"name\": \"%s\", \"value\": %.9g, \"unit\": \"%s\", \"samples\": [%.9g]}"
        printf "{\"schema\": \"hidl.metrics/1\", \"world\": {\"size\": %d}, \"metrics\": [", ranks
        printf line ", ", "wall_time", seconds, "s", seconds
        printf line "]}\n", "throughput", ranks / seconds, "1/s", ranks / seconds
    }' > "steps/$step/.timing.json.new" &&
        mv -f -- "steps/$step/.timing.json.new" "steps/$step/timing.json" || true # on a full disk, the metric is missing
}

#@ copies
#@ forwarded
#@ status-from-stderr
#@ slurm
#@ hosts
#@ modules
set +u; load_module gcc/8.3.0; set -u
set +u; load_module cuda/10.0; set -u
set +u; load_module cudnn/7.6.2; set -u
set +u; load_module cmake; set -u
set +u; load_module mvapich2-gdr; set -u

# The MPI library of the site, mvapich2-gdr (mvapich2-gdr), takes the place of the stack's own: they share one ABI.
# Not the stack's own, which whoever submitted this may have activated.
own=/apps/hidl/frontera-rtx/mpi/current/bin
#@ mpi-prefix
export HIDL_SITE_MPI=mvapich2-gdr

#@ stack
source /apps/hidl/frontera-rtx/mpi/current/activate.sh
#@ mpi-first
export OMP_NUM_THREADS=1
export MKL_NUM_THREADS=1
export OPENBLAS_NUM_THREADS=1
export NUMEXPR_NUM_THREADS=1
export TF_NUM_INTRAOP_THREADS=1
export TF_NUM_INTEROP_THREADS=1
export MPI4PY_MPIABI=mpich
export MV2_USE_CUDA=1 # preset of mvapich2-gdr (MVAPICH2-GDR 2.3.7 user guide, section 13.1)
export MV2_CPU_BINDING_POLICY=hybrid # preset of mvapich2-gdr (MVAPICH tutorial on deep learning, MUG 2022)
export MV2_HYBRID_BINDING_POLICY=spread # preset of mvapich2-gdr (MVAPICH tutorial on deep learning, MUG 2022)
export MV2_USE_RDMA_CM=0 # preset of mvapich2-gdr (MVAPICH tutorial on deep learning, MUG 2022)
export MV2_SUPPORT_DL=1 # site frontera-rtx
export MV2_USE_GDRCOPY=1 # --tune
export MV2_SHOW_ENV_INFO=1 # site frontera-rtx
export MV2_SHOW_CPU_BINDING=1 # site frontera-rtx
export MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so # --tune
export HIDL_DEVICE=gpu
export HIDL_GPUS_PER_RANK=1
use_system_programs

begin_step '4 copies of 4 ranks on 1 node, repetition 1' 4 '{host}:4'
one_copy() {
forwarded 4 PATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV HIDL_STACK HIDL_RUN_ID HIDL_WORLD_SIZE HIDL_METRICS HIDL_FINDINGS HIDL_CORES_PER_RANK HIDL_NODE_MEMORY HIDL_SITE_MPI HIDL_CHECKPOINT HIDL_CHECKPOINT_INTERVAL HIDL_CHECKPOINT_KEEP HIDL_STOP HIDL_JOB_STARTED MASTER_ADDR MASTER_PORT
HIDL_RANKS_PER_NODE=4 timed launch 4 status_from_stderr mpirun_rsh -np 4 -hostfile "steps/$step/hosts" OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 MPI4PY_MPIABI=mpich MV2_USE_CUDA=1 MV2_CPU_BINDING_POLICY=hybrid MV2_HYBRID_BINDING_POLICY=spread MV2_USE_RDMA_CM=0 MV2_SUPPORT_DL=1 MV2_USE_GDRCOPY=1 MV2_SHOW_ENV_INFO=1 MV2_SHOW_CPU_BINDING=1 MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so HIDL_DEVICE=gpu HIDL_GPUS_PER_RANK=1 HIDL_RANKS_PER_NODE=4 ${forwarded[@]+"${forwarded[@]}"} /apps/hidl/frontera-rtx/mpi/current/bin/python -m hidl_workloads.own_program /home/user/project python train.py
}
launch_copies 4 '{host}:4'

begin_step '8 ranks on 2 nodes, repetition 1' 2 '{host}:4'
forwarded 8 PATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV HIDL_STACK HIDL_RUN_ID HIDL_WORLD_SIZE HIDL_METRICS HIDL_FINDINGS HIDL_CORES_PER_RANK HIDL_NODE_MEMORY HIDL_SITE_MPI HIDL_CHECKPOINT HIDL_CHECKPOINT_INTERVAL HIDL_CHECKPOINT_KEEP HIDL_STOP HIDL_JOB_STARTED MASTER_ADDR MASTER_PORT
HIDL_RANKS_PER_NODE=4 launch 8 status_from_stderr mpirun_rsh -np 8 -hostfile steps/2/hosts OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 MPI4PY_MPIABI=mpich MV2_USE_CUDA=1 MV2_CPU_BINDING_POLICY=hybrid MV2_HYBRID_BINDING_POLICY=spread MV2_USE_RDMA_CM=0 MV2_SUPPORT_DL=1 MV2_USE_GDRCOPY=1 MV2_SHOW_ENV_INFO=1 MV2_SHOW_CPU_BINDING=1 MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so HIDL_DEVICE=gpu HIDL_GPUS_PER_RANK=1 HIDL_RANKS_PER_NODE=4 ${forwarded[@]+"${forwarded[@]}"} /apps/hidl/frontera-rtx/mpi/current/bin/python -m hidl_workloads.world
forwarded 8 PATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV HIDL_STACK HIDL_RUN_ID HIDL_WORLD_SIZE HIDL_METRICS HIDL_FINDINGS HIDL_CORES_PER_RANK HIDL_NODE_MEMORY HIDL_SITE_MPI HIDL_CHECKPOINT HIDL_CHECKPOINT_INTERVAL HIDL_CHECKPOINT_KEEP HIDL_STOP HIDL_JOB_STARTED MASTER_ADDR MASTER_PORT
HIDL_RANKS_PER_NODE=4 timed launch 8 status_from_stderr mpirun_rsh -np 8 -hostfile steps/2/hosts OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 MPI4PY_MPIABI=mpich MV2_USE_CUDA=1 MV2_CPU_BINDING_POLICY=hybrid MV2_HYBRID_BINDING_POLICY=spread MV2_USE_RDMA_CM=0 MV2_SUPPORT_DL=1 MV2_USE_GDRCOPY=1 MV2_SHOW_ENV_INFO=1 MV2_SHOW_CPU_BINDING=1 MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so HIDL_DEVICE=gpu HIDL_GPUS_PER_RANK=1 HIDL_RANKS_PER_NODE=4 ${forwarded[@]+"${forwarded[@]}"} /apps/hidl/frontera-rtx/mpi/current/bin/python -m hidl_workloads.own_program /home/user/project python train.py

begin_step '16 ranks on 4 nodes, repetition 1' 4 '{host}:4'
forwarded 16 PATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV HIDL_STACK HIDL_RUN_ID HIDL_WORLD_SIZE HIDL_METRICS HIDL_FINDINGS HIDL_CORES_PER_RANK HIDL_NODE_MEMORY HIDL_SITE_MPI HIDL_CHECKPOINT HIDL_CHECKPOINT_INTERVAL HIDL_CHECKPOINT_KEEP HIDL_STOP HIDL_JOB_STARTED MASTER_ADDR MASTER_PORT
HIDL_RANKS_PER_NODE=4 launch 16 status_from_stderr mpirun_rsh -np 16 -hostfile steps/3/hosts OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 MPI4PY_MPIABI=mpich MV2_USE_CUDA=1 MV2_CPU_BINDING_POLICY=hybrid MV2_HYBRID_BINDING_POLICY=spread MV2_USE_RDMA_CM=0 MV2_SUPPORT_DL=1 MV2_USE_GDRCOPY=1 MV2_SHOW_ENV_INFO=1 MV2_SHOW_CPU_BINDING=1 MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so HIDL_DEVICE=gpu HIDL_GPUS_PER_RANK=1 HIDL_RANKS_PER_NODE=4 ${forwarded[@]+"${forwarded[@]}"} /apps/hidl/frontera-rtx/mpi/current/bin/python -m hidl_workloads.world
forwarded 16 PATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV HIDL_STACK HIDL_RUN_ID HIDL_WORLD_SIZE HIDL_METRICS HIDL_FINDINGS HIDL_CORES_PER_RANK HIDL_NODE_MEMORY HIDL_SITE_MPI HIDL_CHECKPOINT HIDL_CHECKPOINT_INTERVAL HIDL_CHECKPOINT_KEEP HIDL_STOP HIDL_JOB_STARTED MASTER_ADDR MASTER_PORT
HIDL_RANKS_PER_NODE=4 timed launch 16 status_from_stderr mpirun_rsh -np 16 -hostfile steps/3/hosts OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 MPI4PY_MPIABI=mpich MV2_USE_CUDA=1 MV2_CPU_BINDING_POLICY=hybrid MV2_HYBRID_BINDING_POLICY=spread MV2_USE_RDMA_CM=0 MV2_SUPPORT_DL=1 MV2_USE_GDRCOPY=1 MV2_SHOW_ENV_INFO=1 MV2_SHOW_CPU_BINDING=1 MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so HIDL_DEVICE=gpu HIDL_GPUS_PER_RANK=1 HIDL_RANKS_PER_NODE=4 ${forwarded[@]+"${forwarded[@]}"} /apps/hidl/frontera-rtx/mpi/current/bin/python -m hidl_workloads.own_program /home/user/project python train.py

begin_step '4 copies of 4 ranks on 1 node, repetition 2' 4 '{host}:4'
one_copy() {
forwarded 4 PATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV HIDL_STACK HIDL_RUN_ID HIDL_WORLD_SIZE HIDL_METRICS HIDL_FINDINGS HIDL_CORES_PER_RANK HIDL_NODE_MEMORY HIDL_SITE_MPI HIDL_CHECKPOINT HIDL_CHECKPOINT_INTERVAL HIDL_CHECKPOINT_KEEP HIDL_STOP HIDL_JOB_STARTED MASTER_ADDR MASTER_PORT
HIDL_RANKS_PER_NODE=4 timed launch 4 status_from_stderr mpirun_rsh -np 4 -hostfile "steps/$step/hosts" OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 MPI4PY_MPIABI=mpich MV2_USE_CUDA=1 MV2_CPU_BINDING_POLICY=hybrid MV2_HYBRID_BINDING_POLICY=spread MV2_USE_RDMA_CM=0 MV2_SUPPORT_DL=1 MV2_USE_GDRCOPY=1 MV2_SHOW_ENV_INFO=1 MV2_SHOW_CPU_BINDING=1 MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so HIDL_DEVICE=gpu HIDL_GPUS_PER_RANK=1 HIDL_RANKS_PER_NODE=4 ${forwarded[@]+"${forwarded[@]}"} /apps/hidl/frontera-rtx/mpi/current/bin/python -m hidl_workloads.own_program /home/user/project python train.py
}
launch_copies 4 '{host}:4'

begin_step '8 ranks on 2 nodes, repetition 2' 2 '{host}:4'
forwarded 8 PATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV HIDL_STACK HIDL_RUN_ID HIDL_WORLD_SIZE HIDL_METRICS HIDL_FINDINGS HIDL_CORES_PER_RANK HIDL_NODE_MEMORY HIDL_SITE_MPI HIDL_CHECKPOINT HIDL_CHECKPOINT_INTERVAL HIDL_CHECKPOINT_KEEP HIDL_STOP HIDL_JOB_STARTED MASTER_ADDR MASTER_PORT
HIDL_RANKS_PER_NODE=4 launch 8 status_from_stderr mpirun_rsh -np 8 -hostfile steps/5/hosts OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 MPI4PY_MPIABI=mpich MV2_USE_CUDA=1 MV2_CPU_BINDING_POLICY=hybrid MV2_HYBRID_BINDING_POLICY=spread MV2_USE_RDMA_CM=0 MV2_SUPPORT_DL=1 MV2_USE_GDRCOPY=1 MV2_SHOW_ENV_INFO=1 MV2_SHOW_CPU_BINDING=1 MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so HIDL_DEVICE=gpu HIDL_GPUS_PER_RANK=1 HIDL_RANKS_PER_NODE=4 ${forwarded[@]+"${forwarded[@]}"} /apps/hidl/frontera-rtx/mpi/current/bin/python -m hidl_workloads.world
forwarded 8 PATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV HIDL_STACK HIDL_RUN_ID HIDL_WORLD_SIZE HIDL_METRICS HIDL_FINDINGS HIDL_CORES_PER_RANK HIDL_NODE_MEMORY HIDL_SITE_MPI HIDL_CHECKPOINT HIDL_CHECKPOINT_INTERVAL HIDL_CHECKPOINT_KEEP HIDL_STOP HIDL_JOB_STARTED MASTER_ADDR MASTER_PORT
HIDL_RANKS_PER_NODE=4 timed launch 8 status_from_stderr mpirun_rsh -np 8 -hostfile steps/5/hosts OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 MPI4PY_MPIABI=mpich MV2_USE_CUDA=1 MV2_CPU_BINDING_POLICY=hybrid MV2_HYBRID_BINDING_POLICY=spread MV2_USE_RDMA_CM=0 MV2_SUPPORT_DL=1 MV2_USE_GDRCOPY=1 MV2_SHOW_ENV_INFO=1 MV2_SHOW_CPU_BINDING=1 MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so HIDL_DEVICE=gpu HIDL_GPUS_PER_RANK=1 HIDL_RANKS_PER_NODE=4 ${forwarded[@]+"${forwarded[@]}"} /apps/hidl/frontera-rtx/mpi/current/bin/python -m hidl_workloads.own_program /home/user/project python train.py

begin_step '16 ranks on 4 nodes, repetition 2' 4 '{host}:4'
forwarded 16 PATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV HIDL_STACK HIDL_RUN_ID HIDL_WORLD_SIZE HIDL_METRICS HIDL_FINDINGS HIDL_CORES_PER_RANK HIDL_NODE_MEMORY HIDL_SITE_MPI HIDL_CHECKPOINT HIDL_CHECKPOINT_INTERVAL HIDL_CHECKPOINT_KEEP HIDL_STOP HIDL_JOB_STARTED MASTER_ADDR MASTER_PORT
HIDL_RANKS_PER_NODE=4 launch 16 status_from_stderr mpirun_rsh -np 16 -hostfile steps/6/hosts OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 MPI4PY_MPIABI=mpich MV2_USE_CUDA=1 MV2_CPU_BINDING_POLICY=hybrid MV2_HYBRID_BINDING_POLICY=spread MV2_USE_RDMA_CM=0 MV2_SUPPORT_DL=1 MV2_USE_GDRCOPY=1 MV2_SHOW_ENV_INFO=1 MV2_SHOW_CPU_BINDING=1 MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so HIDL_DEVICE=gpu HIDL_GPUS_PER_RANK=1 HIDL_RANKS_PER_NODE=4 ${forwarded[@]+"${forwarded[@]}"} /apps/hidl/frontera-rtx/mpi/current/bin/python -m hidl_workloads.world
forwarded 16 PATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV HIDL_STACK HIDL_RUN_ID HIDL_WORLD_SIZE HIDL_METRICS HIDL_FINDINGS HIDL_CORES_PER_RANK HIDL_NODE_MEMORY HIDL_SITE_MPI HIDL_CHECKPOINT HIDL_CHECKPOINT_INTERVAL HIDL_CHECKPOINT_KEEP HIDL_STOP HIDL_JOB_STARTED MASTER_ADDR MASTER_PORT
HIDL_RANKS_PER_NODE=4 timed launch 16 status_from_stderr mpirun_rsh -np 16 -hostfile steps/6/hosts OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 MPI4PY_MPIABI=mpich MV2_USE_CUDA=1 MV2_CPU_BINDING_POLICY=hybrid MV2_HYBRID_BINDING_POLICY=spread MV2_USE_RDMA_CM=0 MV2_SUPPORT_DL=1 MV2_USE_GDRCOPY=1 MV2_SHOW_ENV_INFO=1 MV2_SHOW_CPU_BINDING=1 MV2_GPUDIRECT_GDRCOPY_LIB=/opt/gdrcopy2.0/lib64/libgdrapi.so HIDL_DEVICE=gpu HIDL_GPUS_PER_RANK=1 HIDL_RANKS_PER_NODE=4 ${forwarded[@]+"${forwarded[@]}"} /apps/hidl/frontera-rtx/mpi/current/bin/python -m hidl_workloads.own_program /home/user/project python train.py

finish COMPLETED 0
