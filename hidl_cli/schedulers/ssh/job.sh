# The allocation's hosts, one a line, in the order that they were given in: those of the script's own header.
list_hosts() {
    sed -n 's/^# ssh: --hosts=//p' "${BASH_SOURCE[0]##*/}" | tr ',' '\n'
}

job_id() {
    echo "${HIDL_SSH_JOB:-}"
}
