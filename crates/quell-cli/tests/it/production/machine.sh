# A machine of docs/production.md: a folder, $ROOT, in place of its root, an address of loopback, and functions in
# place of the programs that need a whole machine.
set -eE -o pipefail
trap 'echo "failed on $MACHINE: $BASH_COMMAND" >&2' ERR

sudo() { "$@"; }

apt-get() { [[ $1 == install ]]; }

chown() { :; }

# The build that is tested.
cargo() {
    [[ $* == 'install --locked --profile dist --path quell/crates/quell-cli' ]] || return 1
    mkdir -p ~/.cargo/bin
    ln -s "$QUELL" ~/.cargo/bin/quell
}

# Users and groups of the page are not here. A link is the command, which is large.
install() {
    local words=()
    while (($#)); do
        case $1 in
            -o | -g) shift 2 ;;
            *)
                words+=("$1")
                shift
                ;;
        esac
    done
    if [[ -L ${words[-2]} ]]; then
        cp -P "${words[-2]}" "${words[-1]}"
    else
        command install "${words[@]}"
    fi
}

scp() {
    local target=${!#}
    cp -P "${@:1:$#-1}" "$MACHINES/${target%%:*}/home/${target#*:}"
}

# Whether a process runs. One that ended may have nobody who asks for its status.
runs() {
    local state
    state=$(sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2>/dev/null) && [[ $state != Z ]]
}

# Starts a program in the background. `timeout` ends it even if the test is killed.
start() {
    local name=$1
    shift
    timeout 1200 "$@" >>"$ROOT/$name.log" 2>&1 </dev/null &
    echo "$!" >"$ROOT/$name.pid"
}

stop() {
    local file=$ROOT/$1.pid process
    [[ -f $file ]] || return 0
    process=$(<"$file")
    kill "$process" 2>/dev/null || true
    while runs "$process"; do sleep 0.02; done
    rm "$file"
}

stop_all() {
    local file
    for file in "$ROOT"/*.pid; do
        [[ ! -f $file ]] || stop "$(basename "$file" .pid)"
    done
}

# Waits until the program listens on this port.
listens() {
    until (exec 3<>"/dev/tcp/$ADDRESS/$2") 2>/dev/null; do
        if ! runs "$(<"$ROOT/$1.pid")"; then
            cat "$ROOT/$1.log" >&2
            return 1
        fi
        sleep 0.02
    done
}

# What the unit says, with this machine's root.
unit() {
    local folder=$ROOT/etc/systemd/system
    cat "$folder/quell.service" "$folder"/quell.service.d/*.conf | sed "s|=-/etc/|=-$ROOT/etc/|"
}

# Starts what the unit starts, with the variables and credentials that it names.
start_quell() {
    local credentials=$ROOT/run/credentials settings=("$QUELL_PATIENCE" QUELL_DRAIN_TIMEOUT=0s) command=() line
    mkdir -p "$credentials"
    while read -r line; do
        case $line in
            ExecStart=*) read -ra command <<<"${line#*=}" ;;
            Environment=*)
                line=${line#*=}
                settings+=("${line//%d/$credentials}")
                ;;
            EnvironmentFile=-*) mapfile -t -O "${#settings[@]}" settings <"${line#*=-}" ;;
            LoadCredential=*)
                line=${line#*=}
                command install -m 600 "${line#*:}" "$credentials/${line%%:*}"
                ;;
        esac
    done < <(unit)
    start quell env -i PATH="$PATH" "${settings[@]}" "${command[@]}"
}

# One process with the sites of the machine, in place of the system's.
nginx() {
    local kind
    {
        echo "daemon off; master_process off; pid $ROOT/nginx; events {} http { access_log off;"
        for kind in client_body proxy fastcgi uwsgi scgi; do echo "${kind}_temp_path $ROOT/$kind;"; done
        echo "include $ROOT/etc/nginx/conf.d/*.conf; }"
    } >"$ROOT/nginx.conf"
    if [[ $1 == -t ]]; then
        command nginx -t -p "$ROOT" -e stderr -c "$ROOT/nginx.conf"
    else
        start nginx nginx -p "$ROOT" -e stderr -c "$ROOT/nginx.conf"
        listens nginx "$HTTPS_PORT"
    fi
}

redis() {
    start redis redis-server "$ROOT/etc/redis/redis.conf" --daemonize no --dir "$ROOT/var"
    listens redis "$REDIS_PORT"
}

systemctl() {
    case $* in
        daemon-reload) ;;
        'enable --now quell' | 'start quell') start_quell ;;
        'stop quell') stop quell ;;
        'start redis-server') redis ;;
        'stop redis-server') stop redis ;;
        'restart redis-server') stop redis && redis ;;
        'reload nginx') stop nginx && nginx ;;
        'restart prometheus')
            stop prometheus
            start prometheus prometheus --config.file="$ROOT/etc/prometheus/prometheus.yml" \
                --storage.tsdb.path="$ROOT/var" --web.listen-address="127.0.0.1:$PROMETHEUS_PORT"
            ;;
        *) return 1 ;;
    esac
}
