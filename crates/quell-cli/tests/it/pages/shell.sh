# The shell in which the commands of a page run: servers go to the background, on the ports of this
# test, and end with it.
set -eE -o pipefail
trap 'echo "failed: $BASH_COMMAND" >&2' ERR

# Waits until something listens on HOST:PORT or unix:PATH; fails when the program has ended.
listens() {
    local place=$1 process=$2
    for _ in $(seq 600); do
        if [[ $place == unix:* ]]; then
            [[ -S ${place#unix:} ]] && return
        elif (exec 3<>"/dev/tcp/${place%:*}/${place##*:}") 2>/dev/null; then
            return
        fi
        kill -0 "$process" 2>/dev/null || break
        sleep 0.1
    done
    cat log >&2
    return 1
}

# Runs a server in place of the one that has its address.
replace_server() {
    local place=$1 name=${1//\//_}
    shift
    if [[ -f running/$name ]]; then
        local old
        old=$(<"running/$name")
        kill -9 "$old" 2>/dev/null || true
        while kill -0 "$old" 2>/dev/null; do sleep 0.02; done
    fi
    "$@" >>log 2>&1 &
    echo $! >"running/$name"
    listens "$place" $!
}

quell() {
    if [[ "$1 $2" == 'fleet coordinator' ]]; then
        QUELL_ADMIN=$FLEET_ADMIN replace_server "$QUELL_LISTEN" command quell "$@"
        return
    fi
    if [[ $1 != serve ]]; then
        command quell "$@"
        return
    fi
    local place=$QUELL_HTTP before=
    for word in "$@"; do
        [[ $before == --http ]] && place=$word
        before=$word
    done
    replace_server "$place" command quell "$@"
}

redis-server() {
    local port=6379 before=
    for word in "$@"; do
        [[ $before == --port ]] && port=$word
        before=$word
    done
    replace_server "127.0.0.1:$port" command redis-server "$@" --daemonize no
}

# It leaves the numbering out when its output is not a terminal.
redis-cli() { command redis-cli --no-raw "$@"; }

# One process with the sites of the page, in place of the system's.
nginx() {
    local folder=$PWD
    {
        echo "daemon off; master_process off; pid $folder/nginx.pid; events {} http { access_log off;"
        for kind in client_body proxy fastcgi uwsgi scgi; do echo "${kind}_temp_path $folder/$kind;"; done
        echo "include $folder/etc/nginx/conf.d/*.conf; }"
    } >nginx.conf
    local port
    port=$(grep -ho 'listen [0-9]*' etc/nginx/conf.d/*.conf | head -n 1)
    sed -i 's/listen /listen 127.0.0.1:/' etc/nginx/conf.d/*.conf
    replace_server "127.0.0.1:${port#listen }" command nginx -p "$folder" -e stderr -c "$folder/nginx.conf"
}

python3() {
    if [[ $1 == -m && $2 == http.server ]]; then
        replace_server "127.0.0.1:$3" command python3 "$@"
    else
        command python3 "$@"
    fi
}

sudo() { "$@"; }

# Ends all that the page started.
end() {
    for file in running/*; do
        if [[ -f $file ]]; then kill -9 "$(<"$file")" 2>/dev/null || true; fi
    done
}
trap end EXIT
mkdir -p run/quell etc/quell etc/nginx/conf.d var/lib/quell var/log/quell

# Waits for the commands that a page left in the background, but for servers.
wait_for_jobs() {
    local servers job
    servers=$(cat running/* 2>/dev/null || true)
    for job in $(jobs -p); do
        if [[ $'\n'$servers$'\n' != *$'\n'$job$'\n'* ]]; then wait "$job"; fi
    done
}
