#!/usr/bin/env bash
# hidl run run-1: toy on local
# Runs 2 step(s), one after another, in this one allocation.
#@ start
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

export HIDL_RUN_ID=run-1
# What every rank looks at before its program starts, and where it tells what it finds.
export HIDL_FINDINGS=$PWD/findings.json
export HIDL_CORES_PER_RANK=1
export HIDL_NODE_MEMORY=1073741824
#@ status
        "$job" "$1" "$2" "$started" "$3" "$step" 2 "${hosts#,}"
#@ end
    printf '# step %d of %d: %s\n' "$step" 2 "$1"
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

# Keeps what the program prints, out of which its metrics are read, and shows it at the end: while it measures, nothing
# beside it copies its output.
# shellcheck disable=SC2329 # timed calls it
launch_and_keep_output() { # number-of-ranks command...
    local status=0 output=steps/$step/output.txt
    run_ranks "$@" > "$output" || status=$?
    cat -- "$output" || true # the disk may be full
    if ((status != 0)); then
        finish FAILED "$status"
    fi
}

# Keeps what the program prints on stdout and stderr, out of which its metrics are read, and shows it as it comes.
# shellcheck disable=SC2329 # timed calls it
launch_and_copy_output() { # number-of-ranks command...
    local status=0 place=steps/$step directory tries
    local -a readers=()
    directory=$(mktemp -d)
    mkfifo "$directory/stdout" "$directory/stderr"
    # A signal to all processes of the job must not cut off what the program says about it.
    (trap '' TERM INT HUP USR2 && exec tee -- "$place/output.txt" < "$directory/stdout") &
    readers+=($!)
    (trap '' TERM INT HUP USR2 && exec tee -- "$place/errors.txt" < "$directory/stderr" >&2) &
    readers+=($!)
    exec 7> "$directory/stdout" 8> "$directory/stderr"
    rm -rf -- "$directory"
    run_ranks "$@" >&7 2>&8 7>&- 8>&- || status=$?
    exec 7>&- 8>&-
    # What the program left behind on this host may hold its output open: that is not waited for without end.
    for ((tries = 0; tries < 1000; tries++)); do
        kill -0 "${readers[@]}" 2> /dev/null || break
        sleep 0.01
    done
    if ((status != 0)); then
        finish FAILED "$status"
    fi
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

# No scheduler keeps two runs on this machine apart, and both would bind their ranks to the same cores. The first one
# locks a file of root's, which other users cannot replace; its ranks alone are bound. Others share the lock of a second
# file meanwhile, by which the first one sees them. Descriptor 6 is closed in the ranks, so that what a program leaves
# behind does not hold a lock.
shared='' warned=''
take_cores() {
    local lock=${HIDL_CORES_LOCK-/sys/devices/system/cpu/online} status=0 loose=0
    unset HIDL_UNBOUND
    shared=''
    rm -f -- "steps/$step/unbound" "steps/$step/shared"
    if [[ -z $lock ]]; then
        return "$loose"
    elif ! type -P flock > /dev/null; then
        warn_of_cores "no program flock: other runs on this machine may use the same cores"
        return "$loose"
    elif [[ -f $lock && -r $lock ]] && { exec 6< "$lock"; } 2> /dev/null; then
        flock -n 6 2> /dev/null || status=$?
    else
        status=2
    fi
    if ((status == 0)); then
        shared=${lock%/*}/possible
        return "$loose"
    elif ((status != 1)); then
        warn_of_cores "cannot lock $lock: other runs on this machine may use the same cores"
        return "$loose"
    fi
    exec 6<&-
    { exec 6< "${lock%/*}/possible" && flock -s -w 1 6; } 2> /dev/null || true
    unset HIDL_CORES_PER_RANK
    export HIDL_UNBOUND=1
    : > "steps/$step/unbound"
    # A run that has the cores may end its step later than this one.
    if [[ $PWD == */hidl/runs/* ]]; then
        { : > ../.beside || true; } 2> /dev/null
    fi
    warn_of_cores "another run of hidl uses this machine's cores: ranks are not bound"
    return 1
}

leave_cores() {
    local status=0
    if [[ -n $shared ]]; then
        if [[ -r $shared ]] && { exec 6<&- 6< "$shared"; } 2> /dev/null; then
            flock -n 6 2> /dev/null || status=$?
        fi
        if ((status == 1)) || [[ ../.beside -nt steps/$step/hosts ]]; then
            : > "steps/$step/shared"
            warn_of_cores "another run of hidl uses this machine's cores, too"
        fi
    fi
    exec 6<&-
    export HIDL_CORES_PER_RANK=1
}

warn_of_cores() { # text
    if [[ -z $warned ]]; then
        warned=yes
        echo "hidl: warning: $1" >&2
    fi
}

list_hosts() {
    uname -n
}

# The job is this process. It says so itself, so that `hidl status` and `hidl cancel` know it however it was started.
job_id() {
    local birth
    birth=$(< /proc/sys/kernel/random/boot_id):$(cut -d ' ' -f 22 "/proc/$$/stat")
    printf '{"schema": "hidl.job/1", "scheduler": "local", "pid": %d, "birth": "%s", "host": "%s", "space": "%s", "of": {"inode": %d}}\n' \
        "$$" "$birth" "$(uname -n)" "$(readlink "/proc/$$/ns/pid")" "$(stat -c %i .)" > .job.json.new &&
        mv -f -- .job.json.new job.json
    echo "$$"
}

# Kills the processes of this job except the script and this shell, also those in other sessions.
kill_processes() {
    local files pid
    mapfile -t files < <(grep -slzxF "HIDL_FINDINGS=$HIDL_FINDINGS" /proc/[0-9]*/environ)
    for pid in "${files[@]//[^0-9]/}"; do
        [[ $pid == "$BASHPID" || $pid == "$$" ]] || kill -KILL "$pid" 2> /dev/null || true
    done
}

# No scheduler ends this job. Beside the script, this waits for the time limit, or for the end of the script; at the limit
# it tells the script to end, and kills what is left of the job.
end_at() { # seconds
    local status=0
    IFS= read -r -t "$1" _ || status=$?
    if ((status <= 128)); then
        return 0
    fi
    echo TIMEOUT > reason || true
    tell_script TERM
    IFS= read -r -t 10 _ || true
    kill_processes
    tell_script KILL
}

tell_script() { # signal
    local parent
    read -r _ _ _ parent _ < "/proc/$BASHPID/stat"
    if [[ $parent == "$$" ]]; then # else the script is gone, and its number may be another's
        kill -"$1" "$$" || true
    fi
}

coproc end_at 600 2> /dev/null
#@ hosts
#@ stack
source /dev/null
export OMP_NUM_THREADS=1
use_system_programs

begin_step '1 rank' 1 '{host}'
launch_and_copy_output 1 /prefix/bin/mpiexec -n 1 prog '--note=a b'

begin_step '2 ranks' 1 '{host}'
bound=''
if take_cores; then
    bound=yes
fi
launch 2 check it 6<&-
if [[ -n $bound ]]; then
timed launch_and_keep_output 2 /prefix/bin/mpiexec -n 1 prog '--note=a b' 6<&-
else
timed launch_and_keep_output 2 unbound prog 6<&-
fi
leave_cores

finish COMPLETED 0
