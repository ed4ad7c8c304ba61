# Follows a unit while systemd stops or starts it, one line for each thing that changes.

property() {
    systemctl show --property="$1" --value "$2"
}

log_of() {
    # Its end alone: weeks of access lines would take minutes to read.
    journalctl --unit="$1" _SYSTEMD_INVOCATION_ID="$2" -n 2000 -o cat --no-pager 2>/dev/null
}

# last_lines UNIT: the end of the log of the start that follow_start saw fail, with what systemd
# said of it; an earlier run of the service is not to blame. SGLang logs its arguments when it
# starts, keys included: that line stays on the node.
last_lines() {
    [ -n "${run_:-}" ] || return 0
    echo "the last lines of the log of this start:"
    journalctl --unit="$1" _SYSTEMD_INVOCATION_ID="$run_" + INVOCATION_ID="$run_" -n 80 -o cat --no-pager |
        grep -v server_args=
}

# asked UNIT: leaves word for the stop gate that the toolkit asks for the stop that follows.
asked() {
    name_=${1#sglang@}
    ( umask 022 && mkdir -p /run/sglang ) && : > "/run/sglang/asked.${name_%.service}"
}

# gate_lines UNIT INVOCATION: prints what the stop gate has said since the last call.
gate_lines() {
    gate_=$(log_of "$1" "$2" | sed -n 's/^stop gate: //p' | tail -n "+$((gates_ + 1))")
    [ -n "$gate_" ] || return 0
    printf '%s\n' "$gate_"
    gates_=$((gates_ + $(printf '%s\n' "$gate_" | wc -l)))
}

# follow_stop UNIT INVOCATION MAIN_PID: until the process of that invocation is gone and the stop
# gate has looked for what is left; prints the deadline with its parts, what the gate says, how
# many requests remain, and at last whether the log said that none did.
follow_stop() {
    said_='' gates_=0 began_=$(date +%s) told_=$(date +%s)
    limit_=$(property TimeoutStopUSec "$1")
    echo "stopping: the drain may take $limit_"
    sed -n 's/^#  *\([0-9][0-9]* s  .*\)/    \1/p' "/etc/systemd/system/$1.d/10-toolkit.conf" 2>/dev/null
    while [ "$3" != 0 ] && [ "$(property MainPID "$1")" = "$3" ]; do
        gate_lines "$1" "$2"
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
    elif log_of "$1" "$2" | grep -q 'waiting for the rank-0 ShutdownReq'; then
        echo "stopped with rank 0, which drains for all ranks: its own node says what remained"
    else
        echo "stopped: the log does not say that no request remained"
    fi
    # What the gate names is named before the next start, or beside its beginning.
    while [ "$(property InvocationID "$1")" = "$2" ] && [ "$(property ActiveState "$1")" = deactivating ]; do
        sleep 0.2
    done
    # journald may be a moment behind.
    [ "$gates_" = 0 ] || sleep 0.5
    gate_lines "$1" "$2"
}

# no_job UNIT: what systemd said of it since it was asked, as there is no start that has a log.
no_job() {
    run_=''
    echo "systemd has no job for $1"
    journalctl --unit="$1" _PID=1 --since="@$asked_" -n 20 -o cat --no-pager
}

# follow_start UNIT OLD_INVOCATION: until the unit is active with a new invocation (0) or its
# start has failed (1). Prints the phases that the ready gate tells.
follow_start() {
    said_='' idle_=0 asked_=$(date +%s)
    while :; do
        # The invocation first: the state that is read after it is never an older one's.
        run_=$(property InvocationID "$1") state_=$(property ActiveState "$1")
        sub_=$(property SubState "$1") text_=$(property StatusText "$1")
        if [ "$run_" = "$2" ] && [ "$state_" != failed ]; then
            # The job has not begun yet; where there is none, it never will.
            [ -n "$(property Job "$1" | sed 's/^0$//')" ] && idle_=0 || idle_=$((idle_ + 1))
            [ "$idle_" -lt 20 ] || { no_job "$1"; return 1; }
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
