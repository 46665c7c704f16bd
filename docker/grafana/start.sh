#!/bin/sh
# Starts Grafana with a password for `admin`: GRAFANA_PASSWORD, or a random one from the first start, which is kept in
# the volume and printed at every start. The arguments are the command.
set -eu
data=${GF_PATHS_DATA:-/var/lib/grafana}
kept=$data/admin-password
if [ -n "${GRAFANA_PASSWORD:-}" ]; then
    password=$GRAFANA_PASSWORD
    rm -f "$kept"
    # Grafana reads the variable only at its first start.
    [ ! -f "$data/grafana.db" ] || printf '%s' "$password" | grafana cli admin reset-admin-password --password-from-stdin
    echo "Grafana: user admin, with the password of GRAFANA_PASSWORD"
else
    if [ ! -s "$kept" ]; then
        [ ! -f "$data/grafana.db" ] || {
            echo "Grafana: its volume has a password already; set GRAFANA_PASSWORD to change it"
            exec "$@"
        }
        (umask 077 && head -c 18 /dev/urandom | base64 | tr '+/' '-_' > "$kept")
    fi
    password=$(cat "$kept")
    echo "Grafana: user admin, password $password (drawn at the first start; GRAFANA_PASSWORD sets your own)"
fi
export GF_SECURITY_ADMIN_PASSWORD="$password"
exec "$@"
