#!/bin/sh
# Makes target/debian/quell_VERSION-REVISION_ARCH.deb: the command, the service, manual pages and completions.
# Other values come from the environment: BINARY (in place of an optimised build), REVISION, OUT, COMPRESSION.
set -eu
cd "$(dirname "$0")/../.."
out=${OUT:-target/debian}
cargo=${CARGO:-cargo}
if [ -z "${BINARY:-}" ]; then
    # With what costs a compiler to turn on later.
    $cargo build --profile dist --locked --package quell-cli --features etcd,otel
    BINARY=target/dist/quell
fi
mkdir -p "$out"
tree=$(mktemp -d "$out/tree-XXXXXX")
trap 'rm -rf "$tree"' EXIT
umask 022
chmod 755 "$tree"

# install_file FROM TO [MODE]
install_file() {
    install -D --mode="${3:-644}" "$1" "$tree/$2"
}

doc=usr/share/doc/quell
install_file "$BINARY" usr/bin/quell 755
strip --strip-all "$tree/usr/bin/quell"
quell=$tree/usr/bin/quell
# Those in /etc belong to the administrator once they are installed.
install_file deploy/quell.toml etc/quell/quell.toml
install_file deploy/example.yaml etc/quell/rules.d/example.yaml
install_file deploy/quell.default etc/default/quell 600
install_file deploy/logrotate etc/logrotate.d/quell
install_file deploy/quell.service usr/lib/systemd/system/quell.service
install_file deploy/quell-coordinator.service $doc/examples/quell-coordinator.service
install_file deploy/prometheus/alerts.yml $doc/prometheus/alerts.yml
install_file deploy/grafana/quell.json $doc/grafana/quell.json
install_file CHANGELOG.md $doc/CHANGELOG.md
for pair in bash:bash-completion/completions/quell zsh:zsh/vendor-completions/_quell fish:fish/vendor_completions.d/quell.fish; do
    "$quell" completions "${pair%%:*}" >"$tree/completion"
    install_file "$tree/completion" "usr/share/${pair#*:}"
    rm "$tree/completion"
done
"$quell" man "$tree/usr/share/man" >/dev/null

# The crates of others in the binary, and the texts of their licences; one that several crates have is there once.
target=$(rustc -vV | sed -n 's/^host: //p')
crates=$($cargo tree --locked --package quell-cli --features etcd,otel --edges normal --target "$target" \
    --prefix none --format '{p} ({l})')
crates=$(echo "$crates" | grep -v '(/' | sed 's/ (\*)$//; s/ (proc-macro)//; s/ v/ /' | sort -u)
metadata=$($cargo metadata --locked --format-version 1 --filter-platform "$target")
folders=$(echo "$metadata" | grep -o '"manifest_path":"[^"]*"' | cut -d '"' -f 4 | sed 's|/Cargo.toml$||')
texts=$tree/texts
mkdir "$texts"
# add_text NAME FILE
add_text() {
    text=$texts/$(sha256sum "$2" | cut -d ' ' -f 1)
    [ -e "$text" ] || cp "$2" "$text"
    echo "$1" >>"$text.crates"
}
echo "$crates" | while read -r name version license; do
    folder=$(echo "$folders" | grep "/$name-$version\$")
    has_text=
    for file in "$folder"/[Ll][Ii][Cc][Ee][Nn][CcSs][Ee]* "$folder"/COPYING* "$folder"/NOTICE* "$folder"/UNLICENSE*; do
        [ ! -f "$file" ] || { add_text "$name $version" "$file" && has_text=yes; }
    done
    [ -n "$has_text" ] || echo "$name $version $license" >>"$texts/without"
done
for license in crates/quell-host/src/console/vendored/LICENSE.*; do
    add_text "${license##*/LICENSE.}, which the console serves" "$license"
done
{
    echo "The crates of others in /usr/bin/quell, and their licences."
    for names in "$texts"/*.crates; do
        printf '\n%s\n' ========================================================================
        cat "$names"
        echo
        cat "${names%.crates}"
    done
    printf '\nThese come without a text of their licence:\n\n'
    cat "$texts/without" 2>/dev/null || true
} >"$tree/third-party-licenses.txt"
install_file "$tree/third-party-licenses.txt" $doc/third-party-licenses.txt
rm -r "$texts" "$tree/third-party-licenses.txt"
# indented: the paragraph of a control file
indented() {
    sed 's/[[:space:]]*$//; s/^$/./; s/^/ /'
}
{
    echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
    echo "Upstream-Name: quell"
    echo "Source: a checkout of Quell, of this version"
    echo "Comment:"
    printf ' The binary contains these crates of others. Their notices are in\n'
    printf ' third-party-licenses.txt.gz beside this file.\n .\n'
    echo "$crates" | indented
    printf '\nFiles: *\nCopyright: The Quell authors\nLicense: MIT or Apache-2.0\n\nLicense: MIT\n'
    indented <LICENSE-MIT
    printf '\nLicense: Apache-2.0\n'
    printf ' On Debian systems its text is in /usr/share/common-licenses/Apache-2.0.\n'
} >"$tree/$doc/copyright"
# Without names and times, so that the same files make the same package.
find "$tree/usr/share/man" "$tree/$doc/CHANGELOG.md" "$tree/$doc/third-party-licenses.txt" -type f \
    -exec gzip -9 --no-name {} +

version=$("$quell" --version | cut -d ' ' -f 2)-${REVISION:-1}
architecture=$(dpkg --print-architecture)
# The C library that the binary needs, by the versions of the symbols that it names.
glibc=$(grep -ao 'GLIBC_[0-9][0-9.]*' "$quell" | cut -d _ -f 2 | sort -V | tail -n 1)
size=$(du -k --apparent-size -s "$tree" | cut -f 1)
mkdir "$tree/DEBIAN"
(cd "$tree" && find etc -type f | sort | sed 's|^|/|') >"$tree/DEBIAN/conffiles"
for script in postinst prerm postrm; do
    install_file deploy/debian/$script DEBIAN/$script 755
done
cat >"$tree/DEBIAN/control" <<END
Package: quell
Version: $version
Architecture: $architecture
Maintainer: The Quell authors <root@localhost>
Installed-Size: $size
Depends: libc6 (>= $glibc), libgcc-s1
Suggests: redis-server | valkey-server
Section: net
Priority: optional
Description: rate limiter whose limits and waits are exact
 A server that speaks HTTP and the Redis protocol, with rules in files or in a
 store, and the command to test, change and watch them. Many servers share
 limits through Redis or Valkey.
END
chmod -R go-w "$tree"
deb=$out/quell_${version}_$architecture.deb
dpkg-deb "-Z${COMPRESSION:-xz}" --root-owner-group --build "$tree" "$deb" >/dev/null
echo "$deb"
