# Follows a unit while systemd stops or starts it, one line for each thing that changes.

property() {
    systemctl show --property="$1" --value "$2"
}

log_of() {
    # Its end alone: weeks of access lines would take minutes to read.
    journalctl --unit="$1" _SYSTEMD_INVOCATION_ID="$2" -n 2000 -o cat --no-pager 2>/dev/null
}

# last_lines UNIT: the end of its log, for whoever looks why it did not start. SGLang logs its
# arguments when it starts, keys included: that line stays on the node.
last_lines() {
    echo "the last lines of its log:"
    journalctl --unit="$1" -n 80 -o cat --no-pager | grep -v server_args=
}

# follow_stop UNIT INVOCATION MAIN_PID: until the process of that invocation is gone; prints
# how many requests remain, and at last whether the log said that none did.
follow_stop() {
    said_='' began_=$(date +%s) told_=$(date +%s)
    limit_=$(property TimeoutStopUSec "$1")
    while [ "$3" != 0 ] && [ "$(property MainPID "$1")" = "$3" ]; do
        remain_=$(log_of "$1" "$2" | sed -n 's/.*\(Remaining number of requests [0-9]*\).*/\1/p' | tail -n 1)
        if [ "$remain_" != "$said_" ] && [ -n "$remain_" ]; then
            echo "draining: ${remain_#Remaining number of }"
            said_=$remain_
        elif [ $(($(date +%s) - told_)) -ge 15 ]; then
            told_=$(date +%s)
            echo "draining: ${remain_:+${remain_#Remaining number of }, }$((told_ - began_)) s of at most $limit_"
        fi
        sleep 0.5
    done
    if log_of "$1" "$2" | grep -q 'Remaining number of requests 0\.'; then
        echo "drained: the log says that no request remained"
    else
        echo "stopped: the log does not say that no request remained"
    fi
}

# follow_start UNIT OLD_INVOCATION: until the unit is active with a new invocation (0) or its
# start has failed (1). Prints the phases that the ready gate tells.
follow_start() {
    said_='' idle_=0
    while :; do
        # The invocation first: the state that is read after it is never an older one's.
        run_=$(property InvocationID "$1") state_=$(property ActiveState "$1")
        sub_=$(property SubState "$1") text_=$(property StatusText "$1")
        if [ "$run_" = "$2" ] && [ "$state_" != failed ]; then
            # The job has not begun yet; where there is none, it never will.
            [ -n "$(property Job "$1" | sed 's/^0$//')" ] && idle_=0 || idle_=$((idle_ + 1))
            [ "$idle_" -lt 20 ] || { echo "systemd has no job for $1"; return 1; }
            sleep 0.5
            continue
        fi
        phase_=${text_%%,*}
        now_=$(date +%s)
        if [ -n "$text_" ] && { [ "$phase_" != "$said_" ] || [ $((now_ - ${told_:-0})) -ge 15 ]; }; then
            echo "$text_"
            said_=$phase_ told_=$now_
        fi
        case $state_/$sub_ in
        active/*) return 0 ;;
        failed/* | inactive/*)
            echo "the start has failed: $(property Result "$1")"
            return 1
            ;;
        activating/auto-restart*)
            echo "the server ended while it started: $(property Result "$1"), status $(property ExecMainStatus "$1"); systemd tries again"
            return 1
            ;;
        esac
        sleep 0.5
    done
}
