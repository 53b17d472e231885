#!/bin/bash
# Runs once, when the primary is created: lets the standby replicate, and makes it a synchronous one.
set -eu
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" \
    --set password="$(cat /run/secrets/replication-password)" <<'SQL'
CREATE ROLE replicator LOGIN REPLICATION PASSWORD :'password';
ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (db2)';
SQL
echo "host replication replicator samenet scram-sha-256" >> "$PGDATA/pg_hba.conf"
