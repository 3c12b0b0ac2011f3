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

# Whoever ends the run early leaves the reason in the file `reason` before the signal.
# shellcheck disable=SC2317,SC2329
ended_early() {
    trap '' TERM INT HUP
    if [[ -n $child ]]; then
        kill -TERM "$child" 2> /dev/null || true
        wait "$child" || true
    fi
    finish "$(cat reason 2> /dev/null || echo CANCELLED)" 143
}
trap ended_early TERM INT HUP
trap 'finish FAILED $?' EXIT

begin_step() { # title nodes form-of-a-line-of-the-host-file
    step=$((step + 1))
    printf '# step %d of %d: %s\n' "$step" 2 "$1"
    write_status RUNNING null null
    mkdir -p "steps/$step"
    rm -f -- "steps/$step/metrics.json"
    head -n "$2" hosts | while read -r host; do echo "${3/\{host\}/$host}"; done > "steps/$step/hosts"
}

# Starting ranks. What includes this file sets `step`, has a directory steps/$step and a function `finish STATE STATUS`
# that does not return, and on a signal ends the process `child`, where there is one, and waits for it. To launch:
#
#   expect_ranks N
#   forwarded [OPTION] NAME...                                                   # for some launchers
#   launch [status_from_stderr] LAUNCHER... ${forwarded[@]+"${forwarded[@]}"} PROGRAM...

# Open MPI's mpirun starts nothing as root unless it is told twice that this is meant.
if ((EUID == 0)); then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

expect_ranks() { # number-of-ranks; what the program is told
    export HIDL_WORLD_SIZE=$1 HIDL_METRICS=$PWD/steps/$step/metrics.json
}

launch() { # command...
    local status=0
    "$@" < /dev/null &
    child=$!
    wait "$child" || status=$?
    child=
    if ((status != 0)); then
        finish FAILED "$status"
    fi
}

# Fills the array `forwarded` for each NAME that is set: with OPTION and the name where an option is given, else with
# NAME='value', quoted for a shell on another host.
forwarded() { # [option] name...
    local option='' name value quote="'" escaped="'\"'\"'"
    if [[ $1 == -* ]]; then
        option=$1
        shift
    else
        plain PWD
        plain LD_LIBRARY_PATH
    fi
    forwarded=()
    for name in "$@"; do
        if [[ -z ${!name+set} ]]; then
            continue
        elif [[ -n $option ]]; then
            forwarded+=("$option" "$name")
        else
            value=${!name}
            value=${value//$quote/$escaped}
            forwarded+=("$name='$value'")
        fi
    done
}

# mpirun_rsh hands these on to the shell on another host by itself, without quotes.
plain() { # name
    local special=$'*[][:space:]"\'\\\\;&|<>()$`*?[#~{}]*'
    # shellcheck disable=SC2053  # it is a pattern
    if [[ ${!1-} == $special ]]; then
        printf 'hidl: mpirun_rsh cannot run here: a shell on another host would take this value of %s apart: %s\n' \
            "$1" "${!1}" >&2
        return 1
    fi
}

# Runs a launcher whose own status says no more than that something failed, and ends with that of the rank that failed
# first, as the launcher tells it on stderr, which passes through as it is.
status_from_stderr() { # command...
    local said=steps/$step/launcher.stderr directory reader launcher='' ended='' status=0 tries real
    trap '[[ -n $ended || -z $launcher ]] || kill -TERM "$launcher" 2> /dev/null || true; ended=yes' TERM INT HUP
    directory=$(mktemp -d)
    mkfifo "$directory/stderr"
    # A signal to all processes of the job must not cut off what the launcher says about it.
    (trap '' TERM INT HUP && exec tee -- "$said" < "$directory/stderr" >&2) &
    reader=$!
    exec 9> "$directory/stderr"
    rm -rf -- "$directory"
    if [[ -z $ended ]]; then
        "$@" 2>&9 9>&- &
        launcher=$!
    fi
    exec 9>&-
    # A signal ends `wait` before the launcher has ended.
    while [[ -n $launcher ]]; do
        status=0
        wait "$launcher" || status=$?
        kill -0 "$launcher" 2> /dev/null || break
    done
    # What the launcher left behind on this host may hold its stderr open: that is not waited for without end.
    for ((tries = 0; tries < 200; tries++)); do
        kill -0 "$reader" 2> /dev/null || break
        sleep 0.05
    done
    if [[ -n $ended ]]; then
        status=143
    elif ((status <= 1)); then
        real=$(status_of_ranks "$said") || real=
        status=${real:-$status}
    fi
    rm -f -- "$said"
    exit "$status"
}

# The status of the rank that failed first: 128 + the signal where one ended it; 124 where time ran out; nothing where
# the launcher names none.
status_of_ranks() { # file
    LC_ALL=C awk '
        /\[child_handler\] MPI process \(rank: [0-9]+, pid: [0-9]+\) exited with status [1-9]/ {
            sub(/.*\) exited with status /, ""); print $1 + 0; exit
        }
        /\[child_handler\] MPI process \(rank: [0-9]+, pid: [0-9]+\) terminated with signal [1-9]/ {
            sub(/.*\) terminated with signal /, ""); print 128 + $1; exit
        }
        /Timeout \[TIMEOUT = [0-9]+ seconds\]/ { print 124; exit }
    ' "$1"
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
expect_ranks 1
launch /prefix/bin/mpiexec -n 1 prog '--note=a b'

begin_step '2 ranks' 1 '{host}'
expect_ranks 2
launch check it
expect_ranks 2
launch /prefix/bin/mpiexec -n 1 prog '--note=a b'

finish COMPLETED 0
