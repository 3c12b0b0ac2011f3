#!/usr/bin/env bash
#SBATCH --job-name=hidl-train
#SBATCH --time=01:00:00
#SBATCH --qos=regular
#SBATCH --constraint=gpu
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --threads-per-core=1
#SBATCH --gpus-per-node=4
#SBATCH --output=stdout.log
#SBATCH --error=stderr.log
#SBATCH --open-mode=append
# hidl run RUN: train on perlmutter, stack mpi
# Runs 6 step(s), one after another, in this one allocation.
#@ start
[[ -e $directory/plan.json ]] || directory=${SLURM_SUBMIT_DIR:-$directory}
#@ findings
export HIDL_CORES_PER_RANK=16
export HIDL_NODE_MEMORY=274877906944
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
# Leaves the study where it is, once it is settled.
settled() { # repetitions-done
    local status=0 left=()
    left=(--seconds-left "$((${started%.*} + 3600 - $(date +%s)))")
    /apps/hidl/perlmutter/mpi/current/bin/python -m hidl_workloads.enough "$PWD" "$1" ${left[@]+"${left[@]}"} < /dev/null || status=$?
    if ((status == 0)); then
        finish COMPLETED 0
    fi
}

#@ slurm
#@ hosts
# The MPI library of the site, cray-mpich (cray-mpich), takes the place of the stack's own: they share one ABI.
# Not the stack's own, which whoever submitted this may have activated.
own=/apps/hidl/perlmutter/mpi/current/bin
#@ mpi-prefix
export HIDL_SITE_MPI=cray-mpich

#@ stack
source /apps/hidl/perlmutter/mpi/current/activate.sh
#@ mpi-first
export OMP_NUM_THREADS=16
export MKL_NUM_THREADS=16
export OPENBLAS_NUM_THREADS=16
export NUMEXPR_NUM_THREADS=16
export TF_NUM_INTRAOP_THREADS=16
export TF_NUM_INTEROP_THREADS=1
export MPICH_GPU_SUPPORT_ENABLED=1
export MPI4PY_MPIABI=mpich
export HIDL_DEVICE=gpu
export HIDL_GPUS_PER_RANK=1
use_system_programs

begin_step '4 copies of 4 ranks on 1 node, repetition 1' 4 '{host}'
one_copy() {
HIDL_RANKS_PER_NODE=4 timed launch 4 srun --nodelist="$host" --nodes=1 --ntasks=4 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --threads-per-core=1 --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/perlmutter/mpi/current/bin/python -m hidl_workloads.own_program /home/user/project python train.py
}
launch_copies 4 '{host}'

begin_step '8 ranks on 2 nodes, repetition 1' 2 '{host}'
HIDL_RANKS_PER_NODE=4 launch 8 srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --threads-per-core=1 --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/perlmutter/mpi/current/bin/python -m hidl_workloads.world
HIDL_RANKS_PER_NODE=4 timed launch 8 srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --threads-per-core=1 --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/perlmutter/mpi/current/bin/python -m hidl_workloads.own_program /home/user/project python train.py

begin_step '16 ranks on 4 nodes, repetition 1' 4 '{host}'
HIDL_RANKS_PER_NODE=4 launch 16 srun --nodes=4 --ntasks=16 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --threads-per-core=1 --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/perlmutter/mpi/current/bin/python -m hidl_workloads.world
HIDL_RANKS_PER_NODE=4 timed launch 16 srun --nodes=4 --ntasks=16 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --threads-per-core=1 --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/perlmutter/mpi/current/bin/python -m hidl_workloads.own_program /home/user/project python train.py
settled 1

begin_step '4 copies of 4 ranks on 1 node, repetition 2' 4 '{host}'
one_copy() {
HIDL_RANKS_PER_NODE=4 timed launch 4 srun --nodelist="$host" --nodes=1 --ntasks=4 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --threads-per-core=1 --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/perlmutter/mpi/current/bin/python -m hidl_workloads.own_program /home/user/project python train.py
}
launch_copies 4 '{host}'

begin_step '8 ranks on 2 nodes, repetition 2' 2 '{host}'
HIDL_RANKS_PER_NODE=4 launch 8 srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --threads-per-core=1 --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/perlmutter/mpi/current/bin/python -m hidl_workloads.world
HIDL_RANKS_PER_NODE=4 timed launch 8 srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --threads-per-core=1 --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/perlmutter/mpi/current/bin/python -m hidl_workloads.own_program /home/user/project python train.py

begin_step '16 ranks on 4 nodes, repetition 2' 4 '{host}'
HIDL_RANKS_PER_NODE=4 launch 16 srun --nodes=4 --ntasks=16 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --threads-per-core=1 --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/perlmutter/mpi/current/bin/python -m hidl_workloads.world
HIDL_RANKS_PER_NODE=4 timed launch 16 srun --nodes=4 --ntasks=16 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --threads-per-core=1 --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/perlmutter/mpi/current/bin/python -m hidl_workloads.own_program /home/user/project python train.py

finish COMPLETED 0
