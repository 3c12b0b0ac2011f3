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

job_id() {
    echo "${LSB_JOBID:-}"
}
