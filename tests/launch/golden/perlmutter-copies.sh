#!/usr/bin/env bash
#SBATCH --job-name=hidl-resnet50
#SBATCH --time=01:00:00
#SBATCH --qos=regular
#SBATCH --constraint=gpu
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --output=stdout.log
#SBATCH --error=stderr.log
#SBATCH --open-mode=append
# hidl run RUN: resnet50 on perlmutter, stack pytorch
# Runs 6 step(s), one after another, in this one allocation.
# It keeps status.json itself (state, times, exit status, hosts), so that no accounting is needed to know how it ended.
# To run it again, copy this directory, and submit job.sh (or call: bash job.sh) from within it.
set -euo pipefail

# Schedulers run a copy of the script that lies elsewhere, and tell where it was submitted.
directory=$(dirname -- "${BASH_SOURCE[0]}")
[[ -e $directory/plan.json ]] || directory=${SLURM_SUBMIT_DIR:-${LS_SUBCWD:-$directory}}
cd -- "$directory"

export HIDL_RUN_ID=RUN
# What every rank looks at before its program starts, and where it tells what it finds.
export HIDL_FINDINGS=$PWD/findings.json
export HIDL_CORES_PER_RANK=16
export HIDL_NODE_MEMORY=274877906944
started=$(date +%s.%N)
step=0
child=

write_status() { # state exit-status end-time
    printf '{"schema": "hidl.status/1", "state": "%s", "exit_status": %s, "started": %s, "ended": %s, "step": %d, "steps": %d, "hosts": [%s]}\n' \
        "$1" "$2" "$started" "$3" "$step" 6 "$(sed 's/[^A-Za-z0-9._-]//g; s/.*/"&"/' hosts | paste -sd,)" > .status.json.new
    mv -f -- .status.json.new status.json
}

finish() { # state exit-status
    trap - EXIT
    write_status "$1" "$2" "$(date +%s.%N)"
    exit "$2"
}

# Whoever ends the run early leaves the reason in the file `reason` before the signal. LSF sends USR2 at a time limit.
# shellcheck disable=SC2317,SC2329
ended_early() {
    trap '' TERM INT HUP USR2
    if [[ -n $child ]]; then
        kill -TERM "$child" 2> /dev/null || true
        wait "$child" || true
    fi
    finish "$(cat reason 2> /dev/null || echo CANCELLED)" 143
}
trap ended_early TERM INT HUP USR2
trap 'finish FAILED $?' EXIT

begin_step() { # title nodes form-of-a-line-of-the-host-file
    step=$((step + 1))
    printf '# step %d of %d: %s\n' "$step" 6 "$1"
    write_status RUNNING null null
    mkdir -p "steps/$step"
    rm -f -- "steps/$step/metrics.json"
    head -n "$2" hosts | while read -r host; do echo "${3/\{host\}/$host}"; done > "steps/$step/hosts"
}

launch() { # number-of-ranks command...
    local status=0
    run_ranks "$@" || status=$?
    if ((status != 0)); then
        finish FAILED "$status"
    fi
}

run_ranks() { # number-of-ranks command...
    local status=0
    tell_program "$1"
    "${@:2}" < /dev/null &
    child=$!
    wait "$child" || status=$?
    child=
    return "$status"
}

tell_program() { # number-of-ranks
    export HIDL_WORLD_SIZE=$1 HIDL_METRICS=$PWD/steps/$step/metrics.json
}

# Runs `one_copy` on each of the first hosts at once, each with a directory of its own: steps/STEP/copies/COPY.
launch_copies() { # number-of-copies form-of-a-line-of-the-host-file
    local status=0
    all_copies "$@" &
    child=$!
    wait "$child" || status=$?
    child=
    if ((status != 0)); then
        finish FAILED "$status"
    fi
}

all_copies() {
    local -a pids=()
    local copy=0 host pid status=0
    trap '[[ -z ${pids[*]-} ]] || kill -TERM "${pids[@]}" 2> /dev/null || true' TERM INT HUP USR2
    while ((copy < $1)) && read -r host <&3; do
        copy=$((copy + 1))
        mkdir -p "steps/$step/copies/$copy"
        echo "${2/\{host\}/$host}" > "steps/$step/copies/$copy/hosts"
        a_copy "$step/copies/$copy" "$host" &
        pids+=($!)
    done 3< hosts
    for pid in "${pids[@]}"; do
        wait "$pid" || status=$?
    done
    exit "$status"
}

a_copy() { # place host
    step=$1 host=$2 child=
    exec 4>&2
    finish() {
        tail -n 20 "steps/$step/stderr.log" >&4 || true
        exit "$2"
    }
    trap '[[ -z $child ]] || { kill -TERM "$child" && wait "$child"; } 2> /dev/null || true; exit 143' TERM INT HUP USR2
    rm -f -- "steps/$step/metrics.json"
    one_copy > "steps/$step/stdout.log" 2> "steps/$step/stderr.log"
    exit 0
}

# Leaves the study where it is, once it is settled.
settled() { # repetitions-done
    local status=0 left=()
    left=(--seconds-left "$((${started%.*} + 3600 - $(date +%s)))")
    /apps/hidl/perlmutter/pytorch/current/bin/python -m hidl_workloads.enough "$PWD" "$1" ${left[@]+"${left[@]}"} < /dev/null || status=$?
    if ((status == 0)); then
        finish COMPLETED 0
    fi
}

list_hosts() {
    scontrol show hostnames "$SLURM_JOB_NODELIST"
}

list_hosts > hosts
write_status RUNNING null null

# The MPI library of the site, cray-mpich (cray-mpich), takes the place of the stack's own: they share one ABI.
mpi_prefix=$(command -v mpicc || true)
mpi_prefix=${mpi_prefix%/bin/mpicc}

# The stack, and what all steps share.
# shellcheck disable=SC1091
source /apps/hidl/perlmutter/pytorch/current/activate.sh
if [[ -n $mpi_prefix ]]; then
    export PATH=$mpi_prefix/bin:$PATH
    export LD_LIBRARY_PATH=$mpi_prefix/lib64:$mpi_prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
export OMP_NUM_THREADS=16
export MKL_NUM_THREADS=16
export OPENBLAS_NUM_THREADS=16
export NUMEXPR_NUM_THREADS=16
export TF_NUM_INTRAOP_THREADS=16
export TF_NUM_INTEROP_THREADS=1
export MPICH_GPU_SUPPORT_ENABLED=1
export MPI4PY_MPIABI=mpich

begin_step '4 copies of 4 ranks on 1 node, repetition 1' 4 '{host}'
one_copy() {
launch 4 srun --nodelist="$host" --nodes=1 --ntasks=4 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/perlmutter/pytorch/current/bin/python -m hidl_workloads.world hidl_workloads.resnet50 --framework=torch --backend=mpi4py --batch=8 --image_size=224 --steps=12 --warmup=2 --precision=float32 --optimizer=sgd --learning_rate=0.01 --bucket_mib=25 --compression=none --cycle_time_ms=1 --fusion_mib=128 --timeline=false --seed=0 --note=
}
launch_copies 4 '{host}'

begin_step '8 ranks on 2 nodes, repetition 1' 2 '{host}'
launch 8 srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/perlmutter/pytorch/current/bin/python -m hidl_workloads.world hidl_workloads.resnet50 --framework=torch --backend=mpi4py --batch=8 --image_size=224 --steps=12 --warmup=2 --precision=float32 --optimizer=sgd --learning_rate=0.01 --bucket_mib=25 --compression=none --cycle_time_ms=1 --fusion_mib=128 --timeline=false --seed=0 --note=

begin_step '16 ranks on 4 nodes, repetition 1' 4 '{host}'
launch 16 srun --nodes=4 --ntasks=16 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/perlmutter/pytorch/current/bin/python -m hidl_workloads.world hidl_workloads.resnet50 --framework=torch --backend=mpi4py --batch=8 --image_size=224 --steps=12 --warmup=2 --precision=float32 --optimizer=sgd --learning_rate=0.01 --bucket_mib=25 --compression=none --cycle_time_ms=1 --fusion_mib=128 --timeline=false --seed=0 --note=
settled 1

begin_step '4 copies of 4 ranks on 1 node, repetition 2' 4 '{host}'
one_copy() {
launch 4 srun --nodelist="$host" --nodes=1 --ntasks=4 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/perlmutter/pytorch/current/bin/python -m hidl_workloads.world hidl_workloads.resnet50 --framework=torch --backend=mpi4py --batch=8 --image_size=224 --steps=12 --warmup=2 --precision=float32 --optimizer=sgd --learning_rate=0.01 --bucket_mib=25 --compression=none --cycle_time_ms=1 --fusion_mib=128 --timeline=false --seed=0 --note=
}
launch_copies 4 '{host}'

begin_step '8 ranks on 2 nodes, repetition 2' 2 '{host}'
launch 8 srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/perlmutter/pytorch/current/bin/python -m hidl_workloads.world hidl_workloads.resnet50 --framework=torch --backend=mpi4py --batch=8 --image_size=224 --steps=12 --warmup=2 --precision=float32 --optimizer=sgd --learning_rate=0.01 --bucket_mib=25 --compression=none --cycle_time_ms=1 --fusion_mib=128 --timeline=false --seed=0 --note=

begin_step '16 ranks on 4 nodes, repetition 2' 4 '{host}'
launch 16 srun --nodes=4 --ntasks=16 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none --kill-on-bad-exit=1 --export=ALL /apps/hidl/perlmutter/pytorch/current/bin/python -m hidl_workloads.world hidl_workloads.resnet50 --framework=torch --backend=mpi4py --batch=8 --image_size=224 --steps=12 --warmup=2 --precision=float32 --optimizer=sgd --learning_rate=0.01 --bucket_mib=25 --compression=none --cycle_time_ms=1 --fusion_mib=128 --timeline=false --seed=0 --note=

finish COMPLETED 0
