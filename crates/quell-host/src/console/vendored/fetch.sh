#!/bin/sh
# Fetches the files of others that the console serves again, from npm, with their licences, and writes their SHA-256.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
while read -r package version files; do
    npm pack --silent --pack-destination "$work" "$package@$version" >/dev/null
    tar -xzf "$work/$package-$version.tgz" -C "$work"
    cp "$work/package/LICENSE" "LICENSE.$package"
    for file in $files; do
        cp "$work/package/$file" .
    done
    rm -r "$work/package"
done <<END
htmx.org 2.0.11 dist/htmx.min.js
htmx-ext-sse 2.2.4 dist/sse.min.js
uplot 1.6.32 dist/uPlot.iife.min.js dist/uPlot.min.css
END
sha256sum -- *.js *.css LICENSE.* >files.sha256
