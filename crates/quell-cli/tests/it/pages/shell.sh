# The shell in which the commands of a page run: servers go to the background, on the ports of this
# test, and end with it.
set -eE -o pipefail
trap 'echo "failed: $BASH_COMMAND" >&2' ERR

# Whether something listens on HOST:PORT or unix:PATH.
is_held() {
    if [[ $1 == unix:* ]]; then
        [[ -S ${1#unix:} ]]
    else
        (exec 3<>"/dev/tcp/${1%:*}/${1##*:}") 2>/dev/null
    fi
}

# Waits until something listens; fails when the program has ended.
listens() {
    local place=$1 process=$2
    for _ in $(seq 1800); do
        is_held "$place" && kill -0 "$process" 2>/dev/null && return
        kill -0 "$process" 2>/dev/null || break
        sleep 0.1
    done
    cat log >&2
    return 1
}

# Runs a server that listens on PLACES. A reader's second server fails on a port that the first one
# has, so it fails here as well, unless the page said to stop the first.
start_server() {
    local places=$1 place
    shift
    for place in $places; do
        if is_held "$place"; then
            echo "an earlier block of this page holds $place: $*" >&2
            return 1
        fi
    done
    "$@" >>log 2>&1 &
    local process=$!
    echo "$process" >"running/$2-$process"
    for place in $places; do listens "$place" "$process"; done
}

# Makes what was started last no job of this shell: it goes on when jobs are stopped.
detach() { disown "$!"; }

# A server that the page takes for granted, and does not stop.
granted() {
    "$@"
    detach
    mkdir -p granted
    mv running/*-"$!" granted
}

# What the page means by "stop the server".
stop_the_server() {
    jobs >/dev/null
    if [[ $(jobs -p) ]]; then kill $(jobs -p); fi
    wait
}

# The value of a flag among words, or what stands for it.
flag() {
    local name=$1 value=$2 before=
    shift 2
    for word in "$@"; do
        [[ $before == "$name" ]] && value=$word
        before=$word
    done
    if [[ $value != off ]]; then echo "$value"; fi
}

# What somebody types who is asked for a password.
password='correct horse battery'

quell() {
    if [[ "$1 $2" == 'fleet coordinator' ]]; then
        QUELL_ADMIN=$FLEET_ADMIN start_server "$QUELL_LISTEN $FLEET_ADMIN" command quell "$@"
    elif [[ $1 == serve && " $* " != *' --print-config '* ]]; then
        local places
        places="$(flag --http "$QUELL_HTTP" "$@") $(flag --resp "$QUELL_RESP" "$@") $(flag --admin off "$@")"
        start_server "$places" command quell "$@"
    elif [[ "$1 $2" == 'fleet demo' ]]; then
        # As short as it may be: what it shows has a test of its own.
        command quell "$@" --for 6s
    elif [[ "$1 $2" == 'token password' ]]; then
        printf '%s\n' "$password" | command quell "$@"
    else
        command quell "$@"
    fi
}

# Which asks for the password of a user. The server may not have read yet that there is one.
curl() {
    if [[ $1 != -u ]]; then
        command curl "$@"
        return
    fi
    local user=$2
    shift 2
    for _ in $(seq 900); do
        if command curl --fail --no-progress-meter -u "$user:$password" "$@"; then return; fi
        sleep 0.2
    done
    return 1
}

redis-server() {
    start_server "127.0.0.1:$(flag --port 6379 "$@")" command redis-server "$@" --daemonize no
    if [[ $(flag --daemonize no "$@") == yes ]]; then detach; fi
}

# On the port of this test, unless another one is said; also in scripts that the page made.
mkdir -p bin
printf '#!/bin/sh\nexec %s -p %s "$@"\n' "$(command -v redis-cli)" "$REDIS_PORT" >bin/redis-cli
chmod +x bin/redis-cli
PATH=$PWD/bin:$PATH

# It numbers what it prints on a terminal, and not what it prints into a pipe. What this script prints
# stands for the terminal.
terminal=$(readlink /proc/$$/fd/1)
redis-cli() {
    local own=$BASHPID
    if [[ $(readlink "/proc/$own/fd/1") == "$terminal" ]]; then
        command redis-cli --no-raw "$@"
    else
        command redis-cli "$@"
    fi
}

sudo() { "$@"; }

# A page that waits for something looks each second. Here it looks more often.
sleep() {
    if [[ $1 == 1 ]]; then command sleep 0.2; else command sleep "$1"; fi
}

sudoedit() { [[ -f $1 ]]; }

service=

# Starts what the unit starts. What systemd does beside that is not tried here.
systemctl() {
    if [[ $* == 'stop quell' ]]; then
        [[ -z $service ]] || kill "$service"
        service=
        return
    fi
    [[ $* == 'enable --now quell' ]]
    local start
    start=$(sed -n 's|^ExecStart=/usr/bin/||p' quell.service)
    eval "${start//\/etc\//$PWD/etc/}"
    service=$!
    detach
}

# Ends all that the page started.
end() {
    for file in running/* granted/*; do
        if [[ -f $file ]]; then kill -9 "$(<"$file")" 2>/dev/null || true; fi
    done
}
trap end EXIT
mkdir -p run/quell etc/quell var/lib/quell var/log/quell

# Waits for the commands that a page left in the background, but for servers.
wait_for_jobs() {
    local servers job
    servers=$(cat running/* 2>/dev/null || true)
    for job in $(jobs -p); do
        if [[ $'\n'$servers$'\n' != *$'\n'$job$'\n'* ]]; then wait "$job"; fi
    done
}
