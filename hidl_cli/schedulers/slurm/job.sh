list_hosts() {
    scontrol show hostnames "$SLURM_JOB_NODELIST"
}

