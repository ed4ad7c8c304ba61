# Prints the header that carries the key which the server's own configuration holds, or nothing.
# The key goes from that file, which only root reads, to the client's standard input (curl,
# python3) or a file in /run that only root reads (wget): never into an argument list.
authorization() {
    sed -n 's/^api-key: "\(.*\)"$/Authorization: Bearer \1/p' "${SGLANG_CONFIG:-/dev/null}" 2>/dev/null
}

# http METHOD URL LIMIT_SECONDS [BODY_FILE]: prints the body, then a line with the status
# (000 where nothing answered). Asks with whichever of curl, python3 and wget is there.
http() {
    if command -v curl >/dev/null 2>&1; then
        if [ -n "${4:-}" ]; then
            authorization | curl -sS -g --noproxy '*' --max-time "$3" -X "$1" -H @- \
                -H 'Content-Type: application/json' --data-binary "@$4" \
                -w '\n%{http_code}\n' "$2" 2>/dev/null
        else
            authorization | curl -sS -g --noproxy '*' --max-time "$3" -H @- \
                -w '\n%{http_code}\n' "$2" 2>/dev/null
        fi
    elif command -v python3 >/dev/null 2>&1; then
        authorization | python3 -c '
import sys, urllib.error, urllib.request
method, url, limit, body = sys.argv[1:5]
data = open(body, "rb").read() if body else None
headers = dict(line.strip().split(": ", 1) for line in sys.stdin if ": " in line)
headers["Content-Type"] = "application/json"
request = urllib.request.Request(url, data, headers, method=method)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    answer = opener.open(request, timeout=float(limit))
except urllib.error.HTTPError as error:
    answer = error
except Exception:
    print("\n000")
    sys.exit(0)
sys.stdout.write(answer.read().decode("utf-8", "replace") + "\n" + str(answer.status) + "\n")
' "$1" "$2" "$3" "${4:-}" 2>/dev/null
    else
        set -- "$1" "$2" "$3" "${4:-}" "$(umask 077 && mktemp /run/sglang-http.XXXXXXXX)"
        authorization | sed 's/^/header = /' > "$5"
        # wget tells no status but of success. Only one that is not busybox reads such a file.
        if [ -n "$4" ]; then
            set -- "$@" --header='Content-Type: application/json' --post-file="$4"
        fi
        [ ! -s "$5" ] || set -- "$@" --config="$5"
        (
            url=$2 limit=$3 own=$5
            shift 5
            wget -q -T "$limit" -O - "$@" "$url" 2>/dev/null </dev/null && printf '\n200\n' \
                || printf '\n000\n'
            rm -f -- "$own"
        )
    fi
}
