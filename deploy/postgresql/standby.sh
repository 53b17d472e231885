#!/bin/bash
# Runs the standby: at its first start, it copies the primary.
set -eu
chmod 0700 "$PGDATA"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    password=$(cat /run/secrets/replication-password)
    until PGPASSWORD=$password pg_basebackup --pgdata "$PGDATA" --write-recovery-conf --checkpoint fast \
        --dbname "host=db1 user=replicator application_name=db2"; do
        sleep 1
    done
fi
exec postgres
