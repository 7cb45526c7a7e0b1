#!/bin/sh
# Installs what the tests need besides cargo: real clients and servers, because Quell is tested with the programs
# that people use with it. Nothing is fetched that is already there, so a second run takes no time.
set -eu
cd "$(dirname "$0")/clients"

fail() {
    echo "$1" >&2
    exit 1
}

# rustup leaves these out of its minimal profile.
${CARGO:-cargo} fmt --version >/dev/null 2>&1 || fail '`cargo fmt` is missing; run `rustup component add rustfmt`'
${CARGO:-cargo} clippy --version >/dev/null 2>&1 || fail '`cargo clippy` is missing; run `rustup component add clippy`'

# Debian packages, and a program or a file by which to tell that each is there. protobuf-compiler and
# libprotobuf-dev are for the feature `etcd`; the console is tested in Chromium without windows, which takes less of
# the processor than the whole.
packages='
openssl openssl
curl curl
redis-tools redis-cli
redis-server redis-server
protobuf-compiler protoc
libprotobuf-dev /usr/include/google/protobuf/descriptor.proto
etcd-server etcd
etcd-client etcdctl
libfaketime /usr/lib/*/faketime/libfaketimeMT.so.1
apache2-utils ab
nginx nginx
libnginx-mod-http-lua /usr/lib/nginx/modules/ngx_http_lua_module.so
caddy caddy
prometheus promtool
chromium-headless-shell chromium-headless-shell
fakeroot fakeroot
logrotate logrotate
man-db man
systemd systemd-analyze
python3-venv python3:ensurepip
nodejs node
npm npm
'
is_there() {
    case $1 in
    # The star stands for the architecture.
    /*) ls $1 ;;
    *:*) "${1%:*}" -c "import ${1#*:}" ;;
    *) PATH=$PATH:/usr/sbin command -v "$1" ;;
    esac >/dev/null 2>&1
}
missing() {
    echo "$packages" | while read -r name sign; do
        [ -z "$name" ] || is_there "$sign" || echo "$name"
    done
}
names=$(missing | tr '\n' ' ')
if [ -n "$names" ]; then
    echo "programs: installing $names"
    by_hand="please install these Debian packages by hand: $names"
    sudo=
    [ "$(id -u)" = 0 ] || sudo='sudo -n'
    # RUNLEVEL=1 keeps a package from starting a server of its own.
    apt_get="$sudo env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -o DPkg::Lock::Timeout=120 -qq"
    { $apt_get update && $apt_get install --yes --no-install-recommends $names; } || fail "$by_hand"
    names=$(missing | tr '\n' ' ')
    [ -z "$names" ] || fail "installed, but their files are not found: $names"
fi

# Beside what was installed lies a copy of its list, written last, so that an incomplete installation is repeated.
stamp=.venv/.installed.requirements.txt
if ! cmp -s requirements.txt $stamp; then
    echo 'Python programs: installing'
    python3 -m venv --clear .venv
    .venv/bin/python -m pip install --quiet --no-input --requirement requirements.txt
    cp requirements.txt $stamp
fi
stamp=node_modules/.installed.package-lock.json
if ! cmp -s package-lock.json $stamp; then
    echo 'Node programs: installing'
    npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
    cp package-lock.json $stamp
fi
echo 'what the tests need: all there'
