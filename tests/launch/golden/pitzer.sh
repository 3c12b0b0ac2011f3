#!/usr/bin/env bash
#SBATCH --job-name=hidl-resnet50
#SBATCH --time=01:00:00
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=20
#SBATCH --gpus-per-node=2
#SBATCH --output=stdout.log
#SBATCH --error=stderr.log
#SBATCH --open-mode=append
# hidl run RUN: resnet50 on pitzer, stack pytorch
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
export HIDL_CORES_PER_RANK=20
export HIDL_NODE_MEMORY=389768282112
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

# Fills the array `forwarded` for each NAME that is set: with OPTION and the name where an option is given, else with
# NAME='value', quoted for a shell on another host.
forwarded() { # number-of-ranks [option] name...
    local option='' name value quote="'" escaped="'\"'\"'"
    tell_program "$1"
    shift
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
# shellcheck disable=SC2317,SC2329
status_from_stderr() { # command...
    local said=steps/$step/launcher.stderr directory reader launcher='' ended='' status=0 tries real
    trap '[[ -n $ended || -z $launcher ]] || kill -TERM "$launcher" 2> /dev/null || true; ended=yes' TERM INT HUP USR2
    directory=$(mktemp -d)
    mkfifo "$directory/stderr"
    # A signal to all processes of the job must not cut off what the launcher says about it.
    (trap '' TERM INT HUP USR2 && exec tee -- "$said" < "$directory/stderr" >&2) &
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
        # Where its copy could not be written (a full disk), the launcher's own status stands.
        real=$(status_of_ranks "$said" 2> /dev/null) || real=
        status=${real:-$status}
    fi
    rm -f -- "$said" || true
    exit "$status"
}

# The status of the rank that failed first: 128 + the signal where one ended it; 124 where time ran out; nothing where
# the launcher names none.
# shellcheck disable=SC2317,SC2329
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
    scontrol show hostnames "$SLURM_JOB_NODELIST"
}

list_hosts > hosts
write_status RUNNING null null

# The MPI library of the site, mvapich2-gdr (mvapich2-gdr), takes the place of the stack's own: they share one ABI.
mpi_prefix=$(command -v mpicc || true)
mpi_prefix=${mpi_prefix%/bin/mpicc}

# The stack, and what all steps share.
# shellcheck disable=SC1091
source /apps/hidl/pitzer/pytorch/current/activate.sh
if [[ -n $mpi_prefix ]]; then
    export PATH=$mpi_prefix/bin:$PATH
    export LD_LIBRARY_PATH=$mpi_prefix/lib64:$mpi_prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
export OMP_NUM_THREADS=20
export MKL_NUM_THREADS=20
export OPENBLAS_NUM_THREADS=20
export NUMEXPR_NUM_THREADS=20
export TF_NUM_INTRAOP_THREADS=20
export TF_NUM_INTEROP_THREADS=1
export MPI4PY_MPIABI=mpich
export MV2_USE_CUDA=1 # preset of mvapich2-gdr (MVAPICH2-GDR 2.3.7 user guide, section 13.1)
export MV2_CPU_BINDING_POLICY=hybrid # preset of mvapich2-gdr (MVAPICH tutorial on deep learning, MUG 2022)
export MV2_HYBRID_BINDING_POLICY=spread # preset of mvapich2-gdr (MVAPICH tutorial on deep learning, MUG 2022)
export MV2_USE_RDMA_CM=0 # preset of mvapich2-gdr (MVAPICH tutorial on deep learning, MUG 2022)
export MV2_SUPPORT_DL=1 # preset of mvapich2-gdr (MVAPICH2-GDR 2.3.7 user guide, section 7.3)

begin_step '16 ranks on 8 nodes, repetition 1' 8 '{host}:2'
forwarded 16 PATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV HIDL_STACK HIDL_RUN_ID HIDL_WORLD_SIZE HIDL_METRICS HIDL_FINDINGS HIDL_CORES_PER_RANK HIDL_NODE_MEMORY
launch 16 status_from_stderr mpirun_rsh -np 16 -hostfile steps/1/hosts OMP_NUM_THREADS=20 MKL_NUM_THREADS=20 OPENBLAS_NUM_THREADS=20 NUMEXPR_NUM_THREADS=20 TF_NUM_INTRAOP_THREADS=20 TF_NUM_INTEROP_THREADS=1 MPI4PY_MPIABI=mpich MV2_USE_CUDA=1 MV2_CPU_BINDING_POLICY=hybrid MV2_HYBRID_BINDING_POLICY=spread MV2_USE_RDMA_CM=0 MV2_SUPPORT_DL=1 ${forwarded[@]+"${forwarded[@]}"} /apps/hidl/pitzer/pytorch/current/bin/python -m hidl_workloads.world hidl_workloads.resnet50 --framework=torch --backend=mpi4py --batch=8 --image_size=224 --steps=12 --warmup=2 --precision=float32 --optimizer=sgd --learning_rate=0.01 --bucket_mib=25 --compression=none --cycle_time_ms=1 --fusion_mib=128 --timeline=false --seed=0 --note=

finish COMPLETED 0
