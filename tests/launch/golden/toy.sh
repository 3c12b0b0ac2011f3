#!/usr/bin/env bash
# hidl run run-1: toy on local
# Runs 2 step(s), one after another, in this one allocation.
# It keeps status.json itself (state, times, exit status, hosts), so that no accounting is needed to know how it ended.
# To run it again, copy this directory, and submit job.sh (or call: bash job.sh) from within it.
set -euo pipefail

# Schedulers run a copy of the script that lies elsewhere, and tell where it was submitted.
directory=$(dirname -- "${BASH_SOURCE[0]}")
[[ -e $directory/plan.json ]] || directory=${SLURM_SUBMIT_DIR:-${LS_SUBCWD:-$directory}}
cd -- "$directory"

export HIDL_RUN_ID=run-1
# What every rank looks at before its program starts, and where it tells what it finds.
export HIDL_FINDINGS=$PWD/findings.json
export HIDL_CORES_PER_RANK=1
export HIDL_NODE_MEMORY=1073741824
started=$(date +%s.%N)
step=0
child=

write_status() { # state exit-status end-time
    printf '{"schema": "hidl.status/1", "state": "%s", "exit_status": %s, "started": %s, "ended": %s, "step": %d, "steps": %d, "hosts": [%s]}\n' \
        "$1" "$2" "$started" "$3" "$step" 2 "$(sed 's/[^A-Za-z0-9._-]//g; s/.*/"&"/' hosts | paste -sd,)" > .status.json.new
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
    printf '# step %d of %d: %s\n' "$step" 2 "$1"
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

# Keeps what the program prints, out of which its metrics are read, and shows it at the end: while it measures, nothing
# beside it copies its output.
launch_and_keep_output() { # number-of-ranks command...
    local status=0 output=steps/$step/output.txt
    run_ranks "$@" > "$output" || status=$?
    cat -- "$output"
    if ((status != 0)); then
        finish FAILED "$status"
    fi
}

list_hosts() {
    hostname
}

list_hosts > hosts
write_status RUNNING null null

# The stack, and what all steps share.
# shellcheck disable=SC1091
source /dev/null
export OMP_NUM_THREADS=1

begin_step '1 rank' 1 '{host}'
launch 1 /prefix/bin/mpiexec -n 1 prog '--note=a b'

begin_step '2 ranks' 1 '{host}'
launch 2 check it
launch_and_keep_output 2 /prefix/bin/mpiexec -n 1 prog '--note=a b'

finish COMPLETED 0
