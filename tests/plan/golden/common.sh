# Parts of the golden job scripts that several of them share: see ../golden_scripts.py.
#@ start
# It keeps status.json itself (state, times, exit status, hosts), so that no accounting is needed to know how it ended.
# To run it again, copy this directory, and submit job.sh (or call: bash job.sh) from within it.
# The submitter's environment must not change this script: where `cd` goes, how bash reads words and writes files, and
# functions that replace commands. This shell's options are not exported to the program's shells.
POSIXLY_CORRECT=1 # while it is set, no function replaces `unset`
unset -f unset compgen type
unset CDPATH FUNCNEST GLOBIGNORE POSIXLY_CORRECT
unset TMOUT 2> /dev/null || true # a hardened system makes it read-only
unset PYTHONINSPECT # with it, a program that fails ends with 0
# Ranks would take themselves for those of a job in which this one was started or submitted.
unset PMI_FD PMI_ID PMI_PORT PMI_RANK PMI_SIZE PMIX_NAMESPACE PMIX_RANK "${!PMIX_SERVER_@}" "${!OMPI_COMM_WORLD_@}"
unset "${!MV2_COMM_WORLD_@}" "${!JSM_NAMESPACE_@}" "${!FLUX_TASK_@}" PALS_RANKID PALS_LOCAL_RANKID PALS_LOCAL_SIZE
unset MPI_LOCALRANKID MPI_LOCALNRANKS TF_CONFIG "${!PET_@}"
unset HIDL_RANK HIDL_RANKS_PER_NODE HIDL_MOST_RANKS HIDL_PROCESSES HIDL_SEPARATE_RANKS HIDL_EXPECTED_WORLD
# Hosts and a time limit that an outer job gave to its mpiexec.
unset HYDRA_HOST_FILE HYDRA_RMK I_MPI_HYDRA_HOST_FILE I_MPI_HYDRA_RMK MPIEXEC_TIMEOUT
# An outer run's facts about its ranks. Those of this one are exported below, where they are known.
unset HIDL_CORES_PER_RANK HIDL_NODE_MEMORY HIDL_SITE_MPI HIDL_UNBOUND
for name in $(compgen -A function); do
    if [[ $'\n'$(compgen -b)$'\n' == *$'\n'"$name"$'\n'* ]] || type -P "$name" > /dev/null; then
        unset -f "$name"
    fi
done
export -n SHELLOPTS BASHOPTS
set +o posix +o keyword +o noclobber +o noglob +o allexport +o xtrace +o verbose
shopt -u dotglob expand_aliases failglob lastpipe nocaseglob nocasematch nullglob xpg_echo

# Programs of the same names may come first on PATH. Bash forgets these paths when PATH changes; ranks do not inherit them.
use_system_programs() {
    local name place
    for name in awk bash cat cksum cut date dirname env flock grep head mkdir mkfifo mktemp mv paste readlink rm sed \
        sleep stat tail tee timeout tr uname wc; do
        for place in /usr/bin /bin; do
            if [[ -f $place/$name && -x $place/$name ]]; then
                hash -p "$place/$name" "$name"
                break
            fi
        done
    done
}
set -h
use_system_programs
set -euo pipefail

# Schedulers run a copy of the script that lies elsewhere, and tell where it was submitted.
directory=$(dirname -- "${BASH_SOURCE[0]}")
#@ findings
cd -- "$directory"
# TMPDIR of the submitter's host may not exist here, and everything below and all ranks use it.
for place in "${TMPDIR:-/tmp}" /tmp "$PWD"; do
    if [[ $place == /* && -d $place && -w $place && -x $place ]]; then
        if [[ $place != "${TMPDIR:-/tmp}" ]]; then
            echo "hidl: TMPDIR ${TMPDIR:-/tmp} is not a writable directory on $(uname -n): using $place" >&2
            export TMPDIR=$place
        fi
        break
    fi
done

export HIDL_RUN_ID=RUN
# What every rank looks at before its program starts, and where it tells what it finds.
export HIDL_FINDINGS=$PWD/findings.json
#@ status
started=$(date +%s.%N)
step=0
child=
job=

# Sets `text`.
format_status() { # state exit-status end-time
    local host hosts=''
    while read -r host; do
        hosts+=",\"${host//[^A-Za-z0-9._-]/}\""
    done < hosts
    printf -v text '{"schema": "hidl.status/1", "job": "%s", "state": "%s", "exit_status": %s, "started": %s, "ended": %s, "step": %d, "steps": %d, "hosts": [%s]}' \
#@ end
}

# On a full disk, the end is written into space that was taken at the beginning, with the cause; an old file stays.
write_status() { # state exit-status end-time
    local text cause
    format_status "$@"
    if cause=$({ echo "$text" > .status.json.new && mv -f -- .status.json.new status.json; } 2>&1); then
        if [[ $1 != RUNNING ]]; then
            rm -f -- .status.json.last
        elif [[ ! -e .status.json.last ]]; then
            printf '%s%512s\n' "$text" '' > .status.json.last
        fi
    elif [[ $1 != RUNNING ]]; then
        cause=${cause##*: }
        echo "${text%\}}, \"not_written\": \"${cause//[^A-Za-z ]/}\"}" 1<> .status.json.last &&
            mv -f -- .status.json.last status.json || true
        rm -f -- .status.json.new
    fi
}

# Adds a job to attempts.jsonl, on a line of its own: the line before may be cut off, if the disk was full.
add_attempt() { # status
    local last=''
    if [[ -s attempts.jsonl ]]; then
        last=$(tail -c 1 attempts.jsonl)
    fi
    printf '%s%s\n' "${last:+$'\n'}" "$1" >> attempts.jsonl
}

# Results stay those of one job: what an earlier attempt left, which was put back into the queue, or another job in this
# directory (a copy, submitted again), does not count. The latter is kept.
begin_attempt() {
    job=$(job_id 2> /dev/null || true)
    job=${job//[^A-Za-z0-9._[\]-]/}
    if [[ -s status.json ]]; then
        if [[ -n $job ]] && grep -qF "\"job\": \"$job\"" status.json; then
            add_attempt "$(tr -d '\n' < status.json)"
        else
            rm -f -- reason
            keep_results
        fi
        rm -rf -- steps metrics.json verdict.json causes.json findings.json
    fi
}

# What another job left in this directory goes into a directory of its own.
keep_results() {
    local number=1 name
    while [[ -e earlier.$number ]]; do
        number=$((number + 1))
    done
    mkdir -- "earlier.$number"
    cat status.json > "earlier.$number/status.json" # others read it meanwhile
    for name in attempts.jsonl steps metrics.json verdict.json causes.json findings.json enough.json; do
        if [[ -e $name ]]; then
            mv -- "$name" "earlier.$number/"
        fi
    done
}

finish() { # state exit-status
    # The signal that ends a run early may reach the ranks first: then the launch fails before this script is told.
    # Some schedulers' functions can ask for it; srun returns 0 if the nodes of all ranks were lost.
    if [[ $1 == FAILED && -e reason ]] || { declare -F is_ending > /dev/null && is_ending; }; then
        ended_early
    fi
    end_as "$@"
}

# Whoever ends the run early leaves the reason in the file `reason` before the signal. LSF sends USR2 at a time limit.
# shellcheck disable=SC2317,SC2329
ended_early() {
    trap '' TERM INT HUP USR2
    if [[ -n $child ]]; then
        kill -TERM "$child" 2> /dev/null || true
        wait "$child" || true
    fi
    local reason
    reason=$(cat reason 2> /dev/null || echo CANCELLED)
    end_as "${reason:-TIMEOUT}" 143 # empty: at the time limit, the disk was full
}

end_as() { # state exit-status
    trap - EXIT
    trap '' TERM INT HUP USR2
    use_system_programs # modules or the stack may have changed PATH
    write_status "$1" "$2" "$(date +%s.%N)"
    exit "$2"
}
trap ended_early TERM INT HUP USR2
trap 'finish FAILED $?' EXIT

begin_step() { # title nodes form-of-a-line-of-the-host-file
    step=$((step + 1))
#@ step
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
#@ keep-output
# Keeps what the program prints, out of which its metrics are read, and shows it at the end: while it measures, nothing
# beside it copies its output.
launch_and_keep_output() { # number-of-ranks command...
    local status=0 output=steps/$step/output.txt
    run_ranks "$@" > "$output" || status=$?
    cat -- "$output" || true # the disk may be full
    if ((status != 0)); then
        finish FAILED "$status"
    fi
}
#@ copies
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
    # shellcheck disable=SC2317,SC2329
    finish() {
        tail -n 20 "steps/$step/stderr.log" >&4 || true
        exit "$2"
    }
    trap '[[ -z $child ]] || { kill -TERM "$child" && wait "$child"; } 2> /dev/null || true; exit 143' TERM INT HUP USR2
    rm -f -- "steps/$step/metrics.json"
    one_copy > "steps/$step/stdout.log" 2> "steps/$step/stderr.log"
    exit 0
}

#@ forwarded
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

#@ status-from-stderr
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

#@ slurm
list_hosts() {
    scontrol show hostnames "$SLURM_JOB_NODELIST"
}

job_id() {
    echo "${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID:-}}"
}

# What others end is COMPLETING while its script still runs; if its nodes were lost, NODE_FAIL.
is_ending() {
    [[ -n ${SLURM_JOB_ID:-} ]] &&
        timeout 10 squeue --noheader --states=all --jobs="$SLURM_JOB_ID" --format=%T 2> /dev/null |
        grep -Eqx 'COMPLETING|NODE_FAIL'
}

# When srun returns, Slurm may count its step's cores as in use for a moment longer. The next step would wait for them
# ("step creation temporarily disabled"), for a minute if the message that they are free is lost, and a timed launch
# would be longer by that. Steps of this script run one after another or on different nodes: they may overlap.
export SLURM_OVERLAP=1

#@ ssh
# The allocation's hosts, one a line, in the order that they were given in: those of the script's own header.
list_hosts() {
    sed -n 's/^# ssh: --hosts=//p' "${BASH_SOURCE[0]##*/}" | tr ',' '\n'
}

job_id() {
    echo "${HIDL_SSH_JOB:-}"
}
#@ hosts
begin_attempt
list_hosts > hosts
write_status RUNNING null null

#@ modules
# The site's modules. A batch shell does not always know the command.
if ! type module > /dev/null 2>&1; then
    for file in "${LMOD_PKG:-}/init/bash" "${MODULESHOME:-}/init/bash" /etc/profile.d/{lmod,modules,z00_lmod}.sh; do
        if [[ -r $file ]]; then
            set +eu
            # shellcheck disable=SC1090
            source "$file"
            set -eu
            break
        fi
    done
fi
# Loads a module. Environment Modules 3.2, and others under some settings, print an error and return 0: then the list of
# loaded modules shows it or, where the site's module command keeps none, the environment, which has not changed.
load_module() { # module
    local hidl_status=0 hidl_before hidl_environment
    hidl_before=${LOADEDMODULES-}
    hidl_environment=$(export -p)
    module load "$1" >&2 || hidl_status=$?
    if ((hidl_status == 0)) && ! is_listed "$1" && [[ ${LOADEDMODULES-} == "$hidl_before" ]]; then
        if [[ -n ${LOADEDMODULES+set} || $(export -p) == "$hidl_environment" ]] && ! is_alias_of_loaded "$1"; then
            hidl_status=1
        fi
    fi
    if ((hidl_status != 0)); then
        printf 'hidl: module %s of the site file cannot be loaded on %s (module load: see above)\n' "$1" "$(uname -n)" >&2
    fi
    return "$hidl_status"
}

# A module's entry in the list has the version, if none was given, and may be hidden (NAME/.VERSION).
is_listed() { # module
    case :${LOADEDMODULES-}: in
        *:"${1%/}":* | *:"${1%/}"/*) return 0 ;;
    esac
    return 1
}

# Aliases, symbolic versions and shortened ones are listed by another name, if they were loaded before: by the file that
# `module show` names. Environment Modules 3.2 divides a long list into several variables.
is_alias_of_loaded() { # module
    local hidl_shown hidl_name hidl_file hidl_files
    hidl_shown=$(module show "$1" 2>&1) || true
    for hidl_name in "${!_LMFILES_@}"; do
        IFS=: read -r -a hidl_files <<< "${!hidl_name}"
        for hidl_file in "${hidl_files[@]}"; do
            if [[ -n $hidl_file && $hidl_shown == *"$hidl_file":* ]]; then
                return 0
            fi
        done
    done
    return 1
}
#@ mpi-prefix
programs=:$PATH:
mpi_prefix=$(PATH=${programs//:"$own":/:} type -P mpicc || true)
mpi_prefix=${mpi_prefix%/bin/mpicc}
# The ranks look whether it is the one that they load.
#@ stack
# The stack, and what all steps share.
# shellcheck disable=SC1091
#@ mpi-first
if [[ -n $mpi_prefix ]]; then
    export PATH=$mpi_prefix/bin:$PATH
    export LD_LIBRARY_PATH=$mpi_prefix/lib64:$mpi_prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
#@ threads-28
export OMP_NUM_THREADS=28
export MKL_NUM_THREADS=28
export OPENBLAS_NUM_THREADS=28
export NUMEXPR_NUM_THREADS=28
export TF_NUM_INTRAOP_THREADS=28
export TF_NUM_INTEROP_THREADS=1
