list_hosts() {
    hostname
}

