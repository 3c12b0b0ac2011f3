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

