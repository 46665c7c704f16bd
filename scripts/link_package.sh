#!/bin/sh
# Links the folders under their import names, so that mypy and editors, which resolve imports without running them, find
# `aerie.server` in server/. Called by `make setup` and `make check`.
set -eu
package=build/package/aerie
rm -rf "$package"
mkdir -p "$package"
for entry in aerie/*; do
    ln -s "../../../$entry" "$package/"
done
for folder in bench bridge contracts engine native probe scheduler server spec train; do
    ln -s "../../../$folder" "$package/"
done
