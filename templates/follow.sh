# What takes minutes says that it goes on, and ends where nobody reads any more.
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
trap '' PIPE

say() {
    printf '%s\n' "$1" 2>/dev/null
}

# Prints how far it is, where that is known; programs make their own.
progress() {
    :
}

# tick PID WORDS: a line every 15 s; a run that was cut reads none, and what it began ends.
tick() {
    seconds=0
    while kill -0 "$1" 2>/dev/null; do
        sleep 1 >/dev/null 2>&1
        seconds=$((seconds + 1))
        [ $((seconds % 15)) -eq 0 ] || continue
        say "$2 after $seconds s$(progress)" || kill "$1" 2>/dev/null
    done
}

# follow WORDS COMMAND...: runs it; what it prints is in the log alone.
follow() {
    words=$1
    shift
    # Neither holds the apply lock: a run that is cut leaves nothing that does.
    "$@" >>"$log" 2>&1 </dev/null 9>&- &
    child=$!
    tick "$child" "$words" 9>&- &
    ticker=$!
    wait "$child"
    ended=$?
    kill "$ticker" 2>/dev/null
    wait "$ticker" 2>/dev/null
    # Cut: nothing else is begun in its place.
    [ "$ended" -ne 143 ] || exit 143
    return "$ended"
}
