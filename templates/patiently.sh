
trap '' PIPE

# tick PID WORDS: a line every 15 s. Where nobody reads any more the run was cut: PID is ended.
tick() {
    seconds=0
    while kill -0 "$1" 2>/dev/null; do
        sleep 1 >/dev/null 2>&1
        seconds=$((seconds + 1))
        [ $((seconds % 15)) -eq 0 ] || continue
        printf '%s: %s s\n' "$2" "$seconds" 2>/dev/null || kill "$1" 2>/dev/null
    done
}

# patiently WORDS FILE COMMAND...: runs a command that may take minutes, its output in FILE.
patiently() {
    words=$1 file_=$2
    shift 2
    # It does not hold the apply lock: a run that is cut leaves nothing that does.
    "$@" >"$file_" 2>"$file_.said" 9>&- </dev/null &
    child=$!
    tick "$child" "$words" 9>&- &
    ticker=$!
    wait "$child"
    ended=$?
    kill "$ticker" 2>/dev/null
    wait "$ticker" 2>/dev/null
    # Cut: what is whole already stays for the next run.
    [ "$ended" -ne 143 ] || exit 143
    return "$ended"
}

# free_kib DIRECTORY: what is free on its file system.
free_kib() {
    df -Pk -- "$1" | awk 'NR == 2 { printf "%d", $4 }'
}
