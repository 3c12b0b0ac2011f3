# Flux keeps what a job prints until the job has ended, where its file system is slow. So the job writes its two files
# itself, and what Flux collects goes to flux.log.
if [[ -n ${FLUX_ENCLOSING_ID:-} ]]; then
    exec >> stdout.log 2>> stderr.log
fi

# The allocation's hosts, one a line, in Flux's order: those of the Flux instance that the script runs in.
list_hosts() {
    flux hostlist --expand instance | tr ' ' '\n' | awk '!seen[$0]++'
}

job_id() {
    echo "${FLUX_ENCLOSING_ID/#ƒ/f}"
}
