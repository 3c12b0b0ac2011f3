# The guard of a run on a host: bash -s hidl-guard RUN reads this script, followed by commands, from standard input. The
# script is a single group, so that bash has parsed all of it before the first `read`. The guard checks the host, locks
# it, and ends the remaining processes of the run when its input ends, for whatever reason.
{
run=$2
silence=180 # seconds without a message after which the supervisor counts as gone
active=

say() {
    printf '\nhidl-guard: %s\n' "$*"
}

# A new file may take some seconds to become visible on a shared file system.
patiently() { # command...
    local try
    for try in 1 2 3 4; do
        "$@" && return
        sleep "$try"
    done
    return 1
}

has_token() {
    local found
    IFS= read -r found < "$directory/.token" && [[ $found == "$token" ]]
} 2> /dev/null

look() {
    local found
    say "name $(uname -n)"
    say "arch $(uname -m)"
    [[ -z $lock ]] || type -P flock > /dev/null || say "lacks flock"
    if [[ -n $prefix && ! -e $prefix/bin/python ]]; then
        say "no-prefix"
    elif [[ -n $prefix ]] && found=$(sha256sum < "$prefix/manifest.json") && [[ ${found%% *} != "$manifest" ]]; then
        say "other-prefix"
    elif [[ -n $prefix ]] && ! found=$("$prefix/bin/python" -c '' 2>&1 < /dev/null); then
        say "broken-prefix ${found##*$'\n'}"
    fi
    patiently has_token || say "no-directory"
    if [[ -n $port ]] && ! timeout 10 bash -c ': < "/dev/tcp/$0/$1"' "$origin" "$port" 2> /dev/null; then
        say "no-way-back"
    fi
    say "looked"
}

# Print the runs whose guards hold the lock of this host; the guards are found by their process name.
holders() {
    local file words found=
    for file in /proc/[0-9]*/comm; do
        if [[ $(< "$file") == hidl-lock ]]; then
            mapfile -d '' -t words < "${file%comm}cmdline"
            found+="${found:+, }run ${words[3]-} of $(stat -c %U "$file")"
        fi
    done
    printf '%s' "${found:-another run}"
} 2> /dev/null

take_lock() {
    local holder last= heard=$SECONDS line status
    exec 9< "$lock"
    until flock -n 9; do
        holder=$(holders)
        [[ $holder == "$last" ]] || say "busy $holder"
        last=$holder status=0
        IFS= read -r -t 1 line || status=$?
        if ((status == 0)); then
            [[ $line != end ]] || exit
            heard=$SECONDS
        elif ((status <= 128 || SECONDS - heard > silence)); then
            exit
        fi
    done
    printf hidl-lock > "/proc/$$/comm"
}

# Print the environment files of this user's processes: root must not kill another user's run of the same name.
own_environments() {
    local directory words
    for directory in /proc/[0-9]*; do
        while read -r -a words; do
            [[ ${words[0]-} == Uid: ]] || continue
            [[ ${words[1]} != "$UID" ]] || printf '%s\n' "$directory/environ"
            break
        done < "$directory/status"
    done
    printf '/dev/null\n'
} 2> /dev/null

sweep() {
    local round file files
    for round in {1..50}; do
        # shellcheck disable=SC2046 # a word for each file
        files=$(grep -slzxF "HIDL_RUN_ID=$run" $(own_environments))
        [[ -n $files ]] || return 0
        for file in $files; do
            file=${file#/proc/}
            kill -KILL "${file%/environ}"
        done
        sleep 0.1
    done
    say "left $(wc -w <<< "$files")"
} 2> /dev/null

leave() {
    trap '' TERM INT HUP PIPE
    if [[ -n $active ]]; then
        sweep
        # The launcher was not terminated, and may start another rank.
        [[ -n $orderly ]] || { sleep 2; sweep; }
    fi
    say "swept"
}

orderly=
IFS= read -r prefix
IFS= read -r manifest
IFS= read -r directory
IFS= read -r token
IFS= read -r lock
IFS= read -r origin
IFS= read -r port
trap leave EXIT
trap exit TERM INT HUP
trap '' PIPE
look
while IFS= read -r -t "$silence" line; do
    case $line in
        lock)
            take_lock
            say "locked"
            ;;
        start) active=1 ;;
        end)
            orderly=1
            exit
            ;;
    esac
done
exit
}
