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

