list_hosts() {
    scontrol show hostnames "$SLURM_JOB_NODELIST"
}

job_id() {
    echo "${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID:-}}"
}

