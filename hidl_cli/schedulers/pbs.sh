# PBS keeps what a job prints in a spool until the job has ended. So the job writes its two files itself, and what PBS
# collects goes to pbs.log.
if [[ -n ${PBS_JOBID:-} && ${PBS_ENVIRONMENT:-} == PBS_BATCH ]]; then
    exec >> stdout.log 2>> stderr.log
fi

# The allocation's hosts, one a line, in PBS's order: the file has a line for each rank that was requested.
list_hosts() {
    awk '!seen[$0]++' "$PBS_NODEFILE"
}

job_id() {
    echo "${PBS_ARRAY_ID:-${PBS_JOBID:-}}"
}
