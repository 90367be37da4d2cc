#!/bin/sh
# bucket.sh fetch|upload: fills an empty run folder from $TROOP_BUCKET, or makes $TROOP_BUCKET like the run folder, every
# $TROOP_BUCKET_SECONDS (60) and on SIGTERM. The bucket is a place as rclone names it: :gcs:BUCKET/PREFIX,
# :s3,provider=AWS,env_auth=true:BUCKET/PREFIX, or a folder. An upload that is cut off does no harm: objects of a run are written
# once, carry checksums, and the newest that is whole counts.
set -u
say() { echo "bucket: $*" >&2; }
[ -n "${TROOP_BUCKET:-}" ] || { say 'TROOP_BUCKET is not set; give it a place such as :gcs:bucket/prefix'; exit 2; }
folder=${TROOP_BUCKET_FOLDER:-/var/lib/troop}
remote() { rclone --config /dev/null --retries 5 --log-level NOTICE --exclude 'lost+found/**' "$@"; }

case "${1:-}" in
  fetch)
    if [ -n "$(find "$folder" -name lost+found -prune -o -type f -print | head -n 1)" ]; then
      say 'there is something here already; nothing is fetched'
      exit 0
    fi
    # A bucket without this prefix is that of a new run; one that cannot be read is an error.
    remote mkdir "$TROOP_BUCKET" && remote copy "$TROOP_BUCKET" "$folder" || { say "cannot fetch $TROOP_BUCKET"; exit 1; }
    say "$(find "$folder" -name lost+found -prune -o -type f -print | wc -l) files fetched"
    ;;
  upload)
    stopped=
    trap 'stopped=1' TERM INT
    while [ -z "$stopped" ]; do
      sleep "${TROOP_BUCKET_SECONDS:-60}" &
      wait $!
      code=0
      remote sync "$folder" "$TROOP_BUCKET" || { code=1; say "cannot upload to $TROOP_BUCKET"; }
    done
    [ "$code" -ne 0 ] || say 'told to stop; all is uploaded'
    exit "$code"
    ;;
  *) echo "usage: $0 fetch|upload" >&2; exit 2 ;;
esac
