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

