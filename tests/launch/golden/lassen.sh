#!/usr/bin/env bash
#BSUB -nnodes 64
#BSUB -W 1:00
#BSUB -q pdebug
#BSUB -J hidl-resnet50
#BSUB -o lsf.log
# hidl run RUN: resnet50 on lassen, stack pytorch
# Runs 1 step(s), one after another, in this one allocation.
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
export HIDL_CORES_PER_RANK=11
started=$(date +%s.%N)
step=0
child=

write_status() { # state exit-status end-time
    printf '{"schema": "hidl.status/1", "state": "%s", "exit_status": %s, "started": %s, "ended": %s, "step": %d, "steps": %d, "hosts": [%s]}\n' \
        "$1" "$2" "$started" "$3" "$step" 1 "$(sed 's/[^A-Za-z0-9._-]//g; s/.*/"&"/' hosts | paste -sd,)" > .status.json.new
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

# LSF keeps what a job prints to itself until the job has ended, and puts a report of its own before it. So the job
# writes its two files itself, and LSF's report goes to lsf.log.
if [[ -n ${LSB_JOBID:-} && -z ${LSB_INTERACTIVE:-} ]]; then
    exec >> stdout.log 2>> stderr.log
fi

# The allocation's hosts, one a line, in LSF's order. The node that this script runs on comes first, with one slot,
# where it is a launch (or batch) node beside the compute nodes: it is none of them.
list_hosts() {
    local -a pairs
    if [[ -r ${LSB_DJOB_HOSTFILE:-} ]]; then
        sed 's/$/ 1/' "$LSB_DJOB_HOSTFILE"
    elif [[ -n ${LSB_MCPU_HOSTS:-} ]]; then
        read -ra pairs <<< "$LSB_MCPU_HOSTS"
        printf '%s %s\n' "${pairs[@]}"
    else
        echo "neither LSB_DJOB_HOSTFILE nor LSB_MCPU_HOSTS names the allocation's hosts: is this a job of LSF?" >&2
        return 1
    fi | awk '
        !($1 in slots) { host[++hosts] = $1 }
        { slots[$1] += $2 }
        END {
            first = (hosts > 1 && slots[host[1]] == 1 && slots[host[2]] > 1) ? 2 : 1
            for (i = first; i <= hosts; i++) print host[i]
        }'
}
list_hosts > hosts
write_status RUNNING null null

# The MPI library of the site, spectrum-mpi (spectrum-mpi), takes the place of the stack's own: they share one ABI.
mpi_prefix=/usr/tce/packages/spectrum-mpi/spectrum-mpi-rolling-release-clang-ibm-16.0.6-cuda-11.8.0-gcc-11.2.1

# The stack, and what all steps share.
# shellcheck disable=SC1091
source /apps/hidl/lassen/pytorch/current/activate.sh
if [[ -n $mpi_prefix ]]; then
    export PATH=$mpi_prefix/bin:$PATH
    export LD_LIBRARY_PATH=$mpi_prefix/lib64:$mpi_prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
export OMP_NUM_THREADS=11
export MKL_NUM_THREADS=11
export OPENBLAS_NUM_THREADS=11
export NUMEXPR_NUM_THREADS=11
export TF_NUM_INTRAOP_THREADS=11
export TF_NUM_INTEROP_THREADS=1
export MPI4PY_MPIABI=openmpi

begin_step '256 ranks on 64 nodes, repetition 1' 64 '{host}'
launch 256 jsrun -n 64 -r 1 -a 4 -c 44 -g 4 -d packed -b packed:11 --smpiargs=-gpu /apps/hidl/lassen/pytorch/current/bin/python -m hidl_workloads.world hidl_workloads.resnet50 --framework=torch --backend=mpi4py --batch=8 --image_size=224 --steps=12 --warmup=2 --precision=float32 --optimizer=sgd --learning_rate=0.01 --bucket_mib=25 --compression=none --cycle_time_ms=1 --fusion_mib=128 --timeline=false --seed=0 --note=

finish COMPLETED 0
