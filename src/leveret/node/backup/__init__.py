"""Backups of data directories: what `leveret backup` and `leveret restore` do with files.

A directory of backups:

    leveret-backups                marks the directory
    20261127T091224Z/              one backup
        manifest.json              written last: without it, the backup is incomplete
        log-0.sqlite               the copy of a log
        staged/                    uploads
        audit.sqlite               the audit log
        shards/1/, shared/         the same for the other logs of a broker of several processes
    20261128T091224Z.incomplete/   a backup that is being made, or was interrupted
    segments/                      the sealed segments of all backups, under their paths in the directory of segments
"""
